"""The formats of files that networks and features are read from and written to.

Each format is one entry of `NETWORK_FORMATS` or `FEATURE_FORMATS`: the endings of its names, its
reader and writer, and what a reader has to be told because the files do not say it. A new format is
one new entry. The packages that a format needs (torch, onnx, safetensors, pyarrow) are imported
when a file of that format is read or written.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar

import scipy.sparse as sp

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.io import matrices, onnx_chain, state_dict, store, tsv, tsv_writer
from spdnn.network import Activation, Layer, Network

OFFICIAL: Literal["official"] = "official"
"""The cap that is meant where none is given: the challenge's, or the one in the file."""

Cap = float | Literal["official"] | None

Progress = Callable[[float], None]
"""Called with the fraction done, from 0 to 1."""

Held = TypeVar("Held", Network, Features)


@dataclass(frozen=True)
class ReadOptions:
    """Facts that a reader is told about a file.

    Attributes
    ----------
    neurons : int or None
        Inputs of the network. A format that does not tell its size needs them.
    layers : int or None
        Layers of the network. A format that does not tell its size needs them.
    count : int or None
        Number of features to make, for sources that make as many as are asked for.
    bias : float or None
        Bias of every neuron.
    ymax : float, None or "official"
        Cap of the relu layers; None for no cap, "official" where nothing was said.
    last : {"relu", "linear"} or None
        Activation of the last layer.
    index_base : {1, 0} or None
        Number of the first neuron (and of the first image) in the file.
    progress : callable or None
        Called with the fraction done.
    pool : Executor or None
        Threads for what is not read, but made; None for as many as are usual.
    """

    neurons: int | None = None
    layers: int | None = None
    count: int | None = None
    bias: float | None = None
    ymax: Cap = OFFICIAL
    last: Activation | None = None
    index_base: int | None = None
    progress: Progress | None = None
    pool: Executor | None = None

    @property
    def given(self) -> set[str]:
        """Names of the options on biases, caps and activations that were given."""
        are_given = {
            "bias": self.bias is not None,
            "ymax": self.ymax != OFFICIAL,
            "last": self.last is not None,
        }
        return {name for name, is_given in are_given.items() if is_given}


@dataclass(frozen=True)
class Content(Generic[Held]):
    """Content of a file.

    Attributes
    ----------
    value : Network or Features
        The network or the features.
    is_official : bool
        Whether the file shows that they are the challenge's official ones.
    notes : tuple of str
        What else the file holds and was left out, for people.
    """

    value: Held
    is_official: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format(Generic[Held]):
    """A format of files that hold a network, or features.

    Attributes
    ----------
    name : str
        The name by which a caller of `write_network` or `write_features` may ask for it.
    read : callable
        Reads the content of a path, with `ReadOptions`.
    write : callable or None
        Writes a content to a path; it may call a function of the fraction done. None where files
        of this format are only read.
    endings : tuple of str
        Endings of the names of files that are read as this format.
    written : tuple of str
        Endings of the names that are written; "" stands for a folder, a name without an ending.
    is_folder : callable
        Whether a folder is of this format. It is only asked where no ending fits.
    tells_size : bool
        Whether files tell the number of neurons (and of layers).
    numbers_neurons : bool
        Whether neurons have numbers in the files, which may count from 1 or from 0.
    refused : mapping of str to str
        Names of `ReadOptions` that the files themselves answer, and what to tell people who give
        them all the same.
    """

    name: str
    read: Callable[[Path, ReadOptions], Content[Held]]
    write: Callable[[Path, Content[Held], Progress | None], None] | None = None
    endings: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    is_folder: Callable[[Path], bool] = lambda path: False
    tells_size: bool = True
    numbers_neurons: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)

    def require_useful(self, source: str, options: ReadOptions) -> None:
        """Refuse options that this format has no use for.

        Parameters
        ----------
        source : str
            The path or word that the user gave, for the message.
        options : ReadOptions
            The options that the user gave.

        Raises
        ------
        DataError
            If an option was given that files of this format answer themselves.
        """
        if options.index_base is not None and not self.numbers_neurons:
            raise DataError(
                f"{source}: index base {options.index_base} has no use: "
                "only .tsv files number neurons"
            )
        for name, reason in self.refused.items():
            if name in options.given:
                raise DataError(f"{source}: {reason}")


