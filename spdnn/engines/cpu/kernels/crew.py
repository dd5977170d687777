"""Waking threads from compiled code: helpers look for work for a moment, then sleep.

A helper is a thread that stays in compiled code. It looks at a counter; after a while in vain it
waits for a condition of POSIX threads, so that an idle program takes no processor.

Work that a helper has not begun can be withdrawn. A machine whose processors are all busy wakes a
helper late, when the others may have done everything.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spdnn.engines.cpu.kernels.barrier import SPINS, arrive, read
from spdnn.engines.cpu.kernels.rows import address_of
from spdnn.engines.cpu.kernels.vectors import data_address
from spdnn.machine.jit import jit, jit_part

COUNT, STOP, STATE, MUTEX, CONDITION = 0, 8, 16, 24, 56
"""Places in a mailbox: how often work was posted in it, whether the helper is to return, how far it
is, and the two objects of POSIX threads, which take up to 64 bytes each."""

MAILBOX = 88
"""Numbers of a mailbox: no two helpers' share a cache line."""

IDLE, POSTED, ENTERED, GO = range(4)
"""States: work was posted; the helper has seen it; it may begin, where it is to wait for that."""

ENTRY_LOOKS = 300
"""Looks, some 15 microseconds, within which helpers must have seen work that needs all at once."""

Mailbox = npt.NDArray[np.int64]

_I64 = ir.IntType(64)

_init_mutex = types.ExternalFunction("pthread_mutex_init", types.intc(types.intp, types.intp))
_lock = types.ExternalFunction("pthread_mutex_lock", types.intc(types.intp))
_unlock = types.ExternalFunction("pthread_mutex_unlock", types.intc(types.intp))
_init_condition = types.ExternalFunction("pthread_cond_init", types.intc(types.intp, types.intp))
_wait = types.ExternalFunction("pthread_cond_wait", types.intc(types.intp, types.intp))
_signal = types.ExternalFunction("pthread_cond_signal", types.intc(types.intp))
_sched_yield = types.ExternalFunction("sched_yield", types.intc())


@intrinsic  # type: ignore[untyped-decorator]
def _replace(typing_context: Any, place: Any, expected: Any, following: Any) -> Any:
    """Write ``place[0]`` if it is as expected, atomically; returns whether it was."""
    signature = types.boolean(place, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, expected, following = arguments
        address = data_address(context, builder, signature.args[0], place)
        pointer = builder.inttoptr(address, _I64.as_pointer())
        found = builder.cmpxchg(pointer, expected, following, "acq_rel", "acquire")
        return builder.extract_value(found, 1)

    return signature, codegen


@jit
def open_mailbox(mailbox: Mailbox) -> None:
    """Make a mailbox, of `MAILBOX` zeros, ready."""
    _init_mutex(address_of(mailbox[MUTEX:]), 0)
    _init_condition(address_of(mailbox[CONDITION:]), 0)


@jit
def post(mailbox: Mailbox) -> None:
    """Tell an idle helper that there is work; all that was written before, it will see."""
    _replace(mailbox[STATE:], IDLE, POSTED)
    arrive(mailbox[COUNT:])
    # With the lock: a helper that is about to sleep has looked before, or looks again.
    _lock(address_of(mailbox[MUTEX:]))
    _signal(address_of(mailbox[CONDITION:]))
    _unlock(address_of(mailbox[MUTEX:]))


@jit_part
def wait_for_post(mailbox: Mailbox, n_seen: int) -> None:
    """Return once work was posted more than `n_seen` times."""
    for _ in range(SPINS):
        if read(mailbox[COUNT:]) > n_seen:
            return
    _lock(address_of(mailbox[MUTEX:]))
    while read(mailbox[COUNT:]) <= n_seen:
        _wait(address_of(mailbox[CONDITION:]), address_of(mailbox[MUTEX:]))
    _unlock(address_of(mailbox[MUTEX:]))


@jit_part
def enter(mailbox: Mailbox) -> bool:
    """Begin with posted work, unless it was withdrawn."""
    entered: bool = _replace(mailbox[STATE:], POSTED, ENTERED)
    return entered


@jit_part
def leave(mailbox: Mailbox) -> None:
    """Say that work is done."""
    if not _replace(mailbox[STATE:], ENTERED, IDLE):
        _replace(mailbox[STATE:], GO, IDLE)


@jit_part
def wait_until(mailbox: Mailbox, state: int) -> None:
    """Wait until a mailbox is in a state."""
    n_looks = 0
    while read(mailbox[STATE:]) != state:
        n_looks += 1
        if n_looks > SPINS:
            _sched_yield()


@jit_part
def all_enter(mailboxes: Mailbox, n_helpers: int) -> bool:
    """Whether all helpers see within a moment what was posted."""
    n_entered = 0
    for _ in range(ENTRY_LOOKS):
        n_entered = 0
        for helper in range(n_helpers):
            n_entered += read(mailboxes[helper * MAILBOX + STATE :]) == ENTERED
        if n_entered == n_helpers:
            break
    return n_entered == n_helpers


@jit_part
def withdraw(mailboxes: Mailbox, n_helpers: int) -> None:
    """Take work back from helpers that have not begun: they will not."""
    for helper in range(n_helpers):
        _replace(mailboxes[helper * MAILBOX + STATE :], POSTED, IDLE)


@jit_part
def say_go(mailboxes: Mailbox, n_helpers: int) -> None:
    """Let those helpers go that have entered."""
    for helper in range(n_helpers):
        _replace(mailboxes[helper * MAILBOX + STATE :], ENTERED, GO)


@jit_part
def finish(mailboxes: Mailbox, n_helpers: int) -> None:
    """Withdraw work from helpers that have not begun, and wait for those that have."""
    withdraw(mailboxes, n_helpers)
    for helper in range(n_helpers):
        wait_until(mailboxes[helper * MAILBOX :], IDLE)
