"""``spdnn`` with an engine that fails on purpose: python -m tests.mpi_faults FAULT run ...

FAULT is one of `FAULTS`. Each rank that does not fail writes a file "rank-R", and then works for a
minute.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from spdnn.cli.main import main
from spdnn.engines import ENGINES
from spdnn.engines.base import Output
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.engines.state import State
from spdnn.errors import DeviceError
from spdnn.machine.launcher import launched_rank
from spdnn.network import Network

FAILING_RANK = 2
WORK_SECONDS = 60


def nothing() -> None:
    pass


def our_fault() -> None:
    raise RuntimeError("a fault of ours")


def users_fault() -> None:
    raise DeviceError("no such device")


def end_without_a_word() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {
    "none": nothing,
    "ours": our_fault,
    "users": users_fault,
    "everywhere": users_fault,
    "everywhere-ours": our_fault,
    "killed": end_without_a_word,
    "killed-later": end_without_a_word,
}

LATER = 2
"""Layers that a rank passes before it fails later."""


class FaultyEngine(CpuEngine):
    def compile(self, network: Network, mode: str | None = None) -> None:
        # Compiling runs the engine, so take one without faults.
        CpuEngine(self.threads).compile(network, mode)

    def run_part(self, plan: Any, start: Any, **named: Any) -> Output:
        fault = sys.argv[1]
        if fault == "killed-later" and not (isinstance(start, State) and start.layer >= LATER):
            return super().run_part(plan, start, **named)
        if fault.startswith("everywhere") or launched_rank() == FAILING_RANK:
            FAULTS[fault]()
        Path(f"rank-{launched_rank()}").touch()
        time.sleep(WORK_SECONDS)
        return super().run_part(plan, start, **named)


if __name__ == "__main__":
    ENGINES["cpu"] = "tests.mpi_faults:FaultyEngine"
    sys.exit(main(sys.argv[2:]))
