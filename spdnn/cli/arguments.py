"""Types of arguments, and options that several commands share."""

import argparse
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from spdnn.engines import EMULATED, ENGINES, MODES, DeviceChoice
from spdnn.engines.base import Engine
from spdnn.errors import DataError
from spdnn.io.files import replaces_file
from spdnn.io.formats import OFFICIAL, Cap
from spdnn.run.tuning_files import require_tunable
from spdnn.sources.folder import FOLDER_VARIABLE, default_folder

_T = TypeVar("_T")

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The commands of a parser, which `add_parser` of each command adds itself to."""

LARGEST = float(np.finfo(np.float32).max)
"""Largest number of float32, the type of all numbers in a network."""


def positive(text: str) -> int:
    """Parse a whole number from 1."""
    return _at_least(text, 1)


def count(text: str) -> int:
    """Parse a whole number from 0."""
    return _at_least(text, 0)


def _at_least(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
    return number


def device(text: str) -> DeviceChoice:
    """A GPU's number, or the name of an emulated one."""
    for name in EMULATED:
        if text == name:
            return name
    if not text.isdecimal():
        names = ", ".join(EMULATED)
        raise argparse.ArgumentTypeError(f"{text!r} is neither a GPU's number from 0 nor {names}")
    return int(text)


def finite(text: str) -> float:
    """Parse a number that float32 can hold."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= LARGEST:  # refuses NaN, too
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of float32's range")
    return number


def cap(text: str) -> Cap:
    """Parse a cap: a positive number, "none" or "official"."""
    if text == "none":
        return None
    if text == OFFICIAL:
        return OFFICIAL
    number = finite(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a positive number nor none")
    return number


def positive_number(text: str) -> float:
    """Parse a number above 0."""
    number = finite(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def listed(parse: Callable[[str], _T]) -> Callable[[str], tuple[_T, ...]]:
    """Make a parser of several values, separated by commas; equal ones are kept once.

    Parameters
    ----------
    parse : callable
        Parses one value.
    """

    def parse_all(text: str) -> tuple[_T, ...]:
        return tuple(dict.fromkeys(parse(each) for each in text.split(",")))

    return parse_all


def add_network_size(parser: argparse.ArgumentParser) -> None:
    """Add ``--neurons`` and ``--layers``."""
    parser.add_argument(
        "--neurons",
        type=positive,
        metavar="N",
        help="number of inputs, if the files do not tell it",
    )
    parser.add_argument(
        "--layers", type=positive, metavar="L", help="number of layers, from the first"
    )


def add_activation(parser: argparse.ArgumentParser) -> None:
    """Add ``--bias`` and ``--ymax``."""
    parser.add_argument(
        "--bias", type=finite, metavar="B", help="bias of every neuron (default: the official one)"
    )
    parser.add_argument(
        "--ymax",
        type=cap,
        default=OFFICIAL,
        metavar="Y",
        help="cap of activations, or none (default: the official one, 32)",
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add ``--last-activation`` and ``--index-base``, which some files do not tell."""
    parser.add_argument(
        "--last-activation",
        choices=("linear", "relu"),
        help="activation of the last layer of .safetensors, .pt and .npz (default: linear)",
    )
    parser.add_argument(
        "--index-base",
        type=int,
        choices=(0, 1),
        help="number of the first neuron and image in .tsv files (default: 1, as published)",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add ``--engine``, ``--mode``, ``--threads`` and ``--device``."""
    parser.add_argument(
        "--engine", default="auto", choices=("auto", *ENGINES), help="what computes (auto: cpu)"
    )
    parser.add_argument(
        "--mode",
        default="auto",
        choices=("auto", *MODES),
        help="edges: evaluate every edge; merge: compute equal neurons and equal features once "
        "(auto: merge, if the engine has it)",
    )
    parser.add_argument("--threads", type=positive, metavar="T", help="threads of engine cpu")
    parser.add_argument(
        "--device",
        type=device,
        metavar="N",
        help="for engine cuda: which of the GPUs that the process sees, counted from 0; or "
        "emulated, which executes the GPU's instructions on the CPU, or emulated-checked",
    )


def add_tuning(parser: argparse.ArgumentParser) -> None:
    """Add ``--tuning``."""
    parser.add_argument(
        "--tuning",
        type=Path,
        metavar="FILE",
        help="file of tile widths: measured for this network, number of features and machine, and "
        "read once they are there",
    )


def refuse_tuning(path: Path, engine: Engine, ranks: int = 1) -> None:
    """Find out before any work whether ``--tuning`` cannot be followed.

    Parameters
    ----------
    path : Path
        The file.
    engine : Engine
        What runs.
    ranks : int
        Processes of the run.

    Raises
    ------
    SpdnnError
        If the engine has nothing to tune, or the file cannot be written.
    """
    require_tunable(engine, path, ranks)
    if not path.exists():
        writable(path)


def add_data_folder(parser: argparse.ArgumentParser) -> None:
    """Add ``--data``, which is None if it is not given."""
    folder = str(default_folder()).replace("%", "%%")  # argparse's help is a format
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help=f"data folder (here {folder}; the variable {FOLDER_VARIABLE} sets it)",
    )


def require_apart(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, str | Path | None]
) -> None:
    """Check before any work that no output replaces another one, or an input.

    Parameters
    ----------
    outputs, inputs : mapping of str to path
        Paths by the names that the user knows, such as those of options; None if there is none.
        Devices, pipes and standard streams may be named more than once.

    Raises
    ------
    DataError
        If a file would be lost.
    """
    taken: dict[str, str] = {}
    for name, path in outputs.items():
        if path is None or not replaces_file(path):
            continue
        place = os.path.realpath(path)
        if place in taken:
            raise DataError(f"{taken[place]} and {name} would both write {path}")
        taken[place] = name
        for other, source in inputs.items():
            if source is None:
                continue
            read = os.path.realpath(source)
            # A new file in a folder that is read replaces nothing.
            if place == read or (path.exists() and Path(place).is_relative_to(read)):
                raise DataError(f"{name} would replace {path}, which {other} is read from")


def writable(path: Path) -> Path:
    """Check before any work that a file can be written there; return its path.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    DataError
        If its folder is not there or cannot be written to.
    """
    try:
        if path.is_dir():
            raise DataError(f"cannot write {path}: it is a folder")
        place = path
        if replaces_file(path):
            place = Path(os.path.realpath(path)).parent
            if not place.is_dir():
                raise DataError(f"cannot write {path}: there is no folder {place}")
        is_allowed = os.access(place, os.W_OK)
    except OSError as error:  # such as a name that is too long
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    if not is_allowed:
        raise DataError(f"cannot write {path}: no permission to write into {place}")
    return path
