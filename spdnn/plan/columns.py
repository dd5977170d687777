"""The columns of a layer's weights, as plain arrays for compiled functions."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.machine.jit import jit, read_only

Arrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""`indptr`, `indices` and values of a matrix in CSC or CSR form."""


class Columns(NamedTuple):
    """A matrix in CSC form.

    Attributes
    ----------
    indptr : ndarray, shape (n_columns + 1,), int64
        Where the entries of each column begin.
    indices : ndarray, int32
        Their rows.
    values : ndarray, float32
        The entries.
    n_rows : int
        Number of rows.
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    n_rows: int

    def selected(self, which: npt.NDArray[np.int32]) -> "Columns":
        """Some columns, in the order of `which`, shape (n,), int32."""
        selected = _selected(self.indptr, self.indices, self.values, which)
        return Columns(*selected, self.n_rows)

    def in_order(self) -> "Columns":
        """The same with the rows of each column ascending."""
        n_columns = self.indptr.size - 1
        rows = _transpose(self.indptr, self.indices, self.values, _numbers(n_columns), self.n_rows)
        return Columns(*_transpose(*rows, _numbers(self.n_rows), n_columns), self.n_rows)

    def matrix(self) -> sp.csc_array:
        """The same as a scipy matrix."""
        indptr = self.indptr
        if self.indices.size <= np.iinfo(np.int32).max:
            indptr = indptr.astype(np.int32)
        shape = self.n_rows, indptr.size - 1
        return sp.csc_array((self.values, self.indices, indptr), shape=shape)


def columns_of_rows(rows: sp.csr_array, which: npt.NDArray[np.int32]) -> Columns:
    """The columns of some rows of a matrix.

    Parameters
    ----------
    rows : csr_array, float32
    which : ndarray, shape (n,), int32
        The rows, in the order in which they are numbered.
    """
    return Columns(*_transpose(*compressed_arrays(rows), which, rows.shape[1]), which.size)


def compressed_arrays(
    matrix: sp.csr_array | sp.csc_array,
) -> Arrays:
    """The arrays `indptr`, `indices` and `data` of a matrix, of types that functions expect."""
    indptr = matrix.indptr.astype(np.int64, copy=False)
    indices = matrix.indices.astype(np.int32, copy=False)
    return read_only(indptr), read_only(indices), read_only(matrix.data)


def _transpose(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    which: npt.NDArray[np.int32],
    n_columns: int,
) -> Arrays:
    """CSC form of the rows `which` of a CSR matrix, numbered in that order."""
    arrays = read_only(indptr), read_only(indices), read_only(values)
    result: Arrays = _transposed(*arrays, which, n_columns)
    return result


def _numbers(n: int) -> npt.NDArray[np.int32]:
    return np.arange(n, dtype=np.int32)


@jit
def _transposed(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    which: npt.NDArray[np.int32],
    n_columns: int,
) -> Arrays:
    """See `_transpose`."""
    new_indptr = np.zeros(n_columns + 1, dtype=np.int64)
    for row in which:
        for k in range(indptr[row], indptr[row + 1]):
            new_indptr[indices[k] + 1] += 1
    for column in range(n_columns):
        new_indptr[column + 1] += new_indptr[column]
    place = new_indptr[:-1].copy()
    new_indices = np.empty(new_indptr[n_columns], dtype=np.int32)
    new_values = np.empty(new_indptr[n_columns], dtype=np.float32)
    for number in range(which.size):
        for k in range(indptr[which[number]], indptr[which[number] + 1]):
            entry = place[indices[k]]
            place[indices[k]] = entry + 1
            new_indices[entry] = number
            new_values[entry] = values[k]
    return new_indptr, new_indices, new_values


@jit
def _selected(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    which: npt.NDArray[np.int32],
) -> Arrays:
    """The columns `which` of a CSC matrix."""
    new_indptr = np.empty(which.size + 1, dtype=np.int64)
    new_indptr[0] = 0
    for number in range(which.size):
        n_entries = indptr[which[number] + 1] - indptr[which[number]]
        new_indptr[number + 1] = new_indptr[number] + n_entries
    new_indices = np.empty(new_indptr[which.size], dtype=np.int32)
    new_values = np.empty(new_indptr[which.size], dtype=np.float32)
    for number in range(which.size):
        start, new_start = indptr[which[number]], new_indptr[number]
        for k in range(new_indptr[number + 1] - new_start):
            new_indices[new_start + k] = indices[start + k]
            new_values[new_start + k] = values[start + k]
    return new_indptr, new_indices, new_values
