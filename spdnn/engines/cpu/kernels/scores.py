"""Dense inputs to dense scores in one compiled call, with helpers where the work is worth it.

What a call needs beside its inputs lies behind addresses in one array of numbers, a *job*: each
array that is passed from Python costs some 0.2 microseconds, and helpers read the same job.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, types
from numba.extending import intrinsic

from spdnn.engines.cpu.kernels.barrier import Party, arrive, wait
from spdnn.engines.cpu.kernels.crew import (
    GO,
    MAILBOX,
    STOP,
    Mailbox,
    all_enter,
    enter,
    finish,
    leave,
    post,
    say_go,
    wait_for_post,
    wait_until,
    withdraw,
)
from spdnn.engines.cpu.kernels.rows import (
    address_of,
    first_not_finite_row,
    load_rows,
    store_rows,
)
from spdnn.engines.cpu.kernels.single import run_one
from spdnn.engines.cpu.kernels.tile import Room, first_not_finite, run_steps
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.machine.jit import jit, jit_part
from spdnn.plan.cpu.plan import N_COLUMNS, PlanArrays
from spdnn.plan.cpu.slices import Slices

(
    STEPS,
    N_STEPS,
    CAPS,
    BLOCKS,
    N_BLOCKS,
    INDICES,
    N_INDICES,
    WEIGHTS,
    N_WEIGHTS,
    BIAS,
    N_BIAS,
    LOAD_POSITION,
    OUTPUT_POSITION,
    N_INPUTS,
    N_OUTPUTS,
    N_LOADED,
    IN_PLACE,
    N_LAYERS,
    N_LAST,
    MAX_WIDTH,
    EDGES,
    TILE_WIDTH,
    WORTH_WAKING,
    WORTH_WAKING_ONE,
    MOST_SHARED,
    SLICE_STEPS,
    PARTS,
    N_PARTS,
    SLICE_INDICES,
    N_SLICE_INDICES,
    SLICE_WEIGHTS,
    N_SLICE_WEIGHTS,
    SHARES,
    N_THREADS,
    MAILBOXES,
    MEETINGS,
    TILES,
    TILE_NUMBERS,
    LIVE,
    LIVE_WORDS,
    COUNTS,
    SCRATCH,
    FEATURES_AT,
    N_FEATURES,
    SCORES_AT,
    WIDTH,
    SIZE,
    TOGETHER,
    NEXT,
    FAILED,
    JOB,
) = range(51)
"""Places in a job. First what the plan is, then where threads work, last what one call is about."""

SINGLES = 2
"""Features up to which each is taken by itself, lanes across outputs; more fill vectors better."""

APART = 8
"""Numbers of a cache line."""

WRONG_INPUT = -2
"""What `score` returns instead of a feature if an input is NaN or infinite."""


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typing_context: Any, address: Any, kind: Any) -> Any:
    """An address as a pointer to numbers of a kind."""
    pointer = types.CPointer(kind.dtype)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, kind), codegen


@jit_part
def _long(job: npt.NDArray[np.int64], place: int, size: int) -> npt.NDArray[np.int64]:
    """The int64 numbers at an address of a job."""
    numbers: npt.NDArray[np.int64] = carray(_pointer(job[place], np.int64), size)
    return numbers


@jit_part
def _floats(address: int, size: int) -> npt.NDArray[np.float32]:
    """The float32 numbers at an address."""
    numbers: npt.NDArray[np.float32] = carray(_pointer(address, np.float32), size)
    return numbers


@jit_part
def _plan_of(job: npt.NDArray[np.int64], kind: npt.NDArray[Any]) -> PlanArrays:
    """The plan that a job is about; `kind` is any array of its type of indices."""
    return PlanArrays(
        _long(job, STEPS, job[N_STEPS] * N_COLUMNS).reshape(job[N_STEPS], N_COLUMNS),
        _floats(job[CAPS], job[N_STEPS]),
        _long(job, BLOCKS, job[N_BLOCKS] * 6).reshape(job[N_BLOCKS], 6),
        carray(_pointer(job[INDICES], kind.dtype), job[N_INDICES]),
        _floats(job[WEIGHTS], job[N_WEIGHTS]),
        _floats(job[BIAS], job[N_BIAS]),
    )


@jit_part
def _slices_of(job: npt.NDArray[np.int64]) -> Slices:
    """The plan for one feature that a job has."""
    return Slices(
        _long(job, SLICE_STEPS, job[N_STEPS] + 1),
        _long(job, PARTS, job[N_PARTS] * 6).reshape(job[N_PARTS], 6),
        carray(_pointer(job[SLICE_INDICES], np.uint16), job[N_SLICE_INDICES]),
        _floats(job[SLICE_WEIGHTS], job[N_SLICE_WEIGHTS]),
    )


@jit
def score(
    job: npt.NDArray[np.int64],
    kind: npt.NDArray[Any],
    inputs: npt.NDArray[np.float32],
    scores: npt.NDArray[np.float32],
) -> int:
    """Compute the scores of features.

    Parameters
    ----------
    job : ndarray, shape (JOB,), int64
        Filled in but for what one call is about.
    kind : ndarray
        Any array of the type of the plan's indices.
    inputs : ndarray, shape (n_features, n_inputs), float32
        C order.
    scores : ndarray, shape (n_features, n_outputs), float32
        C order; overwritten.

    Returns
    -------
    int
        A feature with a score that is not finite, -1 if there is none, `WRONG_INPUT` if an input
        is not finite.
    """
    n_features = inputs.shape[0]
    job[FEATURES_AT], job[SCORES_AT] = address_of(inputs), address_of(scores)
    job[N_FEATURES], job[NEXT], job[FAILED] = n_features, 0, -1
    n_vectors = (n_features + LANES - 1) // LANES
    is_single = n_features <= SINGLES and job[N_PARTS] > 0
    if is_single:
        is_much = job[EDGES] >= job[WORTH_WAKING_ONE]
    else:
        is_much = n_vectors * job[EDGES] >= job[WORTH_WAKING]
    size = job[N_THREADS] if is_much else 1
    widest = job[TILE_WIDTH] // LANES
    job[TOGETHER] = 1 if is_single or n_vectors <= job[MOST_SHARED] else 0
    # All tiles about equally wide, and as many for each thread.
    n_tiles = (n_vectors + widest - 1) // widest
    if n_tiles < 4 * size and not job[TOGETHER]:
        n_tiles = (n_tiles + size - 1) // size * size
    job[WIDTH] = (n_vectors + n_tiles - 1) // n_tiles * LANES
    job[SIZE] = size
    mailboxes = _long(job, MAILBOXES, (job[N_THREADS] - 1) * MAILBOX)
    n_helpers = size - 1
    for helper in range(n_helpers):
        post(mailboxes[helper * MAILBOX :])
    if job[TOGETHER] and n_helpers:
        # Who shares a tile waits for the others after each step: all come, or none.
        if not all_enter(mailboxes, n_helpers):
            job[SIZE] = 1
            withdraw(mailboxes, n_helpers)
        say_go(mailboxes, n_helpers)
    _take_part(job, kind, 0)
    finish(mailboxes, n_helpers)
    failed: int = job[FAILED]
    return failed


@jit
def serve(
    job: npt.NDArray[np.int64], kind: npt.NDArray[Any], mailbox: Mailbox, thread: int
) -> None:
    """Be thread number `thread` of all calls with a job, until told to stop."""
    n_seen = 0
    while True:
        wait_for_post(mailbox, n_seen)
        n_seen += 1
        if mailbox[STOP]:
            return
        if not enter(mailbox):
            continue
        if job[TOGETHER]:
            wait_until(mailbox, GO)
        if thread < job[SIZE]:
            _take_part(job, kind, thread)
        leave(mailbox)


@jit_part
def _take_part(job: npt.NDArray[np.int64], kind: npt.NDArray[Any], thread: int) -> None:
    """A thread's part of a call."""
    size = job[SIZE]
    # A counter for each number of threads, which only grows.
    meetings = _long(job, MEETINGS, (job[N_THREADS] + 1) * APART)
    party = Party(thread, size, meetings[size * APART : size * APART + 1])
    if job[N_FEATURES] <= SINGLES and job[N_PARTS] > 0:
        _take_singles(job, kind, party)
    else:
        _take_tiles(job, kind, party)


