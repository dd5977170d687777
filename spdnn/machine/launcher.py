"""Messages between a parallel launcher and the processes that it starts, without MPI."""

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
    "SLURM_STEP_NUM_TASKS",  # srun; SLURM_NTASKS is set in every batch script, too
)
"""Variables that hold the number of processes, of the innermost launcher first. A launcher may run
below srun."""

RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
)
"""Variables that hold the number of this process, in the same order. PMIx gives no size."""

FIRST_SPEAKS = 0.5
"""Seconds for each lower rank that a rank waits before it prints its message, in `wait_turn`."""

LONGEST_SILENCE = 2.0
"""Longest time in seconds that a rank waits for lower ones in `wait_turn`."""

READ_WITHIN = 0.2
"""Seconds in which a launcher reads the output of a process. Output that it has not read when it is
told to end the job may be lost."""


def launched_size(environment: Mapping[str, str] = os.environ) -> int:
    """Number of processes that the launcher has started; 1 where there is no launcher.

    Parameters
    ----------
    environment : mapping
        Environment variables.
    """
    size = _first_number(SIZE_VARIABLES, environment)
    # Without a size, the rank shows that there are at least so many.
    return launched_rank(environment) + 1 if size is None else max(size, 1)


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Number of this process, counted from 0; 0 where there is no launcher.

    Parameters
    ----------
    environment : mapping
        Environment variables.
    """
    return _first_number(RANK_VARIABLES, environment) or 0


def launch_claim(environment: Mapping[str, str] = os.environ) -> str:
    """The variable and its value that tell of several processes, for a message.

    The variable may have been left by another program.

    Parameters
    ----------
    environment : mapping
        Environment variables.
    """
    for names, number in (
        (SIZE_VARIABLES, launched_size(environment)),
        (RANK_VARIABLES, launched_rank(environment)),
    ):
        for name in names:
            if environment.get(name, "").isdecimal():
                return f"{name}={number}"
    return "no variable"


def wait_turn(rank: int) -> None:
    """Wait, so that lower ranks print their messages first.

    All ranks may have the same message. A rank that is still there afterwards prints its own.

    Parameters
    ----------
    rank : int
        Number of this process.
    """
    time.sleep(min(rank * FIRST_SPEAKS, LONGEST_SILENCE))


def let_read() -> None:
    """Wait, so that the launcher reads what was printed before the job is ended."""
    time.sleep(READ_WITHIN)


def end_job(status: int, environment: Mapping[str, str] = os.environ) -> None:
    """Tell the launcher to end all processes, where MPI has not been started and that is possible.

    Open MPI's launcher and ``srun --kill-on-bad-exit`` end a job once one process fails. Hydra, the
    launcher of MPICH and of MPIs made from it, does so only after MPI was started. Before that,
    the other processes would wait for this one forever. Hydra is told by the protocol PMI-1, on its
    own socket.

    Parameters
    ----------
    status : int
        Exit status of the job.
    environment : mapping
        Environment variables.
    """
    if can_end_job(environment):
        let_read()
        with suppress(OSError):
            os.write(int(environment["PMI_FD"]), f"cmd=abort exitcode={status}\n".encode())


def can_end_job(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a launcher that `end_job` can tell.

    Parameters
    ----------
    environment : mapping
        Environment variables.
    """
    text = environment.get("PMI_FD", "")
    if not text.isdecimal():
        return False
    try:
        # The variable may be inherited, and the number may belong to another file by now.
        return stat.S_ISSOCK(os.fstat(int(text)).st_mode)
    except OSError:
        return False


def _first_number(names: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
    for name in names:
        text = environment.get(name, "")
        if text.isdecimal():
            return int(text)
    return None
