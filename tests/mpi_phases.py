"""Run ``spdnn`` with a rank that fails: python -m tests.mpi_phases PHASE KIND run ...

PHASE is one of `PHASES`, the phase in which it fails. KIND is one of `KINDS`, the error.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from spdnn.cli import run as command
from spdnn.cli.main import main
from spdnn.distributed import ranks
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.errors import DataError
from spdnn.machine.launcher import launched_rank
from spdnn.run import session
from spdnn.run.course import Course


class Phase(NamedTuple):
    """A function that a rank calls in a phase, and that fails there.

    If `work` is given, the argument of that name fails in its place.
    """

    owner: Any
    name: str
    rank: int = 1
    work: str = ""


PHASES = {
    "join": Phase(ranks._Ranks, "_split_by_node"),
    "open": Phase(command, "open_network_first", rank=0),
    "make": Phase(session, "make_engine"),
    "share": Phase(ranks._Ranks, "_window"),
    "fill": Phase(ranks._Ranks, "on_leaders", rank=0, work="fill"),
    "compile": Phase(CpuEngine, "compile"),
    "plan": Phase(session, "plan_for", rank=0),
    "load": Phase(CpuEngine, "load"),
    "begin": Phase(Course, "begin"),
    "run": Phase(CpuEngine, "run"),
    "between": Phase(Course, "rank_count"),
    "gather": Phase(ranks._Ranks, "gathered"),
    "report": Phase(command, "run_rows", rank=0),
}


def end_without_a_word() -> BaseException:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still there")


KINDS: dict[str, Callable[[], BaseException]] = {
    "data": lambda: DataError("the data is wrong"),
    "os": lambda: OSError(5, "the disk is broken"),
    "memory": lambda: MemoryError(),
    "ours": lambda: RuntimeError("a fault of ours"),
    "exit-0": lambda: SystemExit(0),
    "exit-3": lambda: SystemExit(3),
    "interrupted": lambda: KeyboardInterrupt(),
    "killed": end_without_a_word,
}


def failing(phase: Phase, kind: str) -> Callable[..., Any]:
    """Make the function of a phase fail on one rank."""
    original = getattr(phase.owner, phase.name)

    def fail() -> None:
        raise KINDS[kind]()

    def function(*given: Any, **named: Any) -> Any:
        if launched_rank() != phase.rank:
            return original(*given, **named)
        if not phase.work:
            fail()
        if getattr(given[-1], "__name__", "") == phase.work:
            return original(*given[:-1], fail)
        return original(*given, **named)

    return function


if __name__ == "__main__":
    PHASE, KIND = PHASES[sys.argv[1]], sys.argv[2]
    setattr(PHASE.owner, PHASE.name, failing(PHASE, KIND))
    sys.exit(main(sys.argv[3:]))
