"""Run ``spdnn`` as if every two ranks were on a node: python -m tests.mpi_nodes run ..."""

import sys
from typing import Any

from spdnn.cli.main import main
from spdnn.distributed import ranks

RANKS_OF_A_NODE = 2


def split_as_nodes(team: Any) -> Any:
    return team._world.Split(team.rank // RANKS_OF_A_NODE)


if __name__ == "__main__":
    ranks._Ranks._split_by_node = split_as_nodes
    ranks.COPIED_AT_ONCE = 1000  # bytes: what is shared is copied in many pieces
    sys.exit(main(sys.argv[1:]))
