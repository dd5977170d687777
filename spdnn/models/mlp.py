"""A trained and pruned classifier with the face of scikit-learn's."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError
from spdnn.network import Activation, Layer, Network
from spdnn.run.session import Session

_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "identity": "linear"}
"""scikit-learn's names of those activations that there are here."""


class SparseMLP:
    """A classifier: a network whose last layer is linear, and the names of its classes.

    Parameters
    ----------
    network : Network
        One output for each class. Two classes may have one output, positive for the second.
    classes : array_like, optional
        Names of the classes; 0, 1, ... where not given.
    **options
        Those of `spdnn.Session`: engine, mode, threads, and so on.

    Attributes
    ----------
    network : Network
        The network that is run.
    classes_ : ndarray, shape (n_classes,)
        Names of the classes.

    Raises
    ------
    DataError
        If there are not as many classes as outputs.
    """

    def __init__(
        self, network: Network, classes: npt.ArrayLike | None = None, **options: Any
    ) -> None:
        n_classes = max(2, network.n_outputs)
        self.network = network
        self.classes_ = np.arange(n_classes) if classes is None else np.asarray(classes)
        self.options = options
        if self.classes_.shape != (n_classes,):
            raise DataError(
                f"a network of {network.n_outputs} outputs has {n_classes} classes, "
                f"not {self.classes_.size}"
            )

    @cached_property
    def session(self) -> Session:
        """The session that all calls share; it is opened by the first of them."""
        return Session(self.network, **self.options)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the session: a copy, or another process, opens its own."""
        return {name: value for name, value in vars(self).items() if name != "session"}

    @classmethod
    def from_sklearn(
        cls, mlp: Any, prune: float | Sequence[float] = 0.0, **options: Any
    ) -> "SparseMLP":
        """Take over a trained ``sklearn.neural_network.MLPClassifier``.

        Parameters
        ----------
        mlp : MLPClassifier
            Fitted, with activation "relu" or "identity". It is not changed.
        prune : float or sequence of float
            Which fraction of each layer's weights, those nearest to zero, to leave out; one for
            all layers or one a layer.
        **options
            Those of `spdnn.Session`: engine, mode, threads, and so on.

        Raises
        ------
        DataError
            If it is no such classifier, or a fraction is not one of 0 to 1.
        """
        coefs = getattr(mlp, "coefs_", None)
        output = getattr(mlp, "out_activation_", None)
        if coefs is None or output not in ("softmax", "logistic"):
            raise DataError(f"expected a fitted MLPClassifier, not {mlp!r}")
        if mlp.activation not in _ACTIVATIONS:
            raise DataError(
                f"activation {mlp.activation!r} is not one of {', '.join(_ACTIVATIONS)}"
            )
        if output == "logistic" and coefs[-1].shape[1] != 1:
            raise DataError("a classifier that gives a feature several classes is not supported")
        fractions = [prune] * len(coefs) if isinstance(prune, int | float) else list(prune)
        if len(fractions) != len(coefs):
            raise DataError(f"prune: {len(coefs)} fractions are needed, not {len(fractions)}")
        kinds: list[Activation] = [_ACTIVATIONS[mlp.activation]] * (len(coefs) - 1) + ["linear"]
        layers = [
            Layer(pruned(weights, fraction), bias, activation=kind, bias_rule="always")
            for weights, bias, fraction, kind in zip(
                coefs, mlp.intercepts_, fractions, kinds, strict=True
            )
        ]
        return cls(Network(layers, name="mlp"), mlp.classes_, **options)

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Scores of features, before softmax or the logistic function.

        Parameters
        ----------
        X : Features, scipy.sparse matrix or array_like, shape (n_features, n_inputs)
            The inputs.

        Returns
        -------
        ndarray, shape (n_features, n_outputs)
        """
        return self.session.scores(X)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Classes of features, shape (n_features,), as `classes_` names them."""
        return self.classes_[self.session.predict(X).classes]

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities, shape (n_features, n_classes): softmax, of one output the logistic."""
        from scipy import special  # takes a tenth of this package's import

        scores = self.decision_function(X).astype(np.float64)
        if scores.shape[1] > 1:
            return np.asarray(special.softmax(scores, axis=1))
        second = special.expit(scores[:, 0])
        return np.stack([1 - second, second], axis=1)

    def score(self, X: Any, y: npt.ArrayLike) -> float:
        """Accuracy: the share of features whose class is the one in `y`."""
        return float(np.mean(self.predict(X) == np.asarray(y)))


def pruned(weights: npt.ArrayLike, fraction: float) -> sp.csr_array:
    """Leave out the weights nearest to zero.

    Parameters
    ----------
    weights : array_like, shape (n_inputs, n_outputs)
        Weights of a layer, zeros included.
    fraction : float, 0 to 1
        Which fraction of all weights to leave out. The number is rounded down. The first of equal
        weights go first.

    Raises
    ------
    DataError
        If it is no such fraction.

    Examples
    --------
    >>> pruned([[0.5, -0.1], [0.2, -3.0]], 0.5).toarray()
    array([[ 0.5,  0. ],
           [ 0. , -3. ]])
    """
    if not 0 <= fraction <= 1:
        raise DataError(f"prune: a fraction of 0 to 1 is needed, not {fraction}")
    kept = np.array(weights, order="C")
    order = np.argsort(np.abs(kept), axis=None, kind="stable")
    kept.reshape(-1)[order[: math.floor(fraction * kept.size)]] = 0
    return sp.csr_array(kept)
