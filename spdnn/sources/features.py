"""Features from a path, from images, or from scikit-learn's digits."""

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.io import formats
from spdnn.io.formats import Content, Format, Progress, ReadOptions
from spdnn.machine.memory import require_bytes
from spdnn.recipes.digits import digit_features
from spdnn.recipes.mnist import mnist_features
from spdnn.sources.folder import DIGITS, RECIPE, default_folder, images_file

DIGIT_BYTES = 8
"""Least memory that a digit takes for its row pointer; its indices take a part of its neurons."""


@dataclass(frozen=True)
class SourcedFeatures:
    """Features and their source.

    Attributes
    ----------
    features : Features
        The features.
    source : str
        The path or word that they were read from.
    is_official : bool
        Whether they are the challenge's official inputs, or the first of them.
    """

    features: Features
    source: str
    is_official: bool


def feature_format(source: str) -> Format[Features]:
    """Find the format of a source of features, a path or the word "recipe" or "digits"."""
    if source == DIGITS:
        return _DIGITS_FORMAT
    return formats.feature_format(Path(source)) or _IMAGES_FORMAT


def open_features(
    source: str,
    neurons: int | None = None,
    count: int | None = None,
    progress: Progress | None = None,
    folder: Path | None = None,
    *,
    index_base: int | None = None,
    pool: Executor | None = None,
) -> SourcedFeatures:
    """Read or make features.

    Parameters
    ----------
    source : str
        "recipe" (made of MNIST's training images in `folder`), "digits" (scikit-learn's, for
        demonstrations), or the path of a store, of a published inputs file (``.tsv``,
        ``.tsv.gz``), of a matrix (features x neurons: SciPy's ``.npz``, NumPy's ``.npy``), or
        of an IDX file of images (MNIST's).
    neurons : int, optional
        Inputs of the network. Text, images and words do not tell them.
    count : int, optional
        Number of features to take, from the first; all that there are (60000 digits) where not
        given.
    progress : callable, optional
        Called with the fraction done.
    folder : Path, optional
        Where "recipe" looks for the images, and fetches them to; `default_folder` where
        not given.
    index_base : {1, 0}, optional
        Number of the first image and of the first neuron in a published inputs file; 1 where not
        given. No other source takes it.
    pool : Executor, optional
        Threads that make features of images; as many as are usual where not given.

    Returns
    -------
    SourcedFeatures
        The features, and whether they are official inputs.

    Raises
    ------
    DataError
        If the source is not there, damaged, of another size, or has fewer than `count` features.
    DeviceError
        If so many do not fit into memory.
    """
    require_features(source, neurons, count, index_base=index_base)
    path = Path(source)
    if source == RECIPE:
        path = images_file(folder or default_folder(), progress)
    options = ReadOptions(neurons, count=count, index_base=index_base, progress=progress, pool=pool)
    content = feature_format(source).read(path, options)
    features = content.value
    if neurons is not None and features.n_neurons != neurons:
        raise DataError(f"{path}: features of {features.n_neurons} neurons, not of {neurons}")
    if count is not None:
        if count > features.n_features:
            raise DataError(f"{path}: {count} features asked for, but it has {features.n_features}")
        features = features.part(0, count)
    return SourcedFeatures(features, source, content.is_official)


def require_features(
    source: str,
    neurons: int | None = None,
    count: int | None = None,
    *,
    index_base: int | None = None,
) -> None:
    """Refuse what `open_features` would refuse without reading anything.

    Parameters
    ----------
    source, neurons, count, index_base
        As for `open_features`.

    Raises
    ------
    DataError
        If the source is not there, or does not take these options.
    """
    if count is not None and count < 0:
        raise DataError(f"{count} features cannot be")
    form = feature_format(source)
    form.require_useful(source, ReadOptions(neurons, count=count, index_base=index_base))
    if not form.tells_size and neurons is None:
        raise DataError(f"{source}: say how many neurons the inputs have")
    path = Path(source)
    if source not in (RECIPE, DIGITS) and (path.is_dir() or not path.exists()):
        raise DataError(f"{path}: no such file (or the words {RECIPE}, {DIGITS})")


def _read_digits(path: Path, options: ReadOptions) -> Content[Features]:
    assert options.neurons is not None
    neurons = options.neurons
    count = challenge.FEATURES if options.count is None else options.count
    require_bytes(
        count * (DIGIT_BYTES + neurons // DIGIT_BYTES),
        f"{count} features of {neurons} neurons",
        "take fewer `features`",
    )
    return Content(digit_features(neurons, count))


def _read_images(path: Path, options: ReadOptions) -> Content[Features]:
    assert options.neurons is not None
    made = mnist_features(path, options.neurons, options.count, options.progress, options.pool)
    return Content(*made)


_DIGITS_FORMAT: Format[Features] = Format(DIGITS, _read_digits, tells_size=False)
_IMAGES_FORMAT: Format[Features] = Format("images", _read_images, tells_size=False)
"""The recipe's inputs, and any file whose name tells no other format."""


def read_features(
    source: str | Path,
    neurons: int | None = None,
    count: int | None = None,
    *,
    index_base: int | None = None,
) -> Features:
    """Read features from a file, or make them for the words "recipe" and "digits".

    Parameters
    ----------
    source : str or Path
        "recipe" (made of MNIST's training images in the data folder), "digits" (scikit-learn's),
        or the path of a store (``.spdnn``), of a published inputs file (``.tsv``, ``.tsv.gz``), of
        a matrix (features x neurons: SciPy's ``.npz``, NumPy's ``.npy``), or of an IDX file of
        images (MNIST's).
    neurons : int, optional
        Inputs of the network. Text, images and words do not tell them.
    count : int, optional
        Number of features to take, from the first; all that there are where not given.
    index_base : {1, 0}, optional
        Number of the first image and of the first neuron in a published inputs file; 1 where not
        given.

    Returns
    -------
    Features
        A store's are mapped, not read.

    Raises
    ------
    DataError
        If the source is not there, damaged, of another size, or has fewer than `count` features.
    DeviceError
        If so many do not fit into memory.
    """
    return open_features(str(source), neurons, count, index_base=index_base).features
