"""A segment's work on many features: tiles are filled, taken through layers, and kept.

One call takes many tiles, so that a thread stays in compiled code.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.barrier import Party, wait
from spdnn.engines.cpu.kernels.inputs import DIGITS, Masks, load_features, load_masks
from spdnn.engines.cpu.kernels.step import Tile
from spdnn.engines.cpu.kernels.tile import (
    Room,
    first_not_finite,
    keep_lanes,
    load_columns,
    run_steps,
)
from spdnn.engines.cpu.kernels.vectors import LANES, MASKS
from spdnn.machine.jit import jit, jit_part
from spdnn.plan.cpu.plan import PlanArrays


class SegmentParams(NamedTuple):
    """What a segment does with each tile.

    Attributes
    ----------
    first_step, end_step : int
        The segment's steps; the end is excluded.
    first_layer : int
        The layer that the first step belongs to.
    n_entering : int
        Neurons before the first step.
    n_kept : int
        Neurons after the last step whose activations are kept: all of them, or none.
    n_checked : int
        Neurons after the last step that are checked for numbers that are not finite.
    has_codes : bool
        Whether the activations of each feature are hashed.
    width : int
        Features of a tile, a multiple of `LANES`.
    """

    first_step: int
    end_step: int
    first_layer: int
    n_entering: int
    n_kept: int
    n_checked: int
    has_codes: bool
    width: int


class Source(NamedTuple):
    """Where features come from: one of three forms. The arrays of the other forms are empty.

    Attributes
    ----------
    masks : ndarray, shape (n_blocks, n_inputs), uint16
        Inputs in mask form; see `spdnn.engines.cpu.kernels.inputs`.
    indptr, indices, values : ndarray
        Inputs in index form.
    position, n_loaded, n_repeats
        How the plan takes inputs; see `spdnn.plan.cpu.plan.CpuPlan`. `n_repeats` is needed for
        masks only.
    ids, stands_for : ndarray, shape (n_features,), int64
        For features from an earlier segment: what the caller calls each one, and how many
        features it stands for. Features of the other forms are called by their numbers, and each
        stands for itself.
    addresses, strides : ndarray, shape (n_features,), int64
        For features from an earlier segment: where their activations are; see `load_columns`.
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
    """Where live features are written, in the order of the tiles, with space for all.

    Attributes
    ----------
    ids, stands_for : ndarray, shape (n_features,), int64
        What the caller calls each feature, and how many features it stands for.
    offsets, strides : ndarray, shape (n_features,), int64
        Where in `numbers` a feature's activations begin, and how far it is from one to the next.
    codes : ndarray, shape (n_features + LANES,), uint64
        Hashes of the features; empty if none are taken.
    numbers : ndarray, float32
        Activations, tile by tile, neurons x features; `LANES` longer than they need.
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
    params: SegmentParams,
    source: Source,
    first: int,
    end: int,
    room: Room,
    kept: Kept,
    party: Party,
) -> tuple[int, int, int]:
    """Take features `first` to `end` (excluded) through a segment.

    All threads of a group call this with the same arguments but for `party`. Thread 0 fills the
    tiles and keeps the live features.

    Parameters
    ----------
    plan : PlanArrays
        The whole plan.
    params : SegmentParams
        The segment.
    source : Source
        Where the features come from.
    first, end : int
        Numbers of features in `source`. With masks, `first` is a multiple of `LANES`.
    room : Room
        Tiles to work in, and counts to add to.
    kept : Kept
        Where live features are written.
    party : Party
        The calling thread's place in its group.

    Returns
    -------
    n : int
        Features that were kept.
    n_numbers : int
        How many numbers of ``kept.numbers`` they take.
    not_finite : int
        What the caller calls a feature with an activation that is not finite; -1 if there is none.
    """
    planes = np.empty(DIGITS * MASKS, dtype=np.uint16)
    n, n_numbers = 0, 0
    not_finite = -1
    for start in range(first, end, params.width):
        stop = min(start + params.width, end)
        stride = (stop - start + LANES - 1) // LANES * LANES
        if party.number == 0:
            fill_tile(source, start, stop, params.n_entering, room.tile, stride, planes)
        ids = np.empty(stop - start, dtype=np.int64)
        stands_for = np.empty(stop - start, dtype=np.int64)
        for f in range(start, stop):
            ids[f - start] = source.ids[f] if source.ids.size else f
            stands_for[f - start] = source.stands_for[f] if source.ids.size else 1
        wait(party)
        is_swapped, stride, lanes = run_steps(
            plan,
            params.first_step,
            params.end_step,
            room,
            stride,
            ids,
            stands_for,
            params.first_layer,
            party,
        )
        if lanes.size == 0 or party.number != 0:
            continue
        result = room.spare if is_swapped else room.tile
        lane = first_not_finite(result, params.n_checked, stride, lanes)
        if lane >= 0:
            not_finite = ids[lane]
        n_codes = (lanes.size + LANES - 1) // LANES * LANES if params.has_codes else 0
        keep_lanes(
            result,
            params.n_kept,
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
        n_numbers += params.n_kept * lanes.size
    return n, n_numbers, not_finite


@jit_part
def fill_tile(
    source: Source, start: int, stop: int, n_neurons: int, tile: Tile, stride: int, planes: Masks
) -> None:
    """Load features `start` to `stop` (excluded) of a source, whichever form it has."""
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
