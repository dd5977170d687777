"""MNIST's IDX files of images and labels.

A file of images begins with big-endian 32-bit numbers: the magic 2051, the number of images, rows
and columns. The bytes of the images follow. A file of labels begins with the magic 2049 and the
number of labels, and their bytes follow.
Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".
"""

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spdnn.errors import DataError
from spdnn.io.files import read_bytes

IMAGES_MAGIC = 2051
LABELS_MAGIC = 2049
_HEADER = struct.Struct(">4I")
_LABELS_HEADER = struct.Struct(">2I")


def read_images(path: Path) -> npt.NDArray[np.uint8]:
    """Read the images of an IDX file.

    Parameters
    ----------
    path : Path
        The file, packed (``.gz``) or not.

    Returns
    -------
    ndarray, shape (n_images, rows, columns), uint8
        Grey values, 0 to 255.

    Raises
    ------
    DataError
        If the file is damaged or does not hold images.
    """
    data = read_bytes(path)
    if len(data) < _HEADER.size:
        raise DataError(f"{path}: not an IDX image file (only {len(data)} bytes)")
    magic, n_images, rows, columns = _HEADER.unpack_from(data)
    if magic == LABELS_MAGIC:
        raise DataError(f"{path}: this IDX file holds labels; the images file is needed")
    if magic != IMAGES_MAGIC:
        raise DataError(f"{path}: not an IDX image file (magic {magic}, expected {IMAGES_MAGIC})")
    n_bytes = _HEADER.size + n_images * rows * columns
    if len(data) != n_bytes:
        raise DataError(
            f"{path}: damaged IDX file: {len(data)} bytes, where its header says {n_bytes}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=_HEADER.size).reshape(n_images, rows, columns)


def read_labels(path: Path) -> npt.NDArray[np.uint8]:
    """Read the labels of an IDX file.

    Parameters
    ----------
    path : Path
        The file, packed (``.gz``) or not.

    Returns
    -------
    ndarray, shape (n_labels,), uint8
        The labels, counted from 0.

    Raises
    ------
    DataError
        If the file is damaged or does not hold labels.
    """
    data = read_bytes(path)
    magic, n_labels = _LABELS_HEADER.unpack_from(data.ljust(_LABELS_HEADER.size, b"\0"))
    if magic != LABELS_MAGIC:
        raise DataError(f"{path}: not an IDX label file (magic {magic}, expected {LABELS_MAGIC})")
    n_bytes = _LABELS_HEADER.size + n_labels
    if len(data) != n_bytes:
        raise DataError(
            f"{path}: damaged IDX file: {len(data)} bytes, where its header says {n_bytes}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=_LABELS_HEADER.size)
