"""The kernels that take a tile of features through many layers.

A tile holds up to `stride` features neuron-major in a flat buffer: the activation of feature f at
neuron position p is ``tile[p * stride + f]``. `stride` is a multiple of `LANES`. Lanes beyond the
number of features are zero on entry and ignored on exit. Buffers are float32, begin at a multiple
of 64 bytes and are long enough for the widest layer. What the plan's tables say is not checked.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.barrier import Party, wait
from spdnn.engines.cpu.kernels.shares import share_of
from spdnn.engines.cpu.kernels.step import WORD, Bits, Tile, evaluate_step
from spdnn.engines.cpu.kernels.vectors import (
    LANES,
    bits_of,
    compress_lanes,
    copy_lanes,
    float_at,
    hash_lanes,
)
from spdnn.machine.jit import jit, jit_inlined, jit_part
from spdnn.plan.cpu.plan import CHUNKS, FINISH, PART, ROWS, PlanArrays
from spdnn.plan.steps import LAYER, MAY_DROP, N_OUTPUTS, NO_LAYER

MAGNITUDE = np.int32(0x7FFFFFFF)
"""The bits of a float32 without its sign. As whole numbers they are ordered like magnitudes."""

INFINITE = np.int32(0x7F800000)
"""The bits of infinity as a whole number; those of NaN are a larger number."""


LIVE, DISTINCT, ENTERED = range(3)
"""Rows of counts: live features after a layer, those of them that are carried, each distinct from
the others, and the features that the layer was evaluated for."""


class Room(NamedTuple):
    """What the threads of a group work in and on.

    Attributes
    ----------
    tile, spare : ndarray, float32
        Two tiles, each a row longer than the widest layer needs.
    live : ndarray, shape (2, size of the group, n_words), uint64
        The bits of live lanes, `WORD` to a number.
    counts : ndarray, shape (3, n_layers), int64
        Rows `LIVE`, `DISTINCT` and `ENTERED`, which are added to, layer by layer.
    """

    tile: Tile
    spare: Tile
    live: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]


def empty_counts(n_layers: int) -> npt.NDArray[np.int64]:
    """Make counts of so many layers, all zero."""
    return np.zeros((3, n_layers), dtype=np.int64)


def live_words(n_threads: int, stride: int) -> npt.NDArray[np.uint64]:
    """Make the `live` of a `Room` for tiles of up to `stride` lanes.

    No two threads share a cache line.
    """
    n_words = -(-stride // (8 * WORD)) * 8 + 8
    return np.empty((2, n_threads, n_words), dtype=np.uint64)


@jit_part
def load_columns(
    addresses: npt.NDArray[np.int64],
    strides: npt.NDArray[np.int64],
    n_neurons: int,
    tile: Tile,
    stride: int,
) -> None:
    """Copy features into a tile, from wherever they are in memory.

    Parameters
    ----------
    addresses, strides : ndarray, shape (n_features,), int64
        The address of each feature's first activation, and the bytes from one activation to the
        next. Up to 60 bytes behind an activation are read, too.
    n_neurons : int
        Activations of each feature.
    tile : ndarray, float32
        It is a row longer than the neurons need.
    stride : int
        Lanes of a neuron.
    """
    n_features = addresses.size
    # Neighbours in memory are copied together. A run of neighbours ends where the next starts.
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
            # Numbers beyond the end of a run are overwritten by the next run, or the next row.
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
    """Copy the activations of features at some positions, from wherever they are, into rows.

    `LANES` features are copied at a time, since neighbours are in the same cache lines.

    Parameters
    ----------
    addresses, strides : ndarray, shape (n_features,), int64
        As for `load_columns`.
    position : ndarray, shape (n_neurons,), int32
        Which of a feature's activations are copied, in this order.
    rows : ndarray, shape (n_features, n_neurons), float32
        They are overwritten.
    """
    for first in range(0, rows.shape[0], LANES):
        end = min(first + LANES, rows.shape[0])
        for n in range(position.size):
            p = np.int64(position[n])
            for f in range(first, end):
                rows[f, n] = float_at(addresses[f] + p * strides[f])


@jit_part
def keep_lanes(
    tile: Tile,
    n_neurons: int,
    stride: int,
    lanes: npt.NDArray[np.int32],
    target: Tile,
    target_stride: int,
    codes: npt.NDArray[np.uint64],
) -> None:
    """Copy some lanes of a tile side by side into `target`; its other lanes become zero.

    Parameters
    ----------
    tile : ndarray, float32
        The tile.
    n_neurons : int
        Neurons to copy.
    stride : int
        Lanes of a neuron in the tile.
    lanes : ndarray, int32
        The lanes to copy, ascending.
    target : ndarray, float32
        `LANES` numbers longer than what is kept. It may be the tile itself, since `LANES` lanes
        are read before they are written.
    target_stride : int
        Lanes of a neuron in `target`.
    codes : ndarray, uint64
        Empty; or a number for each lane, and further numbers up to a multiple of `LANES`. They
        become hashes of the lanes' activations, taken while these are in the nearest cache. Equal
        activations have equal hashes; -0.0 equals 0.0.
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


