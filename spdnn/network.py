"""Layers and networks: values that check themselves when they are made."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError
from spdnn.machine.jit import jit, read_only

Activation = Literal["relu", "linear"]
BiasRule = Literal["nonzero", "always"]

_EXPONENT = 0x7F800000
"""The exponent's bits of a float32 number; all are set where it is not finite."""


@dataclass(frozen=True, eq=False, init=False)
class Layer:
    """One sparse layer, ``Y <- activation(Y W + bias)``.

    Parameters
    ----------
    weights : scipy.sparse.csr_array, shape (n_inputs, n_outputs), float32
        The weights W. Arrays, other sparse types and other dtypes are converted. Stored zeros
        count as edges.
    bias : float or array_like of float, shape (n_outputs,)
        Bias of all neurons, or of each. It is kept as float32.
    ymax : float or None
        Upper cap of the activations, rounded to float32; None for no cap. Only a ``relu`` layer
        has one.
    activation : {"relu", "linear"}
        ``relu`` makes negative sums zero. ``linear`` leaves all sums as they are.
    bias_rule : {"nonzero", "always"}
        "nonzero" is the challenge's rule: the bias is added only where ``Y W`` is not
        zero. "always" is what a trained network expects. They differ only where a
        positive bias, or a linear activation, meets a sum of zero.

    Raises
    ------
    DataError
        If a weight, the bias or the cap is not finite in float32, an edge is stored twice
        or is outside of the shape, or the shapes do not fit.
    """

    weights: sp.csr_array
    bias: npt.NDArray[np.float32]
    ymax: float | None
    activation: Activation
    bias_rule: BiasRule

    def __init__(
        self,
        weights: npt.ArrayLike | sp.sparray | sp.spmatrix,
        bias: npt.ArrayLike = 0.0,
        ymax: float | None = None,
        activation: Activation = "relu",
        bias_rule: BiasRule = "nonzero",
    ) -> None:
        matrix = _as_csr(weights)
        if activation not in ("relu", "linear"):
            raise DataError(f"unknown activation {activation!r}: relu or linear")
        if bias_rule not in ("nonzero", "always"):
            raise DataError(f"unknown bias rule {bias_rule!r}: nonzero or always")
        object.__setattr__(self, "weights", matrix)
        object.__setattr__(self, "bias", _as_bias(bias, matrix.shape[1]))
        object.__setattr__(self, "ymax", _as_cap(ymax, activation))
        object.__setattr__(self, "activation", activation)
        object.__setattr__(self, "bias_rule", bias_rule)

    @property
    def n_inputs(self) -> int:
        """Number of input neurons."""
        return int(self.weights.shape[0])

    @property
    def n_outputs(self) -> int:
        """Number of output neurons."""
        return int(self.weights.shape[1])

    @property
    def n_edges(self) -> int:
        """Number of stored weights."""
        return int(self.weights.nnz)

    @cached_property
    def needs_nonzero_test(self) -> bool:
        """Whether the layer has the rule "nonzero", and "always" could give another result."""
        if self.bias_rule == "always" or self.bias.size == 0:
            return False
        return bool((self.bias != 0).any() if self.activation == "linear" else self.bias.max() > 0)

    @cached_property
    def maps_zero_to_zero(self) -> bool:
        """Whether a feature without activations has none after the layer, either."""
        if self.bias_rule == "nonzero" or self.bias.size == 0:
            return True
        return bool((self.bias == 0).all() if self.activation == "linear" else self.bias.max() <= 0)


def _as_csr(weights: npt.ArrayLike | sp.sparray | sp.spmatrix) -> sp.csr_array:
    """Make a csr_array of float32, in canonical format, of the weights of a layer."""
    try:
        with np.errstate(over="ignore"):  # too large numbers become infinite and are refused
            csr = sp.csr_array(weights, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"the weights of a layer must be a matrix of numbers ({error})") from error
    if csr.ndim != 2:
        raise DataError(f"the weights of a layer must be a matrix, not of shape {csr.shape}")
    return csr if _is_clean(csr) else _cleaned(csr)


def _is_clean(csr: sp.csr_array) -> bool:
    """Whether the edges are in order, no edge is there twice or outside, and all are finite."""
    if csr.indices.dtype != np.int32:
        return False
    indptr = csr.indptr.astype(np.int64, copy=False)
    bits = csr.data.view(np.uint32)
    return _are_clean(read_only(indptr), read_only(csr.indices), read_only(bits), csr.shape[1])


@jit
def _are_clean(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    bits: npt.NDArray[np.uint32],
    n_outputs: int,
) -> bool:
    """See `_is_clean`; loops over edges are vector code."""
    n_edges = indices.size
    if indptr[-1] != n_edges or bits.size != n_edges:
        return False
    if n_edges == 0:
        return True
    # Seen as uint32, a negative number is too large as well.
    largest = np.uint32(indices[0])
    largest_exponent = np.uint32(bits[0] & np.uint32(_EXPONENT))
    # Where numbers do not ascend, another row must begin.
    n_falls = np.int32(0)
    for k in range(np.uint64(1), np.uint64(n_edges)):
        index = indices[k]
        largest = max(largest, np.uint32(index))
        largest_exponent = max(largest_exponent, np.uint32(bits[k] & np.uint32(_EXPONENT)))
        n_falls = np.int32(n_falls + np.int32(index <= indices[k - np.uint64(1)]))
    n_wrong = 0
    for row in range(indptr.size - 1):
        start, end = indptr[row], indptr[row + 1]
        n_wrong += start > end or end > n_edges
        if 0 < start < end <= n_edges:
            n_falls -= indices[start] <= indices[start - 1]
    is_in_order = n_wrong == 0 and n_falls == 0
    return bool(is_in_order and largest < n_outputs and largest_exponent < _EXPONENT)


