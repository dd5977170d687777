"""SciPy's and NumPy's own files: layers as sparse matrices, features as sparse or dense ones.

A network is a folder of ``.npz`` files. Each is a sparse matrix (inputs x outputs) that
`scipy.sparse.save_npz` has written. The numbers in their names give the order of the layers:
``1.npz``, ``2.npz``, ..., ``10.npz``. The bias of ``1.npz`` is ``1.bias.npy`` beside it; without
such a file it is zero.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.io.chain import Part, activated, chain, natural, require_weights_say_all
from spdnn.io.files import DAMAGE, require_file, whole_file, whole_folder
from spdnn.machine.memory import require_bytes
from spdnn.network import Activation, Network

SUFFIX = ".npz"
DENSE_SUFFIX = ".npy"
_BIAS = ".bias.npy"


def is_folder_of_layers(path: Path) -> bool:
    """Whether it is a folder with ``.npz`` files in it."""
    return path.is_dir() and next(path.glob(f"*{SUFFIX}"), None) is not None


def read_layers(path: Path, last: Activation = "linear", ymax: float | None = None) -> Network:
    """Read a network of sparse matrices in files.

    Parameters
    ----------
    path : Path
        A folder of them, or the single file of a single layer.
    last : {"relu", "linear"}
        Activation of the last layer; all others are relu.
    ymax : float or None
        Cap of the relu layers.

    Returns
    -------
    Network
        Named after the path.

    Raises
    ------
    DataError
        If a file is no sparse matrix, the numbers in the names leave out a layer or name one
        twice, a bias has no layer, or a layer does not fit the one before.
    """
    files = sorted(path.glob(f"*{SUFFIX}"), key=lambda file: natural(file.name))
    files = files if path.is_dir() else [path]
    _require_each_once(path, files)
    parts = []
    for file in files:
        bias_file = file.with_name(file.stem + _BIAS)
        bias = load_array(bias_file) if bias_file.exists() else 0.0
        parts.append(Part(file.name, _load_sparse(file), bias))
    return chain(path, activated(parts, last, ymax), "inputs x outputs")


def _require_each_once(path: Path, files: list[Path]) -> None:
    """Refuse names whose last numbers leave out a layer, or name one twice."""
    keys = {file: natural(file.stem) for file in files}
    for (first, before), (second, key) in pairwise(keys.items()):
        if key == before:
            raise DataError(f"{second}: this layer is there twice, also as {first}")
        is_counted = len(key) > 1 and [*before[:-2], before[-1]] == [*key[:-2], key[-1]]
        if is_counted and int(key[-2]) != (expected := int(before[-2]) + 1):
            name = "".join(map(str, [*key[:-2], expected, key[-1]]))
            raise DataError(f"{path}: a layer is missing: no {name}{SUFFIX}, but a later one")
    for bias in path.glob(f"*{_BIAS}"):  # a single file has no files below it
        layer = bias.with_name(bias.name.removesuffix(_BIAS) + SUFFIX)
        if layer not in files:
            raise DataError(f"{bias}: a bias without a layer: there is no {layer.name}")


def write_layers(folder: Path, network: Network) -> None:
    """Write a network into a new folder, as `read_layers` reads it.

    Parameters
    ----------
    folder : Path
        The folder to make. It must not be there yet.
    network : Network
        A network that its weights and biases tell all of.

    Raises
    ------
    DataError
        If the folder is there or cannot be written, or the network is more than its weights and
        biases.
    """
    require_weights_say_all(network, f"a folder of {SUFFIX}")
    with whole_folder(folder) as partial:
        for number, layer in enumerate(network.layers, start=1):
            sp.save_npz(partial / f"{number}{SUFFIX}", layer.weights)
            np.save(partial / f"{number}{_BIAS}", layer.bias)


def read_features(path: Path) -> Features:
    """Read features from a sparse matrix (``.npz``) or a dense one (``.npy``).

    Parameters
    ----------
    path : Path
        The file of a matrix, features x neurons.

    Returns
    -------
    Features
        One for each row.

    Raises
    ------
    DataError
        If the file holds no such matrix, or a value is not finite in float32.
    """
    matrix = _load_sparse(path) if path.suffix == SUFFIX else load_array(path)
    try:
        return Features.from_matrix(matrix)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def write_features(path: Path, features: Features) -> None:
    """Write features as a sparse matrix (``.npz``) or a dense one (``.npy``), float32.

    Parameters
    ----------
    path : Path
        The file to write. The ending of its name tells which.
    features : Features
        Its rows.

    Raises
    ------
    DataError
        If the file cannot be written.
    DeviceError
        If the dense matrix does not fit into memory.
    """
    matrix = features.to_csr(np.float32)
    if path.suffix != DENSE_SUFFIX:
        with whole_file(path) as file:
            sp.save_npz(file, matrix)
        return
    n_bytes = np.dtype(np.float32).itemsize * features.n_features * features.n_neurons
    require_bytes(n_bytes, f"{path}: all values with the zeros", "write .npz, or a store")
    with whole_file(path) as file:
        np.save(file, matrix.toarray())


def load_array(path: Path) -> npt.NDArray[Any]:
    """Read an array of numbers, ``.npy``.

    Parameters
    ----------
    path : Path
        The file to read.

    Returns
    -------
    ndarray
        Of any shape and any type of number.

    Raises
    ------
    DataError
        If the file is not there, or holds no array of numbers.
    """
    array: npt.NDArray[Any] = _loaded(
        path, partial(np.load, allow_pickle=False), "an array of numbers as numpy.save"
    )
    return array


def _load_sparse(path: Path) -> sp.sparray:
    return _loaded(path, sp.load_npz, "a sparse matrix as scipy.sparse.save_npz")


def _loaded(path: Path, load: Callable[[BinaryIO], Any], wanted: str) -> Any:
    try:
        require_file(path)
        with open(path, "rb") as file:  # given a path, numpy would leave a damaged file open
            array = load(file)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except DAMAGE as error:
        raise DataError(f"{path}: not {wanted} writes it") from error
    if getattr(array, "dtype", np.dtype(object)).kind not in "biuf":
        raise DataError(f"{path}: not {wanted} writes it")
    return array