def network_format(path: Path) -> Format[Network]:
    """Find the format of a network's file or folder; layer files where nothing tells another."""
    return _read_format(NETWORK_FORMATS, path) or LAYER_FILES


def feature_format(path: Path) -> Format[Features] | None:
    """Find the format of a file of features by the ending of its name; None if none fits."""
    return _read_format(FEATURE_FORMATS, path)


def _read_format(formats: Sequence[Format[Held]], path: Path) -> Format[Held] | None:
    for each in formats:
        if path.name.endswith(each.endings):
            return each
    return next((each for each in formats if each.is_folder(path)), None)


def target_format(
    formats: Sequence[Format[Held]], path: Path, name: str | None = None
) -> Format[Held]:
    """Find the format that a path is written in.

    Parameters
    ----------
    formats : sequence of Format
        `NETWORK_FORMATS` or `FEATURE_FORMATS`.
    path : Path
        The file or folder to write.
    name : str, optional
        Name of the format. Where it is not given, the first one that the ending of the path
        stands for is taken.

    Raises
    ------
    DataError
        If the ending of the path stands for no format that is written, or the name for none.
    """
    writable = [each for each in formats if each.write is not None]
    if name is not None:
        writable = [each for each in writable if each.name == name]
        if not writable:
            known = ", ".join(each.name for each in formats if each.write is not None)
            raise DataError(f"{path}: unknown format {name!r} to write: {known}")
    for each in writable:
        if any(_has_ending(path, ending) for ending in each.written):
            return each
    endings = dict.fromkeys(ending for each in writable for ending in each.written)
    kinds = ", ".join(f"*{ending}" if ending else "no ending" for ending in endings)
    raise DataError(f"{path}: the ending of its name says what to write: {kinds}")


def _has_ending(path: Path, ending: str) -> bool:
    """Whether a name has an ending, and more before it; "" is the ending of a name without any."""
    if not ending:
        return not path.suffix
    return path.name.endswith(ending) and len(path.name) > len(ending)


def write_content(
    formats: Sequence[Format[Held]],
    path: Path,
    content: Content[Held],
    progress: Progress | None = None,
    *,
    name: str | None = None,
) -> None:
    """Write a network or features in the format that `target_format` finds.

    Parameters
    ----------
    formats : sequence of Format
        `NETWORK_FORMATS` or `FEATURE_FORMATS`.
    path : Path
        The file or folder to write.
    content : Content
        What to write.
    progress : callable, optional
        Called with the fraction done, by formats that are written in several steps.
    name : str, optional
        Name of the format, where the ending of the path does not tell it.

    Raises
    ------
    DataError
        If the format cannot be told or cannot hold all of it, or the path cannot be written.
    DeviceError
        If there is too little memory to write it.
    """
    write = target_format(formats, path, name).write
    assert write is not None
    write(path, content, progress)


def write_network(path: str | Path, network: Network, *, format: str | None = None) -> None:
    """Write a network into a file or folder that `read_network` reads.

    Parameters
    ----------
    path : str or Path
        What to write; the ending of its name tells the format. ``.spdnn`` is a store, which holds
        any network. ``.onnx``, ``.safetensors`` and a name without an ending (a new folder of
        ``.npz`` files) are for other programs. ``.tar.gz``, ``.tgz`` and ``.tar`` are archives of
        the challenge's layer files. A file that is there is replaced, a folder is not.
    network : Network
        The network to write.
    format : {"store", "onnx", "safetensors", "npz", "tsv"}, optional
        The format by its name. A name without an ending and "tsv" stand for a folder of the
        challenge's layer files.

    Raises
    ------
    DataError
        If the ending stands for no format, the format cannot hold all of the network (for
        instance caps in ``.safetensors``, or a bias for each neuron in layer files), or the path
        cannot be written. Nothing half-written stays.
    DeviceError
        If the format keeps zeros, too, and they do not fit into memory.

    Examples
    --------
    >>> import tempfile
    >>> from spdnn import Layer, Network, read_network, write_network
    >>> network = Network([Layer([[0.5, 0.0], [0.0, 2.0]], bias=[1.0, -1.0])])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_network(f"{folder}/net.spdnn", network)
    ...     read_network(f"{folder}/net.spdnn").n_edges
    2
    """
    write_content(NETWORK_FORMATS, Path(path), Content(network), name=format)


