"""The official RadiX-Net layers, made instead of downloaded.

Source: R. Robinett and J. Kepner, "RadiX-Net: Structured Sparse Matrices for Deep Neural
Networks", IPDPSW 2019, for the structure. The permutations of the published files
were found by comparison: at 1024 neurons all 120 published layers equal these.
"""

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.network import Layer, LayerSequence, Network

SEED = 5489
"""Seed of the Mersenne Twister behind the published permutations (MATLAB's default)."""

KRONECKER_WIDTH = 16
"""Neurons of a layer that repeat each other: N / 16 columns differ."""


class OfficialLayers(LayerSequence):
    """The layers of one official network, each made when it is asked for.

    Layer l (0-based) belongs to group l // K with K = log2(N / 16), and k = l mod K. In the
    base layer k, output j takes input i where i mod U is j mod U or (j + 2**k) mod U,
    U = N / 16. In a group g > 0, input i plays the part of base input q_g[i].

    Parameters
    ----------
    neurons : int
        1024, 4096, 16384 or 65536; other powers of two from 64 make networks of the same kind.
    n_layers : int
    bias : float
    ymax : float or None
    """

    def __init__(self, neurons: int, n_layers: int, bias: float, ymax: float | None) -> None:
        self.neurons = neurons
        self.bias = np.float32(bias)
        self.ymax = ymax
        self.units = neurons // KRONECKER_WIDTH
        self.layers_per_group = self.units.bit_length() - 1
        self.shapes = ((neurons, neurons),) * n_layers
        self.edges = (challenge.edges(neurons, 1),) * n_layers
        n_groups = -(-n_layers // self.layers_per_group)
        self._parts = _group_permutations(neurons, n_groups)
        degree = challenge.EDGES_PER_NEURON
        # Every layer has the same row pointers and the same weights: they are held once.
        self._indptr = np.arange(0, degree * neurons + 1, degree, dtype=np.int32)
        self._data = np.full(degree * neurons, challenge.WEIGHT, dtype=np.float32)
        for shared in (self._indptr, self._data):
            shared.setflags(write=False)

    def weights(self, index: int) -> sp.csr_array:
        """Weights of layer `index` (0-based): csr_array, shape (N, N), float32, canonical."""
        group, k = divmod(index, self.layers_per_group)
        base_input = (self._parts[group] if group else np.arange(self.neurons)) % self.units
        # Output j takes base input u if u == j or u == j + 2**k (mod U): seen from the
        # input, its outputs are u and u - 2**k (mod U), each repeated at every multiple of U.
        other = (base_input - (1 << k)) % self.units
        pair = np.sort(np.stack([base_input, other], axis=1), axis=1)
        repeats = np.arange(0, self.neurons, self.units)
        indices = (repeats[None, :, None] + pair[:, None, :]).astype(np.int32).reshape(-1)
        matrix = sp.csr_array(
            (self._data, indices, self._indptr), shape=(self.neurons, self.neurons)
        )
        matrix.has_canonical_format = True
        return matrix

    def layer(self, index: int) -> Layer:
        """Make layer `index`, counted from 0."""
        return Layer(self.weights(index), self.bias, self.ymax)


def _group_permutations(neurons: int, n_groups: int) -> npt.NDArray[np.int32]:
    """Which base input each input plays, shape (n_groups, neurons); row 0 is not permuted."""
    stream = np.random.RandomState(SEED)
    parts = np.empty((n_groups, neurons), dtype=np.int32)
    parts[0] = np.arange(neurons)
    for group in range(1, n_groups):
        order = np.argsort(stream.random_sample(neurons), kind="stable")
        parts[group, order] = np.arange(neurons)
    return parts


def official_network(
    neurons: int,
    layers: int,
    bias: float | None = None,
    ymax: float | None = challenge.YMAX,
) -> Network:
    """Make an official network; its layers come into being one at a time.

    Parameters
    ----------
    neurons : int
        1024, 4096, 16384 or 65536; any other power of two from 64 makes a network of
        the same kind, which is not an official one.
    layers : int
        How many layers; the official depths are 120, 480 and 1920.
    bias : float, optional
        The official bias of that size where not given.
    ymax : float or None
        Cap of the activations.

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
        if neurons not in challenge.SIZES:
            raise DataError(f"{neurons} neurons have no official bias: give one")
        bias = challenge.SIZES[neurons].bias
    return Network(OfficialLayers(neurons, layers, bias, ymax), name="recipe")


def equals_recipe(network: Network) -> bool:
    """Whether every weight of a network is that of the official one of its size and depth."""
    neurons = network.n_inputs
    if neurons not in challenge.SIZES or any(shape != (neurons,) * 2 for shape in network.shapes):
        return False
    official = OfficialLayers(neurons, network.n_layers, challenge.SIZES[neurons].bias, None)
    made_layers = map(official.weights, range(len(official)))
    return all(
        np.array_equal(layer.weights.indptr, made.indptr)
        and np.array_equal(layer.weights.indices, made.indices)
        and np.array_equal(layer.weights.data, made.data)
        for layer, made in zip(network.layers, made_layers, strict=True)
    )
