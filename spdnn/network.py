"""Layers and networks: plain values that check themselves when they are made."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError

Activation = Literal["relu", "linear"]
BiasRule = Literal["nonzero", "always"]


@dataclass(frozen=True, eq=False, init=False)
class Layer:
    """One sparse layer, ``Y <- activation(Y W + bias)``.

    Parameters
    ----------
    weights : scipy.sparse.csr_array, shape (n_inputs, n_outputs), float32
        Other sparse types and dtypes are converted. Stored zeros count as edges.
    bias : float or array_like of float, shape (n_outputs,)
        Kept as float32.
    ymax : float or None
        Upper cap of the activations, rounded to float32; None for no cap. Only with ``relu``.
    activation : {"relu", "linear"}
    bias_rule : {"nonzero", "always"}
        "nonzero" is the challenge's rule: the bias is added only where ``Y W`` is not
        zero. "always" is what a trained network expects. They differ only where a
        positive bias, or a linear activation, meets a sum of zero.

    Raises
    ------
    DataError
        If a weight, the bias or the cap is not finite in float32, an edge is stored twice
        or leads nowhere, or the shapes do not fit.
    """

    weights: sp.csr_array
    bias: npt.NDArray[np.float32]
    ymax: float | None
    activation: Activation
    bias_rule: BiasRule

    def __init__(
        self,
        weights: Any,
        bias: npt.ArrayLike = 0.0,
        ymax: float | None = None,
        activation: Activation = "relu",
        bias_rule: BiasRule = "nonzero",
    ) -> None:
        weights = _as_csr(weights)
        if not weights.has_canonical_format:
            n_stored = weights.nnz
            weights = weights.copy()
            weights.sum_duplicates()
            if weights.nnz != n_stored:
                raise DataError(f"{n_stored - weights.nnz} edges of the layer are stored twice")
        if (
            weights.nnz
            and not 0 <= weights.indices.min() <= weights.indices.max() < weights.shape[1]
        ):
            raise DataError(f"an edge of the layer leads outside of its {weights.shape[1]} outputs")
        if not np.isfinite(weights.data).all():
            raise DataError("a weight of the layer is NaN or infinite")
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite: refused below
            bias = np.asarray(bias, dtype=np.float32)
            ymax = None if ymax is None else float(np.float32(ymax))
        if bias.ndim > 1 or (bias.ndim == 1 and bias.shape[0] != weights.shape[1]):
            raise DataError(
                f"bias of shape {bias.shape} does not fit a layer of {weights.shape[1]} outputs"
            )
        if not np.isfinite(bias).all():
            raise DataError("a bias of the layer is NaN or infinite")
        if activation not in ("relu", "linear"):
            raise DataError(f"unknown activation {activation!r}: relu or linear")
        if bias_rule not in ("nonzero", "always"):
            raise DataError(f"unknown bias rule {bias_rule!r}: nonzero or always")
        if ymax is not None:
            if activation == "linear":
                raise DataError("a linear layer has no cap: ymax must be None")
            if not (np.isfinite(ymax) and ymax > 0):
                raise DataError(f"ymax must be a positive number of float32's range, not {ymax}")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "bias", bias)
        object.__setattr__(self, "ymax", ymax)
        object.__setattr__(self, "activation", activation)
        object.__setattr__(self, "bias_rule", bias_rule)

    @property
    def n_inputs(self) -> int:
        """Input neurons."""
        return int(self.weights.shape[0])

    @property
    def n_outputs(self) -> int:
        """Output neurons."""
        return int(self.weights.shape[1])

    @property
    def n_edges(self) -> int:
        """Stored weights."""
        return int(self.weights.nnz)

    @cached_property
    def needs_nonzero_test(self) -> bool:
        """Whether the two bias rules can differ here and the challenge's one holds."""
        if self.bias_rule == "always" or self.bias.size == 0:
            return False
        return bool((self.bias != 0).any() if self.activation == "linear" else self.bias.max() > 0)

    @cached_property
    def maps_zero_to_zero(self) -> bool:
        """Whether a feature without activations stays without: it may be dropped before."""
        if self.bias_rule == "nonzero" or self.bias.size == 0:
            return True
        return bool((self.bias == 0).all() if self.activation == "linear" else self.bias.max() <= 0)


def _as_csr(weights: Any) -> sp.csr_array:
    """Weights of any kind as csr_array, float32; what float32 cannot hold becomes infinite."""
    try:
        with np.errstate(over="ignore"):
            csr = sp.csr_array(weights, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"the weights of a layer must be a matrix of numbers ({error})") from error
    if csr.ndim != 2:
        raise DataError(f"the weights of a layer must be a matrix, not of shape {csr.shape}")
    return csr


