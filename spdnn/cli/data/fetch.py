"""``spdnn data fetch``: downloads MNIST's images and the published files."""

import argparse

from spdnn import challenge
from spdnn.cli.arguments import add_data_folder
from spdnn.cli.progress import progress_bar
from spdnn.errors import DataError
from spdnn.io import download
from spdnn.sources.folder import default_folder

IMAGES = "images"
KINDS = (IMAGES, "weights", "inputs", "categories")


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = verbs.add_parser(
        "fetch",
        help="fetch MNIST's images, or published files of one size",
        description=(
            "Fetch MNIST's training images, or published files of one size, into the data "
            "folder. A transfer that broke off goes on; checksums are kept beside the files."
        ),
    )
    parser.add_argument("what", nargs="+", choices=KINDS, help=", ".join(KINDS))
    parser.add_argument(
        "--neurons",
        type=int,
        choices=challenge.SIZES,
        metavar="N",
        help="size of the published files: " + ", ".join(map(str, challenge.SIZES)),
    )
    parser.add_argument("--url", metavar="URL", help="another place of the same files")
    add_data_folder(parser)
    parser.set_defaults(command=fetch)


def fetch(arguments: argparse.Namespace) -> int:
    """Fetch the files, one after the other."""
    if arguments.neurons is None and set(arguments.what) != {IMAGES}:
        raise DataError("say which size to fetch with --neurons")
    folder = arguments.data or default_folder()
    for kind in dict.fromkeys(arguments.what):
        if kind == IMAGES:
            with progress_bar(IMAGES) as progress:
                mirrors = arguments.url and [arguments.url]
                print(download.fetch_images(folder, mirrors, progress))
            continue
        for url in download.official_urls(kind, arguments.neurons, arguments.url):
            with progress_bar(kind) as progress:
                path = download.fetch_file([url], folder, progress=progress)
            print(path)
    return 0
