"""RadiX-Net: sparse networks with equally many paths between any input and output.

Source: R. Robinett and J. Kepner, "RadiX-Net: Structured Sparse Matrices for Deep Neural
Networks", IPDPSW 2019. The official networks are RadiX-Nets of radix 2 whose groups of layers are
permuted. The permutations of the published files were found by comparison. At 1024 neurons all 120
published layers equal those made here.
"""

import hashlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.network import Layer, LayerSequence, Network

SEED = 5489
"""Seed of the Mersenne Twister behind the published permutations (MATLAB's default)."""

KRONECKER_WIDTH = 16
"""Each column of an official layer of N neurons is there so many times: N / 16 columns differ."""

MAX_EDGES = 2**31 - 1
"""Most edges of a layer: its sparse matrix has 32-bit indices."""


@dataclass(frozen=True)
class Weights:
    """Distribution of the weights of a RadiX-Net.

    Parameters
    ----------
    kind : {"constant", "uniform", "normal"}
        Distribution of the weights.
    first : float
        The constant, the least value, or the mean.
    second : float
        The largest value of "uniform", or the standard deviation of "normal".

    Raises
    ------
    DataError
        If there is no such kind, or a number is not possible for it.
    """

    kind: Literal["constant", "uniform", "normal"]
    first: float
    second: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "uniform", "normal"):
            raise DataError(f"unknown weights {self.kind!r}: constant, uniform or normal")
        if not (math.isfinite(self.first) and math.isfinite(self.second)):
            raise DataError(f"{self.kind} weights need finite numbers")
        if self.kind == "uniform" and self.first > self.second:
            raise DataError(f"uniform weights: {self.first:g} is above {self.second:g}")
        if self.kind == "normal" and self.second < 0:
            raise DataError(f"normal weights: the standard deviation {self.second:g} is negative")

    def draw(self, generator: np.random.Generator, n_edges: int) -> npt.NDArray[np.float32]:
        """Draw the weights of a layer.

        Parameters
        ----------
        generator : numpy.random.Generator
            Source of random numbers.
        n_edges : int
            Number of weights.

        Returns
        -------
        ndarray, shape (n_edges,), float32
        """
        if self.kind == "uniform":
            return generator.uniform(self.first, self.second, n_edges).astype(np.float32)
        if self.kind == "normal":
            return generator.normal(self.first, self.second, n_edges).astype(np.float32)
        return np.full(n_edges, self.first, dtype=np.float32)


