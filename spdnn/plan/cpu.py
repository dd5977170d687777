"""The CPU engine's plan: all layers as blocks, in a few long arrays."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.features import index_dtype
from spdnn.memory import require_bytes
from spdnn.network import Network, may_drop_after
from spdnn.plan.blocks import INDEX_START, TYPICAL_COSTS, WEIGHT_START, BlockCosts, cut_layer

FIRST_BLOCK, END_BLOCK, N_OUTPUTS, BIAS_START, IS_RELU, TESTS_NONZERO, MAY_DROP = range(7)
"""Columns of the layer table."""

BYTES_PER_EDGE = 4 + 4
"""Weight and index: what a plan takes at most for an edge, its table left out."""


class PlanArrays(NamedTuple):
    """What the kernels read, one argument for all of it.

    Attributes
    ----------
    layers : ndarray, shape (n_layers, 7), int64
        First block and the end of them, outputs, where the bias begins, whether negative
        sums are cut off, whether the bias counts only for sums that are not zero, and whether
        features without activations may be dropped after the layer.
    caps : ndarray, shape (n_layers,), float32
        Largest activation; infinite for none.
    blocks : ndarray, shape (n_blocks, 5), int64
        See `spdnn.plan.blocks`; starts are those of the long arrays.
    indices : ndarray, uint16 or int32
    weights : ndarray, float32
    bias : ndarray, float32
        Of each output of each layer, in the order of the blocks; equal layers share theirs.
    """

    layers: npt.NDArray[np.int64]
    caps: npt.NDArray[np.float32]
    blocks: npt.NDArray[np.int64]
    indices: npt.NDArray[np.uint16] | npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class CpuPlan:
    """A network made ready for the CPU engine.

    Attributes
    ----------
    mode : str
        "edges".
    n_inputs, max_width : int
        Neurons before the first layer; most neurons anywhere.
    layer_edges : tuple of int
        Edges of each layer.
    arrays : PlanArrays
    output_order : ndarray, shape (n_outputs,), int32
        The output neuron of the last layer at each position.
    """

    mode: str
    n_inputs: int
    max_width: int
    layer_edges: tuple[int, ...]
    arrays: PlanArrays
    output_order: npt.NDArray[np.int32]

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layer_edges)


def plan_edges(network: Network, costs: BlockCosts = TYPICAL_COSTS) -> CpuPlan:
    """Plan a network for mode ``edges``: every edge is kept.

    Parameters
    ----------
    network : Network
    costs : BlockCosts
        What the engine's kernels take for a block.

    Raises
    ------
    DeviceError
        If the plan does not fit into memory.
    """
    require_bytes(
        network.n_edges * BYTES_PER_EDGE,
        f"the plan of {network.n_layers} layers",
        "take fewer --layers or a machine with more memory",
    )
    layers = np.zeros((network.n_layers, 7), dtype=np.int64)
    caps = np.full(network.n_layers, np.inf, dtype=np.float32)
    tables, indices, weights = [], [], []
    biases: list[npt.NDArray[np.float32]] = []
    maps_zero_to_zero = []
    position = np.arange(network.n_inputs, dtype=np.int32)
    n_blocks = n_indices = n_weights = n_biases = 0
    order = position
    dtype = index_dtype(network.max_width)
    for number, layer in enumerate(network.layers):
        cut = cut_layer(layer.weights, position, costs)
        order = cut.order
        position = np.empty_like(order)
        position[order] = np.arange(order.size, dtype=np.int32)
        cut.table[:, INDEX_START] += n_indices
        cut.table[:, WEIGHT_START] += n_weights
        bias = np.broadcast_to(layer.bias, layer.n_outputs)[order]
        if not biases or not np.array_equal(bias, biases[-1]):
            biases.append(bias)
            n_biases += bias.size
        tables.append(cut.table)
        indices.append(cut.indices.astype(dtype))
        weights.append(cut.weights)
        layers[number, FIRST_BLOCK] = n_blocks
        layers[number, N_OUTPUTS] = layer.n_outputs
        layers[number, BIAS_START] = n_biases - bias.size
        layers[number, IS_RELU] = layer.activation == "relu"
        layers[number, TESTS_NONZERO] = layer.needs_nonzero_test
        maps_zero_to_zero.append(layer.maps_zero_to_zero)
        caps[number] = math.inf if layer.ymax is None else layer.ymax
        n_blocks += len(cut.table)
        n_indices += cut.indices.size
        n_weights += cut.weights.size
        layers[number, END_BLOCK] = n_blocks
    layers[:, MAY_DROP] = may_drop_after(maps_zero_to_zero)
    arrays = PlanArrays(
        layers,
        caps,
        np.concatenate(tables),
        np.concatenate(indices),
        np.concatenate(weights),
        np.concatenate(biases),
    )
    return CpuPlan("edges", network.n_inputs, network.max_width, network.layer_edges, arrays, order)
