"""The choice of a GPU for a process. No CUDA library is loaded here."""

import os
from collections.abc import Mapping

from spdnn.errors import DeviceError

LOCAL_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_LOCAL_RANK",  # Open MPI's mpirun, Spectrum MPI under jsrun
    "MPI_LOCALRANKID",  # MPICH's and Intel MPI's hydra
    "MV2_COMM_WORLD_LOCAL_RANK",  # MVAPICH
    "PALS_LOCAL_RANKID",  # Cray PALS
    "JSM_NAMESPACE_LOCAL_RANK",  # jsrun
    "SLURM_LOCALID",  # srun
)
"""Variables that hold the number of this process on its node, of the innermost launcher first."""


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Number of this process among the processes of its node.

    Parameters
    ----------
    environment : mapping
        Environment variables.

    Returns
    -------
    int
        Counted from 0; 0 where no launcher tells it.
    """
    for name in LOCAL_RANK_VARIABLES:
        text = environment.get(name, "")
        if text.isdecimal():
            return int(text)
    return 0


def pick_gpu(n_visible: int, rank: int = 0, asked: int | None = None) -> int:
    """Pick a GPU for a process.

    Parameters
    ----------
    n_visible : int
        Number of GPUs that the process sees.
    rank : int
        Number of the process on its node.
    asked : int, optional
        The GPU that the user asks for, which is taken in any case.

    Returns
    -------
    int
        Number of the GPU among those that the process sees, counted from 0. It is no physical id.

    Raises
    ------
    DeviceError
        If there is no such GPU, or the node has more processes than GPUs.

    Examples
    --------
    >>> [pick_gpu(4, rank) for rank in range(4)]
    [0, 1, 2, 3]
    >>> [pick_gpu(1, rank) for rank in range(4)]  # the launcher shows each process its own
    [0, 0, 0, 0]
    """
    if n_visible == 0:
        raise DeviceError("no GPU is visible to this process")
    if asked is not None:
        if not 0 <= asked < n_visible:
            raise DeviceError(
                f"there is no GPU {asked}: this process sees {n_visible}, counted from 0"
            )
        return asked
    if n_visible == 1:
        return 0
    if rank >= n_visible:
        raise DeviceError(
            f"process {rank} of this node has no GPU of its own: {n_visible} are visible; "
            "start one process a GPU, or name one with `device`"
        )
    return rank
