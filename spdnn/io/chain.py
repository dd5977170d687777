"""Layers with the names that other programs' files give them, checked and joined to a network."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError
from spdnn.network import Activation, Layer, Network


@dataclass(frozen=True)
class Part:
    """One layer as a file holds it, not checked yet.

    Attributes
    ----------
    name : str
        Name of the layer in the file.
    weights : ndarray or scipy.sparse array, shape (n_inputs, n_outputs)
        The weights.
    bias : ndarray or float, shape (n_outputs,) or ()
        The bias, which is added whether the sum is zero or not, as in every trained network.
    activation : {"relu", "linear"}
        The activation.
    ymax : float or None
        Cap of the activations, None for no cap.
    """

    name: str
    weights: npt.NDArray[Any] | sp.sparray
    bias: npt.NDArray[Any] | float = 0.0
    activation: Activation = "relu"
    ymax: float | None = None


def chain(path: Path, parts: Sequence[Part], layout: str) -> Network:
    """Make a network of the layers of a file, in their order.

    Parameters
    ----------
    path : Path
        The file. Messages and the network are named after it.
    parts : sequence of Part
        The layers.
    layout : str
        Axes of the weights in such a file, "inputs x outputs" or "outputs x inputs", for messages.

    Returns
    -------
    Network
        Its layers add their bias everywhere.

    Raises
    ------
    DataError
        If there is no layer, a layer does not take the outputs of the one before, or its numbers
        make no layer. The message names the layer.
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
    """Give the usual activations to layers of a file that holds weights only.

    Parameters
    ----------
    parts : sequence of Part
        The layers.
    last : {"relu", "linear"}
        Activation of the last layer; all others are relu.
    ymax : float or None
        Cap of the relu layers.

    Returns
    -------
    list of Part
        The layers with their activations.
    """
    chained = [replace(part, activation="relu", ymax=ymax) for part in parts]
    if chained and last == "linear":
        chained[-1] = replace(chained[-1], activation="linear", ymax=None)
    return chained


def require_weights_say_all(network: Network, form: str) -> None:
    """Refuse a network that has other facts than its weights and biases.

    A file of weights only is read as relu layers without a cap and a linear one at the end, and
    each bias is added everywhere (see `activated`).

    Parameters
    ----------
    network : Network
        The network to write.
    form : str
        Name of the format, for the message.

    Raises
    ------
    DataError
        If the file would be read as another network.
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


def natural(name: str) -> list[str | int]:
    """Key that sorts names by the numbers in them, so that 2 comes before 10.

    Examples
    --------
    >>> sorted(["fc10.weight", "fc2.weight", "fc1.weight"], key=natural)
    ['fc1.weight', 'fc2.weight', 'fc10.weight']
    """
    # Texts and numbers alternate, so that texts are only compared with texts.
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def package(module: str, path: Path, install: str = "'spdnn[formats]'") -> ModuleType:
    """Import a package that files of a format need.

    Parameters
    ----------
    module : str
        Full name of the module.
    path : Path
        The file, for the message.
    install : str
        What to give to ``pip install``, for the message.

    Raises
    ------
    DataError
        If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{path}: such files need {module.partition('.')[0]}: pip install {install}"
        ) from error


def dense_bytes(network: Network) -> int:
    """Bytes of all weights as float32 matrices that store the zeros, too."""
    return sum(4 * n_inputs * n_outputs for n_inputs, n_outputs in network.shapes)
