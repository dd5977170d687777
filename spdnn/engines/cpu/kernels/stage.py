"""A stage's work on many features: tile after tile is filled, taken through layers, and kept.

One call takes many tiles, so that a thread stays in compiled code.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.inputs import DIGITS, Masks, load_features, load_masks
from spdnn.engines.cpu.kernels.step import Tile
from spdnn.engines.cpu.kernels.team import Team, meet
from spdnn.engines.cpu.kernels.tile import (
    Room,
    first_not_finite,
    keep_lanes,
    load_columns,
    run_steps,
)
from spdnn.engines.cpu.kernels.vectors import LANES, MASKS
from spdnn.machine.jit import jit
from spdnn.plan.cpu.plan import PlanArrays


class Work(NamedTuple):
    """What a stage does with each tile.

    Attributes
    ----------
    first_step, end_step : int
    first_layer : int
        The layer that the first step belongs to.
    n_entering, n_kept, n_looked_at : int
        Neurons before the first step, those whose activations are kept behind the last, and those
        that are looked at for numbers that are not finite.
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
    n_looked_at: int
    has_codes: bool
    width: int


class Source(NamedTuple):
    """Where features come from: one of three forms, the arrays of the others being empty.

    Attributes
    ----------
    masks : ndarray, shape (n_blocks, n_inputs), uint16
        Inputs in mask form; see `spdnn.engines.cpu.kernels.inputs`.
    indptr, indices, values : ndarray
        Inputs in index form.
    position, n_loaded, n_repeats
        How the plan takes inputs; see `spdnn.plan.cpu.plan.CpuPlan`.
    ids, stands_for : ndarray, int64
        Features from an earlier stage: what the caller calls them, and how many each stands for.
        The inputs' are their numbers, and each stands for itself.
    addresses, strides : ndarray, int64
        Where their activations are; see `load_columns`.
    """

    masks: Masks
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[Any]
    values: npt.NDArray[np.float32]
    position: npt.NDArray[Any]
    n_loaded: int
    n_repeats: int
    ids: npt.NDArray[np.int64]
    stands_for: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]
    strides: npt.NDArray[np.int64]


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
def take_tiles(
    plan: PlanArrays,
    work: Work,
    source: Source,
    first: int,
    end: int,
    room: Room,
    kept: Kept,
    team: Team,
) -> tuple[int, int, int]:
    """Take features `first` to `end` through a stage; from mask form, `first` is a multiple of 16.

    All threads of a team call this with the same arguments but `team`; the first of them fills
    tiles and keeps what survives.

    Returns how many survive, how many numbers of `kept` they take, and what the caller calls one of
    them that has an activation that is not finite, or -1.
    """
    planes = np.empty(DIGITS * MASKS, dtype=np.uint16)
    n, n_numbers = 0, 0
    not_finite = -1
    for start in range(first, end, work.width):
        stop = min(start + work.width, end)
        stride = (stop - start + LANES - 1) // LANES * LANES
        if team.thread == 0:
            fill_tile(source, start, stop, work.n_entering, room.tile, stride, planes)
        ids = np.empty(stop - start, dtype=np.int64)
        stands_for = np.empty(stop - start, dtype=np.int64)
        for f in range(start, stop):
            ids[f - start] = source.ids[f] if source.ids.size else f
            stands_for[f - start] = source.stands_for[f] if source.ids.size else 1
        meet(team)
        is_swapped, stride, lanes = run_steps(
            plan,
            work.first_step,
            work.end_step,
            room,
            stride,
            ids,
            stands_for,
            work.first_layer,
            team,
        )
        if lanes.size == 0 or team.thread != 0:
            continue
        result = room.spare if is_swapped else room.tile
        lane = first_not_finite(result, work.n_looked_at, stride, lanes)
        if lane >= 0:
            not_finite = ids[lane]
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
        n += lanes.size
        n_numbers += work.n_kept * lanes.size
    return n, n_numbers, not_finite


@jit
def fill_tile(
    source: Source, start: int, stop: int, n_neurons: int, tile: Tile, stride: int, planes: Masks
) -> None:
    """Load features `start` to `stop` of a source, whichever form it has."""
    if source.addresses.size:
        addresses, strides = source.addresses[start:stop], source.strides[start:stop]
        load_columns(addresses, strides, n_neurons, tile, stride)
    elif source.masks.size:
        masks = source.masks[start // LANES : (start + stride) // LANES]
        load_masks(masks, source.position, source.n_loaded, source.n_repeats, tile, stride, planes)
    else:
        load_features(
            source.indptr[start : stop + 1],
            source.indices,
            source.values,
            source.position,
            source.n_loaded,
            tile,
            stride,
        )