@jit_part
def first_not_finite(tile: Tile, n_neurons: int, stride: int, lanes: npt.NDArray[np.int32]) -> int:
    """Return one of the given lanes with an activation that is not finite; -1 if there is none."""
    # First all lanes in the order of memory: nearly always all numbers are finite.
    largest = np.int32(0)
    for i in range(n_neurons * stride):
        magnitude = bits_of(tile[i]) & MAGNITUDE
        largest = magnitude if magnitude > largest else largest
    if largest < INFINITE:
        return -1
    for lane in lanes:
        for p in range(n_neurons):
            if not np.isfinite(tile[p * stride + lane]):
                return int(lane)
    return -1


@jit_inlined
def run_steps(
    plan: PlanArrays,
    first_step: int,
    end_step: int,
    room: Room,
    stride: int,
    ids: npt.NDArray[np.int64],
    stands_for: npt.NDArray[np.int64],
    first_layer: int,
    party: Party,
) -> tuple[bool, int, npt.NDArray[np.int32]]:
    """Take a tile through steps `first_step` to `end_step` (excluded).

    All threads of a group call this alike, each with its own `ids` and `stands_for`. Thread 0
    moves features and adds to the counts.

    Parameters
    ----------
    plan : PlanArrays
        The whole plan.
    first_step, end_step : int
        The steps.
    room : Room
        The activations are in its tile.
    stride : int
        Lanes of a neuron.
    ids, stands_for : ndarray, shape (n_features,), int64
        What the caller calls the features in the lanes, and how many features each stands for.
        They are moved along with the features.
    first_layer : int
        The layer that the first step belongs to.
    party : Party
        The calling thread's place in its group.

    Returns
    -------
    is_swapped : bool
        Whether the result is in the spare tile.
    stride : int
        Lanes of a neuron in the result: fewer than on entry if dead features were dropped.
    lanes : ndarray, int32
        The lanes of the features that go on. Their ids are at these places in `ids`.
    """
    tile, spare = room.tile, room.spare
    is_swapped = False
    lanes = first_lanes(ids.size)
    bits = np.empty(room.live.shape[2], dtype=np.uint64)
    # Taken in turn: while some threads still read the bits of a layer, others set the next ones.
    turn = 0
    for step in range(first_step, end_step):
        part = plan.steps[step, PART]
        own_bits = room.live[turn, party.number]
        if part != FINISH:
            own_bits[:] = 0
        source = spare if part == FINISH else tile
        first, end = share_of(plan, step, party)
        evaluate_step(plan, step, first, end, source, spare, stride, own_bits)
        if part == CHUNKS:
            continue
        wait(party)
        if part == ROWS:
            continue
        tile, spare = spare, tile
        is_swapped = not is_swapped
        layer = plan.steps[step, LAYER]
        if layer == NO_LAYER:
            continue
        join_bits(room.live[turn], party.parties, bits)
        turn = 1 - turn
        live = live_lanes(bits, lanes)
        if party.number == 0:
            count_layer(room.counts, layer - first_layer, live, stands_for, lanes.size)
        if not plan.steps[step, MAY_DROP]:
            continue
        lanes = live
        if live.size == 0:
            break
        new_stride = (live.size + LANES - 1) // LANES * LANES
        if new_stride < stride and step + 1 < end_step:
            if party.number == 0:
                drop_dead(tile, plan.steps[step, N_OUTPUTS], stride, live, ids, stands_for)
            wait(party)
            stride = new_stride
            lanes = first_lanes(live.size)
    return is_swapped, stride, lanes


@jit_part
def first_lanes(n: int) -> npt.NDArray[np.int32]:
    """The lanes 0 to `n`, excluded."""
    lanes = np.empty(n, dtype=np.int32)
    for f in range(n):
        lanes[f] = f
    return lanes


@jit_part
def join_bits(of_threads: npt.NDArray[np.uint64], n_threads: int, bits: Bits) -> None:
    """Set the bits that any of the threads has set, shape (n_threads, n_words), in `bits`."""
    bits[:] = 0
    for thread in range(n_threads):
        bits |= of_threads[thread]


@jit_part
def live_lanes(bits: Bits, lanes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Those of `lanes` whose bit is set."""
    live = np.empty(lanes.size, dtype=np.int32)
    n = 0
    for lane in lanes:
        if bits[lane // WORD] >> np.uint64(lane % WORD) & np.uint64(1):
            live[n] = lane
            n += 1
    return live[:n]


@jit_part
def count_layer(
    counts: npt.NDArray[np.int64],
    layer: int,
    live: npt.NDArray[np.int32],
    stands_for: npt.NDArray[np.int64],
    n_entered: int,
) -> None:
    """Add to the counts of a layer: the lanes that are live, and how many have entered it."""
    for lane in live:
        counts[LIVE, layer] += stands_for[lane]
    counts[DISTINCT, layer] += live.size
    counts[ENTERED, layer] += n_entered


@jit_part
def drop_dead(
    tile: Tile,
    n_neurons: int,
    stride: int,
    live: npt.NDArray[np.int32],
    ids: npt.NDArray[np.int64],
    stands_for: npt.NDArray[np.int64],
) -> None:
    """Move the live lanes of a tile, and what belongs to them, side by side to the front."""
    no_codes = np.empty(0, dtype=np.uint64)
    new_stride = (live.size + LANES - 1) // LANES * LANES
    keep_lanes(tile, n_neurons, stride, live, tile, new_stride, no_codes)
    for f in range(live.size):
        ids[f] = ids[live[f]]
        stands_for[f] = stands_for[live[f]]