@jit_part
def _take_singles(job: npt.NDArray[np.int64], kind: npt.NDArray[Any], party: Party) -> None:
    """All features, one after the other, by all threads of a group together."""
    plan, slices = _plan_of(job, kind), _slices_of(job)
    n_inputs, n_outputs, n_numbers = job[N_INPUTS], job[N_OUTPUTS], job[MAX_WIDTH] + 1
    # Activations lie in tiles, which belong to the first thread and are wider by far.
    source = _floats(job[TILES], job[TILE_NUMBERS])
    target = _floats(job[TILES] + 4 * job[TILE_NUMBERS], job[TILE_NUMBERS])
    shares = _long(job, SHARES, job[N_STEPS] * (job[N_THREADS] + 1)).reshape(
        job[N_STEPS], job[N_THREADS] + 1
    )
    if party.parties == 1:
        shares = np.empty((job[N_STEPS], 2), dtype=np.int64)
        for step in range(job[N_STEPS]):
            shares[step, 0], shares[step, 1] = slices.steps[step], slices.steps[step + 1]
    scratch = job[SCRATCH] + party.number * 8 * n_numbers
    rows = carray(_pointer(scratch, np.int32), n_numbers)
    values = _floats(scratch + 4 * n_numbers, n_numbers)
    position = carray(_pointer(job[LOAD_POSITION], np.int32), n_inputs)
    behind = carray(_pointer(job[OUTPUT_POSITION], np.int32), n_outputs)
    inputs = _floats(job[FEATURES_AT], job[N_FEATURES] * n_inputs)
    scores = _floats(job[SCORES_AT], job[N_FEATURES] * n_outputs)
    for feature in range(job[N_FEATURES]):
        if party.number == 0:
            source[job[MAX_WIDTH]], target[job[MAX_WIDTH]] = 0, 0
            own = inputs[feature * n_inputs : (feature + 1) * n_inputs]
            if first_not_finite_row(own.reshape(1, n_inputs), 0, 1) >= 0:
                job[FAILED] = WRONG_INPUT
            if job[IN_PLACE]:
                for p in range(n_inputs):
                    source[p] = own[p]
            else:
                source[: job[N_LOADED] + 1] = 0
                for p in range(n_inputs):
                    source[position[p]] += own[p]
                source[job[MAX_WIDTH]] = 0
        wait(party)
        is_swapped = run_one(plan, slices, shares, source, target, rows, values, party)
        if party.number == 0:
            result = target if is_swapped else source
            for p in range(job[N_LAST]):
                if not np.isfinite(result[p]) and job[FAILED] != WRONG_INPUT:
                    job[FAILED] = feature
            for o in range(n_outputs):
                scores[feature * n_outputs + o] = result[behind[o]]
        wait(party)


