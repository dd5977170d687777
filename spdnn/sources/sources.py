"""Where networks, features and truth come from: a path, a word, or what a data folder holds."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.io import download, matrices, onnx_chain, state_dict, store, tsv
from spdnn.machine.memory import require_bytes
from spdnn.network import Activation, Layer, Network
from spdnn.recipes.digits import digit_features
from spdnn.recipes.mnist import IMAGES_FILE, mnist_features
from spdnn.recipes.radixnet import equals_recipe, official_network

Progress = Callable[[float], None]

FOLDER_VARIABLE = "SPDNN_DATA"
"""Environment variable that names the data folder."""
OFFICIAL: Literal["official"] = "official"
"""The cap that is not given: the challenge's, or a store's own."""

Cap = float | Literal["official"] | None

RECIPE = "recipe"
DIGITS = "digits"
_PACKED = ("", ".gz")

DIGIT_BYTES = 8
"""Of a digit at least: its row pointer, and an index for a part of its neurons."""

MAX_NEURONS = 2**31 - 1
"""Neurons are numbered with 32 bits, as in scipy's matrices."""


def default_folder() -> Path:
    """The data folder where none is named: that of the environment, else ``data``."""
    return Path(os.environ.get(FOLDER_VARIABLE) or "data")


def data_folder(named: Path | None = None) -> Path:
    """The data folder to read from: the named one, else `default_folder`.

    Raises
    ------
    DataError
        If one was named, here or by the environment, and is no folder. Only ``data``, the one
        that nobody named, need not be there.
    """
    folder = named or default_folder()
    if (named or os.environ.get(FOLDER_VARIABLE)) and not folder.is_dir():
        where = "`folder`" if named else FOLDER_VARIABLE
        raise DataError(f"{folder}: no such data folder ({where} names it)")
    return folder


@dataclass(frozen=True)
class SourcedNetwork:
    """A network, and whether every weight, bias and cap is the official one.

    `notes` tell people what else the source says, and what of it is left out.
    """

    network: Network
    source: str
    is_official: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourcedFeatures:
    """Features, and whether they are the official inputs (or the first of them)."""

    features: Features
    source: str
    is_official: bool


def open_network(
    source: str,
    neurons: int | None = None,
    layers: int | None = None,
    bias: float | None = None,
    ymax: Cap = OFFICIAL,
    progress: Progress | None = None,
    *,
    last: Activation | None = None,
    index_base: int | None = None,
) -> SourcedNetwork:
    """Read or make a network.

    Parameters
    ----------
    source : str
        "recipe", or the path of a store, of a folder of published layer files, of a tar
        archive of them, of a trained network: ``.onnx``, ``.safetensors``, ``.pt``, a folder of
        ``.npz`` files or one of them.
    neurons, layers : int, optional
        Size of the network; the recipe and published files cannot tell them themselves. Fewer
        layers than there are may be asked for.
    bias : float, optional
        Of every neuron; the official one of that size where not given. Stores and trained
        networks have their own.
    ymax : float, None or "official"
        Cap of the relu layers, None for no cap. A store and ONNX have their own; other trained
        networks have none where "official" is left.
    progress : callable, optional
        Called with the fraction read.
    last : {"relu", "linear"}, optional
        Activation of the last layer of ``.safetensors``, ``.pt`` and ``.npz``, which hold weights
        only; linear where not given.
    index_base : {1, 0}, optional
        What the first neuron is called in published layer files, the only ones that it may be
        given for; 1 where not given.

    Raises
    ------
    DataError
        If it is not there, damaged, or of another size.
    """
    path = Path(source)
    base = _index_base(index_base, source, is_text_network(source))
    if source != RECIPE and holds_trained(path):
        return _trained_network(path, neurons, layers, bias, ymax, last)
    if last is not None:
        raise DataError(f"{source}: it says itself what its last layer does (relu or linear)")
    if source != RECIPE and path.suffix == store.SUFFIX:
        return _stored_network(path, neurons, layers, bias, ymax)
    if neurons is None or layers is None:
        raise DataError(f"{source}: say how many neurons and layers the network has")
    if neurons < 1 or layers < 1:
        raise DataError(f"a network of {neurons} neurons and {layers} layers cannot be")
    if neurons > MAX_NEURONS:
        raise DataError(f"{neurons} neurons are more than the {MAX_NEURONS} that can be numbered")
    if ymax == OFFICIAL:
        ymax = challenge.YMAX
    cap = ymax
    if source == RECIPE:
        is_official = _is_official(neurons, bias, cap)
        return SourcedNetwork(official_network(neurons, layers, bias, cap), RECIPE, is_official)
    if bias is None:
        if neurons not in challenge.SIZES:
            raise DataError(f"{neurons} neurons have no official bias: give one")
        bias = challenge.SIZES[neurons].bias
    value = bias

    def make_layer(weights: Any) -> Layer:
        return Layer(weights, value, cap)

    def layers_read(count: int) -> None:
        if progress is not None:
            progress(count / layers)

    if not path.exists():
        raise DataError(f"{source}: no such file or folder (or the word {RECIPE})")
    network = tsv.read_layers(path, neurons, layers, make_layer, layers_read, index_base=base)
    is_official = _is_official(neurons, bias, cap) and equals_recipe(network)
    return SourcedNetwork(network, source, is_official)


