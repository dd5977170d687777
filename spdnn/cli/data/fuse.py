"""``spdnn data fuse``: puts networks over the same inputs side by side in one network."""

import argparse
from pathlib import Path

from spdnn.cli.arguments import add_activation, add_network_size, add_reading, writable
from spdnn.cli.data.convert import with_size
from spdnn.cli.sources import open_weights
from spdnn.errors import DataError
from spdnn.io.formats import NETWORK_FORMATS, Content, target_format, write_content
from spdnn.models.branches import JOINS, fuse
from spdnn.network import Network


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = verbs.add_parser(
        "fuse",
        help="make one network of networks over the same inputs",
        description=(
            "Make one network of networks over the same inputs, such as an ensemble's: their "
            "layers side by side, their outputs side by side or added up."
        ),
    )
    parser.add_argument(
        "branches",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="networks that 'run' reads; options for reading are for all of them",
    )
    parser.add_argument("target", type=Path, help="what to write, as 'convert' does; a new file")
    parser.add_argument("--join", choices=JOINS, default=JOINS[0], help="(default: %(default)s)")
    add_network_size(parser)
    add_activation(parser)
    add_reading(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the target."""
    target: Path = arguments.target
    target_format(NETWORK_FORMATS, target)
    if target.exists():  # most likely a branch: the file to write was forgotten
        raise DataError(f"cannot write {target}: it is there already; name a new file behind them")
    writable(target)
    opened = [
        open_weights(str(path), arguments, "read", arguments.index_base)
        for path in arguments.branches
    ]
    branches = [Network(each.network.layers, name=each.source) for each in opened]
    fused = fuse(branches, arguments.join)
    write_content(NETWORK_FORMATS, target, Content(fused))
    for each in opened:
        for note in each.notes:
            print(f"{each.source}: {note}")
    print(with_size(target, f"{fused.n_layers} layers, {fused.n_edges:,} edges"))
    return 0