def _cleaned(csr: sp.csr_array) -> sp.csr_array:
    """Put the edges in order; DataError for what is wrong with them."""
    if not csr.has_canonical_format:
        n_stored = csr.nnz
        csr = csr.copy()
        csr.sum_duplicates()
        if csr.nnz != n_stored:
            raise DataError(f"{n_stored - csr.nnz} edges of the layer are stored twice")
    n_outputs = csr.shape[1]
    if csr.nnz and not 0 <= csr.indices.min() <= csr.indices.max() < n_outputs:
        raise DataError(f"an edge of the layer leads outside of its {n_outputs} outputs")
    if not np.isfinite(csr.data).all():
        raise DataError("a weight of the layer is NaN or infinite")
    return csr


def _as_bias(bias: npt.ArrayLike, n_outputs: int) -> npt.NDArray[np.float32]:
    """Make an array of float32, shape () or (n_outputs,), of the bias of a layer."""
    with np.errstate(over="ignore"):  # too large numbers become infinite and are refused
        array = np.asarray(bias, dtype=np.float32)
    if array.ndim > 1 or (array.ndim == 1 and array.shape[0] != n_outputs):
        raise DataError(f"bias of shape {array.shape} does not fit a layer of {n_outputs} outputs")
    if not np.isfinite(array).all():
        raise DataError("a bias of the layer is NaN or infinite")
    return array


def _as_cap(ymax: float | None, activation: Activation) -> float | None:
    """Round the cap of a layer to float32."""
    if ymax is None:
        return None
    if activation == "linear":
        raise DataError("a linear layer has no cap: ymax must be None")
    with np.errstate(over="ignore"):  # too large numbers become infinite and are refused
        rounded = float(np.float32(ymax))
    if not (np.isfinite(rounded) and rounded > 0):
        raise DataError(f"ymax must be a positive number of float32's range, not {rounded}")
    return rounded


class LayerSequence(Sequence[Layer]):
    """Layers that are made or read one at a time, when they are asked for.

    A subclass defines `shapes`, `edges` and `layer`. It may have far more layers than fit into
    memory.

    Attributes
    ----------
    shapes : sequence of (int, int)
        Inputs and outputs of each layer.
    edges : sequence of int
        Stored weights of each layer.
    """

    shapes: Sequence[tuple[int, int]]
    edges: Sequence[int]

    @abstractmethod
    def layer(self, index: int) -> Layer:
        """Make or read a layer; `index` counts from 0 and is in range.

        Planning calls it from several threads at once.
        """

    def fingerprint(self) -> str:
        """A digest that differs from that of other layers; subclasses may know a cheaper one."""
        return fingerprint_of(self)

    def __len__(self) -> int:
        return len(self.shapes)

    def __reduce__(self) -> tuple[type[tuple[Layer, ...]], tuple[list[Layer]]]:
        """Pickle the layers themselves: another machine may not have the file behind them."""
        return tuple, (list(self),)

    def __iter__(self) -> Iterator[Layer]:
        return (self.layer(index) for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Layer: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Layer]: ...

    def __getitem__(self, index: int | slice) -> Layer | Sequence[Layer]:
        if isinstance(index, slice):
            return _LayerRange(self, range(*index.indices(len(self))))
        return self.layer(range(len(self))[index])


def fingerprint_of(layers: Iterable[Layer]) -> str:
    """Digest of the weights, biases, caps and rules of layers, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    for layer in layers:
        facts = (layer.weights.shape, layer.ymax, layer.activation, layer.bias_rule)
        digest.update(repr(facts).encode())
        weights = layer.weights
        for array in (weights.indptr, weights.indices, weights.data, layer.bias):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class _LayerRange(LayerSequence):
    """Some layers of a sequence, which are still made or read one at a time."""

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
        A list or tuple, or a `LayerSequence` for layers that are made when they are used.
    name : str
        Name of the network in messages and results.

    Attributes
    ----------
    layers : sequence of Layer
        The layers.
    name : str
        Name of the network in messages and results.
    shapes : tuple of (int, int)
        Inputs and outputs of each layer.
    layer_edges : tuple of int
        Stored weights of each layer.

    Raises
    ------
    DataError
        If there is no layer, or a layer does not take the outputs of the one before.
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
        """Digest of all weights, biases, caps and rules, which differs from other networks'."""
        if isinstance(self.layers, LayerSequence):
            return self.layers.fingerprint()
        return fingerprint_of(self.layers)

    @cached_property
    def n_edges(self) -> int:
        """Number of stored weights of all layers."""
        return sum(self.layer_edges)

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.shapes)

    @property
    def n_inputs(self) -> int:
        """Number of input neurons of the first layer."""
        return self.shapes[0][0]

    @property
    def n_outputs(self) -> int:
        """Number of output neurons of the last layer."""
        return self.shapes[-1][1]

    @property
    def max_width(self) -> int:
        """Largest number of neurons before, between or after the layers."""
        return max(self.n_inputs, *(n_outputs for _, n_outputs in self.shapes))


def may_drop_after(keeps: Sequence[bool]) -> npt.NDArray[np.bool_]:
    """Find the layers after which a feature may be dropped, since later layers do not change it.

    Parameters
    ----------
    keeps : sequence of bool, length n_layers
        Whether each layer leaves such a feature as it is. For features without activations this is
        `Layer.maps_zero_to_zero`.

    Returns
    -------
    ndarray, shape (n_layers,), bool
        True for a layer if all later layers leave the feature as it is.
    """
    from_here: npt.NDArray[np.bool_] = np.logical_and.accumulate(keeps[::-1])[::-1]
    return np.append(from_here[1:], True)
