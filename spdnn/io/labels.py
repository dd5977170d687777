"""True classes of features, from text, NumPy's arrays or MNIST's labels."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from spdnn.errors import DataError
from spdnn.io import idx, matrices
from spdnn.io.files import read_bytes, without_mark


def read_labels(path: Path) -> npt.NDArray[np.int64]:
    """Read the class of each feature.

    Parameters
    ----------
    path : Path
        An array (``.npy``), a text with a number on each line (``.txt`` or ``.tsv``), or else an
        IDX file of labels, as MNIST's, packed (``.gz``) or not.

    Returns
    -------
    ndarray, shape (n_features,), int64
        The classes, counted from 0.

    Raises
    ------
    DataError
        If the file is not there or malformed (with the line, in text).
    """
    if path.suffix == ".npy":
        array = matrices.load_array(path)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"{path}: expected one row of whole numbers, not {array.dtype} numbers "
                f"of shape {array.shape}"
            )
        return array.astype(np.int64)
    if path.suffix not in (".txt", ".tsv"):
        return idx.read_labels(path).astype(np.int64)
    classes = []
    for number, line in enumerate(without_mark(read_bytes(path)).splitlines(), start=1):
        text = line.strip()
        if not text.isdigit() or len(text) > 18:
            shown = line[:40].decode("utf-8", "replace")
            raise DataError(f"{path}, line {number}: {shown!r} is not a class, a number from 0")
        classes.append(int(text))
    return np.array(classes, dtype=np.int64)
