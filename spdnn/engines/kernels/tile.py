"""The CPU kernels: a tile of features through many layers.

A tile holds up to `stride` features neuron-major in a flat buffer: the activation of
feature f at neuron position p is ``tile[p * stride + f]``. `stride` is a multiple of `LANES`; lanes
beyond the number of features are zero on entry and ignored on exit. Buffers are float32 and long
enough for the widest layer; what the plan's tables say is taken for granted.
"""

import numpy as np
import numpy.typing as npt

from spdnn.jit import jit
from spdnn.plan.blocks import INDEX_START, IS_SHARED, N_INPUTS, N_ROWS, WEIGHT_START
from spdnn.plan.cpu import (
    BIAS_START,
    END_BLOCK,
    FIRST_BLOCK,
    IS_RELU,
    MAY_DROP,
    N_OUTPUTS,
    TESTS_NONZERO,
    PlanArrays,
)

LANES = 16
"""Features that are computed together at least; tiles are as wide as a multiple of it."""

Tile = npt.NDArray[np.float32]


@jit
def load_features(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.uint16],
    values: npt.NDArray[np.float32],
    n_neurons: int,
    tile: Tile,
    stride: int,
) -> None:
    """Write the features of `indptr` (one row more than features) into a tile, densely.

    `values` is empty where all are 1.
    """
    tile[: n_neurons * stride] = 0
    for f in range(indptr.size - 1):
        for k in range(indptr[f], indptr[f + 1]):
            tile[np.int64(indices[k]) * stride + f] = values[k] if values.size else 1.0


@jit
def load_columns(
    strip: npt.NDArray[np.float32], first: int, count: int, tile: Tile, stride: int, offset: int
) -> None:
    """Copy columns of a strip (neurons x features) into a tile, from lane `offset` on."""
    for p in range(strip.shape[0]):
        for f in range(count):
            tile[p * stride + offset + f] = strip[p, first + f]


@jit
def clear_lanes(tile: Tile, n_neurons: int, stride: int, first: int) -> None:
    """Zero the lanes from `first` on."""
    for p in range(n_neurons):
        tile[p * stride + first : (p + 1) * stride] = 0


@jit
def store_columns(
    tile: Tile, stride: int, lanes: npt.NDArray[np.int32], strip: npt.NDArray[np.float32]
) -> None:
    """Copy the named lanes of a tile into a strip, shape (neurons, lanes.size)."""
    for p in range(strip.shape[0]):
        for f in range(lanes.size):
            strip[p, f] = tile[p * stride + lanes[f]]


@jit
def run_layers(
    plan: PlanArrays,
    first_layer: int,
    end_layer: int,
    tile: Tile,
    spare: Tile,
    stride: int,
    ids: npt.NDArray[np.int64],
    n_live: npt.NDArray[np.int64],
) -> tuple[bool, int, npt.NDArray[np.int32]]:
    """Take a tile through layers `first_layer` to `end_layer` (excluded).

    Parameters
    ----------
    plan : PlanArrays
    tile, spare : ndarray
        The activations, and a buffer of the same size.
    stride : int
        Lanes a neuron.
    ids : ndarray, int64
        What the caller calls the features in the lanes; moved along with them.
    n_live : ndarray, shape (end_layer - first_layer,), int64
        Filled with the number of live features after each layer.

    Returns
    -------
    bool
        Whether the result is in `spare`, not in `tile`.
    int
        The result's lanes a neuron: fewer than on entry where dead features were dropped.
    ndarray, int32
        The lanes of the features to go on with; their ids stand at these places in `ids`.
    """
    is_swapped = False
    n_lanes = ids.size
    is_live = np.empty(stride, dtype=np.bool_)
    for layer in range(first_layer, end_layer):
        evaluate_layer(plan, layer, tile, spare, stride)
        tile, spare = spare, tile
        is_swapped = not is_swapped
        n_outputs = plan.layers[layer, N_OUTPUTS]
        n = mark_live(tile, n_outputs, stride, n_lanes, is_live)
        n_live[layer - first_layer] = n
        if not plan.layers[layer, MAY_DROP]:
            is_live[:n_lanes] = True
            continue
        if n == 0:
            n_live[layer - first_layer :] = 0
            return is_swapped, stride, np.empty(0, dtype=np.int32)
        new_stride = (n + LANES - 1) // LANES * LANES
        if new_stride < stride and layer + 1 < end_layer:
            keep_lanes(tile, n_outputs, stride, np.flatnonzero(is_live[:n_lanes]), new_stride, ids)
            stride = new_stride
            n_lanes = n
            is_live[:n] = True
    return is_swapped, stride, np.flatnonzero(is_live[:n_lanes]).astype(np.int32)


@jit
def evaluate_layer(plan: PlanArrays, layer: int, source: Tile, target: Tile, stride: int) -> None:
    """One layer of all lanes, by plain loops that the compiler makes into vectors.

    Every output adds its inputs in the plan's order, whatever the lane and the stride.
    """
    position = 0
    cap = plan.caps[layer]
    is_relu = plan.layers[layer, IS_RELU]
    tests_nonzero = plan.layers[layer, TESTS_NONZERO]
    bias_start = plan.layers[layer, BIAS_START]
    for block in range(plan.layers[layer, FIRST_BLOCK], plan.layers[layer, END_BLOCK]):
        n_rows = plan.blocks[block, N_ROWS]
        n_inputs = plan.blocks[block, N_INPUTS]
        index_step = 1 if plan.blocks[block, IS_SHARED] else n_rows
        for row in range(n_rows):
            weight = plan.blocks[block, WEIGHT_START] + row
            index = plan.blocks[block, INDEX_START] + (0 if index_step == 1 else row)
            sums = target[position * stride : (position + 1) * stride]
            sums[:] = 0
            for _ in range(n_inputs):
                w = plan.weights[weight]
                start = np.int64(plan.indices[index]) * stride
                inputs = source[start : start + stride]
                for f in range(stride):
                    sums[f] += w * inputs[f]
                weight += n_rows
                index += index_step
            bias = plan.bias[bias_start + position]
            for f in range(stride):
                value = sums[f] + bias
                if tests_nonzero and sums[f] == 0:
                    value = np.float32(0)
                if is_relu:
                    value = min(max(value, np.float32(0)), cap)
                sums[f] = value
            position += 1


@jit
def mark_live(
    tile: Tile, n_neurons: int, stride: int, n_lanes: int, is_live: npt.NDArray[np.bool_]
) -> int:
    """Tell which of the first `n_lanes` lanes have an activation that is not zero; count them."""
    is_live[:n_lanes] = False
    for p in range(n_neurons):
        for f in range(n_lanes):
            is_live[f] |= tile[p * stride + f] != 0
    n = 0
    for f in range(n_lanes):
        n += is_live[f]
    return n


@jit
def keep_lanes(
    tile: Tile,
    n_neurons: int,
    stride: int,
    lanes: npt.NDArray[np.int64],
    new_stride: int,
    ids: npt.NDArray[np.int64],
) -> None:
    """Move the named lanes together, in place; the lanes that remain over become zero."""
    for p in range(n_neurons):
        for f in range(lanes.size):
            tile[p * new_stride + f] = tile[p * stride + lanes[f]]
        tile[p * new_stride + lanes.size : (p + 1) * new_stride] = 0
    for f in range(lanes.size):
        ids[f] = ids[lanes[f]]
