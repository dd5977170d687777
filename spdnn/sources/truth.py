"""True categories from a file."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from spdnn.io import tsv


def read_truth(path: str, count: int | None = None) -> npt.NDArray[np.int64]:
    """Read the true categories of a network.

    Parameters
    ----------
    path : str
        A text file, one category on each line.
    count : int, optional
        Number of features that were run, from the first; all where not given. Categories of later
        features are left out.

    Returns
    -------
    ndarray, shape (n_categories,), int64
        Counted from 1, ascending.

    Raises
    ------
    DataError
        If the file is not there or malformed.
    """
    categories = tsv.read_categories(Path(path))
    return categories if count is None else categories[categories <= count]