class LayerSequence(Sequence[Layer]):
    """Layers that are made or read one at a time, when they are asked for.

    A subclass gives `shapes` and `edges` (a number a layer) and `layer`; it may stand for
    far more layers than memory holds.
    """

    shapes: Sequence[tuple[int, int]]
    edges: Sequence[int]

    @abstractmethod
    def layer(self, index: int) -> Layer:
        """Make or read layer `index`, counted from 0 and in range."""

    def fingerprint(self) -> str:
        """A digest that no other layers have; a subclass that knows a cheaper one gives that."""
        return fingerprint_of(self)

    def __len__(self) -> int:
        return len(self.shapes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the layers themselves: what they are read from may not be there elsewhere."""
        return tuple, (list(self),)

    def __iter__(self) -> Iterator[Layer]:
        return (self.layer(index) for index in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _LayerRange(self, range(*index.indices(len(self))))
        return self.layer(range(len(self))[index])


def fingerprint_of(layers: Iterable[Layer]) -> str:
    """Digest of all that layers compute from, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    for layer in layers:
        facts = (layer.weights.shape, layer.ymax, layer.activation, layer.bias_rule)
        digest.update(repr(facts).encode())
        weights = layer.weights
        for array in (weights.indptr, weights.indices, weights.data, layer.bias):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class _LayerRange(LayerSequence):
    """Some of the layers of a sequence, still made or read one at a time."""

    def __init__(self, whole: LayerSequence, numbers: range) -> None:
        self._whole = whole
        self._numbers = numbers
        self.shapes = [whole.shapes[number] for number in numbers]
        self.edges = [whole.edges[number] for number in numbers]

    def fingerprint(self) -> str:
        return f"{self._whole.fingerprint()}{self._numbers}"

    def layer(self, index: int) -> Layer:
        return self._whole.layer(self._numbers[index])


class Network:
    """Layers that chain: the outputs of one are the inputs of the next.

    Parameters
    ----------
    layers : sequence of Layer
        A list or tuple, or a `LayerSequence` for layers that are not all held.
    name : str
        How messages and results call the network.

    Raises
    ------
    DataError
        If there is no layer or two neighbours do not fit.
    """

    def __init__(self, layers: Sequence[Layer], name: str = "network") -> None:
        self.name = name
        self.layers: Sequence[Layer] = (
            layers if isinstance(layers, LayerSequence) else tuple(layers)
        )
        if not len(self.layers):
            raise DataError(f"{name}: a network needs at least one layer")
        if isinstance(layers, LayerSequence):
            self.shapes = tuple(layers.shapes)
            self.layer_edges = tuple(layers.edges)
        else:
            self.shapes = tuple((layer.n_inputs, layer.n_outputs) for layer in self.layers)
            self.layer_edges = tuple(layer.n_edges for layer in self.layers)
        for index in range(1, len(self.shapes)):
            n_before, n_inputs = self.shapes[index - 1][1], self.shapes[index][0]
            if n_before != n_inputs:
                raise DataError(
                    f"{name}: layer {index + 1} takes {n_inputs} inputs, "
                    f"but layer {index} has {n_before} outputs"
                )

    def __repr__(self) -> str:
        return (
            f"Network({self.name!r}: {self.n_layers} layers, {self.n_inputs} inputs, "
            f"{self.n_outputs} outputs, {self.n_edges} edges)"
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest that no other network has: of all weights, biases, caps and rules."""
        if isinstance(self.layers, LayerSequence):
            return self.layers.fingerprint()
        return fingerprint_of(self.layers)

    @cached_property
    def n_edges(self) -> int:
        """Stored weights of all layers."""
        return sum(self.layer_edges)

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.shapes)

    @property
    def n_inputs(self) -> int:
        """Input neurons of the first layer."""
        return self.shapes[0][0]

    @property
    def n_outputs(self) -> int:
        """Output neurons of the last layer."""
        return self.shapes[-1][1]

    @property
    def max_width(self) -> int:
        """Largest number of neurons between, before or after layers."""
        return max(self.n_inputs, *(n_outputs for _, n_outputs in self.shapes))


def may_drop_after(keeps: Sequence[bool]) -> npt.NDArray[np.bool_]:
    """After which layers a feature may be dropped that every layer would keep as it is.

    Parameters
    ----------
    keeps : sequence of bool, length n_layers
        Whether each layer does: for features without activations `Layer.maps_zero_to_zero`.

    Returns
    -------
    ndarray, shape (n_layers,), bool
        True where every later layer does.
    """
    from_here: npt.NDArray[np.bool_] = np.logical_and.accumulate(keeps[::-1])[::-1]
    return np.append(from_here[1:], True)
