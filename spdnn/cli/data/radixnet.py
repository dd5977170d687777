"""``spdnn data make radixnet``: writes any RadiX-Net into a store."""

import argparse
from pathlib import Path

from spdnn.cli.arguments import cap, count, finite, positive, writable
from spdnn.cli.progress import progress_bar
from spdnn.errors import DataError
from spdnn.io import store
from spdnn.recipes.radixnet import SEED, Weights, radix_network


def add_parser(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = kinds.add_parser(
        "radixnet",
        help="any RadiX-Net, as a store",
        description="Write a RadiX-Net (Robinett and Kepner, 2019) into a store.",
    )
    parser.add_argument(
        "--radices",
        type=_numbers,
        action="append",
        required=True,
        metavar="R,R,...",
        help="a numeral system, a layer for each radix, such as 2,2,2; once for each system",
    )
    parser.add_argument(
        "--repeat", type=positive, default=1, metavar="TIMES", help="take the systems so often"
    )
    parser.add_argument(
        "--widths",
        type=_numbers,
        default=[1],
        metavar="D[,D,...]",
        help="Kronecker widths: one for all, or one more than layers (1)",
    )
    parser.add_argument(
        "--weights",
        type=_weights,
        default=Weights("constant", 1.0),
        metavar="KIND:NUMBER[:NUMBER]",
        help="constant:VALUE, uniform:LEAST:LARGEST or normal:MEAN:DEVIATION (constant:1)",
    )
    parser.add_argument("--bias", type=finite, default=0.0, metavar="B", help="of every neuron (0)")
    parser.add_argument("--ymax", type=cap, metavar="Y", help="cap of activations (none)")
    parser.add_argument("--seed", type=count, default=SEED, metavar="SEED", help=f"({SEED})")
    parser.add_argument(
        "--shuffle", action="store_true", help="permute the inputs of each system but the first"
    )
    parser.add_argument("target", type=Path, help=f"the store to write, named *{store.SUFFIX}")
    parser.set_defaults(command=make_radixnet)


def _numbers(text: str) -> list[int]:
    """Parse whole numbers from 1, with commas between them."""
    return [positive(number) for number in text.split(",")]


def _weights(text: str) -> Weights:
    """Parse a kind of weights and its numbers."""
    kind, *numbers = text.split(":")
    parsed = [finite(number) for number in numbers]
    try:
        match kind, parsed:
            case "constant", [value]:
                return Weights("constant", value)
            case "uniform", [least, largest]:
                return Weights("uniform", least, largest)
            case "normal", [mean, deviation]:
                return Weights("normal", mean, deviation)
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    raise argparse.ArgumentTypeError(
        f"{text!r} is none of constant:VALUE, uniform:LEAST:LARGEST, normal:MEAN:DEVIATION"
    )


def make_radixnet(arguments: argparse.Namespace) -> int:
    """Write the store."""
    target: Path = arguments.target
    if target.suffix != store.SUFFIX:
        raise DataError(f"{target}: a store's name ends in {store.SUFFIX}")
    writable(target)
    widths = arguments.widths
    network = radix_network(
        arguments.radices * arguments.repeat,
        widths[0] if len(widths) == 1 else widths,
        arguments.weights,
        bias=arguments.bias,
        ymax=arguments.ymax,
        seed=arguments.seed,
        shuffle=arguments.shuffle,
    )
    with progress_bar("write") as progress:
        store.write_network(target, network, progress=progress)
    print(
        f"{target}: {network.n_layers} layers, {network.n_inputs} inputs, "
        f"{network.n_outputs} outputs, {network.n_edges:,} edges"
    )
    return 0
