"""Finding equal columns: outputs of a layer that have the same inputs, or the same weights too.

The columns of the weights are compared; nothing is assumed about the network.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.machine.jit import jit

NOTHING = np.empty(0, dtype=np.uint32)
"""What is given for `values` or `labels` that do not count."""

_EMPTY = -1
"""A slot of the hash table that holds no column."""


@jit
def group_columns(
    indptr: npt.NDArray[Any],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.uint32],
    labels: npt.NDArray[np.uint32],
) -> tuple[npt.NDArray[np.int32], int]:
    """Number the distinct columns of a CSC matrix.

    Parameters
    ----------
    indptr : ndarray, shape (n_columns + 1,)
        Where the entries of each column begin.
    indices : ndarray, int32
        The row of each entry, ascending within each column.
    values : ndarray, uint32
        The bits of the entries. They count as well; empty where only the pattern counts.
    labels : ndarray, uint32
        One more number a column that counts, too; empty for none.

    Returns
    -------
    ndarray, shape (n_columns,), int32
        The group of each column; groups are numbered by their first column.
    int
        Number of groups.

    Notes
    -----
    The method is a hash table with open addressing. Hashes only propose: columns become one group
    where all that counts is equal, number by number.
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
        if labels.size:
            code ^= np.uint64(labels[column]) << np.uint64(32)
        for k in range(start, stop):
            # The finaliser of MurmurHash3 (A. Appleby, 2011), chained.
            code ^= np.uint64(indices[k]) + np.uint64(0x9E3779B97F4A7C15)
            if values.size:
                code ^= np.uint64(values[k]) << np.uint64(32)
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
            if labels.size:
                is_equal = is_equal and labels[other] == labels[column]
            n_same = 0
            while is_equal and n_same < stop - start:
                is_equal = indices[other_start + n_same] == indices[start + n_same]
                if values.size:
                    is_equal = is_equal and values[other_start + n_same] == values[start + n_same]
                n_same += 1
            if is_equal:
                group[column] = group[other]
                break
            slot = (slot + 1) & (size - 1)
    return group, n_groups


def bits_of(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """The bits of float32 numbers, equal exactly where the numbers are: -0.0 is 0.0."""
    return (numbers + np.float32(0)).view(np.uint32)
