"""The kernels that bring inputs into a tile: from index form, or from masks of 16 features.

See `spdnn.engines.cpu.kernels.tile` for what a tile is. In mask form, bit i of ``masks[b, p]`` says
whether feature ``16 * b + i`` has input p: a vector's worth of features in two bytes, from which
inputs that are only needed as a sum are added up 512 bits at a time.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.step import Tile
from spdnn.engines.cpu.kernels.vectors import LANES, MASKS, count_planes, spread_planes
from spdnn.machine.jit import jit

DIGITS = 5
"""Binary digits in which masks are counted."""

MOST_COUNTED = (1 << DIGITS) - 1
"""Inputs that fit into one count."""

Masks = npt.NDArray[np.uint16]


@jit
def pack_features(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    first_block: int,
    end_block: int,
    masks: Masks,
) -> None:
    """Write the mask form of features whose values are all 1, blocks `first_block` to `end_block`.

    Parameters
    ----------
    indptr, indices : ndarray
        The features in index form.
    first_block, end_block : int
        Blocks of 16 features.
    masks : ndarray, shape (n_blocks, n_inputs), uint16
    """
    n_features = indptr.size - 1
    for block in range(first_block, end_block):
        mask = masks[block]
        for p in range(mask.size):
            mask[p] = 0
        for lane in range(min(LANES, n_features - block * LANES)):
            feature = block * LANES + lane
            bit = np.uint16(1 << lane)
            for k in range(indptr[feature], indptr[feature + 1]):
                mask[indices[k]] |= bit


@jit
def load_masks(
    masks: Masks,
    position: npt.NDArray[Any],
    n_loaded: int,
    n_repeats: int,
    tile: Tile,
    stride: int,
    planes: Masks,
) -> None:
    """Add the inputs of features in mask form, each at its position, into a tile.

    Parameters
    ----------
    masks : ndarray, shape (n_blocks, n_inputs), uint16
        Blocks for all lanes of the tile.
    position : ndarray, unsigned
        Neuron of the tile of each input; `n_loaded` for none.
    n_loaded : int
        Neurons of the tile, which is one row longer.
    n_repeats : int
        Where input p stands at ``p % n_loaded``: ``n_inputs / n_loaded``; else 0.
    tile : ndarray
        What it holds is overwritten.
    stride : int
    planes : ndarray, uint16, ``DIGITS * MASKS``
        Scratch.
    """
    n_inputs = position.size
    n_blocks = stride // LANES
    flat = masks.reshape(masks.size)
    whole = 0
    if 0 < n_repeats <= MOST_COUNTED:
        whole = n_loaded // MASKS * MASKS
    for p in range(whole * stride, (n_loaded + 1) * stride):
        tile[p] = 0
    for block in range(n_blocks):
        start, lane = block * n_inputs, block * LANES
        for first in range(0, whole, MASKS):
            if n_repeats == 1:
                for p in range(first, first + MASKS):
                    spread_planes(1, 0, flat, start + p, 0, tile, p * stride + lane)
                continue
            count_planes(DIGITS, flat, start + first, n_loaded, n_repeats, planes)
            for p in range(MASKS):
                place = (first + p) * stride + lane
                spread_planes(DIGITS, 0, planes, p, MASKS, tile, place)
        if whole < n_loaded:
            for p in range(n_inputs):
                loaded = np.int64(position[p])
                if loaded >= whole:
                    spread_planes(1, 1, flat, start + p, 0, tile, loaded * stride + lane)


@jit
def load_features(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    values: npt.NDArray[np.float32],
    position: npt.NDArray[Any],
    n_loaded: int,
    tile: Tile,
    stride: int,
) -> None:
    """Add the inputs of features in index form, each at its position, into a tile.

    Parameters
    ----------
    indptr, indices, values : ndarray
        The features, one row of `indptr` more than there are; `values` is empty where all are 1.
    position : ndarray, unsigned
        Neuron of the tile of each input; `n_loaded` for none.
    n_loaded : int
        Neurons of the tile, which is one row longer.
    tile : ndarray
        What it holds is overwritten.
    stride : int
    """
    for place in range((n_loaded + 1) * stride):
        tile[place] = 0
    for f in range(indptr.size - 1):
        for k in range(indptr[f], indptr[f + 1]):
            loaded = np.int64(position[indices[k]])
            tile[loaded * stride + f] += values[k] if values.size else np.float32(1)
