"""Comparisons of weights and inputs from files with those of the recipe."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.io import store, tsv
from spdnn.io.formats import Progress
from spdnn.recipes.radixnet import official_network

BLOCK_FEATURES = 1000
"""Features compared at a time; they have 6.5 million non-zeros at 65536 neurons."""


@dataclass(frozen=True)
class RecipeCheck:
    """The result of a comparison.

    Attributes
    ----------
    n_compared : int
        Number of layers or features that were compared.
    n_different : int
        Number of layers that differ, or 1 for inputs that differ anywhere.
    first : str or None
        The place of the first difference, for people; None where there is none.
    """

    n_compared: int
    n_different: int
    first: str | None


def check_weights(
    path: Path, neurons: int, layers: int | None = None, progress: Progress | None = None
) -> RecipeCheck:
    """Compare layers with those of the official network, one at a time.

    Parameters
    ----------
    path : Path
        A store, a folder or archive of layer files, or a single layer file.
    neurons : int
        An official size.
    layers : int, optional
        Number of layers that must be there, from the first. Where not given, all layers that are
        there are compared.
    progress : callable, optional
        Called with the fraction done, where `layers` is given.

    Returns
    -------
    RecipeCheck
        The first difference is that of the lowest layer.

    Raises
    ------
    DataError
        If a layer is missing or malformed, or the size is not official.
    """
    if neurons not in challenge.SIZES:
        sizes = ", ".join(map(str, challenge.SIZES))
        raise DataError(f"{neurons} is not an official size ({sizes})")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    official = official_network(neurons, layers or max(challenge.DEPTHS))
    found: set[int] = set()
    different: dict[int, str] = {}
    for number, name, weights, other in _layers(path, neurons):
        if number > official.n_layers or number in found:
            continue
        text = other or _weights_difference(weights, official.layers[number - 1].weights)
        if text is not None:
            different[number] = f"layer {number} ({name}): {text}"
        found.add(number)
        if progress is not None and layers is not None:
            progress(len(found) / layers)
    missing = sorted(set(range(1, (layers or 0) + 1)) - found)
    if missing:
        raise DataError(f"{path}: layer {missing[0]} of {layers} is missing")
    return RecipeCheck(len(found), len(different), different[min(different)] if different else None)


def _layers(path: Path, neurons: int) -> Iterator[tuple[int, str, sp.csr_array, str | None]]:
    """Yield number, name, weights, and a text where the bias or cap is not the official one."""
    if path.suffix != store.SUFFIX:
        for number, name, weights in tsv.iterate_weights(path, neurons):
            yield number, name, weights, None
        return
    network, _ = store.read_network(path)
    if any(shape != (neurons, neurons) for shape in network.shapes):
        raise DataError(f"{path}: not all of its layers are {neurons} x {neurons}")
    bias = challenge.SIZES[neurons].bias
    for number, layer in enumerate(network.layers, start=1):
        other = None
        if (layer.bias != np.float32(bias)).any() or layer.ymax != challenge.YMAX:
            other = f"the bias is not {bias}, or the cap not {challenge.YMAX}"
        yield number, path.name, layer.weights, other


def _weights_difference(found: sp.csr_array, true: sp.csr_array) -> str | None:
    """Describe the first difference in the order of the files: by output, then input."""
    triples = [_by_output(matrix) for matrix in (found, true)]
    first = _first_difference(*triples[0], *triples[1])
    if first is None:
        return None
    key, value, true_value = first
    output, input_ = divmod(key, found.shape[0])
    return f"input {input_ + 1}, output {output + 1}: {_words(value, true_value)}"


def _by_output(matrix: sp.csr_array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return keys output * n_inputs + input, ascending, and values."""
    columns = matrix.tocsc()
    columns.sort_indices()
    outputs = np.repeat(np.arange(matrix.shape[1], dtype=np.int64), np.diff(columns.indptr))
    return outputs * matrix.shape[0] + columns.indices, columns.data


def check_inputs(found: Features, true: Features, progress: Progress | None = None) -> RecipeCheck:
    """Compare features with those that the recipe made of the images.

    Parameters
    ----------
    found : Features
        The features to check.
    true : Features
        The recipe's features, of the same number of neurons.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    RecipeCheck
        The comparison ends at the first difference.

    Raises
    ------
    DataError
        If their numbers of neurons differ.
    """
    if found.n_neurons != true.n_neurons:
        raise DataError(f"{found.n_neurons} and {true.n_neurons} neurons cannot be compared")
    n_both = min(found.n_features, true.n_features)
    for start in range(0, n_both, BLOCK_FEATURES):
        stop = min(start + BLOCK_FEATURES, n_both)
        blocks = [_by_image(features, start, stop) for features in (found, true)]
        first = _first_difference(*blocks[0], *blocks[1])
        if first is not None:
            key, value, true_value = first
            image, neuron = divmod(key, found.n_neurons)
            text = f"image {image + 1}, neuron {neuron + 1}: {_words(value, true_value)}"
            return RecipeCheck(stop, 1, text)
        if progress is not None:
            progress(stop / n_both)
    if found.n_features != true.n_features:
        text = f"image {n_both + 1}: {found.n_features} images, the recipe has {true.n_features}"
        return RecipeCheck(n_both, 1, text)
    return RecipeCheck(n_both, 0, None)


def _by_image(
    features: Features, start: int, stop: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return keys image * n_neurons + neuron, ascending, and values."""
    indptr = features.indptr[start : stop + 1]
    images = np.repeat(np.arange(start, stop, dtype=np.int64), np.diff(indptr))
    part = slice(int(indptr[0]), int(indptr[-1]))
    keys = images * features.n_neurons + features.indices[part]
    if features.values is None:
        return keys, np.ones(keys.size, dtype=np.float32)
    return keys, features.values[part]


def _first_difference(
    keys: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
    true_keys: npt.NDArray[np.int64],
    true_values: npt.NDArray[np.float32],
) -> tuple[int, float | None, float | None] | None:
    """Find the smallest key where two sparse rows differ; None where they are equal.

    The result is the key and both values. A value is None if the row does not store the key.
    """
    n_both = min(keys.size, true_keys.size)
    differs = keys[:n_both] != true_keys[:n_both]
    differs |= values[:n_both] != true_values[:n_both]
    at = int(differs.argmax()) if differs.any() else n_both
    if at == keys.size == true_keys.size:
        return None
    key = min(int(k[at]) for k in (keys, true_keys) if at < k.size)
    here, there = (at < k.size and int(k[at]) == key for k in (keys, true_keys))
    return key, float(values[at]) if here else None, float(true_values[at]) if there else None


def _words(value: float | None, true_value: float | None) -> str:
    if value is None:
        return f"missing, the recipe has {true_value:g}"
    if true_value is None:
        return f"{value:g}, the recipe has none there"
    return f"{value:.9g}, the recipe has {true_value:g}"
