"""Writing the published text files, byte for byte: same order, same number format.

A layer's lines ascend by output, then by input; weights read ``6.250000e-02``. All numbers of
a file become one array of characters, a row a line, short numbers padded with NUL; the
padding is dropped at the end. So no line is ever formatted alone.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn import challenge
from spdnn.features import Features
from spdnn.io.files import whole_file, whole_folder
from spdnn.network import Network

BLOCK_LINES = 1 << 20
"""Lines made at a time: about 25 MB of text."""

NO_LINES = b"\n"
"""Text of a layer without edges, or of inputs that are all zero: no bytes would be no file."""

_TAB, _NEWLINE = np.frombuffer(b"\t\n", dtype=np.uint8)

Characters = npt.NDArray[np.uint8]


def layer_text(weights: Any) -> bytes:
    """Text of a layer file.

    Parameters
    ----------
    weights : scipy.sparse.csr_array, shape (n_inputs, n_outputs), float32
    """
    columns = weights.tocsc()
    columns.sort_indices()
    outputs = np.repeat(np.arange(weights.shape[1]), np.diff(columns.indptr))
    numbers = _numbers(max(weights.shape))
    values, which = np.unique(columns.data, return_inverse=True)
    texts = _characters([_weight_text(value) for value in values])
    return _lines(numbers, columns.indices, outputs, texts[which]) or NO_LINES


def _weight_text(value: np.float32) -> str:
    """As published; with more digits where that would be another number."""
    text = f"{value:.6e}"
    return text if np.float32(text) == value else f"{value:.8e}"


def write_layers(
    folder: Path, network: Network, progress: Callable[[float], None] | None = None
) -> None:
    """Write square layers in the published layout, one at a time.

    Parameters
    ----------
    folder : Path
        Becomes the folder of the layer files; it must not be there yet.
    network : Network
    progress : callable, optional
        Called with the fraction done.

    Raises
    ------
    DataError
        If it is there or cannot be written; then nothing is left of it.
    """
    with whole_folder(folder) as partial:
        for index, layer in enumerate(network.layers):
            file = partial / challenge.layer_file(network.n_inputs, index + 1)
            file.write_bytes(layer_text(layer.weights))
            if progress is not None:
                progress((index + 1) / network.n_layers)


def write_inputs(
    path: Path, features: Features, progress: Callable[[float], None] | None = None
) -> None:
    """Write features of ones as lines ``image<TAB>neuron<TAB>1``, by image, then neuron.

    Raises
    ------
    DataError
        If the file cannot be written; then nothing is left of it.
    """
    numbers = _numbers(max(features.n_neurons, features.n_features))
    one = _characters(["1"])
    step = max(1, BLOCK_LINES * features.n_features // max(1, features.n_nonzeros))
    with whole_file(path) as file:
        if features.n_nonzeros == 0:
            file.write(NO_LINES)
        for start in range(0, features.n_features, step):
            stop = min(start + step, features.n_features)
            indptr = features.indptr[start : stop + 1]
            images = np.repeat(np.arange(start, stop), np.diff(indptr))
            neurons = features.indices[indptr[0] : indptr[-1]]
            file.write(_lines(numbers, images, neurons, np.repeat(one, neurons.size, axis=0)))
            if progress is not None:
                progress(stop / features.n_features)


def _numbers(largest: int) -> Characters:
    """Row n holds the digits of n + 1."""
    return _characters(np.arange(1, largest + 1).astype(f"S{len(str(largest))}"))


def _characters(texts: Any) -> Characters:
    """Shape (n_texts, longest), uint8, padded with NUL at the end."""
    array = np.array(texts, dtype=np.bytes_)
    return array.view(np.uint8).reshape(array.size, array.itemsize)


def _lines(
    numbers: Characters, first: npt.NDArray[Any], second: npt.NDArray[Any], third: Characters
) -> bytes:
    """Text of lines: 1-based numbers of 0-based `first` and `second`, then `third`."""
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
