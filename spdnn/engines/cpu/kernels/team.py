"""Several threads at one tile: each takes its share of a step's blocks, then all meet.

Meeting is a barrier in compiled code: a thread that waits looks at a counter, without a lock and
without Python. All threads of a team must be running at once; `break_up` lets those go on that wait
for one that will never come.
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
from spdnn.machine.jit import jit
from spdnn.plan.cpu.blocks import MAX_ROWS, N_INPUTS, N_ROWS
from spdnn.plan.cpu.plan import END_BLOCK, FIRST_BLOCK, PlanArrays

ROW_COST = 20
"""What it takes to begin and end a row of a block, in additions of a row of eight."""

FEW_ROWS_COST = 2
"""How much more an addition takes in a block of fewer rows, which follow each other too closely."""

SPINS = 2000
"""Looks at the counter, some 0.1 ms, before a waiting thread offers its processor to others."""

BROKEN = 1 << 60
"""More meetings than there can be: the counter of a team that has been broken up."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)

_sched_yield = types.ExternalFunction("sched_yield", types.intc())


class Team(NamedTuple):
    """One thread's place among those that work at a tile.

    Attributes
    ----------
    thread, size : int
        Its number, and how many they are.
    arrived : ndarray, shape (1,), int64
        How often threads have come to a meeting, all together; zero in the beginning.
    """

    thread: int
    size: int
    arrived: npt.NDArray[np.int64]


def gather_team(size: int) -> list[Team]:
    """Make a team of so many threads."""
    arrived = np.zeros(1, dtype=np.int64)
    return [Team(thread, size, arrived) for thread in range(size)]


def break_up(team: Team) -> None:
    """Let nobody wait any longer; what the threads compute from now on is of no meaning."""
    team.arrived[0] += BROKEN


@intrinsic  # type: ignore[untyped-decorator]
def arrive(typing_context: Any, arrived: Any) -> Any:
    """Add 1 to ``arrived[0]``, atomically; returns what it was."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = data_address(context, builder, signature.args[0], arguments[0])
        pointer = builder.inttoptr(address, _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(_I64, 1), "acq_rel")

    return types.int64(arrived), codegen


@intrinsic  # type: ignore[untyped-decorator]
def look(typing_context: Any, arrived: Any) -> Any:
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


@jit
def meet(team: Team) -> None:
    """Wait until all threads of the team have come here."""
    if team.size == 1:
        return
    before = arrive(team.arrived)
    if before >= BROKEN:
        return
    everybody = (before // team.size + 1) * team.size
    n_looks = 0
    while look(team.arrived) < everybody:
        n_looks += 1
        if n_looks > SPINS:
            _sched_yield()


@jit
def share_of(plan: PlanArrays, step: int, team: Team) -> tuple[int, int]:
    """The first of a step's blocks that a thread of a team takes, and the end of them."""
    first, end = plan.steps[step, FIRST_BLOCK], plan.steps[step, END_BLOCK]
    if team.size == 1:
        return first, end
    cost = 0
    for block in range(first, end):
        cost += _cost(plan, block)
    begin, stop = cost * team.thread // team.size, cost * (team.thread + 1) // team.size
    own_first, own_end = end, end
    cost = 0
    for block in range(first, end):
        if cost >= begin and own_first == end:
            own_first = block
        if cost >= stop:
            own_end = block
            break
        cost += _cost(plan, block)
    return own_first, own_end


@jit
def _cost(plan: PlanArrays, block: int) -> int:
    """What a block takes for 16 lanes, in additions of a row of eight."""
    n_rows = plan.blocks[block, N_ROWS]
    one = 1 if n_rows == MAX_ROWS else FEW_ROWS_COST
    cost: int = n_rows * (ROW_COST + one * plan.blocks[block, N_INPUTS])
    return cost
