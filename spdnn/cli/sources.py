"""Weights and inputs of commands: named by the user, or found in the data folder."""

import argparse
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

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
from spdnn.run.reading import Look
from spdnn.sources.features import (
    SourcedFeatures,
    feature_format,
    open_features,
    require_features,
)
from spdnn.sources.folder import data_folder, find_inputs, find_weights
from spdnn.sources.networks import SourcedNetwork, network_format, open_network


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the options that `open_sources` takes."""
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
    """Open a network as the options of size and activation say.

    Parameters
    ----------
    path : str
        Path of the network, or the word "recipe".
    arguments : argparse.Namespace
        The parsed options of `add_sources`.
    phase : str
        Word beside the progress bar.
    index_base : {1, 0} or None
        Number of the first neuron in the file, None where the user did not give it.
    """
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
    """Open the network and the features that were named, or those in the data folder."""
    network, inputs = open_network_first(arguments)
    return network, inputs.open()


class NamedFeatures(NamedTuple):
    """Features that are still to be read.

    Attributes
    ----------
    source : str
        A path, or the word "recipe" or "digits".
    neurons : int
        Inputs of the network.
    n_features : int or None
        Features to take, from the first; None for all.
    folder : Path
        The data folder.
    index_base : {1, 0} or None
        Number of the first neuron in the file, None where the user did not give it.
    """

    source: str
    neurons: int
    n_features: int | None
    folder: Path
    index_base: int | None

    def open(self, pool: Executor | None = None, look: Look | None = None) -> SourcedFeatures:
        """Read or make the features.

        Parameters
        ----------
        pool : Executor, optional
            Its threads do the work; as many as are usual where not given.
        look : callable, optional
            Called now and then; it may raise.
        """
        with progress_bar("inputs") as progress:

            def told(fraction: float) -> None:
                if look is not None:
                    look()
                if progress is not None:
                    progress(fraction)

            return open_features(
                self.source,
                self.neurons,
                self.n_features,
                told,
                self.folder,
                index_base=self.index_base,
                pool=pool,
            )


def open_network_first(arguments: argparse.Namespace) -> tuple[SourcedNetwork, NamedFeatures]:
    """Open the network as `open_sources` does, and name the features, which are there."""
    neurons, layers, folder = arguments.neurons, arguments.layers, data_folder(arguments.data)
    weights, inputs = arguments.weights, arguments.inputs
    if weights is None or not network_format(weights).tells_size:
        for word, number, official in (("neurons", neurons, SIZES), ("layers", layers, DEPTHS)):
            if number is None:
                known = ", ".join(map(str, official))
                raise DataError(f"say how many --{word} (official: {known})")
    if weights is None:
        weights = find_weights(arguments.data, neurons, layers)
    base = arguments.index_base  # meant for each source that numbers neurons
    are_numbered = network_format(weights).numbers_neurons
    network = open_weights(weights, arguments, "weights", base if are_numbered else None)
    neurons = network.network.n_inputs
    if inputs is None:
        inputs = find_inputs(arguments.data, neurons)
    if are_numbered and not feature_format(inputs).numbers_neurons:
        base = None
    require_features(inputs, neurons, arguments.features, index_base=base)
    return network, NamedFeatures(inputs, neurons, arguments.features, folder, base)


def source_rows(network: SourcedNetwork, features: SourcedFeatures) -> list[tuple[str, str]]:
    """Describe a network and features for people, as rows of a name and a fact."""
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
    """Make the text of rows, with the facts below each other."""
    return "\n".join(f"{name:<11}{fact}".rstrip() for name, fact in rows)
