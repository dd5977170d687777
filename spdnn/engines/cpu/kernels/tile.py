"""The CPU kernels: a tile of features through many layers.

A tile holds up to `stride` features neuron-major in a flat buffer: the activation of
feature f at neuron position p is ``tile[p * stride + f]``. `stride` is a multiple of `LANES`; lanes
beyond the number of features are zero on entry and ignored on exit. Buffers are float32, begin at a
multiple of 64 bytes and are long enough for the widest layer; what the plan's tables say is
taken for granted.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.step import WORD, Tile, evaluate_step
from spdnn.engines.cpu.kernels.team import Team, meet, share_of
from spdnn.engines.cpu.kernels.vectors import (
    LANES,
    compress_lanes,
    copy_lanes,
    float_at,
    hash_lanes,
)
from spdnn.machine.jit import jit
from spdnn.plan.cpu.plan import CHUNKS, FINISH, PART, ROWS, PlanArrays
from spdnn.plan.steps import LAYER, MAY_DROP, N_OUTPUTS, NO_LAYER

MAGNITUDE = np.int32(0x7FFFFFFF)
"""The bits of a float32 but the sign: as whole numbers they are ordered like magnitudes."""

INFINITE = np.int32(0x7F800000)
"""Those of infinity; of NaN they are more."""


class Room(NamedTuple):
    """What the threads of a team work in and on.

    Attributes
    ----------
    tile, spare : ndarray, float32
        Two tiles, each a row longer than the widest layer needs.
    live : ndarray, shape (2, size of the team, n_words), uint64
        For the bits of live lanes, `WORD` to a number.
    counts : ndarray, shape (3, n_layers), int64
        Added to, layer by layer: live features after the layer, distinct ones of them
        that were carried, and lanes that the layer was evaluated for.
    """

    tile: Tile
    spare: Tile
    live: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]


def live_words(n_threads: int, stride: int) -> npt.NDArray[np.uint64]:
    """Make a room's `live` for tiles of up to so many lanes; no two threads share a cache line."""
    n_words = -(-stride // (8 * WORD)) * 8 + 8
    return np.empty((2, n_threads, n_words), dtype=np.uint64)


@jit
def load_columns(
    addresses: npt.NDArray[np.int64],
    strides: npt.NDArray[np.int64],
    n_neurons: int,
    tile: Tile,
    stride: int,
) -> None:
    """Copy features into a tile, from wherever they are.

    Parameters
    ----------
    addresses, strides : ndarray, int64
        Where each one's first activation stands in memory, and how many bytes lie from one to the
        next; up to 60 bytes more are read.
    n_neurons : int
    tile : ndarray
        A row longer than the neurons need.
    stride : int
    """
    n_features = addresses.size
    # Neighbours are copied together: runs of them, each with its end.
    starts = np.empty(n_features + 1, dtype=np.int64)
    n_runs = 0
    for f in range(n_features):
        is_next = f > 0 and addresses[f] == addresses[f - 1] + 4 and strides[f] == strides[f - 1]
        if not is_next:
            starts[n_runs] = f
            n_runs += 1
    starts[n_runs] = n_features
    for p in range(n_neurons):
        row = p * stride
        for run in range(n_runs):
            address = addresses[starts[run]] + p * strides[starts[run]]
            # What is copied beyond a run's end is overwritten by the next run, or the next row.
            for f in range(starts[run], starts[run + 1], LANES):
                copy_lanes(address, tile, row + f)
                address += 4 * LANES
        for f in range(n_features, stride):
            tile[row + f] = 0


@jit
def gather_rows(
    addresses: npt.NDArray[np.int64],
    strides: npt.NDArray[np.int64],
    position: npt.NDArray[np.int32],
    rows: npt.NDArray[np.float32],
) -> None:
    """Copy features, from wherever they are, into rows: of each the neurons at some positions.

    Some features at a time, since neighbours lie in the same lines.

    Parameters
    ----------
    addresses, strides : ndarray, shape (n_features,), int64
        As for `load_columns`.
    position : ndarray, shape (n_neurons,), int32
    rows : ndarray, shape (n_features, n_neurons), float32
    """
    for first in range(0, rows.shape[0], LANES):
        end = min(first + LANES, rows.shape[0])
        for n in range(position.size):
            p = np.int64(position[n])
            for f in range(first, end):
                rows[f, n] = float_at(addresses[f] + p * strides[f])


@jit
def keep_lanes(
    tile: Tile,
    n_neurons: int,
    stride: int,
    lanes: npt.NDArray[np.int32],
    target: Tile,
    target_stride: int,
    codes: npt.NDArray[np.uint64],
) -> None:
    """Copy the named lanes, ascending, side by side into `target`; its other lanes become zero.

    `target` may be the tile itself: 16 lanes are read at a time, before they are written. It
    has 16 numbers more than what is meant to be written.

    `codes` is empty, or has a number for each lane and on to a multiple of `LANES`, which becomes
    a hash of the lane's activations, taken while they are in the first cache. Equal activations
    have equal hashes, -0.0 and 0.0 too.
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
    for f in range(codes.size):
        codes[f] = 0
    for p in range(n_neurons):
        start = p * target_stride
        for chunk in range(n_chunks):
            place = p * stride + chunk * LANES
            compress_lanes(tile, place, masks[chunk], target, start + starts[chunk])
        for f in range(lanes.size, target_stride):
            target[start + f] = 0
        for f in range(0, codes.size, LANES):
            hash_lanes(codes, f, target, start + f)


@jit
def first_not_finite(tile: Tile, n_neurons: int, stride: int, lanes: npt.NDArray[np.int32]) -> int:
    """Find a lane, of those named, that has an activation that is not finite; -1 if none has."""
    # All lanes at a glance, in the order of memory; there is mostly nothing to be found.
    magnitudes = tile[: n_neurons * stride].view(np.int32)
    largest = np.int32(0)
    for i in range(magnitudes.size):
        largest = max(largest, magnitudes[i] & MAGNITUDE)
    if largest < INFINITE:
        return -1
    for lane in lanes:
        for p in range(n_neurons):
            if not np.isfinite(tile[p * stride + lane]):
                return int(lane)
    return -1


@jit
def run_steps(
    plan: PlanArrays,
    first_step: int,
    end_step: int,
    room: Room,
    stride: int,
    ids: npt.NDArray[np.int64],
    stands_for: npt.NDArray[np.int64],
    first_layer: int,
    team: Team,
) -> tuple[bool, int, npt.NDArray[np.int32]]:
    """Take a tile through steps `first_step` to `end_step` (excluded).

    All threads of a team call this alike, each with `ids` and `stands_for` of its own; they are
    moved, and the room's counts added to, by the first of them.

    Parameters
    ----------
    plan : PlanArrays
    first_step, end_step : int
    room : Room
        The activations are in its tile.
    stride : int
        Lanes a neuron.
    ids, stands_for : ndarray, int64
        What the caller calls the features in the lanes, and how many features each stands
        for; moved along with them.
    first_layer : int
        The layer that the first step belongs to.
    team : Team

    Returns
    -------
    bool
        Whether the result is in the spare tile.
    int
        The result's lanes a neuron: fewer than on entry where dead features were dropped.
    ndarray, int32
        The lanes of the features to go on with; their ids stand at these places in `ids`.
    """
    tile, spare = room.tile, room.spare
    is_swapped = False
    lanes = first_lanes(ids.size)
    bits = np.empty(room.live.shape[2], dtype=np.uint64)
    no_codes = np.empty(0, dtype=np.uint64)
    # Taken in turn: while some threads still read a layer's bits others set the next one's.
    turn = 0
    for step in range(first_step, end_step):
        part = plan.steps[step, PART]
        own_bits = room.live[turn, team.thread]
        if part != FINISH:
            own_bits[:] = 0
        source = spare if part == FINISH else tile
        first, end = share_of(plan, step, team)
        evaluate_step(plan, step, first, end, source, spare, stride, own_bits)
        if part == CHUNKS:
            continue
        meet(team)
        if part == ROWS:
            continue
        tile, spare = spare, tile
        is_swapped = not is_swapped
        layer = plan.steps[step, LAYER]
        if layer == NO_LAYER:
            continue
        bits[:] = 0
        for thread in range(team.size):
            bits |= room.live[turn, thread]
        turn = 1 - turn
        live = live_lanes(bits, lanes)
        if team.thread == 0:
            for lane in live:
                room.counts[0, layer - first_layer] += stands_for[lane]
            room.counts[1, layer - first_layer] += live.size
            room.counts[2, layer - first_layer] += lanes.size
        if not plan.steps[step, MAY_DROP]:
            continue
        lanes = live
        if live.size == 0:
            break
        new_stride = (live.size + LANES - 1) // LANES * LANES
        if new_stride < stride and step + 1 < end_step:
            if team.thread == 0:
                n_outputs = plan.steps[step, N_OUTPUTS]
                keep_lanes(tile, n_outputs, stride, live, tile, new_stride, no_codes)
                for f in range(live.size):
                    ids[f] = ids[live[f]]
                    stands_for[f] = stands_for[live[f]]
            meet(team)
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
