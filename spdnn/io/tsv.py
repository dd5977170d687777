"""The published text files: layers, inputs and categories, packed or not."""

import gzip
import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.features import Features, index_dtype
from spdnn.io.files import read_bytes, require_file, unpacked, without_mark
from spdnn.io.ordered import read_ordered_inputs, require_images
from spdnn.io.triples import parse_triples, triples_to_csr
from spdnn.machine.memory import require_bytes
from spdnn.network import Layer, Network

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar")
"""Endings of the names of archives of layer files."""

INPUT_SUFFIXES = (".tsv", ".tsv.gz")
"""Endings of the names of inputs files."""

ARCHIVE_BUFFER = 1 << 20
"""Bytes read from an archive at a time."""

MAX_WAITING = 4 * len(os.sched_getaffinity(0))
"""Files of an archive that are unpacked and not parsed yet, at most; their text is in memory."""

_GZIP_MAGIC = b"\x1f\x8b"
_LAYER_NAME = re.compile(r"n(\d+)-l(\d+)\.tsv(?:\.gz)?")

_Read = Callable[[], bytes]


class _LayerFile(NamedTuple):
    """A layer file: the layer's number from 1, the file's name, and a function that reads it."""

    number: int
    name: str
    read: _Read


def read_layers(
    path: Path,
    neurons: int,
    layers: int,
    make_layer: Callable[[sp.csr_array], Layer],
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
    neurons : int
        Neurons of each layer.
    layers : int
        Number of layers to read.
    make_layer : callable
        Makes a Layer of its weights (csr_array, float32).
    progress : callable, optional
        Called with the number of layers read so far.
    index_base : {1, 0}
        Number of the first neuron in the files. Layers are numbered from 1 in any case.

    Returns
    -------
    Network
        Named after the path.

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

    def parse(file: _LayerFile) -> Layer:
        weights = _parse_weights(file.name, file.read, neurons, index_base)
        try:
            return make_layer(weights)
        except DataError as error:
            raise DataError(f"{file.name}: {error}") from error

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            parsed = _begin_parsing(pool, parse, path, neurons, layers)
            return Network(_in_order(parsed, progress), name=path.name)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begin_parsing(
    pool: ThreadPoolExecutor,
    parse: Callable[[_LayerFile], Layer],
    path: Path,
    neurons: int,
    layers: int,
) -> dict[int, Future[Layer]]:
    """Give the files of layers 1 to `layers` to a pool; none of them may be missing."""
    parsed: dict[int, Future[Layer]] = {}
    waiting: set[Future[Layer]] = set()
    sizes_seen: set[int] = set()
    for file in _layer_files(_members(path, neurons), neurons, sizes_seen):
        if 1 <= file.number <= layers:
            parsed[file.number] = pool.submit(parse, file)
            waiting.add(parsed[file.number])
        if len(waiting) >= MAX_WAITING:
            waiting = wait(waiting, return_when=FIRST_COMPLETED).not_done
    if len(parsed) < layers:
        raise _missing_layers(path, neurons, layers, set(parsed), sizes_seen)
    return parsed


def _in_order(
    parsed: Mapping[int, Future[Layer]], progress: Callable[[int], None] | None
) -> list[Layer]:
    """Wait for the layers, by their numbers."""
    layers = []
    for number in sorted(parsed):
        layers.append(parsed[number].result())
        if progress is not None:
            progress(number)
    return layers


def iterate_weights(path: Path, neurons: int) -> Iterator[tuple[int, str, sp.csr_array]]:
    """Read the layers of `neurons` neurons one at a time, in the order in which they lie there.

    Parameters
    ----------
    path : Path
        As in `read_layers`, or a single layer file.
    neurons : int
        Neurons of each layer; layers of other sizes are passed over.

    Yields
    ------
    int
        Number of the layer, from 1.
    str
        Name of its file.
    csr_array, shape (neurons, neurons), float32
        Its weights.

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
    for number, name, read in _layer_files(members, neurons, sizes_seen):
        yield number, name, _parse_weights(name, read, neurons)
    if neurons not in sizes_seen:
        raise _missing_layers(path, neurons, 1, set(), sizes_seen)


def _layer_files(
    members: Iterator[tuple[str, _Read]], neurons: int, sizes_seen: set[int]
) -> Iterator[_LayerFile]:
    """Yield the layer files of a size; no layer may be there twice.

    The sizes of all layer files are added to `sizes_seen`.
    """
    names: dict[int, str] = {}
    for name, read in members:
        # The name of a member of an archive follows the archive's name and a colon.
        match = _LAYER_NAME.fullmatch(Path(name.rpartition(":")[2]).name)
        if match is None:
            continue
        sizes_seen.add(int(match[1]))
        if int(match[1]) != neurons:
            continue
        number = int(match[2])
        if number in names:
            raise DataError(f"{name}: layer {number} is there twice, also as {names[number]}")
        names[number] = name
        yield _LayerFile(number, name, read)


def _parse_weights(name: str, read: _Read, neurons: int, index_base: int = 1) -> sp.csr_array:
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


def _members(path: Path, neurons: int) -> Iterator[tuple[str, _Read]]:
    """Yield names, and functions that read them, of the files of an archive or folder."""
    if path.name.endswith(ARCHIVE_SUFFIXES):
        return _archive_members(path)
    return _folder_members(path, neurons)


def _folder_members(path: Path, neurons: int) -> Iterator[tuple[str, _Read]]:
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


def _archive_members(path: Path) -> Iterator[tuple[str, _Read]]:
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
                pass  # gzip's checksum is at the very end
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated archive ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def _unpacked(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a tar file, gzipped or not, as a stream.

    tarfile would unpack a stream without looking at gzip's checksum. A changed bit would then
    become another weight.
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
        Number of the first image and of the first neuron in the file.

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
    features = read_ordered_inputs(path, neurons, index_base)
    return _read_any_inputs(path, neurons, index_base) if features is None else features


def _read_any_inputs(path: Path, neurons: int, index_base: int) -> Features:
    """Read inputs in any order as one piece, or say what is wrong with them."""
    data, name = read_bytes(path), str(path)
    triples = parse_triples(data, name)
    n_images = int(triples.row.max(initial=index_base - 1)) + 1 - index_base
    require_images(path, n_images)
    csr = triples_to_csr(triples, data, name, (n_images, neurons), ("image", "neuron"), index_base)
    csr.eliminate_zeros()
    values = None if (csr.data == 1).all() else csr.data
    indices = csr.indices.astype(index_dtype(neurons))
    return Features(neurons, csr.indptr.astype(np.int64), indices, values)


def read_categories(path: Path) -> npt.NDArray[np.int64]:
    """Read a truth file: the number of a category, counted from 1, on each line.

    Parameters
    ----------
    path : Path
        The text file. A file of one newline is the list of no categories.

    Returns
    -------
    ndarray, shape (n_categories,), int64
        The categories, ascending.

    Raises
    ------
    DataError
        If the file has no bytes, a line is not a positive number, or a number is there twice
        (with the line's number).
    """
    lines: dict[int, int] = {}
    for number, line in enumerate(without_mark(read_bytes(path)).splitlines(), start=1):
        text = line.strip()
        if not text:
            continue
        # int() takes more than digits, so isdigit comes first. 18 digits always fit into 64 bits.
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
