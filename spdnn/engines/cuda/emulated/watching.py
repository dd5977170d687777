"""What is done at each access to memory while a kernel is checked: functions for numba.

All numbers are in tables of 64-bit whole numbers, found by their addresses. For each word of four
bytes a record says who has written it last, and who has read it. Blocks run one after the other,
and so do threads between barriers. Two accesses of different threads meet all the same if no
barrier lies between them, or if they are of different blocks of a launch.

Fences are followed as far as kernels use them: what a thread has written before a fence, and then
tells by an atomic operation, another thread may read that has done an atomic operation there later,
and a fence behind it (the threads' last such operations count).
"""

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from spdnn.engines.cuda.emulated.launch import CHECKED_BEGAN, CHECKED_BLOCK, CHECKED_EPOCH
from spdnn.engines.cuda.emulated.translate import ATOMIC, IN_SHARED, LOAD, MOST_VALUES, STORE
from spdnn.machine.jit import jit

BLOCK, EPOCH, BEGAN = CHECKED_BLOCK, CHECKED_EPOCH, CHECKED_BEGAN
START, TIME, N_THREADS, N_SPANS, SPANS, THREADS, FAULTS, N_FAULTS, SCRATCH = range(3, 12)
"""Places in the table of a launch: the block that runs, the epoch (it changes at each barrier and
with each block), the first epoch of the block and of the launch, accesses so far, threads of a
block, and the addresses and sizes of the other tables."""

LAUNCH_COLUMNS = 12

LOW, HIGH, WRITTEN, RECORDS, IS_SHARED = range(5)
"""Columns of spans, the memory that a launch may use: its addresses, a byte for each byte that says
whether it has been written, a record for each word, whether it is the block's shared memory."""

SPAN_COLUMNS = 5

(
    W_EPOCH,
    W_TIME,
    W_THREAD,
    W_BLOCK,
    W_INSTRUCTION,
    W_KIND,
    W_VALUE,
    R_EPOCH,
    R_THREAD,
    R_BLOCK,
    R_INSTRUCTION,
) = range(11)
"""Columns of a word's record: its last write, and its reads since."""

RECORD_COLUMNS = 11

MANY = -1
"""In place of a thread or block where there were several."""

FENCED, TOLD_AT, TOLD_TIME, TOLD_FENCED, HEARD_AT, HEARD_TIME, LAST_AT, LAST_TIME = range(8)
"""Columns of a thread: when it has last fenced; where and when it has told by an atomic operation
what it wrote before a fence; where and when it has heard so, with a fence behind it; its last
atomic operation."""

THREAD_COLUMNS = 8

OUT_OF_BOUNDS, MISALIGNED, UNWRITTEN, TWO_WRITES, EQUAL_WRITES, READ_OF_WRITE, WRITE_OF_READ = (
    range(7)
)
"""What can be wrong with an access."""

KIND, INSTRUCTION, OTHER, AT, THREAD, OTHER_THREAD, TIMES = range(7)
"""Columns of a fault. `AT` is the address of the first one."""

FAULT_COLUMNS = 7

MOST_FAULTS = 512

WORD_BYTES = 4


