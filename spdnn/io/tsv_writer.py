"""Writes the published text files, byte for byte: in the same order and number format.

A layer's lines ascend by output, then by input; weights are written as ``6.250000e-02``. All
numbers of a file become one array of characters, a row for each line. Short numbers are padded with
NUL, and the padding is dropped at the end. So no line is formatted on its own.
"""

import gzip
import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.io.files import whole_file, whole_folder
from spdnn.io.tsv import ARCHIVE_SUFFIXES
from spdnn.network import Layer, Network

BLOCK_LINES = 1 << 20
"""Lines made at a time: about 25 MB of text."""

NO_LINES = b"\n"
"""Text of a layer without edges, or of no features. A file of no bytes would not be read."""

PACKING_LEVEL = 6
"""gzip's own choice on the command line; 9, Python's, takes much longer for little."""

_TAB, _NEWLINE = np.frombuffer(b"\t\n", dtype=np.uint8)

Characters = npt.NDArray[np.uint8]


def layer_text(weights: sp.csr_array) -> bytes:
    """Make the text of a layer file.

    Parameters
    ----------
    weights : scipy.sparse.csr_array, shape (n_inputs, n_outputs), float32
        The weights of the layer.

    Returns
    -------
    bytes
        A line for each edge, or one newline where there is none.
    """
    columns = weights.tocsc()
    columns.sort_indices()
    outputs = np.repeat(np.arange(weights.shape[1]), np.diff(columns.indptr))
    numbers = _numbers(max(weights.shape))
    return _lines(numbers, columns.indices, outputs, _texts(columns.data, _weight_text)) or NO_LINES


def _texts(values: npt.NDArray[np.float32], text: Callable[[np.float32], str]) -> Characters:
    """The text of each value; most values are equal, and are formatted once."""
    different, which = np.unique(values, return_inverse=True)
    return _characters([text(value) for value in different])[which]


def _weight_text(value: np.float32) -> str:
    """Format a weight as published, with more digits where it would be another number."""
    text = f"{value:.6e}"
    return text if np.float32(text) == value else f"{value:.8e}"


def _input_text(value: np.float32) -> str:
    """Format an input as published, where all are 1. Nine digits tell any float32."""
    return f"{value:.9g}"


def write_layers(
    path: Path, network: Network, progress: Callable[[float], None] | None = None
) -> None:
    """Write the layer files of a network, one layer at a time.

    Layer files hold square layers of one size and their weights. Readers take 32 as the cap and the
    official bias of the size, or are told a bias that is the same for all neurons.

    Parameters
    ----------
    path : Path
        A tar archive, if its name ends as one does; else the folder of the layer files, which must
        not be there yet.
    network : Network
        A network that layer files can hold.
    progress : callable, optional
        Called with the fraction done.

    Raises
    ------
    DataError
        If layer files cannot hold the network, or it cannot be written. Nothing is left of it then.
    """
    files = _layer_files(network, progress)
    if path.name.endswith(ARCHIVE_SUFFIXES):
        _write_archive(path, challenge.weights_folder(network.n_inputs), files)
        return
    with whole_folder(path) as partial:
        for name, text in files:
            (partial / name).write_bytes(text)


def _layer_files(
    network: Network, progress: Callable[[float], None] | None
) -> Iterator[tuple[str, bytes]]:
    """Make the name and the text of each layer file."""
    neurons, bias = network.n_inputs, None
    if neurons in challenge.SIZES:
        bias = np.float32(challenge.SIZES[neurons].bias)
    for number, layer in enumerate(network.layers, start=1):
        if bias is None and layer.bias.size:
            bias = layer.bias.flat[0]  # the reader has to be told it
        fact = _unheld_fact(layer, neurons, bias)
        if fact is not None:
            raise DataError(f"layer {number}: layer files cannot say {fact}; write a store")
        yield challenge.layer_file(neurons, number), layer_text(layer.weights)
        if progress is not None:
            progress(number / network.n_layers)


