"""Networks from a path, or from the recipe."""

from dataclasses import dataclass
from pathlib import Path

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.io import formats
from spdnn.io.formats import (
    LAST_IS_KNOWN,
    LAYER_FILES,
    OFFICIAL,
    Cap,
    Content,
    Format,
    Progress,
    ReadOptions,
)
from spdnn.network import Activation, Network
from spdnn.recipes.radixnet import equals_recipe, official_network
from spdnn.sources.folder import RECIPE

MAX_NEURONS = 2**31 - 1
"""Neurons are numbered with 32 bits, as in scipy's matrices."""


@dataclass(frozen=True)
class SourcedNetwork:
    """A network and its source.

    Attributes
    ----------
    network : Network
        The network.
    source : str
        The path or word that it was read from.
    is_official : bool
        Whether every weight, bias and cap is the challenge's official one.
    notes : tuple of str
        What else the source holds and was left out, for people.
    """

    network: Network
    source: str
    is_official: bool
    notes: tuple[str, ...] = ()


def network_format(source: str) -> Format[Network]:
    """Find the format of a network's source, a path or the word "recipe"."""
    return _RECIPE_FORMAT if source == RECIPE else formats.network_format(Path(source))


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
    neurons : int, optional
        Inputs of the network. The recipe and published files do not tell them.
    layers : int, optional
        Layers of the network. The recipe and published files do not tell them; of other sources
        the first layers alone may be asked for.
    bias : float, optional
        Bias of every neuron; the official one of that size where not given. Stores and trained
        networks have their own.
    ymax : float, None or "official"
        Cap of the relu layers, None for no cap. A store and ONNX have their own. For other trained
        networks "official" stands for no cap.
    progress : callable, optional
        Called with the fraction read.
    last : {"relu", "linear"}, optional
        Activation of the last layer of ``.safetensors``, ``.pt`` and ``.npz``, which hold weights
        only; linear where not given.
    index_base : {1, 0}, optional
        Number of the first neuron in published layer files; 1 where not given. No other source
        takes it.

    Returns
    -------
    SourcedNetwork
        The network, and whether it is an official one.

    Raises
    ------
    DataError
        If the source is not there, damaged or of another size, or answers an option itself.
    """
    form = network_format(source)
    options = ReadOptions(
        neurons, layers, None, bias, ymax, last, index_base=index_base, progress=progress
    )
    form.require_useful(source, options)
    path = Path(source)
    if form.tells_size:
        content = _first_layers(path, form.read(path, options), neurons, layers)
        return SourcedNetwork(content.value, str(path), content.is_official, content.notes)
    _require_size(source, neurons, layers)
    if form is LAYER_FILES and not path.exists():
        raise DataError(f"{source}: no such file or folder (or the word {RECIPE})")
    network = form.read(path, options).value
    is_official = _has_official_numbers(options) and (source == RECIPE or equals_recipe(network))
    return SourcedNetwork(network, source, is_official)


def _require_size(source: str, neurons: int | None, layers: int | None) -> None:
    """Refuse a size that is not given, or that no network has."""
    if neurons is None or layers is None:
        raise DataError(f"{source}: say how many neurons and layers the network has")
    if neurons < 1 or layers < 1:
        raise DataError(f"a network of {neurons} neurons and {layers} layers cannot be")
    if neurons > MAX_NEURONS:
        raise DataError(f"{neurons} neurons are more than the {MAX_NEURONS} that can be numbered")


def _read_recipe(path: Path, options: ReadOptions) -> Content[Network]:
    assert options.neurons is not None
    assert options.layers is not None
    ymax = challenge.YMAX if options.ymax == OFFICIAL else options.ymax
    return Content(official_network(options.neurons, options.layers, options.bias, ymax))


_RECIPE_FORMAT: Format[Network] = Format(
    RECIPE, _read_recipe, tells_size=False, refused={"last": LAST_IS_KNOWN}
)


def _has_official_numbers(options: ReadOptions) -> bool:
    """Whether the bias and the cap are the official ones of the size."""
    size = challenge.SIZES.get(options.neurons or 0)
    is_cap = options.ymax in (OFFICIAL, challenge.YMAX)
    return size is not None and options.bias in (None, size.bias) and is_cap


def _first_layers(
    path: Path, content: Content[Network], neurons: int | None, layers: int | None
) -> Content[Network]:
    """Take as many layers as are asked for; DataError if the network is of another size."""
    network = content.value
    if neurons is not None and network.n_inputs != neurons:
        raise DataError(f"{path}: a network of {network.n_inputs} inputs, not of {neurons}")
    if layers is None or layers == network.n_layers:
        return content
    if not 1 <= layers < network.n_layers:
        raise DataError(f"{path}: it has {network.n_layers} layers, not {layers}")
    # The notes are on nodes after the last layer, which is cut off.
    return Content(Network(network.layers[:layers], network.name), content.is_official)


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
    """Read a network from files, or make the official one for the word "recipe".

    Parameters
    ----------
    source : str or Path
        "recipe", or the path of a store (``.spdnn``), of a folder or tar archive of published
        layer files, or of a trained network: ``.onnx``, ``.safetensors``, ``.pt``, a folder of
        ``.npz`` files or one of them.
    neurons : int, optional
        Inputs of the network. The recipe and published files do not tell them.
    layers : int, optional
        Layers of the network. The recipe and published files do not tell them; of other sources
        the first layers alone may be asked for.
    bias : float, optional
        Bias of every neuron of the recipe or of published files; the official one of that size
        where not given.
    ymax : float, None or "official"
        Cap of the relu layers, None for no cap. A store and ONNX have their own. For other trained
        networks "official" stands for no cap.
    last : {"relu", "linear"}, optional
        Activation of the last layer of ``.safetensors``, ``.pt`` and ``.npz``, which hold weights
        only; linear where not given.
    index_base : {1, 0}, optional
        Number of the first neuron in published layer files; 1 where not given.

    Returns
    -------
    Network
        A store's layers are read when they are used.

    Raises
    ------
    DataError
        If the source is not there, damaged or of another size, or answers an option itself.
    """
    opened = open_network(
        str(source), neurons, layers, bias, ymax, last=last, index_base=index_base
    )
    return opened.network
