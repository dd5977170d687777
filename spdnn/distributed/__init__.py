"""The ranks of an MPI job as a team. No other package of spdnn uses MPI."""

from spdnn.distributed.joining import join

__all__ = ["join"]
