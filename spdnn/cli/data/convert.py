"""``spdnn data convert``: writes weights or inputs that ``run`` reads in another format."""

import argparse
from pathlib import Path

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
from spdnn.io.formats import (
    FEATURE_FORMATS,
    NETWORK_FORMATS,
    Content,
    target_format,
    write_content,
)
from spdnn.sources.features import open_features
from spdnn.sources.folder import data_folder


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = verbs.add_parser(
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
        help="what to write: *.spdnn; of weights also *.onnx, *.safetensors, (a name without an "
        "ending) a folder of .npz, or *.tar.gz of layer files; of inputs also *.npz, *.npy or "
        "*.tsv[.gz]",
    )
    parser.set_defaults(command=convert)


def convert(arguments: argparse.Namespace) -> int:
    """Write the target."""
    target: Path = arguments.target
    if arguments.weights is None:
        target_format(FEATURE_FORMATS, target)
    else:
        target_format(NETWORK_FORMATS, target)
    writable(target)
    sources = {"--weights": arguments.weights, "--inputs": arguments.inputs}
    require_apart({"the target": target}, sources)
    facts = _convert_network(arguments) if arguments.weights else _convert_features(arguments)
    print(with_size(target, facts))
    return 0


def with_size(target: Path, facts: str) -> str:
    """Make the line that tells what was written, with its size.

    Parameters
    ----------
    target : Path
        The file or folder that was written.
    facts : str
        Facts of the network or the features.
    """
    if target.is_dir():
        files = sorted(target.iterdir())
    elif target.is_file():
        files = [target]
    else:  # a device or a pipe
        return f"{target}: {facts}"
    return f"{target}: {facts}, {sum(file.stat().st_size for file in files) / 2**20:.1f} MiB"


def _convert_network(arguments: argparse.Namespace) -> str:
    opened = open_weights(arguments.weights, arguments, "read", arguments.index_base)
    network = opened.network
    with progress_bar("write") as progress:
        content = Content(network, opened.is_official)
        write_content(NETWORK_FORMATS, arguments.target, content, progress)
    facts = [f"{network.n_layers} layers, {network.n_edges:,} edges"]
    return ", ".join([*facts, *opened.notes])


def _convert_features(arguments: argparse.Namespace) -> str:
    folder = data_folder(arguments.data)
    with progress_bar("inputs") as progress:
        opened = open_features(
            arguments.inputs,
            arguments.neurons,
            arguments.features,
            progress,
            folder,
            index_base=arguments.index_base,
        )
    features = opened.features
    with progress_bar("write") as progress:
        content = Content(features, opened.is_official)
        write_content(FEATURE_FORMATS, arguments.target, content, progress)
    return f"{features.n_features:,} features, {features.n_nonzeros:,} non-zeros"
