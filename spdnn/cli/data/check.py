"""``spdnn data check``: compares files with the recipe, and tells where they first differ."""

import argparse
from pathlib import Path

from spdnn import challenge
from spdnn.cli.arguments import add_data_folder, positive
from spdnn.cli.progress import progress_bar
from spdnn.sources.features import open_features
from spdnn.sources.folder import RECIPE, data_folder
from spdnn.sources.recipe_check import RecipeCheck, check_inputs, check_weights


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = verbs.add_parser(
        "check",
        help="compare weights or inputs with the recipe",
        description="Compare weights or inputs with their recipe; exit status 1 if they differ.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--weights", type=Path, metavar="PATH", help="store, folder, archive or one layer file"
    )
    source.add_argument("--inputs", metavar="PATH", help="store or .tsv[.gz]")
    parser.add_argument("--neurons", type=int, required=True, choices=challenge.SIZES, metavar="N")
    parser.add_argument(
        "--layers", type=positive, metavar="L", help="so many must be there (default: any)"
    )
    parser.add_argument(
        "--images", metavar="IDX", default=RECIPE, help="MNIST's (default: in the data folder)"
    )
    add_data_folder(parser)
    parser.set_defaults(command=check)


def check(arguments: argparse.Namespace) -> int:
    """Compare the files and print the result."""
    folder = data_folder(arguments.data)
    if arguments.weights is not None:
        with progress_bar("check") as progress:
            result = check_weights(arguments.weights, arguments.neurons, arguments.layers, progress)
        return _report(str(arguments.weights), result, "layer")
    found = open_features(arguments.inputs, arguments.neurons)
    with progress_bar("recipe") as progress:
        true = open_features(arguments.images, arguments.neurons, None, progress, folder)
    with progress_bar("check") as progress:
        result = check_inputs(found.features, true.features, progress)
    return _report(arguments.inputs, result, "feature")


def _report(source: str, result: RecipeCheck, thing: str) -> int:
    n = result.n_compared
    things = f"{n:,} {thing}{'' if n == 1 else 's'}"
    if result.first is None:
        print(f"{source}: {things} equal to the recipe")
        return 0
    print(f"{source}: differs from the recipe, first in {result.first}")
    if thing == "layer":
        print(f"{result.n_different:,} of {things} differ")
    return 1