def _as_pointer(typing_context: Any, address: Any) -> Any:
    """Make a pointer of an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), generate


as_pointer = intrinsic(_as_pointer)


@jit
def table_at(address: int, n_rows: int, n_columns: int) -> Any:
    """The table at an address."""
    return carray(as_pointer(address), (n_rows, n_columns), np.int64)


@jit
def note(
    launch: Any, kind: int, instruction: int, other: int, at: int, who: int, whom: int
) -> None:
    """Note a fault; equal ones of the same instructions are counted."""
    faults = table_at(launch[FAULTS], MOST_FAULTS, FAULT_COLUMNS)
    n_faults = launch[N_FAULTS]
    for number in range(n_faults):
        fault = faults[number]
        if fault[KIND] == kind and fault[INSTRUCTION] == instruction and fault[OTHER] == other:
            fault[TIMES] += 1
            return
    if n_faults == MOST_FAULTS:
        return
    fault = faults[n_faults]
    fault[KIND], fault[INSTRUCTION], fault[OTHER] = kind, instruction, other
    fault[AT], fault[THREAD], fault[OTHER_THREAD], fault[TIMES] = at, who, whom, 1
    launch[N_FAULTS] = n_faults + 1


@jit
def is_ordered(launch: Any, record: Any, me: int, at: int) -> bool:
    """Whether fences and atomic operations put a word's last write before what a thread does."""
    threads = table_at(launch[THREADS], me + 1, THREAD_COLUMNS)
    heard_at, heard_time = threads[me, HEARD_AT], threads[me, HEARD_TIME]
    if heard_time == 0:
        return False
    if record[W_KIND] == ATOMIC and at == heard_at:
        return bool(record[W_TIME] <= heard_time)
    other = record[W_THREAD]
    if other == MANY or record[W_BLOCK] == MANY:
        return False
    threads = table_at(launch[THREADS], other + 1, THREAD_COLUMNS)
    return bool(
        threads[other, TOLD_AT] == heard_at
        and threads[other, TOLD_TIME] < heard_time
        and threads[other, TOLD_FENCED] >= record[W_TIME]
    )


@jit
def meets(epoch: int, who: int, block: int, launch: Any, start: int, me: int) -> bool:
    """Whether an earlier access of a word may be at the same time as one of a thread now."""
    if epoch < start:
        return False
    return bool(block != launch[BLOCK] or (epoch == launch[EPOCH] and who != me))


@jit
def access_word(
    launch: Any, start: int, record: Any, at: int, me: int, kind: int, instruction: int, value: int
) -> None:
    """Compare an access to a word with those since the epoch `start`, and note it."""
    epoch, block, time = launch[EPOCH], launch[BLOCK], launch[TIME]
    writes = kind != LOAD
    if (
        meets(record[W_EPOCH], record[W_THREAD], record[W_BLOCK], launch, start, me)
        and not (kind == ATOMIC and record[W_KIND] == ATOMIC)
        and not is_ordered(launch, record, me, at)
    ):
        fault = READ_OF_WRITE
        if writes:
            is_equal = kind == STORE and record[W_KIND] == STORE and record[W_VALUE] == value
            fault = EQUAL_WRITES if is_equal else TWO_WRITES
        note(launch, fault, instruction, record[W_INSTRUCTION], at, me, record[W_THREAD])
    if writes:
        if meets(record[R_EPOCH], record[R_THREAD], record[R_BLOCK], launch, start, me):
            note(
                launch, WRITE_OF_READ, instruction, record[R_INSTRUCTION], at, me, record[R_THREAD]
            )
        if record[W_EPOCH] < start:
            record[W_BLOCK] = block
        elif record[W_BLOCK] != block:
            record[W_BLOCK] = MANY
        is_other = record[W_EPOCH] == epoch and record[W_THREAD] != me
        record[W_THREAD] = MANY if is_other else me
        record[W_EPOCH], record[W_TIME], record[W_INSTRUCTION] = epoch, time, instruction
        record[W_KIND], record[W_VALUE] = kind, value
    else:
        if record[R_EPOCH] < start:
            record[R_BLOCK] = block
        elif record[R_BLOCK] != block:
            record[R_BLOCK] = MANY
        is_other = record[R_EPOCH] == epoch and record[R_THREAD] != me
        record[R_THREAD] = MANY if is_other else me
        record[R_EPOCH], record[R_INSTRUCTION] = epoch, instruction


@jit
def note_atomic(launch: Any, me: int, at: int) -> None:
    """Note that a thread does an atomic operation; it tells what was written before a fence."""
    thread = table_at(launch[THREADS], me + 1, THREAD_COLUMNS)[me]
    if thread[FENCED] > thread[LAST_TIME]:
        thread[TOLD_AT], thread[TOLD_TIME] = at, launch[TIME]
        thread[TOLD_FENCED] = thread[FENCED]
    thread[LAST_AT], thread[LAST_TIME] = at, launch[TIME]