class RadixLayers(LayerSequence):
    """The layers of one RadiX-Net, each made when it is asked for.

    Parameters
    ----------
    radices, widths, weights, bias, ymax, seed, shuffle
        As `radix_network` takes them, and already checked.
    n_layers : int, optional
        Number of layers, from the first; all where not given.
    """

    def __init__(
        self,
        radices: Sequence[Sequence[int]],
        widths: int | Sequence[int],
        weights: Weights,
        bias: float,
        ymax: float | None,
        seed: int,
        shuffle: bool,
        n_layers: int | None = None,
    ) -> None:
        self.units = math.prod(radices[0])
        flat = [radix for system in radices for radix in system]
        flat = flat[:n_layers]
        if isinstance(widths, int):
            widths = [widths] * (len(flat) + 1)
        self.radices = flat
        self.steps = [math.prod(s[:k]) for s in radices for k in range(len(s))][: len(flat)]
        self.groups = [group for group, s in enumerate(radices) for _ in s][: len(flat)]
        sizes = [width * self.units for width in widths]
        self.shapes = [(sizes[i], sizes[i + 1]) for i in range(len(flat))]
        self.edges = [sizes[i] * widths[i + 1] * radix for i, radix in enumerate(flat)]
        self.bias = np.float32(bias)
        self.ymax = ymax
        self._rule = weights
        self._seed = seed
        self._shuffle = shuffle
        self._lock = threading.Lock()
        # Adjacent layers mostly have equal sizes and constant weights, and then share these arrays.
        self._indptr = np.empty(0, dtype=np.int32)
        self._constant = np.empty(0, dtype=np.float32)

    def fingerprint(self) -> str:
        """A digest of the numbers that the layers are made from."""
        structure = (self.units, self.radices, self.steps, self.groups, self.shapes)
        values = (self._rule, float(self.bias), self.ymax, self._seed, self._shuffle)
        return hashlib.blake2b(repr((structure, values)).encode(), digest_size=16).hexdigest()

    @property
    def _parts(self) -> dict[tuple[int, int], npt.NDArray[np.int32]]:
        """The permutations, made when the first layer is: a kept plan needs no layer."""
        with self._lock:
            return self._made_parts

    @cached_property
    def _made_parts(self) -> dict[tuple[int, int], npt.NDArray[np.int32]]:
        return self._permutations() if self._shuffle else {}

    def _permutations(self) -> dict[tuple[int, int], npt.NDArray[np.int32]]:
        """Base input that each input stands for, by group and number of inputs.

        Group 0 is not permuted. The layers of a group have one permutation for each number of
        inputs. All come from one stream of random numbers, in the order of the layers.
        """
        stream = np.random.RandomState(self._seed)
        parts: dict[tuple[int, int], npt.NDArray[np.int32]] = {}
        for group, (n_inputs, _) in zip(self.groups, self.shapes, strict=True):
            if group and (group, n_inputs) not in parts:
                order = np.argsort(stream.random_sample(n_inputs), kind="stable")
                part = np.empty(n_inputs, dtype=np.int32)
                part[order] = np.arange(n_inputs)
                parts[group, n_inputs] = part
        return parts

    def weights(self, index: int) -> sp.csr_array:
        """Make the weights of a layer.

        Parameters
        ----------
        index : int
            Number of the layer, counted from 0.

        Returns
        -------
        csr_array, shape (n_inputs, n_outputs), float32
            In canonical format.
        """
        n_inputs, n_outputs = self.shapes[index]
        radix, step = self.radices[index], self.steps[index]
        part = self._parts.get((self.groups[index], n_inputs))
        # Output j takes the base inputs j + n * step (mod units). So the outputs of base input u
        # are u - n * step, and these are repeated at every multiple of the units.
        turns = np.arange(0, radix * step, step, dtype=np.int32)
        outputs = (np.arange(self.units, dtype=np.int32)[:, None] - turns) % self.units
        outputs.sort(axis=1)
        repeats = np.arange(0, n_outputs, self.units, dtype=np.int32)
        rows = (repeats[None, :, None] + outputs[:, None, :]).reshape(self.units, -1)
        if part is not None or n_inputs > self.units:
            base_input = np.arange(n_inputs, dtype=np.int32) if part is None else part
            rows = rows.take(base_input % self.units, axis=0)
        indices = rows.reshape(-1)
        matrix = sp.csr_array(
            (self._data(index), indices, self._row_pointers(index)), shape=(n_inputs, n_outputs)
        )
        matrix.has_canonical_format = True
        return matrix

    def _row_pointers(self, index: int) -> npt.NDArray[np.int32]:
        n_inputs, n_edges = self.shapes[index][0], self.edges[index]
        indptr = self._indptr  # another thread may replace it
        if indptr.size != n_inputs + 1 or indptr[-1] != n_edges:
            indptr = np.linspace(0, n_edges, n_inputs + 1).astype(np.int32)
            indptr.setflags(write=False)
            self._indptr = indptr
        return indptr

    def _data(self, index: int) -> npt.NDArray[np.float32]:
        n_edges = self.edges[index]
        if self._rule.kind != "constant":
            # Each layer has its own stream, so that it does not depend on the layers made before.
            return self._rule.draw(np.random.default_rng([self._seed, index]), n_edges)
        constant = self._constant  # another thread may replace it
        if constant.size != n_edges:
            constant = np.full(n_edges, self._rule.first, dtype=np.float32)
            constant.setflags(write=False)
            self._constant = constant
        return constant

    def layer(self, index: int) -> Layer:
        """Make layer `index`, counted from 0."""
        return Layer(self.weights(index), self.bias, self.ymax)


def radix_network(
    radices: Sequence[Sequence[int]],
    widths: int | Sequence[int] = 1,
    weights: Weights | None = None,
    *,
    bias: float = 0.0,
    ymax: float | None = None,
    seed: int = SEED,
    shuffle: bool = False,
) -> Network:
    """Make a RadiX-Net. Each layer is made when it is used.

    Parameters
    ----------
    radices : sequence of sequences of int
        Mixed-radix numeral systems, with a layer for each radix. The products of all systems are
        the same number U; that of the last one may also divide U. In the layer of a radix r whose
        place value (the product of the radices before it in its system) is v, base output
        j takes base inputs j, j + v, ..., j + (r - 1) v, modulo U.
    widths : int or sequence of int
        Kronecker widths. A layer of neurons of width w has w * U neurons, and each base edge
        becomes a full block of edges. Either one width for all, or one for each of the
        n_layers + 1 layers of neurons, beginning with the inputs.
    weights : Weights, optional
        Distribution of the weights; all are 1 where not given.
    bias : float
        Bias of every neuron.
    ymax : float or None
        Cap of the activations, None for no cap.
    seed : int
        Seed of the random weights and permutations, from 0 to 2**32 - 1.
    shuffle : bool
        Whether the inputs of each system but the first are permuted, as in the official
        networks. Otherwise neurons have the order of the paper.

    Returns
    -------
    Network
        Named "radixnet".

    Raises
    ------
    DataError
        If the systems do not fit together, there are too few or too many widths, or a layer
        has more edges than 32 bits can number.

    Notes
    -----
    Edges of Robinett and Kepner's networks lead from j to j + n v. Here they lead from j + n v to
    j, as in the published files. The networks only differ in the numbers of the neurons.

    Examples
    --------
    >>> network = radix_network([[2, 3], [3, 2]], widths=[1, 2, 2, 2, 1])
    >>> network.shapes
    ((6, 12), (12, 12), (12, 12), (12, 6))
    >>> network.layer_edges
    (24, 72, 72, 24)
    """
    units = _common_product(radices)
    flat = [radix for system in radices for radix in system]
    per_layer = _width_of_each(widths, len(flat))
    if not 0 <= seed < 2**32:
        raise DataError(f"a seed is a number from 0 to {2**32 - 1}, not {seed}")
    for number, radix in enumerate(flat, start=1):
        # Python's integers do not overflow, and no array has been made yet.
        n_edges = per_layer[number - 1] * units * per_layer[number] * radix
        if n_edges > MAX_EDGES:
            raise DataError(f"layer {number} would have {n_edges} edges, more than {MAX_EDGES}")
    rule = weights or Weights("constant", 1.0)
    return Network(RadixLayers(radices, per_layer, rule, bias, ymax, seed, shuffle), "radixnet")


