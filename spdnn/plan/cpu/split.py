"""Long outputs on the CPU: those with far more inputs than the rest are cut into chunks.

An output that has a block to itself is one chain of additions, and the work of one thread. Cut into
chunks (`spdnn.plan.chunks`) it fills whole blocks, which threads can share. Chunks of different
outputs that read the same part of the tile lie side by side, so that it is read from a near cache.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.plan.chunks import OUTPUT, cut_chunks
from spdnn.plan.cpu.blocks import MAX_ROWS
from spdnn.plan.groups import NOTHING, group_columns

CPU_CHUNK = 128
"""Inputs of a chunk: long against what a block costs, short against what a thread gets."""

LONGEST = 2 * CPU_CHUNK
"""Inputs from which an output may be cut."""

MOST_OF_LAYER = 1 / 32
"""Share of a layer's edges that the outputs of one block may have: threads share it evenly."""


class Split(NamedTuple):
    """A layer with long outputs.

    Attributes
    ----------
    short, long : ndarray, int32
        The layer's short and long outputs, ascending.
    rows : csc_array, shape (n_inputs, n_short)
        The weights of the short outputs.
    chunks : csc_array, shape (n_inputs, n_chunks)
        The weights of the long outputs, `CPU_CHUNK` to a column; the last chunk of an output has
        the rest. Rows are positions in the tile.
    sums : csc_array, shape (n_chunks, n_long)
        Ones, which say the chunks that make up each long output.
    """

    short: npt.NDArray[np.int32]
    long: npt.NDArray[np.int32]
    rows: sp.csc_array
    chunks: sp.csc_array
    sums: sp.csc_array


def split_long(columns: sp.csc_array, input_position: npt.NDArray[np.int32]) -> Split | None:
    """Split a layer, or return None where no output is long.

    Parameters
    ----------
    columns : csc_array, shape (n_inputs, n_outputs), float32
        The weights, with the indices of each column ascending.
    input_position : ndarray, shape (n_inputs,), int32
        Where each input stands in the tile.
    """
    is_long = are_long(columns)
    if not is_long.any():
        return None
    long, short = (np.flatnonzero(which).astype(np.int32) for which in (is_long, ~is_long))
    whole = columns[:, long]
    whole = sp.csc_array((whole.data, input_position[whole.indices], whole.indptr), whole.shape)
    whole.sort_indices()
    cut = cut_chunks(whole, CPU_CHUNK)
    shape = columns.shape[0], cut.order.size
    chunks = sp.csc_array((whole.data, whole.indices, cut.indptr), shape)
    place = np.empty_like(cut.order)
    place[cut.order] = np.arange(place.size, dtype=place.dtype)
    ones = np.ones(place.size, dtype=np.float32)
    ends = np.cumsum(np.bincount(cut.table[:, OUTPUT], minlength=long.size))
    sums = sp.csc_array((ones, place, np.append(0, ends)), (place.size, long.size))
    return Split(short, long, columns[:, short], chunks[:, cut.order], sums)


def are_long(columns: sp.csc_array) -> npt.NDArray[np.bool_]:
    """Which outputs are long, shape (n_outputs,).

    They have many inputs, which they share with no other output. Besides, there are too few of
    their degree to fill a block, or a block of them would be too much of the layer.

    Parameters
    ----------
    columns : csc_array, shape (n_inputs, n_outputs)
        The weights, with the indices of each column ascending.
    """
    degree = np.diff(columns.indptr)
    if degree.max(initial=0) < LONGEST:
        return np.zeros(degree.size, dtype=np.bool_)
    group, n_groups = group_columns(columns.indptr, columns.indices, NOTHING, NOTHING)
    is_alone = np.bincount(group, minlength=n_groups)[group] == 1
    n_of_degree = np.bincount(degree[is_alone], minlength=int(degree.max()) + 1)[degree]
    is_rare = n_of_degree < MAX_ROWS
    is_much = MAX_ROWS * degree > MOST_OF_LAYER * columns.nnz
    result: npt.NDArray[np.bool_] = is_alone & (degree >= LONGEST) & (is_rare | is_much)
    return result
