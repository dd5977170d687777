"""The same engines under MPI: weights shared by a node, features partitioned among ranks.

A run is a `Team`: a process by itself, or the ranks of a communicator. On each node one rank, its
leader, reads, makes and plans; the others see the same memory. Ranks run their features by
themselves; only at stops between layers, where they were asked for or may pay, do they write
what they have, even out numbers, or merge equal features.
"""

from spdnn.distributed.ranks import join
from spdnn.run.course import Stops
from spdnn.run.team import PARTITIONS, Partition, Team, part_of
from spdnn.run.together import PreparedTogether, prepare_together

__all__ = [
    "PARTITIONS",
    "Partition",
    "PreparedTogether",
    "Stops",
    "Team",
    "join",
    "part_of",
    "prepare_together",
]
