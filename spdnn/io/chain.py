"""Layers as other programs' files name them, checked and chained into a network."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from spdnn.errors import DataError
from spdnn.network import Activation, Layer, Network


@dataclass(frozen=True)
class Part:
    """One layer as a file holds it, nothing checked yet.

    Attributes
    ----------
    name : str
        What the file calls it.
    weights : array or scipy.sparse matrix, shape (n_inputs, n_outputs)
    bias : array_like
        Added whether the sum is zero or not, as in every trained network.
    activation : {"relu", "linear"}
    ymax : float or None
    """

    name: str
    weights: Any
    bias: Any = 0.0
    activation: Activation = "relu"
    ymax: float | None = None


def chain(path: Path, parts: Sequence[Part], layout: str) -> Network:
    """Make a network of the layers of a file, in their order.

    Parameters
    ----------
    path : Path
        The file, for messages and as the network's name.
    parts : sequence of Part
    layout : str
        How weights lie in such a file, "inputs x outputs" or the other way round, for messages.

    Raises
    ------
    DataError
        Naming the layer, if there is none, one does not follow the one before, or one is no layer.
    """
    if not parts:
        raise DataError(f"{path}: there is no layer in it")
    layers: list[Layer] = []
    for number, part in enumerate(parts, start=1):
        where = f"{path}, layer {number} ({part.name})"
        shape = np.shape(part.weights)
        if len(shape) != 2:
            raise DataError(f"{where}: expected a matrix of weights, {layout}, not shape {shape}")
        bias = np.asarray(part.bias)
        hint = f"; are its weights transposed? {layout} are expected"
        if bias.ndim > 1 or (bias.ndim == 1 and bias.size != shape[1]):
            fits = hint if bias.shape == shape[:1] else ""
            raise DataError(
                f"{where}: expected a bias of {shape[1]} numbers, one an output, "
                f"not of shape {bias.shape}{fits}"
            )
        if layers and layers[-1].n_outputs != shape[0]:
            fits = hint if layers[-1].n_outputs == shape[1] else ""
            raise DataError(
                f"{where}: expected {layers[-1].n_outputs} inputs, the outputs of layer "
                f"{number - 1} ({parts[number - 2].name}), not {shape[0]}{fits}"
            )
        try:
            layer = Layer(part.weights, part.bias, part.ymax, part.activation, "always")
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        layers.append(layer)
    return Network(layers, name=path.name)


def activated(parts: Sequence[Part], last: Activation, ymax: float | None) -> list[Part]:
    """Give layers of a file that holds weights only the usual activations.

    Parameters
    ----------
    parts : sequence of Part
    last : {"relu", "linear"}
        Of the last layer; all others are relu.
    ymax : float or None
        Cap of the relu layers.
    """
    chained = [replace(part, activation="relu", ymax=ymax) for part in parts]
    if chained and last == "linear":
        chained[-1] = replace(chained[-1], activation="linear", ymax=None)
    return chained


def require_weights_say_all(network: Network, form: str) -> None:
    """Refuse (DataError) a network that is more than its weights and biases.

    Files of weights only are read as `activated` says: relu layers without a cap, a linear one
    last, every bias added everywhere.
    """
    for number, layer in enumerate(network.layers, start=1):
        wanted = "linear" if number == network.n_layers else "relu"
        if layer.ymax is not None:
            fact = f"a cap of {layer.ymax:g}"
        elif layer.activation != wanted:
            fact = f"that it is {layer.activation}, not {wanted}"
        elif layer.needs_nonzero_test:
            fact = "that its bias is added only where the sum is not zero"
        else:
            continue
        raise DataError(f"layer {number}: {form} cannot say {fact}; write a store, or ONNX")


def natural(name: str) -> list[Any]:
    """Key by which names sort as people count: 2 before 10.

    Examples
    --------
    >>> sorted(["fc10.weight", "fc2.weight", "fc1.weight"], key=natural)
    ['fc1.weight', 'fc2.weight', 'fc10.weight']
    """
    # Texts and numbers take turns, so that like is compared with like.
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def package(module: str, path: Path, install: str = "'spdnn[formats]'") -> Any:
    """Import a package that files of one kind need; DataError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{path}: such files need {module.partition('.')[0]}: pip install {install}"
        ) from error


def dense_bytes(network: Network) -> int:
    """Size of all weights in a form that keeps the zeros, too, as float32, in bytes."""
    return sum(4 * n_inputs * n_outputs for n_inputs, n_outputs in network.shapes)
