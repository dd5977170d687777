"""What is done at each access to memory while a launch is counted: functions for numba.

Threads run one after the other up to their next barrier. So the accesses of a warp's lanes are
noted, and put together when the next warp's turn comes or all threads stand at the barrier: those
of one instruction, the first of each lane with the first of the others, the second with the second.
All numbers are in tables of 64-bit whole numbers, found by their addresses.
"""

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import carray, types

from spdnn.engines.cuda.emulated.launch import CHECKED_BEGAN, CHECKED_EPOCH
from spdnn.engines.cuda.emulated.translate import ATOMIC, EXECUTED, IN_SHARED, LOAD
from spdnn.engines.cuda.emulated.watching import as_pointer, table_at
from spdnn.engines.cuda.kernels.gpu import WARP
from spdnn.machine.jit import jit

EPOCH, BEGAN = CHECKED_EPOCH, CHECKED_BEGAN
(
    N_THREADS,
    REGIONS,
    N_REGIONS,
    LOG,
    N_LOGGED,
    OF_CODE,
    N_CODE,
    WARP_NUMBER,
    HAS_WRITTEN,
    SEEN,
    N_SEEN,
    TOTALS,
    IS_FULL,
) = range(EXECUTED + 1, EXECUTED + 14)
"""Places in the table of a launch, behind those that the threads and their runner know: threads of
a block; address and number of the regions; address of the log and accesses noted in it; address of
what is kept for each instruction and how many there are; the warp of the log; whether the block has
written; address of the sectors that the block has read and their number; address of the totals;
whether a table was too small."""

LAUNCH_COLUMNS = EXECUTED + 14

LOG_ROWS = 1 << 22
"""Accesses of a warp between two barriers at most: 131072 of each lane."""

LOGGED_AT, LOGGED_AS, GROUP, PLACE, GROUP_START = range(5)
"""Rows of the log: the address of each access; its lane, instruction, kind and size; the accesses
of a warp that it belongs to; the accesses in the order of these; where each of these begins."""

LOG_TABLES = 5

SEEN_ROWS = 1 << 22
"""Places for the sectors that a block reads: a power of two, and twice as many as it may read."""

TIMES, LAST_LANE, MOST_TIMES, REQUESTS, WAVEFRONTS, LEAST_WAVEFRONTS = range(6)
"""Rows of what is kept for each instruction: how often the lane has executed it, which lane that
is, and the most times of any lane; accesses of warps, their wavefronts, and the least of these."""

CODE_TABLES = 6

SECTOR, LINE = 32, 128
"""Bytes of a sector and of a line of the caches."""

LINES_AT_ONCE = 4
"""Lines that the L1 cache looks up in a clock. NVIDIA's documents do not say; it is the largest
number that is told of GPUs from Volta on, and so the least that is paid."""

BANKS, WORD_BYTES = 32, 4
"""Banks of shared memory, and the bytes that each gives in a clock."""

WORDS_AT_ONCE = 32
"""Words that lanes ask for in a phase of an access: 32 lanes of 4 bytes, or 8 lanes of 16."""

REGION_COLUMNS = 3
"""Columns of a region: its instructions, multiply-adds among them, and times that warps execute it.
"""

_INSTRUCTION_BITS, _KIND_BITS, _SIZE_BITS = 24, 4, 8

COLUMNS = (
    "blocks",
    "returned",
    "barriers",
    "warp_instructions",
    "warp_multiply_adds",
    "multiply_adds",
    "shared_loads",
    "shared_load_wavefronts",
    "shared_load_ideal",
    "shared_stores",
    "shared_store_wavefronts",
    "shared_store_ideal",
    "global_loads",
    "global_load_bytes",
    "global_load_sectors",
    "global_load_wavefronts",
    "new_sectors",
    "global_stores",
    "global_store_bytes",
    "global_store_sectors",
    "global_store_wavefronts",
    "atomics",
    "atomic_bytes",
    "atomic_sectors",
    "atomic_wavefronts",
)
"""The totals, in their order; `spdnn.engines.cuda.emulated.counts.Counts` says what they are."""