def write_features(path: str | Path, features: Features, *, format: str | None = None) -> None:
    """Write features into a file that `read_features` reads.

    Parameters
    ----------
    path : str or Path
        What to write; the ending of its name tells the format: ``.spdnn`` (a store), ``.npz`` (a
        sparse matrix, features x neurons), ``.npy`` (a dense one), ``.tsv`` or ``.tsv.gz`` (the
        challenge's inputs). A file that is there is replaced.
    features : Features
        The features to write.
    format : {"store", "npz", "npy", "tsv"}, optional
        The format by its name. The ending of the path must be one of that format's.

    Raises
    ------
    DataError
        If the ending stands for no format, or the file cannot be written. Nothing half-written
        stays.
    DeviceError
        If the zeros of a dense matrix do not fit into memory.

    Examples
    --------
    >>> import tempfile
    >>> from spdnn import Features, read_features, write_features
    >>> features = Features.from_matrix([[0.0, 1.0], [0.5, 0.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_features(f"{folder}/inputs.npz", features)
    ...     read_features(f"{folder}/inputs.npz").n_features
    2
    """
    write_content(FEATURE_FORMATS, Path(path), Content(features), name=format)


def _read_store_network(path: Path, options: ReadOptions) -> Content[Network]:
    return Content(*store.read_network(path))


def _write_store_network(path: Path, content: Content[Network], progress: Progress | None) -> None:
    store.write_network(path, content.value, is_official=content.is_official, progress=progress)


def _read_onnx(path: Path, options: ReadOptions) -> Content[Network]:
    network, notes = onnx_chain.read_layers(path)
    return Content(network, notes=notes)


def _weights_only(
    read: Callable[[Path, Activation, float | None], Network],
) -> Callable[[Path, ReadOptions], Content[Network]]:
    """Make a reader of files that hold weights and biases only."""

    def read_content(path: Path, options: ReadOptions) -> Content[Network]:
        ymax = None if options.ymax == OFFICIAL else options.ymax
        return Content(read(path, options.last or "linear", ymax))

    return read_content


def _alone(
    write: Callable[[Path, Held], None],
) -> Callable[[Path, Content[Held], Progress | None], None]:
    """Make a writer of a function that writes nothing but the network or features."""

    def write_value(path: Path, content: Content[Held], progress: Progress | None) -> None:
        write(path, content.value)

    return write_value


def _read_layer_files(path: Path, options: ReadOptions) -> Content[Network]:
    neurons, layers, progress = options.neurons, options.layers, options.progress
    assert neurons is not None
    assert layers is not None
    bias = challenge.official_bias(neurons) if options.bias is None else options.bias
    ymax = challenge.YMAX if options.ymax == OFFICIAL else options.ymax

    def make_layer(weights: sp.csr_array) -> Layer:
        return Layer(weights, bias, ymax)

    def layers_read(count: int) -> None:
        if progress is not None:
            progress(count / layers)

    base = 1 if options.index_base is None else options.index_base
    return Content(tsv.read_layers(path, neurons, layers, make_layer, layers_read, index_base=base))


def _write_layer_files(path: Path, content: Content[Network], progress: Progress | None) -> None:
    tsv_writer.write_layers(path, content.value, progress)


def _read_store_features(path: Path, options: ReadOptions) -> Content[Features]:
    return Content(*store.read_features(path))


def _write_store_features(
    path: Path, content: Content[Features], progress: Progress | None
) -> None:
    store.write_features(path, content.value, is_official=content.is_official)