def _is_official(neurons: int, bias: float | None, ymax: float | None) -> bool:
    size = challenge.SIZES.get(neurons)
    return size is not None and bias in (None, size.bias) and ymax == challenge.YMAX


def holds_trained(path: Path) -> bool:
    """Whether a path is that of a trained network, in another program's form."""
    suffixes = (matrices.SUFFIX, onnx_chain.SUFFIX, state_dict.SAFETENSORS, *state_dict.TORCH)
    return path.suffix in suffixes or matrices.is_folder_of_layers(path)


def tells_its_size(source: str) -> bool:
    """Whether a network's source tells its neurons and layers itself."""
    path = Path(source)
    return source != RECIPE and (path.suffix == store.SUFFIX or holds_trained(path))


def is_text_network(source: str) -> bool:
    """Whether a network's source is text, published layer files, whose neurons are numbered."""
    return source != RECIPE and not tells_its_size(source)


def is_text_inputs(source: str) -> bool:
    """Whether a source of features is text, whose images and neurons are numbered."""
    return Path(source).name.removesuffix(".gz").endswith(".tsv")


def _index_base(given: int | None, source: str, is_text: bool) -> int:
    """What numbers count from; DataError if it was given where nothing is numbered."""
    if given is not None and not is_text:
        raise DataError(f"{source}: index base {given} has no use: only .tsv files number neurons")
    return 1 if given is None else given


def _trained_network(
    path: Path,
    neurons: int | None,
    layers: int | None,
    bias: float | None,
    ymax: Cap,
    last: Activation | None,
) -> SourcedNetwork:
    if bias is not None:
        raise DataError(f"{path}: a trained network keeps its own bias")
    if path.suffix == onnx_chain.SUFFIX:
        if ymax != OFFICIAL or last is not None:
            raise DataError(f"{path}: ONNX says itself what a layer does and what its cap is")
        network, notes = onnx_chain.read_layers(path)
    else:
        is_npz = path.is_dir() or path.suffix == matrices.SUFFIX
        read = matrices.read_layers if is_npz else state_dict.read_layers
        network = read(path, last or "linear", None if ymax == OFFICIAL else ymax)
        notes = ()
    sized = _sized(path, network, neurons, layers)
    if sized is not network:  # what is told of the end is of no interest then
        notes = ()
    return SourcedNetwork(sized, str(path), is_official=False, notes=notes)


def _stored_network(
    path: Path, neurons: int | None, layers: int | None, bias: float | None, ymax: Cap
) -> SourcedNetwork:
    if bias is not None or ymax != OFFICIAL:
        word = "cap (ymax)" if bias is None else "bias"
        raise DataError(
            f"{path}: a store keeps its own {word}; convert its source with another one"
        )
    network, is_official = store.read_network(path)
    return SourcedNetwork(_sized(path, network, neurons, layers), str(path), is_official)


def _sized(path: Path, network: Network, neurons: int | None, layers: int | None) -> Network:
    """Return the network or its first layers; DataError if it is of another size."""
    if neurons is not None and network.n_inputs != neurons:
        raise DataError(f"{path}: a network of {network.n_inputs} inputs, not of {neurons}")
    if layers is not None and layers != network.n_layers:
        if not 1 <= layers < network.n_layers:
            raise DataError(f"{path}: it has {network.n_layers} layers, not {layers}")
        network = Network(network.layers[:layers], network.name)
    return network


def open_features(
    source: str,
    neurons: int | None = None,
    count: int | None = None,
    progress: Progress | None = None,
    folder: Path | None = None,
    *,
    index_base: int | None = None,
) -> SourcedFeatures:
    """Read or make features.

    Parameters
    ----------
    source : str
        "recipe" (from MNIST's training images in `folder`), "digits" (scikit-learn's, for
        demonstrations), or the path of a store, of a published inputs file (``.tsv``,
        ``.tsv.gz``), of a matrix (features x neurons: SciPy's ``.npz``, NumPy's ``.npy``), or
        of an IDX file of images (MNIST's).
    neurons : int, optional
        Inputs of the network; needed where the source does not tell (text, images, words).
    count : int, optional
        Only the first so many; all that there are (60000 digits) where not given.
    progress : callable, optional
        Called with the fraction done.
    folder : Path, optional
        Where "recipe" looks for the images, and fetches them to; `default_folder` where
        not given.
    index_base : {1, 0}, optional
        What the first image and the first neuron are called in a published inputs file, the
        only one that it may be given for; 1 where not given.

    Raises
    ------
    DataError
        If it is not there, damaged, of another size, or has fewer than `count` features.
    DeviceError
        If so many do not fit into memory.
    """
    if count is not None and count < 0:
        raise DataError(f"{count} features cannot be")
    path = Path(source)
    base = _index_base(index_base, source, is_text_inputs(source))
    if source not in (RECIPE, DIGITS) and path.suffix in _TELLING:
        _require_there(path)
        features, is_official = _TELLING[path.suffix](path)
        if neurons is not None and features.n_neurons != neurons:
            raise DataError(f"{path}: features of {features.n_neurons} neurons, not of {neurons}")
    elif neurons is None:
        raise DataError(f"{source}: say how many neurons the inputs have")
    elif source == DIGITS:
        features, is_official = _digits(neurons, count), False
    elif is_text_inputs(source):
        _require_there(path)
        features = tsv.read_inputs(path, neurons, index_base=base)
        size = challenge.SIZES.get(neurons)
        is_official = (
            size is not None
            and features.n_features == challenge.FEATURES
            and features.n_nonzeros == size.input_nonzeros
            and features.values is None
        )
    else:
        if source == RECIPE:
            path = images_file(folder or default_folder(), progress)
        _require_there(path)
        features, is_official = mnist_features(path, neurons, count, progress)
    if count is not None:
        if count > features.n_features:
            raise DataError(f"{path}: {count} features asked for, but it has {features.n_features}")
        features = features.part(0, count)
    return SourcedFeatures(features, source, is_official)


