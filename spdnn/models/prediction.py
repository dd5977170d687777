"""`predict`: which output of a classifier is the largest, feature by feature."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.machine.memory import require_bytes
from spdnn.network import Network
from spdnn.run.inference import infer
from spdnn.run.result import Result


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a classifier says of each feature.

    Attributes
    ----------
    classes : ndarray, shape (n_features,), int64
        The output with the largest score, counted from 0; of equal ones the first. A network of
        one output has the classes 0 and 1: 1 where its score is positive.
    scores : ndarray, shape (n_features, n_outputs)
        The last layer's activations; float32, from the reference float64.
    result : Result
        Of the inference. Its categories are the features with a score that is not zero.
    """

    classes: npt.NDArray[np.int64]
    scores: npt.NDArray[Any]
    result: Result


def predict(network: Network, features: Features, **options: Any) -> Prediction:
    """Run features through a classifier and take each one's largest output.

    A feature that dies on the way has scores of zero, as it would have without being dropped,
    and the class that they give.

    Parameters
    ----------
    network : Network
    features : Features
    **options
        Of `spdnn.infer`: engine, mode, threads, and so on; all but activations.

    Raises
    ------
    SpdnnError
        As `spdnn.infer`, and if the network has no outputs, or the scores do not fit into memory.

    Examples
    --------
    >>> from spdnn import Features, Layer, Network, predict
    >>> network = Network([Layer([[1, 0], [0, 2]], bias=[0, -1], activation="linear")])
    >>> predict(network, Features.from_matrix([[1, 0], [1, 1.5]])).classes
    array([0, 1])
    """
    n_outputs = network.n_outputs
    if n_outputs == 0:
        raise DataError("a network without outputs has no classes")
    # Activations of the live features, and then the scores of all.
    n_bytes = 2 * features.n_features * n_outputs * np.dtype(np.float32).itemsize
    require_bytes(n_bytes, f"scores of {features.n_features} features", "take fewer --features")
    result = infer(network, features, activations=True, **options)
    assert result.activations is not None
    # Features are only dropped where all later layers map zeros to zeros: see `may_drop_after`.
    scores = np.zeros((features.n_features, n_outputs), dtype=result.activations.dtype)
    scores[result.live] = result.activations
    classes = (scores[:, 0] > 0).astype(np.int64) if n_outputs == 1 else scores.argmax(axis=1)
    return Prediction(classes, scores, result)
