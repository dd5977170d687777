"""What a parallel launcher tells the processes it starts, without starting MPI."""

import os
from collections.abc import Mapping

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


def launched_size(environment: Mapping[str, str] = os.environ) -> int:
    """How many processes the launcher says it has started; 1 where there is no launcher."""
    size = _first_number(SIZE_VARIABLES, environment)
    # Without a size, a rank tells at least how many there are up to it.
    return launched_rank(environment) + 1 if size is None else max(size, 1)


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Which of them this process is, from 0; 0 where there is no launcher."""
    return _first_number(RANK_VARIABLES, environment) or 0


def _first_number(names: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
    for name in names:
        text = environment.get(name, "")
        if text.isdecimal():
            return int(text)
    return None