def _read_matrix(path: Path, options: ReadOptions) -> Content[Features]:
    return Content(matrices.read_features(path))


def _read_inputs_file(path: Path, options: ReadOptions) -> Content[Features]:
    assert options.neurons is not None
    base = 1 if options.index_base is None else options.index_base
    features = tsv.read_inputs(path, options.neurons, index_base=base)
    size = challenge.SIZES.get(options.neurons)
    is_official = (
        size is not None
        and features.n_features == challenge.FEATURES
        and features.n_nonzeros == size.input_nonzeros
        and features.values is None
    )
    return Content(features, is_official)


def _write_inputs_file(path: Path, content: Content[Features], progress: Progress | None) -> None:
    tsv_writer.write_inputs(path, content.value, progress)


LAST_IS_KNOWN = "it says itself what its last layer does (relu or linear)"
"""Why the last activation is refused, by all sources but those that hold weights only."""

_OWN_BIAS = {"bias": "a trained network keeps its own bias"}
_ONNX_SAYS = "ONNX says itself what a layer does and what its cap is"
_STORE_KEEPS = "a store keeps its own {}; convert its source with another one"

LAYER_FILES: Format[Network] = Format(
    "tsv",
    _read_layer_files,
    _write_layer_files,
    endings=tsv.ARCHIVE_SUFFIXES,
    written=(*tsv.ARCHIVE_SUFFIXES, ""),
    tells_size=False,
    numbers_neurons=True,
    refused={"last": LAST_IS_KNOWN},
)
"""The challenge's layer files: a folder or an archive of them."""

NETWORK_FORMATS: tuple[Format[Network], ...] = (
    Format(
        "store",
        _read_store_network,
        _write_store_network,
        endings=(store.SUFFIX,),
        written=(store.SUFFIX,),
        refused={
            "last": LAST_IS_KNOWN,
            "bias": _STORE_KEEPS.format("bias"),
            "ymax": _STORE_KEEPS.format("cap (ymax)"),
        },
    ),
    Format(
        "onnx",
        _read_onnx,
        _alone(onnx_chain.write_model),
        endings=(onnx_chain.SUFFIX,),
        written=(onnx_chain.SUFFIX,),
        refused={**_OWN_BIAS, "ymax": _ONNX_SAYS, "last": _ONNX_SAYS},
    ),
    Format(
        "safetensors",
        _weights_only(state_dict.read_layers),
        _alone(state_dict.write_safetensors),
        endings=(state_dict.SAFETENSORS,),
        written=(state_dict.SAFETENSORS,),
        refused=_OWN_BIAS,
    ),
    Format(
        "npz",
        _weights_only(matrices.read_layers),
        _alone(matrices.write_layers),
        endings=(matrices.SUFFIX,),
        written=("",),
        is_folder=matrices.is_folder_of_layers,
        refused=_OWN_BIAS,
    ),
    Format(
        "torch",
        _weights_only(state_dict.read_layers),
        endings=state_dict.TORCH,
        refused=_OWN_BIAS,
    ),
    LAYER_FILES,
)
"""Formats of networks. Where several are written under the same ending, the first is taken."""

FEATURE_FORMATS: tuple[Format[Features], ...] = (
    Format(
        "store",
        _read_store_features,
        _write_store_features,
        endings=(store.SUFFIX,),
        written=(store.SUFFIX,),
    ),
    Format(
        "npz",
        _read_matrix,
        _alone(matrices.write_features),
        endings=(matrices.SUFFIX,),
        written=(matrices.SUFFIX,),
    ),
    Format(
        "npy",
        _read_matrix,
        _alone(matrices.write_features),
        endings=(matrices.DENSE_SUFFIX,),
        written=(matrices.DENSE_SUFFIX,),
    ),
    Format(
        "tsv",
        _read_inputs_file,
        _write_inputs_file,
        endings=tsv.INPUT_SUFFIXES,
        written=tsv.INPUT_SUFFIXES,
        tells_size=False,
        numbers_neurons=True,
    ),
)
"""Formats of features. IDX images are none: a recipe makes features of them."""