@jit_part
def _take_tiles(job: npt.NDArray[np.int64], kind: npt.NDArray[Any], party: Party) -> None:
    """Tiles of features: each thread takes the next one, or all take one together."""
    plan = _plan_of(job, kind)
    n_features, n_inputs, n_outputs = job[N_FEATURES], job[N_INPUTS], job[N_OUTPUTS]
    position = carray(_pointer(job[LOAD_POSITION], np.int32), n_inputs)
    behind = carray(_pointer(job[OUTPUT_POSITION], np.int32), n_outputs)
    inputs = _floats(job[FEATURES_AT], n_features * n_inputs).reshape(n_features, n_inputs)
    scores = _floats(job[SCORES_AT], n_features * n_outputs).reshape(n_features, n_outputs)
    worker = 0 if job[TOGETHER] else party.number
    group = party if job[TOGETHER] else Party(0, 1, party.arrived)
    tiles = job[TILES] + worker * 8 * job[TILE_NUMBERS]
    live_words = 2 * job[N_THREADS] * job[LIVE_WORDS]
    live = carray(_pointer(job[LIVE] + worker * 8 * live_words, np.uint64), live_words)
    counts = _long(job, COUNTS, job[N_THREADS] * 3 * job[N_LAYERS])
    counts = counts[party.number * 3 * job[N_LAYERS] : (party.number + 1) * 3 * job[N_LAYERS]]
    room = Room(
        _floats(tiles, job[TILE_NUMBERS]),
        _floats(tiles + 4 * job[TILE_NUMBERS], job[TILE_NUMBERS]),
        live.reshape(2, job[N_THREADS], job[LIVE_WORDS]),
        counts.reshape(3, job[N_LAYERS]),
    )
    ids = np.empty(job[WIDTH], dtype=np.int64)
    stands_for = np.ones(job[WIDTH], dtype=np.int64)
    next_tile = job[NEXT : NEXT + 1]
    n_taken = 0
    while True:
        number = n_taken if job[TOGETHER] else arrive(next_tile)
        n_taken += 1
        first = number * job[WIDTH]
        if first >= n_features:
            return
        end = min(first + job[WIDTH], n_features)
        stride = (end - first + LANES - 1) // LANES * LANES
        if group.number == 0:
            # This also fetches the rows that are loaded next.
            if first_not_finite_row(inputs, first, end) >= 0:
                job[FAILED] = WRONG_INPUT
            load_rows(
                inputs, first, end, position, job[N_LOADED], job[IN_PLACE] != 0, room.tile, stride
            )
        for f in range(end - first):
            ids[f] = first + f
        wait(group)
        is_swapped, stride, lanes = run_steps(
            plan, 0, job[N_STEPS], room, stride, ids[: end - first], stands_for[: end - first],
            0, group,
        )  # fmt: skip
        if group.number != 0:
            continue
        if lanes.size < end - first:
            scores[first:end] = 0
        if lanes.size:
            result = room.spare if is_swapped else room.tile
            lane = first_not_finite(result, job[N_LAST], stride, lanes)
            if lane >= 0 and job[FAILED] != WRONG_INPUT:
                job[FAILED] = ids[lane]
            store_rows(result, stride, lanes, ids, behind, scores)