_PLACE = {name: place for place, name in enumerate(COLUMNS)}
_BLOCKS, _RETURNED, _BARRIERS = (_PLACE[name] for name in COLUMNS[:3])
_INSTRUCTIONS, _WARP_ADDS, _ADDS = (_PLACE[name] for name in COLUMNS[3:6])
_SHARED_LOAD, _SHARED_STORE = _PLACE["shared_loads"], _PLACE["shared_stores"]
_GLOBAL_LOAD, _NEW = _PLACE["global_loads"], _PLACE["new_sectors"]
_GLOBAL_STORE, _ATOMIC = _PLACE["global_stores"], _PLACE["atomics"]


@jit
def is_new(launch: Any, sector: int) -> bool:
    """Whether the block reads a sector for the first time; it is noted."""
    places = table_at(launch[SEEN], 2, SEEN_ROWS)
    began = launch[BEGAN]
    place = (sector * 0x9E3779B1) >> 7 & (SEEN_ROWS - 1)
    while places[1, place] == began:
        if places[0, place] == sector:
            return False
        place = (place + 1) & (SEEN_ROWS - 1)
    if launch[N_SEEN] >= SEEN_ROWS // 2:
        launch[IS_FULL] = 1
        return True
    places[0, place], places[1, place] = sector, began
    launch[N_SEEN] += 1
    return True


