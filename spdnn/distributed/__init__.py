"""The ranks of an MPI job as a team: the only room that knows MPI."""

from spdnn.distributed.ranks import join

__all__ = ["join"]
