"""The CPU kernels: a tile of features through many layers.

A tile holds up to `stride` features neuron-major in a flat buffer: the activation of
feature f at neuron position p is ``tile[p * stride + f]``. `stride` is a multiple of `LANES`; lanes
beyond the number of features are zero on entry and ignored on exit. Buffers are float32, begin at a
multiple of 64 bytes and are long enough for the widest layer; what the plan's tables say is
taken for granted.
"""

import numpy as np
import numpy.typing as npt

from spdnn.engines.kernels.layer import WORD, Tile, evaluate_layer
from spdnn.engines.kernels.vectors import LANES, compress_lanes
from spdnn.jit import jit
from spdnn.plan.cpu import MAY_DROP, N_OUTPUTS, PlanArrays


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
    for place in range(n_neurons * stride):
        tile[place] = 0
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
        for f in range(first, stride):
            tile[p * stride + f] = 0


@jit
def keep_lanes(
    tile: Tile,
    n_neurons: int,
    stride: int,
    lanes: npt.NDArray[np.int32],
    target: Tile,
    target_stride: int,
) -> None:
    """Copy the named lanes, ascending, side by side into `target`; its other lanes become zero.

    `target` may be the tile itself: 16 lanes are read at a time, before they are written. It
    has 16 numbers more than what is meant to be written.
    """
    n_chunks = stride // LANES
    masks = np.empty(n_chunks, dtype=np.uint64)
    starts = np.empty(n_chunks, dtype=np.int64)
    n = 0
    for chunk in range(n_chunks):
        masks[chunk] = 0
        starts[chunk] = n
        while n < lanes.size and lanes[n] < (chunk + 1) * LANES:
            masks[chunk] |= np.uint64(1) << np.uint64(lanes[n] % LANES)
            n += 1
    for p in range(n_neurons):
        start = p * target_stride
        for chunk in range(n_chunks):
            place = p * stride + chunk * LANES
            compress_lanes(tile, place, masks[chunk], target, start + starts[chunk])
        for f in range(lanes.size, target_stride):
            target[start + f] = 0


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
    lanes = first_lanes(ids.size)
    bits = np.empty((stride + WORD - 1) // WORD, dtype=np.uint64)
    for layer in range(first_layer, end_layer):
        evaluate_layer(plan, layer, tile, spare, stride, bits)
        tile, spare = spare, tile
        is_swapped = not is_swapped
        live = live_lanes(bits, lanes)
        n_live[layer - first_layer] = live.size
        if not plan.layers[layer, MAY_DROP]:
            continue
        lanes = live
        if live.size == 0:
            for later in range(layer + 1, end_layer):
                n_live[later - first_layer] = 0
            break
        new_stride = (live.size + LANES - 1) // LANES * LANES
        if new_stride < stride and layer + 1 < end_layer:
            keep_lanes(tile, plan.layers[layer, N_OUTPUTS], stride, live, tile, new_stride)
            for f in range(live.size):
                ids[f] = ids[live[f]]
            stride = new_stride
            lanes = first_lanes(live.size)
    return is_swapped, stride, lanes


@jit
def first_lanes(n: int) -> npt.NDArray[np.int32]:
    """The lanes 0 to `n`, excluded."""
    lanes = np.empty(n, dtype=np.int32)
    for f in range(n):
        lanes[f] = f
    return lanes


@jit
def live_lanes(bits: npt.NDArray[np.uint64], lanes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Those of `lanes` whose bit is set."""
    live = np.empty(lanes.size, dtype=np.int32)
    n = 0
    for lane in lanes:
        if bits[lane // WORD] >> np.uint64(lane % WORD) & np.uint64(1):
            live[n] = lane
            n += 1
    return live[:n]
