"""Inputs whose lines are in order, as the published ones are, in pieces of bounded memory.

A piece is parsed while the next one is read and unpacked. Of a piece only the neurons stay, and
the values where they are not all 1. Whatever is out of order or wrong is not told here: the caller
then reads the file as one piece, with all checks.
"""

import gzip
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from spdnn.errors import DataError
from spdnn.features import Features, index_dtype
from spdnn.io.files import require_file, without_mark
from spdnn.io.triples import Triples, split_lines
from spdnn.machine.memory import require_bytes

PIECE_BYTES = 16 << 20
"""Bytes of text that are parsed at a time: some of pyarrow's blocks for each of a few threads."""


def require_images(path: Path, n_images: int) -> None:
    """Ask for the memory that the row pointers of images take.

    Parameters
    ----------
    path : Path
        The file, for the message.
    n_images : int
        Largest image number in it.

    Raises
    ------
    DeviceError
        If so many images do not fit.
    """
    require_bytes(
        2 * n_images * np.dtype(np.int64).itemsize,
        f"{path}: images up to number {n_images}",
        "check the numbers in its first column",
    )


def read_ordered_inputs(path: Path, neurons: int, index_base: int) -> Features | None:
    """Read inputs whose lines ascend by image, then neuron.

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
    Features or None
        None if the lines are in another order, or anything is wrong with the file.

    Raises
    ------
    DeviceError
        If so many images do not fit into memory.
    """
    rows = _Rows(neurons, index_base)
    try:
        require_file(path)
        packed = path.name.endswith(".gz")
        with gzip.open(path) if packed else open(path, "rb") as file:
            for piece in _pieces(cast(BinaryIO, file)):
                if piece.isspace() or not rows.add(split_lines(piece)):
                    return None
    except (DataError, OSError, EOFError, ValueError, zlib.error):
        return None
    return rows.features(path) if rows.last is not None else None


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield whole lines, each piece while the next one is read."""

    def following() -> bytes:
        text = file.read(PIECE_BYTES)
        return text + file.readline() if text else text

    with ThreadPoolExecutor(1) as pool:
        piece = without_mark(following())
        while piece:
            coming = pool.submit(following)
            yield piece
            piece = coming.result()


@dataclass
class _Rows:
    """Features that grow by pieces; images are numbered from 0."""

    neurons: int
    index_base: int
    images: list[npt.NDArray[np.int32]] = field(default_factory=list)
    lengths: list[npt.NDArray[np.int64]] = field(default_factory=list)
    indices: list[npt.NDArray[np.integer]] = field(default_factory=list)
    values: list[npt.NDArray[np.float32] | None] = field(default_factory=list)
    last: tuple[int, int] | None = None

    def add(self, triples: Triples) -> bool:
        """Add a piece; False, and nothing is added, if it does not continue the order."""
        image, neuron, value = triples
        if image.size == 0:
            return True
        first = int(image[0]), int(neuron[0])
        if first[0] < self.index_base or (self.last is not None and first <= self.last):
            return False
        step = image[1:] != image[:-1]
        ascends = np.where(step, image[1:] > image[:-1], neuron[1:] > neuron[:-1])
        low, high = int(neuron.min()), int(neuron.max())
        is_inside = self.index_base <= low and high < self.neurons + self.index_base
        are_ones = bool((value == 1).all())
        if not (ascends.all() and is_inside and (are_ones or np.isfinite(value).all())):
            return False
        self.last = int(image[-1]), int(neuron[-1])
        starts = np.concatenate(([0], np.flatnonzero(step) + 1))
        lengths = np.diff(starts, append=image.size)
        if not are_ones and not value.all():
            stays = value != 0
            lengths = np.add.reduceat(stays, starts, dtype=np.int64)
            neuron, value = neuron[stays], value[stays]
        indices = np.empty(neuron.size, dtype=index_dtype(self.neurons))
        np.subtract(neuron, self.index_base, out=indices, casting="unsafe")
        self.images.append(image[starts] - self.index_base)
        self.lengths.append(lengths)
        self.indices.append(indices)
        self.values.append(None if are_ones else value)
        return True

    def features(self, path: Path) -> Features:
        """Make one feature map of the pieces."""
        assert self.last is not None
        n_images = self.last[0] + 1 - self.index_base
        require_images(path, n_images)
        indptr = np.zeros(n_images + 1, dtype=np.int64)
        for images, lengths in zip(self.images, self.lengths, strict=True):
            indptr[images + 1] += lengths
        np.cumsum(indptr, out=indptr)
        values = None
        if any(value is not None and (value != 1).any() for value in self.values):
            values = np.concatenate(
                [
                    np.ones(indices.size, dtype=np.float32) if value is None else value
                    for indices, value in zip(self.indices, self.values, strict=True)
                ]
            )
        return Features(self.neurons, indptr, np.concatenate(self.indices), values)
