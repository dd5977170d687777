"""``spdnn data convert``: weights or inputs that ``run`` reads, in another form."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spdnn.cli.arguments import (
    add_activation,
    add_data_folder,
    add_network_size,
    add_reading,
    count,
    require_apart,
    writable,
)
from spdnn.cli.progress import progress_bar
from spdnn.cli.sources import open_weights
from spdnn.errors import DataError
from spdnn.io import matrices, onnx_chain, state_dict, store
from spdnn.sources.sources import SourcedFeatures, SourcedNetwork, data_folder, open_features


def add_parser(verbs: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "convert",
        help="write a store, read at disk speed from then on, or a file for other programs",
        description=(
            "Write weights or inputs, from any source that 'run' reads, into a store; or into a "
            "form that other programs read."
        ),
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--weights", metavar="PATH|recipe")
    source.add_argument("--inputs", metavar="PATH|recipe|digits")
    add_network_size(parser)
    add_activation(parser)
    add_reading(parser)
    parser.add_argument("--features", type=count, metavar="COUNT")
    add_data_folder(parser)
    parser.add_argument(
        "target",
        type=Path,
        help="what to write: *.spdnn; of weights also *.onnx, *.safetensors, or (a name without an "
        "ending) a folder of .npz; of inputs also *.npz",
    )
    parser.set_defaults(command=convert)


def convert(arguments: argparse.Namespace) -> int:
    """Write the target."""
    target: Path = arguments.target
    writers: dict[str, Callable[[Path, Any], None]]
    writers = _FEATURE_WRITERS if arguments.weights is None else NETWORK_WRITERS
    require_writer(target, writers)
    writable(target)
    sources = {"--weights": arguments.weights, "--inputs": arguments.inputs}
    require_apart({"the target": target}, sources)
    facts = _convert_network(arguments) if arguments.weights else _convert_features(arguments)
    print(said_of(target, facts))
    return 0


def require_writer(target: Path, writers: Mapping[str, Any]) -> None:
    """Refuse (DataError) a target whose ending says nothing that could be written."""
    if target.suffix not in writers:
        kinds = ", ".join(f"*{suffix}" if suffix else "no ending" for suffix in writers)
        raise DataError(f"{target}: the ending of its name says what to write: {kinds}")


def said_of(target: Path, facts: str) -> str:
    """What was written, for people."""
    if target.is_dir():
        files = sorted(target.iterdir())
    elif target.is_file():
        files = [target]
    else:  # a device or a pipe
        return f"{target}: {facts}"
    return f"{target}: {facts}, {sum(file.stat().st_size for file in files) / 2**20:.1f} MiB"


def _convert_network(arguments: argparse.Namespace) -> str:
    network = open_weights(arguments.weights, arguments, "read", arguments.index_base)
    NETWORK_WRITERS[arguments.target.suffix](arguments.target, network)
    facts = [f"{network.network.n_layers} layers, {network.network.n_edges:,} edges"]
    return ", ".join([*facts, *network.notes])


def _convert_features(arguments: argparse.Namespace) -> str:
    folder = data_folder(arguments.data)
    with progress_bar("inputs") as progress:
        features = open_features(
            arguments.inputs,
            arguments.neurons,
            arguments.features,
            progress,
            folder,
            index_base=arguments.index_base,
        )
    _FEATURE_WRITERS[arguments.target.suffix](arguments.target, features)
    return f"{features.features.n_features:,} features, {features.features.n_nonzeros:,} non-zeros"


def _store_network(target: Path, network: SourcedNetwork) -> None:
    with progress_bar("write") as progress:
        store.write_network(
            target, network.network, is_official=network.is_official, progress=progress
        )


def _store_features(target: Path, features: SourcedFeatures) -> None:
    store.write_features(target, features.features, is_official=features.is_official)


NETWORK_WRITERS: dict[str, Callable[[Path, SourcedNetwork], None]] = {
    store.SUFFIX: _store_network,
    onnx_chain.SUFFIX: lambda path, network: onnx_chain.write_model(path, network.network),
    state_dict.SAFETENSORS: lambda path, network: state_dict.write_safetensors(
        path, network.network
    ),
    "": lambda path, network: matrices.write_layers(path, network.network),
}
_FEATURE_WRITERS: dict[str, Callable[[Path, SourcedFeatures], None]] = {
    store.SUFFIX: _store_features,
    matrices.SUFFIX: lambda path, features: matrices.write_features(path, features.features),
}
"""What writes a target, by the ending of its name."""
