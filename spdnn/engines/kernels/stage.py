"""A stage's work on many features: tile after tile is filled, taken through layers, and kept.

One call takes many tiles, so that a thread stays in compiled code.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.kernels.inputs import DIGITS, Masks, load_features, load_masks
from spdnn.engines.kernels.step import Tile
from spdnn.engines.kernels.tile import keep_lanes, load_columns, run_steps
from spdnn.engines.kernels.vectors import LANES, MASKS
from spdnn.jit import jit
from spdnn.plan.cpu import PlanArrays


class Work(NamedTuple):
    """What a stage does with each tile.

    Attributes
    ----------
    first_step, end_step : int
    first_layer : int
        The layer that the first step belongs to.
    n_entering, n_kept : int
        Neurons before the first step, and those whose activations are kept behind the last.
    has_codes : bool
        Whether features are hashed.
    width : int
        Features of a tile, a multiple of `LANES`.
    """

    first_step: int
    end_step: int
    first_layer: int
    n_entering: int
    n_kept: int
    has_codes: bool
    width: int


class Inputs(NamedTuple):
    """How the plan takes the network's inputs; see `spdnn.plan.cpu.CpuPlan`."""

    position: npt.NDArray[Any]
    n_loaded: int
    n_repeats: int


class Room(NamedTuple):
    """What a thread works in and on.

    Attributes
    ----------
    tile, spare : ndarray, float32
        Two tiles, each a row longer than the widest layer needs.
    counts : ndarray, shape (3, n_layers), int64
        See `run_steps`.
    """

    tile: Tile
    spare: Tile
    counts: npt.NDArray[np.int64]


class Kept(NamedTuple):
    """Where survivors go, in the order in which they come; room for all that may.

    Attributes
    ----------
    ids, stands_for : ndarray, int64
        What the caller calls the features, and how many features each stands for.
    offsets, strides : ndarray, int64
        Where in `numbers` each one's activations begin, and how far it is from one to the next.
    codes : ndarray, uint64
        Their hashes; `LANES` longer.
    numbers : ndarray, float32
        Activations, tile by tile, neurons x features; `LANES` longer.
    """

    ids: npt.NDArray[np.int64]
    stands_for: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    strides: npt.NDArray[np.int64]
    codes: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.float32]


@jit
def take_masks(
    plan: PlanArrays,
    work: Work,
    first: int,
    end: int,
    room: Room,
    kept: Kept,
    masks: Masks,
    inputs: Inputs,
) -> tuple[int, int]:
    """Take features `first` (a multiple of 16) to `end` through a stage, from mask form.

    Returns how many survive, and how many numbers of `kept` they take.
    """
    planes = np.empty(DIGITS * MASKS, dtype=np.uint16)
    n, n_numbers = 0, 0
    for start in range(first, end, work.width):
        stop = min(start + work.width, end)
        stride = (stop - start + LANES - 1) // LANES * LANES
        load_masks(
            masks[start // LANES : (start + stride) // LANES],
            inputs.position,
            inputs.n_loaded,
            inputs.n_repeats,
            room.tile,
            stride,
            planes,
        )
        ids, stands_for = _numbered(start, stop)
        n, n_numbers = _take_tile(plan, work, stride, ids, stands_for, room, kept, n, n_numbers)
    return n, n_numbers


@jit
def take_features(
    plan: PlanArrays,
    work: Work,
    first: int,
    end: int,
    room: Room,
    kept: Kept,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    values: npt.NDArray[np.float32],
    inputs: Inputs,
) -> tuple[int, int]:
    """Take features `first` to `end` through a stage, from index form; see `take_masks`."""
    n, n_numbers = 0, 0
    for start in range(first, end, work.width):
        stop = min(start + work.width, end)
        stride = (stop - start + LANES - 1) // LANES * LANES
        load_features(
            indptr[start : stop + 1],
            indices,
            values,
            inputs.position,
            inputs.n_loaded,
            room.tile,
            stride,
        )
        ids, stands_for = _numbered(start, stop)
        n, n_numbers = _take_tile(plan, work, stride, ids, stands_for, room, kept, n, n_numbers)
    return n, n_numbers


@jit
def take_columns(
    plan: PlanArrays,
    work: Work,
    first: int,
    end: int,
    room: Room,
    kept: Kept,
    ids: npt.NDArray[np.int64],
    stands_for: npt.NDArray[np.int64],
    addresses: npt.NDArray[np.int64],
    strides: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Take features `first` to `end` of those that an earlier stage has kept; see `take_masks`."""
    n, n_numbers = 0, 0
    for start in range(first, end, work.width):
        stop = min(start + work.width, end)
        stride = (stop - start + LANES - 1) // LANES * LANES
        load_columns(addresses[start:stop], strides[start:stop], work.n_entering, room.tile, stride)
        tile_ids, tile_stands_for = ids[start:stop].copy(), stands_for[start:stop].copy()
        n, n_numbers = _take_tile(
            plan, work, stride, tile_ids, tile_stands_for, room, kept, n, n_numbers
        )
    return n, n_numbers


@jit
def _numbered(start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Features `start` to `stop`, each of which stands for itself."""
    return np.arange(start, stop), np.ones(stop - start, dtype=np.int64)


@jit
def _take_tile(
    plan: PlanArrays,
    work: Work,
    stride: int,
    ids: npt.NDArray[np.int64],
    stands_for: npt.NDArray[np.int64],
    room: Room,
    kept: Kept,
    n: int,
    n_numbers: int,
) -> tuple[int, int]:
    """Take a full tile through a stage, and put its survivors behind the `n` that are kept."""
    is_swapped, stride, lanes = run_steps(
        plan,
        work.first_step,
        work.end_step,
        room.tile,
        room.spare,
        stride,
        ids,
        stands_for,
        work.first_layer,
        room.counts,
    )
    if lanes.size == 0:
        return n, n_numbers
    result = room.spare if is_swapped else room.tile
    n_codes = (lanes.size + LANES - 1) // LANES * LANES if work.has_codes else 0
    keep_lanes(
        result,
        work.n_kept,
        stride,
        lanes,
        kept.numbers[n_numbers:],
        lanes.size,
        kept.codes[n : n + n_codes],
    )
    for f in range(lanes.size):
        kept.ids[n + f] = ids[lanes[f]]
        kept.stands_for[n + f] = stands_for[lanes[f]]
        kept.offsets[n + f] = n_numbers + f
        kept.strides[n + f] = lanes.size
    return n + lanes.size, n_numbers + work.n_kept * lanes.size
