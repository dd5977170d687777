"""``spdnn data make``: makes official weights and inputs, and other RadiX-Nets."""

import argparse
from pathlib import Path

from spdnn import challenge
from spdnn.cli.arguments import add_data_folder, positive, require_apart
from spdnn.cli.data import radixnet
from spdnn.cli.progress import progress_bar
from spdnn.errors import DataError
from spdnn.io import store
from spdnn.io.formats import FEATURE_FORMATS, NETWORK_FORMATS, Content, write_content
from spdnn.recipes.mnist import official_features
from spdnn.recipes.radixnet import layers_per_group, official_network
from spdnn.sources.folder import find_images, images_file, made_folder, stored_inputs


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = verbs.add_parser(
        "make",
        help="make official weights and inputs, or RadiX-Nets",
        description=(
            "Make official weights, or inputs from MNIST's training images, in the data folder: a "
            "store, which 'run' finds there, or the published text files. Or any RadiX-Net."
        ),
    )
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    weights = kinds.add_parser(
        "weights", help="an official network", description=make_weights.__doc__
    )
    inputs = kinds.add_parser("inputs", help="its 60000 inputs", description=make_inputs.__doc__)
    for kind in (weights, inputs):
        kind.add_argument(
            "--neurons",
            type=int,
            required=True,
            choices=challenge.SIZES,
            metavar="N",
            help="neurons a layer: " + ", ".join(map(str, challenge.SIZES)),
        )
        kind.add_argument("--tsv", action="store_true", help="write the published text files")
        add_data_folder(kind)
    weights.add_argument("--layers", type=positive, required=True, metavar="L")
    weights.add_argument(
        "--cut", action="store_true", help="allow a depth that ends within a group of layers"
    )
    weights.set_defaults(command=make_weights)
    inputs.add_argument(
        "--images", type=Path, metavar="IDX", help="the images (default: in the data folder)"
    )
    inputs.set_defaults(command=make_inputs)
    radixnet.add_parser(kinds)


def make_weights(arguments: argparse.Namespace) -> int:
    """Write an official network, one layer at a time."""
    neurons, layers = arguments.neurons, arguments.layers
    group = layers_per_group(neurons)
    if layers % group and not arguments.cut:
        nearest = ", ".join(
            str(n) for n in (layers // group * group, -(-layers // group) * group) if n
        )
        raise DataError(
            f"{layers} layers are not whole groups of {group}, as networks of {neurons} neurons "
            f"have: take {nearest}, or --cut to end within a group"
        )
    network = official_network(neurons, layers)
    base = challenge.weights_folder(neurons)
    folder = made_folder(arguments.data)
    with progress_bar("write") as progress:
        target = folder / (base if arguments.tsv else f"{base}-l{layers}{store.SUFFIX}")
        form = "tsv" if arguments.tsv else "store"
        content = Content(network, is_official=True)
        write_content(NETWORK_FORMATS, target, content, progress, name=form)
    print(f"{target}: {layers} layers, {network.n_edges:,} edges")
    return 0


def make_inputs(arguments: argparse.Namespace) -> int:
    """Write the official inputs."""
    neurons = arguments.neurons
    folder = made_folder(arguments.data)
    text = folder / challenge.inputs_file(neurons)
    target = text if arguments.tsv else stored_inputs(folder, neurons)
    require_apart({"the target": target}, {"--images": arguments.images})
    images = arguments.images or find_images(folder)
    if images is None:
        with progress_bar("images") as progress:
            images = images_file(folder, progress)
    with progress_bar("inputs") as progress:
        features = official_features(images, neurons, progress)
    with progress_bar("write") as progress:
        write_content(FEATURE_FORMATS, target, Content(features, is_official=True), progress)
    print(f"{target}: {features.n_features:,} features, {features.n_nonzeros:,} non-zeros")
    return 0
