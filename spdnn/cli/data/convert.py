"""``spdnn data convert``: a store of weights or inputs from any source that ``run`` reads."""

import argparse
from pathlib import Path
from typing import Any

from spdnn.cli.arguments import add_activation, add_data_folder, add_network_size, count, writable
from spdnn.cli.progress import progress_bar
from spdnn.errors import DataError
from spdnn.io import store
from spdnn.sources import open_features, open_network


def add_parser(verbs: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "convert",
        help="write a store, read at disk speed from then on",
        description="Write weights or inputs, from any source that 'run' reads, into a store.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--weights", metavar="PATH|recipe")
    source.add_argument("--inputs", metavar="PATH|recipe|digits")
    add_network_size(parser, required=True)
    add_activation(parser)
    parser.add_argument("--features", type=count, metavar="COUNT")
    add_data_folder(parser)
    parser.add_argument("target", type=Path, help=f"the store to write, named *{store.SUFFIX}")
    parser.set_defaults(command=convert)


def convert(arguments: argparse.Namespace) -> int:
    """Write the store."""
    target: Path = arguments.target
    if target.suffix != store.SUFFIX:
        raise DataError(f"{target}: a store's name ends in {store.SUFFIX}")
    writable(target)
    if arguments.weights is not None:
        with progress_bar("read") as progress:
            network = open_network(
                arguments.weights,
                arguments.neurons,
                arguments.layers,
                arguments.bias,
                arguments.ymax,
                progress,
            )
        with progress_bar("write") as progress:
            store.write_network(
                target, network.network, is_official=network.is_official, progress=progress
            )
        facts = f"{network.network.n_layers} layers, {network.network.n_edges:,} edges"
    else:
        with progress_bar("inputs") as progress:
            features = open_features(
                arguments.inputs,
                arguments.neurons,
                arguments.features,
                progress,
                arguments.data,
            )
        store.write_features(target, features.features, is_official=features.is_official)
        facts = (
            f"{features.features.n_features:,} features, {features.features.n_nonzeros:,} non-zeros"
        )
    print(f"{target}: {facts}, {target.stat().st_size / 2**20:.1f} MiB")
    return 0
