"""What a parallel launcher tells the processes it starts, and what they tell it, without MPI."""

import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress

SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",  # Open MPI's mpirun, Spectrum MPI under jsrun
    "PMI_SIZE",  # MPICH, Intel MPI, Cray; Slurm with --mpi=pmi2
    "MV2_COMM_WORLD_SIZE",  # MVAPICH
    "JSM_NAMESPACE_SIZE",  # jsrun
    "SLURM_STEP_NUM_TASKS",  # srun; SLURM_NTASKS stands in every batch script, too
)
"""Number of processes, the innermost launcher first: it may itself run below srun."""

RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
)
"""Number of this process, in the same order; PMIx gives no size."""

FIRST_SPEAKS = 0.5
"""Seconds a rank: of several that have the same to say, the first says it before the others."""

LONGEST_SILENCE = 2.0
"""Seconds a rank keeps its message back at most, for a lower one to speak."""

READ_WITHIN = 0.2
"""Seconds in which a launcher reads what a process has printed. What it has not read when it is
told to end the job may be lost."""


def launched_size(environment: Mapping[str, str] = os.environ) -> int:
    """How many processes the launcher says it has started; 1 where there is no launcher."""
    size = _first_number(SIZE_VARIABLES, environment)
    # Without a size, a rank tells at least how many there are up to it.
    return launched_rank(environment) + 1 if size is None else max(size, 1)


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Which of them this process is, from 0; 0 where there is no launcher."""
    return _first_number(RANK_VARIABLES, environment) or 0


def launch_claim(environment: Mapping[str, str] = os.environ) -> str:
    """Say which variable tells of several processes: it may be left over from something else."""
    for names, number in (
        (SIZE_VARIABLES, launched_size(environment)),
        (RANK_VARIABLES, launched_rank(environment)),
    ):
        for name in names:
            if environment.get(name, "").isdecimal():
                return f"{name}={number}"
    return "no variable"


def wait_turn(rank: int) -> None:
    """Let lower ranks speak first. Each that is left then speaks: silence would explain nothing."""
    time.sleep(min(rank * FIRST_SPEAKS, LONGEST_SILENCE))


def let_read() -> None:
    """Let the launcher read what was printed, before the job is ended."""
    time.sleep(READ_WITHIN)


def end_job(status: int, environment: Mapping[str, str] = os.environ) -> None:
    """Have the launcher end all processes, where MPI has not been started and it can be told so.

    Open MPI's launcher and ``srun --kill-on-bad-exit`` end a job once one process fails. Hydra, the
    launcher of MPICH and of MPIs made from it, does not before MPI is started: others would
    wait for this process there for ever. It is told in the words of PMI-1, on its own socket.
    """
    if can_end_job(environment):
        let_read()
        with suppress(OSError):
            os.write(int(environment["PMI_FD"]), f"cmd=abort exitcode={status}\n".encode())


def can_end_job(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a launcher that `end_job` can tell."""
    text = environment.get("PMI_FD", "")
    if not text.isdecimal():
        return False
    try:
        # The variable may be inherited and the number be that of another file by now.
        return stat.S_ISSOCK(os.fstat(int(text)).st_mode)
    except OSError:
        return False


def _first_number(names: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
    for name in names:
        text = environment.get(name, "")
        if text.isdecimal():
            return int(text)
    return None