def _require_there(path: Path) -> None:
    if path.is_dir() or not path.exists():
        raise DataError(f"{path}: no such file (or the words {RECIPE}, {DIGITS})")


def _digits(neurons: int, count: int | None) -> Features:
    wanted = challenge.FEATURES if count is None else count
    require_bytes(
        wanted * (DIGIT_BYTES + neurons // DIGIT_BYTES),
        f"{wanted} features of {neurons} neurons",
        "take fewer `features`",
    )
    return digit_features(neurons, wanted)


def _matrix(path: Path) -> tuple[Features, bool]:
    return matrices.read_features(path), False


_TELLING: dict[str, Callable[[Path], tuple[Features, bool]]] = {
    store.SUFFIX: store.read_features,
    matrices.SUFFIX: _matrix,
    ".npy": _matrix,
}
"""Readers of files of features that tell how many neurons they have, by the ending of the name."""


def find_weights(folder: Path | None, neurons: int, layers: int) -> str:
    """Name the source of a network's weights: what the `data_folder` holds, else the recipe."""
    folder = data_folder(folder)
    base = challenge.weights_folder(neurons)
    candidates = [folder / f"{base}-l{layers}{store.SUFFIX}", folder / base]
    candidates += [folder / f"{base}{suffix}" for suffix in tsv.ARCHIVE_SUFFIXES]
    candidates += [folder / f"{base}-l1-{layers}{suffix}" for suffix in tsv.ARCHIVE_SUFFIXES]
    return _first_there(candidates) or RECIPE


def find_images(folder: Path) -> Path | None:
    """MNIST's training images in a data folder, if they are there."""
    found = _first_there([folder / f"{IMAGES_FILE}{packed}" for packed in _PACKED])
    return None if found is None else Path(found)


def images_file(folder: Path, progress: Progress | None = None) -> Path:
    """MNIST's training images in a data folder, fetched once if they are not there.

    Raises
    ------
    DataError
        If they can be had nowhere.
    """
    return find_images(folder) or download.fetch_images(folder, progress=progress)


def find_inputs(folder: Path | None, neurons: int) -> str:
    """Name the source of the inputs: what the `data_folder` holds, else the digits."""
    folder = data_folder(folder)
    base = challenge.inputs_file(neurons)
    candidates = [folder / Path(base).with_suffix(store.SUFFIX)]
    candidates += [folder / f"{base}{packed}" for packed in _PACKED]
    return _first_there(candidates) or str(find_images(folder) or DIGITS)


def find_truth(folder: Path | None, neurons: int, layers: int) -> str | None:
    """Path of the published categories in the `data_folder`, or None."""
    return _first_there([data_folder(folder) / challenge.categories_file(neurons, layers)])


def _first_there(candidates: list[Path]) -> str | None:
    return next((str(path) for path in candidates if path.exists()), None)


def read_truth(path: str, count: int | None = None) -> npt.NDArray[np.int64]:
    """Read the true categories, ascending, 1-based; only those of the first `count` features.

    Raises
    ------
    DataError
        If the file is not there or malformed.
    """
    categories = tsv.read_categories(Path(path))
    return categories if count is None else categories[categories <= count]


def read_network(
    source: str | Path,
    neurons: int | None = None,
    layers: int | None = None,
    *,
    bias: float | None = None,
    ymax: Cap = OFFICIAL,
    last: Activation | None = None,
    index_base: int | None = None,
) -> Network:
    """Read a network from files, or make the official one for "recipe"; see `open_network`."""
    opened = open_network(
        str(source), neurons, layers, bias, ymax, last=last, index_base=index_base
    )
    return opened.network


def read_features(
    source: str | Path,
    neurons: int | None = None,
    count: int | None = None,
    *,
    index_base: int | None = None,
) -> Features:
    """Read features from a file, or make them for "digits"; see `open_features`."""
    return open_features(str(source), neurons, count, index_base=index_base).features
