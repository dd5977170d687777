"""A barrier for a group of threads that work at one tile.

The words are those of `threading.Barrier`, but waiting happens in compiled code: a thread that
waits reads a counter, without a lock and without Python. All threads of a group must be running
at once. `abort` releases threads that wait for one that will never come.
"""

import platform
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spdnn.engines.cpu.kernels.vectors import data_address
from spdnn.machine.jit import jit_part

SPINS = 2000
"""How often a waiting thread reads the counter, for about 0.1 ms, before it yields its core."""

BROKEN = 1 << 60
"""Added to the counter when the barrier is aborted: more than threads can arrive."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)

_sched_yield = types.ExternalFunction("sched_yield", types.intc())


class Party(NamedTuple):
    """One thread of a group, and the group's barrier.

    Attributes
    ----------
    number : int
        The thread's number in the group, from 0. Thread 0 leads the group.
    parties : int
        Threads in the group.
    arrived : ndarray, shape (1,), int64
        How many times threads of the group have arrived at the barrier, all together. It is zero
        in the beginning.
    """

    number: int
    parties: int
    arrived: npt.NDArray[np.int64]


def thread_group(parties: int) -> list[Party]:
    """Make a group of threads with a barrier.

    Parameters
    ----------
    parties : int
        Threads in the group.

    Returns
    -------
    list of Party
        What each of them is given.
    """
    arrived = np.zeros(1, dtype=np.int64)
    return [Party(number, parties, arrived) for number in range(parties)]


def abort(party: Party) -> None:
    """Release all who wait, now and later. What the group computes after that has no meaning."""
    party.arrived[0] += BROKEN


@intrinsic  # type: ignore[untyped-decorator]
def arrive(typing_context: Any, arrived: Any) -> Any:
    """Add 1 to ``arrived[0]``, atomically; returns what it was."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = data_address(context, builder, signature.args[0], arguments[0])
        pointer = builder.inttoptr(address, _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(_I64, 1), "acq_rel")

    return types.int64(arrived), codegen


@intrinsic  # type: ignore[untyped-decorator]
def read(typing_context: Any, arrived: Any) -> Any:
    """``arrived[0]`` as it is now, with all that was written before it became so.

    Tells the processor that this is a loop that waits.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        nothing = ir.VoidType()
        if platform.machine() == "x86_64":
            pause = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(nothing, []), "llvm.x86.sse2.pause"
            )
            builder.call(pause, [])
        elif platform.machine() in ("aarch64", "arm64"):
            hint = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(nothing, [_I32]), "llvm.aarch64.hint"
            )
            builder.call(hint, [ir.Constant(_I32, 1)])  # YIELD
        address = data_address(context, builder, signature.args[0], arguments[0])
        return builder.load_atomic(builder.inttoptr(address, _I64.as_pointer()), "acquire", 8)

    return types.int64(arrived), codegen


@jit_part
def wait(party: Party) -> None:
    """Wait until all threads of the group have arrived here."""
    if party.parties == 1:
        return
    before = arrive(party.arrived)
    if before >= BROKEN:
        return
    everybody = (before // party.parties + 1) * party.parties
    n_reads = 0
    while read(party.arrived) < everybody:
        n_reads += 1
        if n_reads > SPINS:
            _sched_yield()
