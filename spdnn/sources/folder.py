"""The data folder, and the sources that are taken from it where a user names none."""

import os
from pathlib import Path

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.io import download, store, tsv
from spdnn.io.formats import Progress
from spdnn.recipes.mnist import IMAGES_FILE

FOLDER_VARIABLE = "SPDNN_DATA"
"""Environment variable that names the data folder."""

RECIPE = "recipe"
"""The word for the official network, and for inputs made of MNIST's training images."""

DIGITS = "digits"
"""The word for inputs made of scikit-learn's digits."""

_PACKED = ("", ".gz")


def default_folder() -> Path:
    """The data folder where none is given: the one in the environment, else ``data``."""
    return Path(os.environ.get(FOLDER_VARIABLE) or "data")


def data_folder(named: Path | None = None) -> Path:
    """The data folder to read from.

    Parameters
    ----------
    named : Path, optional
        The folder that the user names; `default_folder` where not given.

    Raises
    ------
    DataError
        If the user or the environment names it and it is no folder. The folder ``data`` that
        nobody has named need not be there.
    """
    folder = named or default_folder()
    if (named or os.environ.get(FOLDER_VARIABLE)) and not folder.is_dir():
        where = "`folder`" if named else FOLDER_VARIABLE
        raise DataError(f"{folder}: no such data folder ({where} names it)")
    return folder


def made_folder(named: Path | None = None) -> Path:
    """The data folder to write into; it is made if it is not there.

    Parameters
    ----------
    named : Path, optional
        The folder that the user names; `default_folder` where not given.

    Raises
    ------
    DataError
        If it cannot be made, or not be written into.
    """
    folder = named or default_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK):
        raise DataError(f"cannot write into the folder {folder}: no permission")
    return folder


def stored_inputs(folder: Path, neurons: int) -> Path:
    """Name the store of the official inputs in a data folder."""
    return folder / Path(challenge.inputs_file(neurons)).with_suffix(store.SUFFIX)


def find_weights(folder: Path | None, neurons: int, layers: int) -> str:
    """Name the source of an official network's weights.

    Parameters
    ----------
    folder : Path or None
        The data folder, as `data_folder` takes it.
    neurons : int
        Neurons of each layer.
    layers : int
        Number of layers.

    Returns
    -------
    str
        A path in the data folder, or the word "recipe" where it has no such weights.
    """
    folder = data_folder(folder)
    base = challenge.weights_folder(neurons)
    candidates = [folder / f"{base}-l{layers}{store.SUFFIX}", folder / base]
    candidates += [folder / f"{base}{suffix}" for suffix in tsv.ARCHIVE_SUFFIXES]
    candidates += [folder / f"{base}-l1-{layers}{suffix}" for suffix in tsv.ARCHIVE_SUFFIXES]
    return _first_there(candidates) or RECIPE


def find_inputs(folder: Path | None, neurons: int) -> str:
    """Name the source of the inputs of an official network.

    Parameters
    ----------
    folder : Path or None
        The data folder, as `data_folder` takes it.
    neurons : int
        Input neurons of the network.

    Returns
    -------
    str
        A path in the data folder, of inputs or else of images, or the word "digits".
    """
    folder = data_folder(folder)
    base = challenge.inputs_file(neurons)
    candidates = [stored_inputs(folder, neurons)]
    candidates += [folder / f"{base}{packed}" for packed in _PACKED]
    return _first_there(candidates) or str(find_images(folder) or DIGITS)


def find_truth(folder: Path | None, neurons: int, layers: int) -> str | None:
    """Name the file of a network's published categories.

    Parameters
    ----------
    folder : Path or None
        The data folder, as `data_folder` takes it.
    neurons : int
        Neurons of each layer.
    layers : int
        Number of layers.

    Returns
    -------
    str or None
        Its path in the data folder; None where it is not there.
    """
    return _first_there([data_folder(folder) / challenge.categories_file(neurons, layers)])


def find_images(folder: Path) -> Path | None:
    """Find MNIST's training images in a data folder; None where they are not there."""
    found = _first_there([folder / f"{IMAGES_FILE}{packed}" for packed in _PACKED])
    return None if found is None else Path(found)


def images_file(folder: Path, progress: Progress | None = None) -> Path:
    """Find MNIST's training images in a data folder, or fetch them into it.

    Parameters
    ----------
    folder : Path
        The data folder.
    progress : callable, optional
        Called with the fraction that was fetched.

    Raises
    ------
    DataError
        If they are not there and no server gives them.
    """
    return find_images(folder) or download.fetch_images(folder, progress=progress)


def _first_there(candidates: list[Path]) -> str | None:
    return next((str(path) for path in candidates if path.exists()), None)