@jit
def access(
    address: int,
    at: int,
    thread: int,
    n_bytes: int,
    count: int,
    kind: int,
    instruction: int,
    values: tuple[int, int, int, int],
) -> int:
    """Check an access.

    Parameters
    ----------
    address : int
        Address of the launch's table.
    at : int
        Address of the access.
    thread : int
        Number of the thread in its block.
    n_bytes, count : int
        Size of a number, and how many there are.
    kind : int
        Load, store or atomic operation, and whether it is of shared memory.
    instruction : int
        Its place in the kernel's code.
    values : tuple of int
        What is stored.

    Returns
    -------
    int
        The address itself, or one where an access that is out of bounds does no harm.
    """
    launch = table_at(address, 1, LAUNCH_COLUMNS)[0]
    launch[TIME] += 1
    me = launch[BLOCK] * launch[N_THREADS] + thread
    is_shared = kind >= IN_SHARED
    kind = kind % IN_SHARED
    size = n_bytes * count
    spans = table_at(launch[SPANS], launch[N_SPANS], SPAN_COLUMNS)
    found = -1
    for number in range(launch[N_SPANS]):
        span = spans[number]
        if span[LOW] <= at and at + size <= span[HIGH] and span[IS_SHARED] == is_shared:
            found = number
            break
    if found < 0:
        note(launch, OUT_OF_BOUNDS, instruction, -1, at, me, MANY)
        return int(launch[SCRATCH])
    if at % size != 0:
        note(launch, MISALIGNED, instruction, -1, at, me, MANY)
    span = spans[found]
    offset = at - span[LOW]
    written = carray(as_pointer(span[WRITTEN]), (span[HIGH] - span[LOW],), np.uint8)
    first, last = offset // WORD_BYTES, (offset + size - 1) // WORD_BYTES
    records = table_at(span[RECORDS], last + 1, RECORD_COLUMNS)
    # Shared memory is another one for each block.
    start = launch[BEGAN] if is_shared else launch[START]
    if kind != STORE:
        is_written = True
        if is_shared:
            for word in range(first, last + 1):
                is_written = is_written and records[word, W_EPOCH] >= start
        else:
            for byte in range(offset, offset + size):
                is_written = is_written and written[byte] != 0
        if not is_written:
            note(launch, UNWRITTEN, instruction, -1, at, me, MANY)
    if kind != LOAD:
        written[offset : offset + size] = 1
    if kind == ATOMIC:
        note_atomic(launch, me, at)
    for word in range(first, last + 1):
        value = 0
        if kind == STORE:
            if n_bytes == 2 * WORD_BYTES:
                pair = values[(word - first) // 2]
                value = pair >> 32 if (word - first) % 2 else pair & 0xFFFFFFFF
            else:
                value = values[(word - first) % MOST_VALUES]
        place = span[LOW] + word * WORD_BYTES
        access_word(launch, start, records[word], place, me, kind, instruction, value)
    return at


@jit
def fence(address: int, thread: int) -> int:
    """Note that a thread waits until all see what it has written, and it what others have.

    Parameters
    ----------
    address : int
        Address of the launch's table.
    thread : int
        Number of the thread in its block.
    """
    launch = table_at(address, 1, LAUNCH_COLUMNS)[0]
    launch[TIME] += 1
    me = launch[BLOCK] * launch[N_THREADS] + thread
    row = table_at(launch[THREADS], me + 1, THREAD_COLUMNS)[me]
    if row[LAST_TIME] > row[FENCED]:
        row[HEARD_AT], row[HEARD_TIME] = row[LAST_AT], row[LAST_TIME]
    row[FENCED] = launch[TIME]
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
    return access(address, at, thread, n_bytes, count, kind, instruction, (a, b, c, d))


def _fence(address: int, thread: int) -> Any:
    return fence(address, thread)


@cache
def native(name: str) -> Any:
    """A function that machine code can call, "access" or "fence", compiled once a process.

    Parameters
    ----------
    name : str
        "access" or "fence".

    Returns
    -------
    object
        With the function's `address`, for as long as it is kept.
    """
    function = {"access": _access, "fence": _fence}[name]
    n_numbers = function.__code__.co_argcount
    return numba.cfunc(types.int64(*[types.int64] * n_numbers))(function)
