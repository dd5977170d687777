"""The published text files: layers, inputs and categories, packed or not."""

import gzip
import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.features import Features, index_dtype
from spdnn.io.files import require_file
from spdnn.io.triples import (
    parse_triples,
    read_bytes,
    triples_to_csr,
    unpacked,
    without_mark,
)
from spdnn.machine.memory import require_bytes
from spdnn.network import Layer, Network

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar")

ARCHIVE_BUFFER = 1 << 20
"""Bytes read from an archive at a time."""

_GZIP_MAGIC = b"\x1f\x8b"
_LAYER_NAME = re.compile(r"n(\d+)-l(\d+)\.tsv(?:\.gz)?")


def read_layers(
    path: Path,
    neurons: int,
    layers: int,
    make_layer: Callable[[Any], Layer],
    progress: Callable[[int], None] | None = None,
    *,
    index_base: int = 1,
) -> Network:
    """Read layers 1 to `layers` of `neurons` neurons in the published layout.

    Parameters
    ----------
    path : Path
        A folder holding ``n{N}-l{l}.tsv`` (or ``.tsv.gz``) files, a folder holding
        ``neuron{N}/`` with them, or a tar archive (``.tar``, ``.tar.gz``, ``.tgz``) of them
        in any order.
    neurons, layers : int
        Size of the square layers and how many to read.
    make_layer : callable
        Makes a Layer from its weights (csr_array, float32).
    progress : callable, optional
        Called with the number of layers read so far.
    index_base : {1, 0}
        What the first neuron is called in the files; layers are numbered from 1 in any case.

    Raises
    ------
    DataError
        If a layer file is missing, a layer is there twice (with both files), or one is
        malformed (with file and line).
    DeviceError
        If so many layers of that size do not fit into memory.
    """
    require_bytes(
        layers * (neurons + 1) * np.dtype(np.int32).itemsize,
        f"a network of {layers} layers of {neurons} neurons",
        "take fewer `layers`",
    )

    def parse(name: str, read: Callable[[], bytes]) -> Layer:
        weights = _parse_weights(name, read, neurons, index_base)
        try:
            return make_layer(weights)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error

    parsed: dict[int, Future[Layer]] = {}
    sizes_seen: set[int] = set()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            for index, name, read in _layers(_members(path, neurons), neurons, sizes_seen):
                if 1 <= index <= layers:
                    parsed[index] = pool.submit(parse, name, read)
            if len(parsed) < layers:
                raise _missing_layers(path, neurons, layers, set(parsed), sizes_seen)
            result = []
            for index in range(1, layers + 1):
                result.append(parsed[index].result())
                if progress is not None:
                    progress(index)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return Network(result, name=path.name)


def iterate_weights(path: Path, neurons: int) -> Iterator[tuple[int, str, sp.csr_array]]:
    """Read the layers of `neurons` neurons one at a time, in whatever order they lie there.

    Parameters
    ----------
    path : Path
        As in `read_layers`, or a single layer file.
    neurons : int

    Yields
    ------
    int
        Number of the layer, from 1.
    str
        Name of its file.
    csr_array, shape (neurons, neurons), float32

    Raises
    ------
    DataError
        If there is no such layer, one is there twice (with both files), or one is malformed
        (with file and line).
    """
    sizes_seen: set[int] = set()
    is_single = _LAYER_NAME.fullmatch(path.name) and path.is_file()
    single = [(str(path), partial(read_bytes, path))]
    members = iter(single) if is_single else _members(path, neurons)
    for index, name, read in _layers(members, neurons, sizes_seen):
        yield index, name, _parse_weights(name, read, neurons)
    if neurons not in sizes_seen:
        raise _missing_layers(path, neurons, 1, set(), sizes_seen)


def _layers(
    members: Iterator[tuple[str, Callable[[], bytes]]], neurons: int, sizes_seen: set[int]
) -> Iterator[tuple[int, str, Callable[[], bytes]]]:
    """Yield number, name and reader of each layer of a size; no layer may be there twice.

    Sizes of all layers on the way are added to `sizes_seen`.
    """
    names: dict[int, str] = {}
    for name, read in members:
        # A member of an archive has the archive's name and a colon before its own.
        match = _LAYER_NAME.fullmatch(Path(name.rpartition(":")[2]).name)
        if match is None:
            continue
        sizes_seen.add(int(match[1]))
        if int(match[1]) != neurons:
            continue
        index = int(match[2])
        if index in names:
            raise DataError(f"{name}: layer {index} is there twice, also as {names[index]}")
        names[index] = name
        yield index, name, read


def _parse_weights(
    name: str, read: Callable[[], bytes], neurons: int, index_base: int = 1
) -> sp.csr_array:
    data = read()
    triples = parse_triples(data, name)
    shape = (neurons, neurons)
    return triples_to_csr(triples, data, name, shape, ("input", "output"), index_base)


