"""Weights and inputs as commands take them: named, or found in the data folder."""

import argparse

from spdnn.challenge import DEPTHS, SIZES
from spdnn.cli.arguments import (
    add_activation,
    add_data_folder,
    add_network_size,
    add_reading,
    count,
)
from spdnn.cli.progress import progress_bar
from spdnn.errors import DataError
from spdnn.network import Network
from spdnn.sources.sources import (
    SourcedFeatures,
    SourcedNetwork,
    data_folder,
    find_inputs,
    find_weights,
    is_text_inputs,
    is_text_network,
    open_features,
    open_network,
    tells_its_size,
)


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the options that `open_sources` looks at."""
    add_network_size(parser)
    add_data_folder(parser)
    parser.add_argument(
        "--weights",
        metavar="PATH|recipe",
        help="store, folder or archive of layer files, .onnx, .safetensors, .pt, .npz or a folder "
        "of them",
    )
    parser.add_argument(
        "--inputs",
        metavar="PATH|recipe|digits",
        help="store, .tsv[.gz], matrix (.npz, .npy) or IDX images",
    )
    parser.add_argument(
        "--features", type=count, metavar="COUNT", help="take only the first COUNT features"
    )
    add_activation(parser)
    add_reading(parser)


def open_weights(
    path: str, arguments: argparse.Namespace, phase: str, index_base: int | None
) -> SourcedNetwork:
    """Open a network as the options of size and activation say; `phase` is shown."""
    with progress_bar(phase) as progress:
        return open_network(
            path,
            arguments.neurons,
            arguments.layers,
            arguments.bias,
            arguments.ymax,
            progress,
            last=arguments.last_activation,
            index_base=index_base,
        )


def open_sources(arguments: argparse.Namespace) -> tuple[SourcedNetwork, SourcedFeatures]:
    """Open what was named, or what the data folder holds."""
    neurons, layers, folder = arguments.neurons, arguments.layers, data_folder(arguments.data)
    weights, inputs = arguments.weights, arguments.inputs
    if weights is None or not tells_its_size(weights):
        for word, number, official in (("neurons", neurons, SIZES), ("layers", layers, DEPTHS)):
            if number is None:
                known = ", ".join(map(str, official))
                raise DataError(f"say how many --{word} (official: {known})")
    if weights is None:
        weights = find_weights(arguments.data, neurons, layers)
    base = arguments.index_base  # of either source, or of both
    is_text = is_text_network(weights)
    network = open_weights(weights, arguments, "weights", base if is_text else None)
    neurons = network.network.n_inputs
    if inputs is None:
        inputs = find_inputs(arguments.data, neurons)
    if is_text and not is_text_inputs(inputs):
        base = None
    with progress_bar("inputs") as progress:
        features = open_features(
            inputs,
            neurons,
            arguments.features,
            progress,
            folder,
            index_base=base,
        )
    return network, features


def source_rows(network: SourcedNetwork, features: SourcedFeatures) -> list[tuple[str, str]]:
    """What was opened, for people: rows of a name and a fact."""
    net, inputs = network.network, features.features
    notes = {True: "official", False: "not the official {}"}
    return [
        ("network", f"{_size(net)}, {net.n_edges:,} edges"),
        ("", f"{network.source} ({notes[network.is_official].format('network')})"),
        *(("", note) for note in network.notes),
        ("inputs", f"{inputs.n_features:,} features, {inputs.n_nonzeros:,} non-zeros"),
        ("", f"{features.source} ({notes[features.is_official].format('inputs')})"),
    ]


def _size(network: Network) -> str:
    if all(shape == (network.n_inputs,) * 2 for shape in network.shapes):
        return f"{network.n_inputs} neurons x {network.n_layers} layers"
    return f"{network.n_inputs} inputs, {network.n_layers} layers, {network.n_outputs} outputs"


def as_rows(rows: list[tuple[str, str]]) -> str:
    """Text of rows, the facts below each other."""
    return "\n".join(f"{name:<11}{fact}".rstrip() for name, fact in rows)