def _unheld_fact(layer: Layer, neurons: int, bias: np.float32 | None) -> str | None:
    """A fact of a layer that layer files of a size and a bias cannot say; None if there is none."""
    if (layer.n_inputs, layer.n_outputs) != (neurons, neurons):
        return f"that it is {layer.n_inputs} x {layer.n_outputs}, not {neurons} x {neurons}"
    if layer.activation != "relu":
        return f"that it is {layer.activation}, not relu"
    if layer.ymax != challenge.YMAX:
        cap = "no cap" if layer.ymax is None else f"a cap of {layer.ymax:g}"
        return f"that it has {cap}, not of {challenge.YMAX:g}"
    if (layer.bias != bias).any():
        return f"that its bias is not {bias:g} for all neurons"
    if layer.bias_rule == "always" and (layer.bias > 0).any():
        return "that its bias is added where the sum is zero, too"
    return None


def _write_archive(path: Path, folder: str, files: Iterator[tuple[str, bytes]]) -> None:
    """Write files into a tar archive, below a folder."""
    with (
        whole_file(path) as file,
        _packed(file, path) as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        for name, text in files:
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))


def _packed(file: BinaryIO, path: Path) -> AbstractContextManager[BinaryIO | gzip.GzipFile]:
    """A stream into a file, which packs where the file's name says so."""
    if not path.name.endswith((".gz", ".tgz")):
        return nullcontext(file)
    # Without a name and a time in it, equal contents are equal files.
    return gzip.GzipFile("", "wb", PACKING_LEVEL, file, mtime=0)


def write_inputs(
    path: Path, features: Features, progress: Callable[[float], None] | None = None
) -> None:
    """Write features as lines ``image<TAB>neuron<TAB>value``, by image, then neuron.

    Where the last features have no value that is not zero, a line with the value 0 tells how many
    features there are.

    Parameters
    ----------
    path : Path
        The file to write, packed if its name ends in ``.gz``.
    features : Features
        The features to write.
    progress : callable, optional
        Called with the fraction done.

    Raises
    ------
    DataError
        If the file cannot be written. Nothing is left of it then.
    """
    n_features = features.n_features
    numbers = _numbers(max(features.n_neurons, n_features))
    step = max(1, BLOCK_LINES * n_features // max(1, features.n_nonzeros))
    with whole_file(path) as file, _packed(file, path) as stream:
        for start in range(0, n_features, step):
            stop = min(start + step, n_features)
            stream.write(_input_lines(features, start, stop, numbers))
            if progress is not None:
                progress(stop / n_features)
        if n_features == 0:
            stream.write(NO_LINES)
        elif features.indptr[-2] == features.indptr[-1]:
            stream.write(f"{n_features}\t1\t0\n".encode())


def _input_lines(features: Features, start: int, stop: int, numbers: Characters) -> bytes:
    """Text of the features from `start` to `stop`."""
    indptr = features.indptr[start : stop + 1]
    images = np.repeat(np.arange(start, stop), np.diff(indptr))
    part = slice(int(indptr[0]), int(indptr[-1]))
    neurons = features.indices[part]
    if features.values is None:
        texts = np.repeat(_characters(["1"]), neurons.size, axis=0)
    else:
        texts = _texts(features.values[part], _input_text)
    return _lines(numbers, images, neurons, texts)


def _numbers(largest: int) -> Characters:
    """Row n holds the digits of n + 1."""
    return _characters(np.arange(1, largest + 1).astype(f"S{len(str(largest))}"))


def _characters(texts: Sequence[str] | npt.NDArray[np.bytes_]) -> Characters:
    """The characters of texts, shape (n_texts, longest), uint8, padded with NUL at the end."""
    array = np.array(texts, dtype=np.bytes_)
    return array.view(np.uint8).reshape(array.size, array.itemsize)


def _lines(
    numbers: Characters,
    first: npt.NDArray[np.integer[Any]],
    second: npt.NDArray[np.integer[Any]],
    third: Characters,
) -> bytes:
    """Text of lines: the numbers of `first` and `second`, counted from 1, then `third`.

    `first` and `second` are whole numbers that count from 0.
    """
    width = numbers.shape[1]
    lines = np.empty((first.size, 2 * width + third.shape[1] + 3), dtype=np.uint8)
    lines[:, :width] = numbers[first]
    lines[:, width] = _TAB
    lines[:, width + 1 : 2 * width + 1] = numbers[second]
    lines[:, 2 * width + 1] = _TAB
    lines[:, 2 * width + 2 : -1] = third
    lines[:, -1] = _NEWLINE
    text: bytes = lines[lines != 0].tobytes()
    return text
