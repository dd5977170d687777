"""``spdnn`` as on several nodes of two ranks each: python -m tests.mpi_nodes OTHER run ...

The second node reads the weights named OTHER.
"""

import sys
from typing import Any

from spdnn.cli.main import main
from spdnn.distributed import ranks
from spdnn.launcher import launched_rank

RANKS_OF_A_NODE = 2


def split_as_nodes(team: Any) -> Any:
    return team._world.Split(team.rank // RANKS_OF_A_NODE)


if __name__ == "__main__":
    ranks._Ranks._split_by_node = split_as_nodes
    other, *arguments = sys.argv[1:]
    if launched_rank() >= RANKS_OF_A_NODE:
        arguments[arguments.index("--weights") + 1] = other
    sys.exit(main(arguments))
