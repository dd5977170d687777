"""Arrays in mapped files: the file and the place, so that another process can map them, too."""

import mmap
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt


class MappedFile(mmap.mmap):
    """A mapped file and its path.

    The map is private: arrays in it are writable, but the file never changes.
    """

    path: Path

    @classmethod
    def of(cls, file: BinaryIO, path: Path) -> "MappedFile":
        """Map a file.

        Parameters
        ----------
        file : binary file
            The open file.
        path : Path
            Its path.
        """
        mapped = cls(file.fileno(), 0, access=mmap.ACCESS_COPY)
        mapped.path = path.absolute()
        return mapped


class Place(NamedTuple):
    """The place of an array in a file.

    Attributes
    ----------
    path : Path
        The file.
    offset : int
        Bytes before the array.
    dtype : str
        NumPy's name of its type of numbers.
    shape : tuple of int
        Its shape.
    """

    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]


def place_of(array: npt.NDArray[Any]) -> Place | None:
    """Find the place of an array in a mapped file; None for an array in memory of its own."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not (isinstance(base, MappedFile) and array.flags.c_contiguous and array.size):
        return None
    offset = array.ctypes.data - np.frombuffer(base, dtype=np.uint8).ctypes.data
    return Place(base.path, offset, array.dtype.str, array.shape)


def array_at(place: Place) -> npt.NDArray[Any]:
    """Map an array of a file that another process of this node has mapped and checked."""
    with open(place.path, "rb") as file:
        mapped = MappedFile.of(file, place.path)
    count = int(np.prod(place.shape))
    flat = np.frombuffer(mapped, dtype=place.dtype, count=count, offset=place.offset)
    return flat.reshape(place.shape)
