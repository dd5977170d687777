"""The binary store: one file for a network, or for features, which is mapped into memory.

A store is an uncompressed zip archive of ``.npy`` members, each aligned to 64 bytes, and one
JSON member with the facts. `numpy.load` and any unzip program read it. The CRC-32 that zip keeps of
every member is its checksum. It is checked once, when the member is first used. A store that was
cut short has no zip directory and is refused at once.
"""

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError
from spdnn.features import Features, index_dtype
from spdnn.io.checksum import crc32
from spdnn.io.files import DAMAGE, require_file, telling_damage, whole_file
from spdnn.io.mapping import MappedFile
from spdnn.network import Layer, LayerSequence, Network

SUFFIX = ".spdnn"
VERSION = 1
"""Version of the layout described here. A reader refuses any other."""

ALIGNMENT = 64
"""Alignment of arrays in bytes: a cache line, and the widest vector register."""

_HEADER_MEMBER = "spdnn.json"
_LOCAL_HEADER_BYTES = 30
_ZIP64_EXTRA_BYTES = 20
_ALIGNMENT_FIELD = 0xD935
"""Number of the extra field that other tools use for alignment, too."""


class StoreWriter:
    """Adds arrays to a store that is being written; a context manager.

    Parameters
    ----------
    file : binary file
        The file to write into.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._zip.fp = None  # otherwise the archive would be finished when it is collected
        self._zip.close()

    def header(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Write the JSON member.

        Parameters
        ----------
        kind : str
            What the store holds, such as "network".
        facts : mapping
            Facts that JSON can hold.
        """
        text = json.dumps({"spdnn": kind, "version": VERSION, **facts})
        self._zip.writestr(zipfile.ZipInfo(_HEADER_MEMBER), text)

    def add(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write an array as member ``{name}.npy``, with its data aligned.

        Parameters
        ----------
        name : str
            Name of the array.
        array : ndarray
            Any shape and type of number.
        """
        array = np.asarray(array, order="C")  # ascontiguousarray would add an axis to a scalar
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, np.lib.format.header_data_from_array_1_0(array)
        )
        info = zipfile.ZipInfo(f"{name}.npy")
        info.file_size = header.tell() + array.nbytes
        is_zip64 = info.file_size * 1.05 > zipfile.ZIP64_LIMIT
        file = self._zip.fp
        assert file is not None
        start = file.tell() + _LOCAL_HEADER_BYTES + len(info.filename.encode())
        start += _ZIP64_EXTRA_BYTES * is_zip64 + header.tell()
        n_padding = -start % ALIGNMENT
        if 0 < n_padding < 4:  # an extra field has a header of 4 bytes
            n_padding += ALIGNMENT
        if n_padding:
            info.extra = struct.pack("<HH", _ALIGNMENT_FIELD, n_padding - 4).ljust(n_padding, b"\0")
        with self._zip.open(info, "w", force_zip64=is_zip64) as member:
            member.write(header.getvalue())
            member.write(memoryview(array.reshape(-1)).cast("B") if array.size else b"")


class Store:
    """An open store. Its arrays are mapped, and their checksums are checked at first use.

    Parameters
    ----------
    path : Path
        The file.
    kind : str
        What it must hold, such as "network" or "features".

    Attributes
    ----------
    path : Path
        The file.
    facts : dict
        The facts in the JSON member.

    Raises
    ------
    DataError
        If it is no store, holds something else, has another version, or was cut short.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        try:
            require_file(path)
            with open(path, "rb") as file:
                self._map = MappedFile.of(file, path)
                with zipfile.ZipFile(file) as archive:
                    self._members = {info.filename: info for info in archive.infolist()}
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error
        except DAMAGE as error:
            raise DataError(f"{path}: not a store, or one that was cut short ({error})") from error
        self._checked: set[str] = set()
        try:
            self.facts = json.loads(bytes(self._bytes(_HEADER_MEMBER)))
            found, version = self.facts["spdnn"], self.facts["version"]
        except DAMAGE as error:
            raise DataError(f"{path}: not a store of spdnn") from error
        if version != VERSION:
            raise DataError(
                f"{path}: store of version {version}, this program reads version {VERSION}; "
                "make it anew with 'spdnn data convert'"
            )
        if found != kind:
            raise DataError(f"{path}: this store holds {found}, not {kind}")

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._members

    def _bytes(self, member: str) -> memoryview:
        info = self._members.get(member)
        if info is None:
            raise self._damaged(f"{member} is missing")
        lengths = self._map[info.header_offset : info.header_offset + _LOCAL_HEADER_BYTES][26:]
        n_name, n_extra = struct.unpack("<HH", lengths.ljust(4, b"\0"))
        name_start = info.header_offset + _LOCAL_HEADER_BYTES
        start = name_start + n_name + n_extra
        data = memoryview(self._map)[start : start + info.file_size]
        if member not in self._checked:
            # The name is in the file twice. If one was changed, the data may be another layer's.
            if self._map[name_start : name_start + n_name] != member.encode():
                raise self._damaged(f"the name of {member} was changed")
            if len(data) != info.file_size or crc32(data) != info.CRC:
                raise self._damaged(f"checksum of {member} is wrong")
            self._checked.add(member)
        return data

    def _damaged(self, text: str) -> DataError:
        return DataError(f"{self.path}: damaged store: {text}; remove it, or make it anew")

    def checksums(self) -> list[tuple[str, int, int]]:
        """Name, size in bytes and CRC-32 of each array, by name."""
        members = (info for info in self._members.values() if info.filename != _HEADER_MEMBER)
        return sorted((info.filename, info.file_size, info.CRC) for info in members)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Map an array.

        Parameters
        ----------
        name : str
            Name of the array.

        Returns
        -------
        ndarray
            Writable; changes do not reach the file.

        Raises
        ------
        DataError
            If it is missing or its checksum is wrong.
        """
        data = self._bytes(f"{name}.npy")
        with telling_damage(self.path, "store"):
            head = io.BytesIO(data[: 4 * ALIGNMENT])
            np.lib.format.read_magic(head)
            shape, _, dtype = np.lib.format.read_array_header_1_0(head)
            return np.frombuffer(data, dtype=dtype, offset=head.tell()).reshape(shape)


def write_network(
    path: Path,
    network: Network,
    *,
    is_official: bool = False,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write a network into a store, one layer at a time.

    Indices take 16 bits where that can number all outputs. Weights that are all equal are kept
    once.

    Parameters
    ----------
    path : Path
        The file to write.
    network : Network
        Any network.
    is_official : bool
        Whether every weight, bias and cap is the challenge's official one.
    progress : callable, optional
        Called with the fraction done.

    Raises
    ------
    DataError
        If the file cannot be written. Nothing is left of it then.
    """
    facts = []
    with whole_file(path) as file, StoreWriter(file) as store:
        for index, layer in enumerate(network.layers):
            weights = layer.weights
            data = weights.data
            is_constant = data.size > 0 and (data == data[0]).all()
            store.add(f"{index}/indptr", weights.indptr)
            store.add(f"{index}/indices", weights.indices.astype(index_dtype(layer.n_outputs)))
            store.add(f"{index}/weights", data[:1] if is_constant else data)
            store.add(f"{index}/bias", layer.bias)
            facts.append(
                {
                    "ymax": layer.ymax,
                    "activation": layer.activation,
                    "bias_rule": layer.bias_rule,
                }
            )
            if progress is not None:
                progress((index + 1) / network.n_layers)
        store.header(
            "network",
            {
                "name": network.name,
                "official": is_official,
                "shapes": network.shapes,
                "edges": network.layer_edges,
                "layers": facts,
            },
        )


class StoredLayers(LayerSequence):
    """The layers of a store, each read when it is asked for.

    Parameters
    ----------
    store : Store
        An open store of a network.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._facts = store.facts["layers"]
        self._constant = np.empty(0, dtype=np.float32)
        self.shapes = tuple((int(n), int(m)) for n, m in store.facts["shapes"])
        self.edges = tuple(map(int, store.facts["edges"]))

    def fingerprint(self) -> str:
        """A digest of the store's checksums."""
        facts = [self._store.facts[name] for name in ("shapes", "edges", "layers")]
        text = json.dumps([*facts, self._store.checksums()])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def layer(self, index: int) -> Layer:
        """Read layer `index`, counted from 0."""
        store = self._store
        with telling_damage(store.path, f"store, layer {index + 1}"):
            indices = store.array(f"{index}/indices").astype(np.int32)
            data = store.array(f"{index}/weights")
            if data.size != indices.size:
                constant = self._constant  # another thread may replace it
                if constant.size != indices.size or constant[0] != data[0]:
                    # Adjacent layers mostly have the same weight and can share this array.
                    constant = np.full(indices.size, data[0], dtype=np.float32)
                    self._constant = constant
                data = constant
            parts = (data, indices, store.array(f"{index}/indptr"))
            weights = sp.csr_array(parts, shape=self.shapes[index])
            return Layer(weights, store.array(f"{index}/bias"), **self._facts[index])


def read_network(path: Path) -> tuple[Network, bool]:
    """Open the network of a store.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Network
        Its layers are read when they are used.
    bool
        Whether it was an official network when it was written.

    Raises
    ------
    DataError
        If it is not a store of a network, or damaged.
    """
    store = Store(path, "network")
    with telling_damage(path, "store"):
        network = Network(StoredLayers(store), name=str(store.facts["name"]))
        return network, bool(store.facts["official"])


def write_features(path: Path, features: Features, *, is_official: bool = False) -> None:
    """Write features into a store.

    Parameters
    ----------
    path : Path
        The file to write.
    features : Features
        Any features.
    is_official : bool
        Whether they are the challenge's official inputs.

    Raises
    ------
    DataError
        If the file cannot be written. Nothing is left of it then.
    """
    first, last = int(features.indptr[0]), int(features.indptr[-1])
    with whole_file(path) as file, StoreWriter(file) as store:
        store.header("features", {"n_neurons": features.n_neurons, "official": is_official})
        store.add("indptr", features.indptr - first)
        store.add("indices", features.indices[first:last])
        if features.values is not None:
            store.add("values", features.values[first:last])


def read_features(path: Path) -> tuple[Features, bool]:
    """Open the features of a store.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Features
        Mapped, not copied.
    bool
        Whether they were official inputs when they were written.

    Raises
    ------
    DataError
        If it is not a store of features, or damaged.
    """
    store = Store(path, "features")
    with telling_damage(path, "store"):
        values = store.array("values") if "values" in store else None
        features = Features(
            int(store.facts["n_neurons"]), store.array("indptr"), store.array("indices"), values
        )
        return features, bool(store.facts["official"])
