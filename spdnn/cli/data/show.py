"""``spdnn data list``: lists the data folder, and what can be made or fetched."""

import argparse
from pathlib import Path

from spdnn import challenge
from spdnn.cli.arguments import add_data_folder
from spdnn.errors import DataError
from spdnn.sources.folder import data_folder, find_images


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = verbs.add_parser("list", help="say what the data folder holds", description=__doc__)
    add_data_folder(parser)
    parser.set_defaults(command=show)


def show(arguments: argparse.Namespace) -> int:
    """Print a line for each file, then what the recipes can make."""
    folder = data_folder(arguments.data)
    try:
        entries = sorted(entry for entry in folder.iterdir() if not _is_aside(entry))
    except FileNotFoundError:
        entries = []
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror or error}") from error
    rows = [(entry.name, _size(entry), _note(entry)) for entry in entries]
    print(f"{folder}: {len(rows) or 'nothing'} there")
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, size, note in rows:
        print(f"  {name:<{width}}  {size / 2**20:10.1f} MiB  {note}".rstrip())
    sizes = ", ".join(map(str, challenge.SIZES))
    images = "the images are here" if find_images(folder) else "fetches the images once"
    print(f"recipe: weights of {sizes} neurons, any depth; inputs of the same sizes ({images})")
    return 0


def _is_aside(path: Path) -> bool:
    """Whether a file only holds facts on another file."""
    return path.name.startswith(".") or path.name.endswith((".sha256", ".part.tag"))


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _note(path: Path) -> str:
    if path.suffix == ".part":
        return "unfinished: 'fetch' goes on with it"
    if path.is_dir():
        n_files = sum(1 for _ in path.iterdir())
        return f"{n_files:,} file{'' if n_files == 1 else 's'}"
    return "sha256 beside it" if path.with_name(f"{path.name}.sha256").exists() else ""