def _common_product(radices: Sequence[Sequence[int]]) -> int:
    """Product of the radices of every system; DataError if the systems do not fit together."""
    if not radices or not all(radices):
        raise DataError("a RadiX-Net needs at least one system of at least one radix")
    smallest = min(map(min, radices))
    if smallest < 2:
        raise DataError(f"a radix must be at least 2, not {smallest}")
    products = [math.prod(system) for system in radices]
    units = products[0]
    for number, product in enumerate(products, start=1):
        is_last = number == len(products)
        if product != units and not (is_last and units % product == 0):
            raise DataError(
                f"system {number} has the product {product}, the first one {units}: all must be "
                "equal (that of the last may divide the first)"
            )
    return units


def _width_of_each(widths: int | Sequence[int], n_layers: int) -> list[int]:
    """Kronecker width of each layer of neurons; DataError if they are too few, many or small."""
    per_layer = [widths] * (n_layers + 1) if isinstance(widths, int) else list(widths)
    if len(per_layer) != n_layers + 1:
        raise DataError(
            f"{n_layers} layers need {n_layers + 1} widths (or one for all), not {len(per_layer)}"
        )
    if min(per_layer) < 1:
        raise DataError(f"a Kronecker width must be at least 1, not {min(per_layer)}")
    return per_layer


def layers_per_group(neurons: int) -> int:
    """Number of layers of a group (a numeral system) of an official network: log2(N / 16)."""
    return (neurons // KRONECKER_WIDTH).bit_length() - 1


def official_layers(
    neurons: int, n_layers: int, bias: float, ymax: float | None = challenge.YMAX
) -> RadixLayers:
    """Make the layers of an official network, or of one of its kind (see `official_network`).

    Layer l, counted from 0, belongs to group l // K, where K = log2(N / 16). Let k = l mod K and
    U = N / 16. In base layer k, output j takes input i if i mod U is j mod U or (j + 2**k) mod U.
    In a group g > 0, input i stands for base input q_g[i], where q_g is a permutation.

    Parameters
    ----------
    neurons : int
        Neurons of each layer, a power of two from 64.
    n_layers : int
        Number of layers.
    bias : float
        Bias of every neuron.
    ymax : float or None
        Cap of the activations, None for no cap.
    """
    group = layers_per_group(neurons)
    radices = [[2] * group] * -(-n_layers // group)
    rule = Weights("constant", challenge.WEIGHT)
    return RadixLayers(
        radices, KRONECKER_WIDTH, rule, bias, ymax, SEED, shuffle=True, n_layers=n_layers
    )


def official_network(
    neurons: int,
    layers: int,
    bias: float | None = None,
    ymax: float | None = challenge.YMAX,
) -> Network:
    """Make an official network. Each layer is made when it is used.

    Parameters
    ----------
    neurons : int
        Neurons of each layer: 1024, 4096, 16384 or 65536. Any other power of two from 64 makes a
        network of the same kind, which is not an official one.
    layers : int
        Number of layers. The official depths are 120, 480 and 1920. Any other network is the
        beginning of a deeper one, and may end within a group of layers.
    bias : float, optional
        Bias of every neuron; the official one of that size where not given.
    ymax : float or None
        Cap of the activations, None for no cap.

    Returns
    -------
    Network
        Named "recipe".

    Raises
    ------
    DataError
        If there is no such network.
    """
    if neurons < 64 or neurons & (neurons - 1):
        raise DataError(
            f"the recipe has no network of {neurons} neurons: powers of two from 64; "
            f"the official ones have {', '.join(map(str, challenge.SIZES))}"
        )
    if layers < 1:
        raise DataError(f"a network needs at least one layer, not {layers}")
    if bias is None:
        bias = challenge.official_bias(neurons)
    return Network(official_layers(neurons, layers, bias, ymax), name="recipe")


def equals_recipe(network: Network) -> bool:
    """Whether every weight equals that of the official network of the same size and depth."""
    neurons = network.n_inputs
    if neurons not in challenge.SIZES or any(shape != (neurons,) * 2 for shape in network.shapes):
        return False
    official = official_layers(neurons, network.n_layers, challenge.SIZES[neurons].bias)
    made_layers = map(official.weights, range(len(official)))
    return all(
        np.array_equal(layer.weights.indptr, made.indptr)
        and np.array_equal(layer.weights.indices, made.indices)
        and np.array_equal(layer.weights.data, made.data)
        for layer, made in zip(network.layers, made_layers, strict=True)
    )
