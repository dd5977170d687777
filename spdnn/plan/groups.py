"""Finding equal columns: outputs of a layer that have the same inputs, or the same weights too.

The columns of the weights are compared; nothing is assumed about the network. Hashes only propose:
columns become one group where all that counts is equal, number by number.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.machine.jit import jit, jit_part, read_only
from spdnn.plan.columns import compressed_arrays

NOTHING = np.empty(0, dtype=np.uint32)
"""What is given for `values` or `labels` that do not count."""

HASH_BITS = 0xFFFF_FFFF_FFFF_FFFF
"""The bits of hashes that are used. With fewer, more columns are compared in vain."""

_EMPTY = -1
"""A slot of the hash table that holds no column."""


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
    """
    group, first = first_of_groups(indptr, indices, values, labels)
    return group, first.size


def first_of_groups(
    indptr: npt.NDArray[Any],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.uint32],
    labels: npt.NDArray[np.uint32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Number the distinct columns as `group_columns` does, and give the first of each group."""
    return _number_columns(
        read_only(indptr.astype(np.int64, copy=False)),
        read_only(indices.astype(np.int32, copy=False)),
        read_only(values),
        read_only(labels),
        np.uint64(HASH_BITS),
    )


class Groups(NamedTuple):
    """The outputs of a layer, grouped by their inputs; weights do not count.

    Attributes
    ----------
    degree : ndarray, shape (n_outputs,), int64
        Inputs of each output.
    group : ndarray, shape (n_outputs,), int32
        The group of each output; groups are numbered by their first output.
    first : ndarray, shape (n_groups,), int32
        The first output of each group.
    """

    degree: npt.NDArray[np.int64]
    group: npt.NDArray[np.int32]
    first: npt.NDArray[np.int32]


def group_outputs(weights: sp.csr_array | sp.csc_array) -> Groups:
    """Group the outputs of a layer by their inputs.

    Parameters
    ----------
    weights : csr_array or csc_array, shape (n_inputs, n_outputs)
        Indices ascending in each row or column.

    Notes
    -----
    A matrix in CSR form is read row by row: once to take the hashes of all columns, and once to
    confirm that columns with equal hashes are equal. If some are not, it is converted.
    """
    if isinstance(weights, sp.csr_array):
        indptr, indices, _ = compressed_arrays(weights)
        degree, group, first = _propose_groups(
            indptr, indices, weights.shape[1], np.uint64(HASH_BITS)
        )
        if _are_confirmed(indptr, indices, first[group]):
            return Groups(degree, group, first)
        weights = weights.tocsc()
    degree = np.diff(weights.indptr).astype(np.int64, copy=False)
    group, first = first_of_groups(weights.indptr, weights.indices, NOTHING, NOTHING)
    return Groups(degree, group, first)


def bits_of(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """The bits of float32 numbers, equal exactly where the numbers are: -0.0 is 0.0."""
    return (numbers + np.float32(0)).view(np.uint32)


def are_all_equal(numbers: npt.NDArray[np.uint32]) -> bool:
    """Whether all numbers are the same; True where there are none."""
    return _are_all_equal(read_only(numbers))


@jit
def _are_all_equal(numbers: npt.NDArray[np.uint32]) -> bool:
    """See `are_all_equal`."""
    for start in range(0, numbers.size, 4096):
        difference = np.uint32(0)
        for k in range(np.uint64(start), np.uint64(min(start + 4096, numbers.size))):
            difference |= np.uint32(numbers[k] ^ numbers[0])
        if difference != 0:
            return False
    return True


@jit_part
def edge_code(index: np.uint32, value: np.uint32) -> np.uint64:
    """A number for an edge, uint64; their sum is the hash of a column, in any order.

    The product of two 32-bit numbers that depend on both, after NH (J. Black et al., "UMAC",
    CRYPTO 1999). It is computed in vector registers.
    """
    x = np.uint32(index * np.uint32(0x9E3779B1))
    x = np.uint32(x ^ (x >> np.uint32(15)))
    y = np.uint32(value * np.uint32(0x85EBCA77))
    y = np.uint32(y ^ (y >> np.uint32(13)))
    left, right = np.uint32(x + y), np.uint32(np.uint32(x ^ y) + np.uint32(0x27D4EB2F))
    return np.uint64(left) * np.uint64(right)


@jit_part
def slot_of(code: np.uint64, size: int) -> np.int64:
    """Where a search for a hash begins in a table of `size` slots, a power of two.

    The finaliser of MurmurHash3 (A. Appleby, 2011).
    """
    mixed = (code ^ (code >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    return np.int64((mixed ^ (mixed >> np.uint64(33))) & np.uint64(size - 1))


@jit_part
def table_size(n: int) -> int:
    """Slots of a hash table for `n` columns: a power of two, at least twice as many."""
    size = 2
    while size < 2 * n:
        size *= 2
    return size


@jit
def _number_columns(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.uint32],
    labels: npt.NDArray[np.uint32],
    hash_bits: np.uint64,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Number columns for `first_of_groups`.

    The method is a hash table with open addressing.
    """
    n_columns = indptr.size - 1
    size = table_size(n_columns)
    slots = np.full(size, _EMPTY, dtype=np.int32)  # the first column of each group met so far
    codes = np.empty(n_columns, dtype=np.uint64)
    group = np.empty(n_columns, dtype=np.int32)
    first = np.empty(n_columns, dtype=np.int32)
    n_groups = 0
    for column in range(n_columns):
        start = np.uint64(indptr[column])
        n_edges = np.uint64(indptr[column + 1]) - start
        code = np.uint64(0)
        if values.size:
            for k in range(n_edges):
                code += edge_code(np.uint32(indices[start + k]), values[start + k])
        else:
            for k in range(n_edges):
                code += edge_code(np.uint32(indices[start + k]), np.uint32(0))
        if labels.size:
            code += np.uint64(labels[column]) << np.uint64(32)
        codes[column] = (code + n_edges) & hash_bits
    for column in range(n_columns):
        start = np.uint64(indptr[column])
        n_edges = np.uint64(indptr[column + 1]) - start
        code = codes[column]
        slot = slot_of(code, size)
        while True:
            other = slots[slot]
            if other == _EMPTY:
                slots[slot] = column
                group[column] = n_groups
                first[n_groups] = column
                n_groups += 1
                break
            is_equal = codes[other] == code
            if is_equal and labels.size:
                is_equal = labels[other] == labels[column]
            if is_equal:
                is_equal = np.uint64(indptr[other + 1] - indptr[other]) == n_edges
            if is_equal:
                is_equal = are_equal(indices, start, np.uint64(indptr[other]), n_edges)
            if is_equal and values.size:
                is_equal = are_equal(values, start, np.uint64(indptr[other]), n_edges)
            if is_equal:
                group[column] = group[other]
                break
            slot = (slot + 1) & (size - 1)
    return group, first[:n_groups].copy()


@jit_part
def are_equal(numbers: npt.NDArray[Any], one: np.uint64, other: np.uint64, n: np.uint64) -> bool:
    """Whether the `n` 32-bit numbers from two places are equal.

    Places are uint64: they are then known not to count from the end, and loops become vector code.
    """
    difference = np.uint32(0)
    for k in range(n):
        difference |= np.uint32(numbers[one + k] ^ numbers[other + k])
    return bool(difference == 0)


@jit
def _propose_groups(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    n_columns: int,
    hash_bits: np.uint64,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Number the columns of a CSR matrix that have as many entries and equal hashes.

    Gives the entries of each column, its group, and the first column of each group.
    """
    # Side by side, so that an edge touches one cache line.
    code_and_degree = np.zeros((n_columns, 2), dtype=np.uint64)
    for row in range(indptr.size - 1):
        code = edge_code(np.uint32(row), np.uint32(0))
        for k in range(indptr[row], indptr[row + 1]):
            column = indices[k]
            code_and_degree[column, 0] += code
            code_and_degree[column, 1] += np.uint64(1)
    size = table_size(n_columns)
    slots = np.full(size, _EMPTY, dtype=np.int32)
    degree = np.empty(n_columns, dtype=np.int64)
    group = np.empty(n_columns, dtype=np.int32)
    first = np.empty(n_columns, dtype=np.int32)
    n_groups = 0
    for column in range(n_columns):
        code = code_and_degree[column, 0] & hash_bits
        code_and_degree[column, 0] = code
        degree[column] = np.int64(code_and_degree[column, 1])
        slot = slot_of(code, size)
        while True:
            other = slots[slot]
            if other == _EMPTY:
                slots[slot] = column
                group[column] = n_groups
                first[n_groups] = column
                n_groups += 1
                break
            if code_and_degree[other, 0] == code and degree[other] == degree[column]:
                group[column] = group[other]
                break
            slot = (slot + 1) & (size - 1)
    return degree, group, first[:n_groups].copy()


@jit
def _are_confirmed(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    first_of_group: npt.NDArray[np.int32],
) -> bool:
    """Whether each column of a CSR matrix equals the first column of its group.

    They have as many entries. So they are equal if the first column has an entry in each row in
    which the other has one. The first column comes first in each row.
    """
    last_row = np.full(first_of_group.size, -1, dtype=np.int32)  # the last row of each column
    n_wrong = 0
    for row in range(indptr.size - 1):
        for k in range(indptr[row], indptr[row + 1]):
            last_row[indices[k]] = row
            n_wrong += last_row[first_of_group[indices[k]]] != row
    return n_wrong == 0
