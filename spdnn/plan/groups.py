"""Finding the outputs of a layer that have the same inputs.

They are found by comparing the columns of the weights; no structure is assumed.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.jit import jit

_EMPTY = -1


@jit
def group_columns(
    indptr: npt.NDArray[Any], indices: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], int]:
    """Number the distinct sparsity patterns of the columns of a CSC matrix.

    Parameters
    ----------
    indptr : ndarray, shape (n_columns + 1,)
    indices : ndarray, int32
        Ascending within each column.

    Returns
    -------
    ndarray, shape (n_columns,), int32
        The group of each column; groups are numbered by their first column.
    int
        Number of groups.

    Notes
    -----
    A hash table with open addressing. A hash only proposes: columns are one group
    where their patterns are equal, number by number.
    """
    n_columns = indptr.size - 1
    size = 2
    while size < 2 * n_columns:
        size *= 2
    slots = np.empty(size, dtype=np.int32)  # the first column of each group met so far
    for empty in range(size):
        slots[empty] = _EMPTY
    group = np.empty(n_columns, dtype=np.int32)
    n_groups = 0
    for column in range(n_columns):
        start, stop = indptr[column], indptr[column + 1]
        code = np.uint64(stop - start)
        for k in range(start, stop):
            # The finaliser of MurmurHash3 (A. Appleby, 2011), chained.
            code ^= np.uint64(indices[k]) + np.uint64(0x9E3779B97F4A7C15)
            code *= np.uint64(0xFF51AFD7ED558CCD)
            code ^= code >> np.uint64(33)
        slot = np.int64(code & np.uint64(size - 1))
        while True:
            other = slots[slot]
            if other == _EMPTY:
                slots[slot] = column
                group[column] = n_groups
                n_groups += 1
                break
            other_start = indptr[other]
            is_equal = indptr[other + 1] - other_start == stop - start
            n_same = 0
            while is_equal and n_same < stop - start:
                is_equal = indices[other_start + n_same] == indices[start + n_same]
                n_same += 1
            if is_equal:
                group[column] = group[other]
                break
            slot = (slot + 1) & (size - 1)
    return group, n_groups