def _missing_layers(
    path: Path, neurons: int, layers: int, found: set[int], sizes_seen: set[int]
) -> DataError:
    missing = next(index for index in range(1, layers + 1) if index not in found)
    first = challenge.layer_file(neurons, missing)
    text = f"{path}: layer {missing} of {layers} is missing (no {first} in it)"
    if layers - len(found) > 1:
        text += f", and {layers - len(found) - 1} more"
    if sizes_seen and neurons not in sizes_seen:
        text += f"; it holds layers of {', '.join(map(str, sorted(sizes_seen)))} neurons"
    return DataError(text)


def _members(path: Path, neurons: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield names, and functions that read them, of the files of an archive or folder."""
    if path.name.endswith(ARCHIVE_SUFFIXES):
        return _archive_members(path)
    return _folder_members(path, neurons)


def _folder_members(path: Path, neurons: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    folder = path / challenge.weights_folder(neurons)
    if not folder.is_dir():
        folder = path
    try:
        files = sorted(folder.iterdir())
    except NotADirectoryError as error:
        kinds = ", ".join(ARCHIVE_SUFFIXES)
        raise DataError(
            f"{path}: neither a folder of layer files, nor an archive ({kinds}), nor a store"
        ) from error
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror or error}") from error
    for file in files:
        yield str(file), partial(read_bytes, file)


def _archive_members(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the files of a tar archive in one pass, unpacked in the caller's thread."""
    try:
        with _unpacked(path) as stream:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=ARCHIVE_BUFFER) as archive:
                for member in archive:
                    if not member.isfile() or _LAYER_NAME.fullmatch(Path(member.name).name) is None:
                        continue
                    file = archive.extractfile(member)
                    data = file.read() if file is not None else b""
                    if len(data) != member.size:
                        raise DataError(f"{path}: truncated archive, in {member.name}")
                    name = f"{path.name}:{member.name}"
                    yield name, partial(unpacked, data, name)
            while stream.read(ARCHIVE_BUFFER):
                pass  # the checksum stands at the very end
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated archive ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def _unpacked(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a tar file, gzipped or not, as a stream.

    Not left to tarfile, which unpacks streams without a look at gzip's checksum: a changed
    bit would become another weight.
    """
    require_file(path)
    with open(path, "rb") as file:
        is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    return gzip.open(path) if is_gzip else open(path, "rb")


def read_inputs(path: Path, neurons: int, *, index_base: int = 1) -> Features:
    """Read an inputs file, lines ``image<TAB>neuron<TAB>value``, in any order.

    Parameters
    ----------
    path : Path
        ``.tsv`` or ``.tsv.gz``.
    neurons : int
        Input neurons of the network.
    index_base : {1, 0}
        What the first image and the first neuron are called in the file.

    Returns
    -------
    Features
        As many as the largest image number that the file names.

    Raises
    ------
    DataError
        If a line is malformed (with its number).
    DeviceError
        If so many images do not fit into memory.
    """
    data, name = read_bytes(path), str(path)
    triples = parse_triples(data, name)
    n_images = int(triples.row.max(initial=index_base - 1)) + 1 - index_base
    require_bytes(
        2 * n_images * np.dtype(np.int64).itemsize,
        f"{path}: images up to number {n_images}",
        "check the numbers in its first column",
    )
    csr = triples_to_csr(triples, data, name, (n_images, neurons), ("image", "neuron"), index_base)
    csr.eliminate_zeros()
    values = None if (csr.data == 1).all() else csr.data
    indices = csr.indices.astype(index_dtype(neurons))
    return Features(neurons, csr.indptr.astype(np.int64), indices, values)


def read_categories(path: Path) -> npt.NDArray[np.int64]:
    """Read a truth file: one 1-based number a line; returned ascending, each once, int64.

    A file of one newline is the list of no features.

    Raises
    ------
    DataError
        If the file has no bytes; if a line is not a positive number or a number stands twice
        (with the line's number).
    """
    lines: dict[int, int] = {}
    for number, line in enumerate(without_mark(read_bytes(path)).splitlines(), start=1):
        text = line.strip()
        if not text:
            continue
        # isdigit first: int() takes more than digits. 18 of them always fit into 64 bits.
        if not text.removeprefix(b"-").isdigit() or len(text) > 18:
            shown = line[:40].decode("utf-8", "replace")
            raise DataError(f"{path}, line {number}: {shown!r} is not a feature number")
        category = int(text)
        if category < 1:
            raise DataError(
                f"{path}, line {number}: {category} is not a feature number (they count from 1)"
            )
        if category in lines:
            raise DataError(
                f"{path}, line {number}: feature {category} is named a second time, "
                f"first in line {lines[category]}"
            )
        lines[category] = number
    return np.array(sorted(lines), dtype=np.int64)
