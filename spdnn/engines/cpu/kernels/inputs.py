"""The kernels that bring inputs into a tile: from index form, or from masks of 16 features.

See `spdnn.engines.cpu.kernels.tile` for what a tile is. In mask form, bit i of ``masks[b, p]`` says
whether feature ``16 * b + i`` has input p. So two bytes hold a vector of features. Inputs that are
only needed as a sum are added up 512 bits at a time.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.step import Tile
from spdnn.engines.cpu.kernels.vectors import LANES, MASKS, count_planes, spread_planes
from spdnn.machine.jit import jit, jit_part

DIGITS = 5
"""Binary digits in which masks are counted."""

MOST_COUNTED = (1 << DIGITS) - 1
"""Most inputs that can be counted in so many digits."""

Masks = npt.NDArray[np.uint16]


@jit
def pack_features(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    first_block: int,
    end_block: int,
    masks: Masks,
) -> None:
    """Write the mask form of some blocks of features whose values are all 1.

    Parameters
    ----------
    indptr, indices : ndarray
        The features in index form.
    first_block, end_block : int
        Which blocks of 16 features; the end is excluded.
    masks : ndarray, shape (n_blocks, n_inputs), uint16
        Masks of all blocks.
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


@jit_part
def load_masks(
    masks: Masks,
    position: npt.NDArray[Any],
    n_loaded: int,
    n_repeats: int,
    tile: Tile,
    stride: int,
    planes: Masks,
) -> None:
    """Fill a tile with features in mask form: each input is added at its position.

    Parameters
    ----------
    masks : ndarray, shape (n_blocks, n_inputs), uint16
        Blocks for all lanes of the tile.
    position : ndarray, shape (n_inputs,), unsigned
        The neuron of the tile to which each input is added; `n_loaded` for none.
    n_loaded : int
        Neurons of the tile, which is one row longer.
    n_repeats : int
        ``n_inputs / n_loaded`` if the position of every input p is ``p % n_loaded``; else 0.
    tile : ndarray, float32
        It is overwritten.
    stride : int
        Lanes of a neuron.
    planes : ndarray, shape (DIGITS * MASKS,), uint16
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


@jit_part
def load_features(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    values: npt.NDArray[np.float32],
    position: npt.NDArray[Any],
    n_loaded: int,
    tile: Tile,
    stride: int,
) -> None:
    """Fill a tile with features in index form: each input is added at its position.

    Parameters
    ----------
    indptr, indices, values : ndarray
        The features as rows of a CSR matrix. `values` is empty if all values are 1.
    position : ndarray, shape (n_inputs,), unsigned
        The neuron of the tile to which each input is added; `n_loaded` for none.
    n_loaded : int
        Neurons of the tile, which is one row longer.
    tile : ndarray, float32
        It is overwritten.
    stride : int
        Lanes of a neuron.
    """
    for place in range((n_loaded + 1) * stride):
        tile[place] = 0
    for f in range(indptr.size - 1):
        for k in range(indptr[f], indptr[f + 1]):
            loaded = np.int64(position[indices[k]])
            tile[loaded * stride + f] += values[k] if values.size else np.float32(1)