@jit
def add_shared(
    totals: Any, column: int, at: Any, lanes: Any, n_lanes: int, size: int
) -> tuple[int, int]:
    """Add an access of a warp to shared memory: wavefronts, and what they would be at least."""
    n_words = max(1, size // WORD_BYTES)
    lanes_at_once = WORDS_AT_ONCE // n_words
    words = np.empty(WORDS_AT_ONCE, np.int64)
    of_bank = np.empty(BANKS, np.int64)
    number = wavefronts = least = 0
    for phase in range(n_words):
        n_distinct = 0
        of_bank[:] = 0
        while number < n_lanes and lanes[number] < (phase + 1) * lanes_at_once:
            for further in range(n_words):
                word = at[number] // WORD_BYTES + further
                is_known = False
                for other in range(n_distinct):
                    if words[other] == word:
                        is_known = True
                        break
                if not is_known:
                    words[n_distinct] = word
                    n_distinct += 1
                    of_bank[word % BANKS] += 1
            number += 1
        if n_distinct > 0:
            wavefronts += of_bank.max()
            least += -(-n_distinct // BANKS)
    totals[column] += 1
    totals[column + 1] += wavefronts
    totals[column + 2] += least
    return wavefronts, least


@jit
def add_global(
    launch: Any, totals: Any, column: int, at: Any, lanes: Any, n_lanes: int, size: int
) -> tuple[int, int]:
    """Add an access of a warp to global memory: bytes asked for, sectors, and wavefronts.

    Its wavefronts are given back, and what they would be if lanes asked for neighbours.
    """
    n_words = max(1, size // WORD_BYTES)
    lanes_at_once = WORDS_AT_ONCE // n_words
    sectors = np.empty(WARP, np.int64)
    lines = np.empty(WARP, np.int64)
    n_sectors = n_lines = phase = wavefronts = 0
    for number in range(n_lanes):
        if lanes[number] // lanes_at_once != phase:
            wavefronts += -(-n_lines // LINES_AT_ONCE)
            n_lines, phase = 0, lanes[number] // lanes_at_once
        # An access is aligned to its size, and lies in one sector.
        sector, line = at[number] // SECTOR, at[number] // LINE
        is_known = False
        # Neighbours mostly are in the same sector: the last ones are compared first.
        for back in range(1, n_sectors + 1):
            if sectors[n_sectors - back] == sector:
                is_known = True
                break
        if not is_known:
            sectors[n_sectors] = sector
            n_sectors += 1
        is_known = False
        for back in range(1, n_lines + 1):
            if lines[n_lines - back] == line:
                is_known = True
                break
        if not is_known:
            lines[n_lines] = line
            n_lines += 1
    totals[column] += 1
    totals[column + 1] += n_lanes * size
    totals[column + 2] += n_sectors
    wavefronts += -(-n_lines // LINES_AT_ONCE)
    totals[column + 3] += wavefronts
    if column == _GLOBAL_LOAD:
        for number in range(n_sectors):
            if is_new(launch, sectors[number]):
                totals[_NEW] += 1
    return wavefronts, -(-n_lanes * size // LINE)


@jit
def put_together(launch: Any) -> None:
    """Put the accesses of a warp's lanes together, and add them to the totals."""
    n_logged = launch[N_LOGGED]
    if n_logged == 0:
        return
    launch[N_LOGGED] = 0
    log = table_at(launch[LOG], LOG_TABLES, LOG_ROWS + 1)
    n_code = launch[N_CODE]
    of_code = table_at(launch[OF_CODE], CODE_TABLES, n_code)
    of_code[LAST_LANE] = -1
    of_code[MOST_TIMES] = 0
    for number in range(n_logged):
        noted = log[LOGGED_AS, number]
        instruction = noted >> (_KIND_BITS + _SIZE_BITS) & ((1 << _INSTRUCTION_BITS) - 1)
        lane = noted >> (_INSTRUCTION_BITS + _KIND_BITS + _SIZE_BITS)
        if of_code[LAST_LANE, instruction] != lane:
            of_code[LAST_LANE, instruction], of_code[TIMES, instruction] = lane, 0
        log[GROUP, number] = of_code[TIMES, instruction]
        of_code[TIMES, instruction] += 1
        most = max(of_code[MOST_TIMES, instruction], of_code[TIMES, instruction])
        of_code[MOST_TIMES, instruction] = most
    # The first group of each instruction.
    n_groups = 0
    for instruction in range(n_code):
        of_code[TIMES, instruction] = n_groups
        n_groups += of_code[MOST_TIMES, instruction]
    starts = log[GROUP_START]
    starts[: n_groups + 1] = 0
    for number in range(n_logged):
        instruction = log[LOGGED_AS, number] >> (_KIND_BITS + _SIZE_BITS) & (
            (1 << _INSTRUCTION_BITS) - 1
        )
        log[GROUP, number] += of_code[TIMES, instruction]
        starts[log[GROUP, number] + 1] += 1
    for group in range(n_groups):
        starts[group + 1] += starts[group]
    for number in range(n_logged):
        group = log[GROUP, number]
        log[PLACE, starts[group]] = number
        starts[group] += 1
    # Each group now begins where the one before it ends.
    totals = table_at(launch[TOTALS], 1, len(COLUMNS))[0]
    at = np.empty(WARP, np.int64)
    lanes = np.empty(WARP, np.int64)
    first = 0
    for group in range(n_groups):
        end = starts[group]
        noted = log[LOGGED_AS, log[PLACE, first]]
        size = noted & ((1 << _SIZE_BITS) - 1)
        kind = noted >> _SIZE_BITS & ((1 << _KIND_BITS) - 1)
        for place in range(first, end):
            number = log[PLACE, place]
            at[place - first] = log[LOGGED_AT, number]
            lanes[place - first] = log[LOGGED_AS, number] >> (
                _INSTRUCTION_BITS + _KIND_BITS + _SIZE_BITS
            )
        n_lanes = end - first
        first = end
        instruction = noted >> (_KIND_BITS + _SIZE_BITS) & ((1 << _INSTRUCTION_BITS) - 1)
        if kind >= IN_SHARED:
            column = _SHARED_LOAD if kind - IN_SHARED == LOAD else _SHARED_STORE
            wavefronts, least = add_shared(totals, column, at, lanes, n_lanes, size)
        else:
            column = _GLOBAL_LOAD if kind == LOAD else _GLOBAL_STORE
            column = _ATOMIC if kind == ATOMIC else column
            wavefronts, least = add_global(launch, totals, column, at, lanes, n_lanes, size)
        of_code[REQUESTS, instruction] += 1
        of_code[WAVEFRONTS, instruction] += wavefronts
        of_code[LEAST_WAVEFRONTS, instruction] += least


@jit
def access(
    address: int, at: int, thread: int, n_bytes: int, count: int, kind: int, instruction: int
) -> int:
    """Note an access.

    Parameters
    ----------
    address : int
        Address of the launch's table.
    at : int
        Address of the access.
    thread : int
        Number of the thread in its block.
    n_bytes, count : int
        Size of a number, and how many there are side by side.
    kind : int
        Load, store or atomic operation, and whether it is of shared memory.
    instruction : int
        Its place in the kernel's code.

    Returns
    -------
    int
        The address itself.
    """
    launch = table_at(address, 1, LAUNCH_COLUMNS)[0]
    warp = thread // WARP
    if launch[WARP_NUMBER] != warp:
        put_together(launch)
        launch[WARP_NUMBER] = warp
    number = launch[N_LOGGED]
    if number + count > LOG_ROWS:
        launch[IS_FULL] = 1
        return at
    log = table_at(launch[LOG], LOG_TABLES, LOG_ROWS + 1)
    lane = thread % WARP
    noted = (lane << _INSTRUCTION_BITS | instruction) << _KIND_BITS | kind
    # Numbers that are not aligned for one access are taken in halves, or one by one.
    size = n_bytes * count
    while size > n_bytes and at % size != 0:
        size //= 2
    for place in range(at, at + n_bytes * count, size):
        log[LOGGED_AT, number] = place
        log[LOGGED_AS, number] = noted << _SIZE_BITS | size
        number += 1
    launch[N_LOGGED] = number
    if kind % IN_SHARED != LOAD and kind < IN_SHARED:
        launch[HAS_WRITTEN] = 1
    return at


@jit
def end_epoch(address: int, n_waiting: int) -> int:
    """Add up what the threads of a block have done since the last barrier.

    Parameters
    ----------
    address : int
        Address of the launch's table.
    n_waiting : int
        Threads that wait at a barrier; the others have ended.
    """
    launch = table_at(address, 1, LAUNCH_COLUMNS)[0]
    put_together(launch)
    launch[WARP_NUMBER] = -1
    totals = table_at(launch[TOTALS], 1, len(COLUMNS))[0]
    n_threads, n_regions = launch[N_THREADS], launch[N_REGIONS]
    executed = carray(as_pointer(launch[EXECUTED]), (n_threads, n_regions), np.int32)
    regions = table_at(launch[REGIONS], n_regions, REGION_COLUMNS)
    most_of_block = 0
    for first in range(0, n_threads, WARP):
        for region in range(n_regions):
            most = 0
            for thread in range(first, min(first + WARP, n_threads)):
                times = executed[thread, region]
                if times > 0:
                    most = max(most, times)
                    totals[_ADDS] += times * regions[region, 1]
                    executed[thread, region] = 0
            most_of_block = max(most_of_block, most)
            regions[region, 2] += most
            totals[_INSTRUCTIONS] += most * regions[region, 0]
            totals[_WARP_ADDS] += most * regions[region, 1]
    is_first = launch[BEGAN] == launch[EPOCH]
    if n_waiting > 0:
        totals[_BARRIERS] += 1
        return 0
    totals[_BLOCKS] += 1
    if is_first and launch[HAS_WRITTEN] == 0 and most_of_block <= 1:
        totals[_RETURNED] += 1
    launch[HAS_WRITTEN] = 0
    launch[N_SEEN] = 0
    return 0


def _access(
    address: int,
    at: int,
    thread: int,
    n_bytes: int,
    count: int,
    kind: int,
    instruction: int,
    a: int,
    b: int,
    c: int,
    d: int,
) -> Any:
    return access(address, at, thread, n_bytes, count, kind, instruction)


def _end_epoch(address: int, n_waiting: int) -> Any:
    return end_epoch(address, n_waiting)


@cache
def native(name: str) -> Any:
    """A function that machine code can call, compiled once a process.

    Parameters
    ----------
    name : str
        "access" or "epoch".

    Returns
    -------
    object
        With the function's `address`, for as long as it is kept.
    """
    function = {"access": _access, "epoch": _end_epoch}[name]
    n_numbers = function.__code__.co_argcount
    return numba.cfunc(types.int64(*[types.int64] * n_numbers))(function)
