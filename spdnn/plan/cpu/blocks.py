"""Cutting a layer into blocks of output neurons, the unit of work of the CPU kernels.

A block is up to `MAX_ROWS` outputs. In a *shared* block they have the same inputs, named once: a
small dense product. The others form *sliced ELL* blocks: outputs of equal degree, each with inputs
of its own, so that nothing is padded. Outputs are renumbered in the order of their blocks, which
puts what is computed together side by side, and the next layer's inputs follow.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.machine.jit import jit
from spdnn.plan.groups import NOTHING, group_columns

MAX_ROWS = 8
"""Most outputs of a block."""

ROWS = (8, 4, 1)
"""Possible rows of a block: each costs a kernel, and compile time."""

N_ROWS, N_INPUTS, INDEX_START, WEIGHT_START, IS_SHARED, POSITION = range(6)
"""Columns of the block table."""


class BlockCosts(NamedTuple):
    """What a block costs, in any one unit: ``fixed + n_inputs * per_input``.

    Attributes
    ----------
    fixed, per_input : ndarray, shape (2, 3), float64
        For ELL and shared blocks, of as many rows as `ROWS` says.
    """

    fixed: npt.NDArray[np.float64]
    per_input: npt.NDArray[np.float64]

    def of_shared(
        self, n_outputs: npt.NDArray[np.int64], n_inputs: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Cost of groups of `n_outputs` outputs that share `n_inputs` inputs, as shared blocks."""
        cost: npt.NDArray[np.float64] = np.zeros(n_outputs.size)
        left = n_outputs.copy()
        for kind, rows in enumerate(ROWS):
            cost += left // rows * (self.fixed[1, kind] + n_inputs * self.per_input[1, kind])
            left %= rows
        return cost

    def of_alone(
        self, n_outputs: npt.NDArray[np.int64], n_inputs: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Cost of as many outputs in full ELL blocks, together with others of their degree."""
        one: npt.NDArray[np.float64] = self.fixed[0, 0] + n_inputs * self.per_input[0, 0]
        return one * n_outputs / MAX_ROWS


TYPICAL_COSTS = BlockCosts(
    np.array([[8.0, 5.0, 3.0]] * 2),
    np.array([[16.0, 8.0, 2.0], [8.0, 5.0, 2.0]]),
)
"""Roughly, in cycles; an engine measures its own."""


class LayerBlocks(NamedTuple):
    """The blocks of one layer.

    Attributes
    ----------
    table : ndarray, shape (n_blocks, 6), int64
        Rows, inputs a row, where its indices and weights begin, whether indices are shared, and
        the position of its first output.
    indices : ndarray, int32
        Positions of inputs: ``[k]`` in a shared block, ``[k, row]`` in an ELL block.
    weights : ndarray, float32
        ``[k, row]``.
    order : ndarray, shape (n_outputs,), int32
        The output neuron at each position: block after block.
    """

    table: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    order: npt.NDArray[np.int32]


def cut_layer(
    weights: sp.csr_array | sp.csc_array,
    input_position: npt.NDArray[np.int32],
    costs: BlockCosts = TYPICAL_COSTS,
) -> LayerBlocks:
    """Cut a layer into blocks.

    Parameters
    ----------
    weights : csr_array or csc_array, shape (n_inputs, n_outputs), float32
    input_position : ndarray, shape (n_inputs,), int32
        Where each input stands, from the order of the layer before.
    costs : BlockCosts
        A group of outputs becomes shared blocks only where that is cheaper. The choice moves
        outputs, but changes no sum.
    """
    columns = weights.tocsc()
    group, n_groups = group_columns(columns.indptr, columns.indices, NOTHING, NOTHING)
    group_size = np.bincount(group, minlength=n_groups)
    degree = np.diff(columns.indptr)
    group_degree = np.zeros(n_groups, dtype=np.int64)
    group_degree[group] = degree
    shared, alone = (cost(group_size, group_degree) for cost in (costs.of_shared, costs.of_alone))
    is_alone = ((group_size == 1) | (shared > alone))[group]
    # Groups in the order of their first output, then the others by degree.
    order = np.lexsort((np.where(is_alone, degree, group), is_alone)).astype(np.int32)
    n_shared = int(np.count_nonzero(~is_alone))
    # A run of outputs that may share a block: a group, or a degree.
    key = np.where(is_alone, degree, group)[order]
    is_start = np.diff(key, prepend=-1) != 0
    is_start[n_shared : n_shared + 1] = True
    starts = np.flatnonzero(is_start)
    run_starts = np.append(starts, order.size).astype(np.int64)
    table, n_indices = _block_table(run_starts, n_shared, degree[order].astype(np.int64))
    indices = np.empty(n_indices, dtype=np.int32)
    block_weights = np.empty(columns.nnz, dtype=np.float32)
    _fill_blocks(
        table,
        order,
        columns.indptr,
        columns.indices,
        columns.data,
        input_position,
        indices,
        block_weights,
    )
    return LayerBlocks(table, indices, block_weights, order)


@jit
def _block_table(
    run_starts: npt.NDArray[np.int64], n_shared: int, degree: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], int]:
    """Cut runs of outputs into blocks of as many rows as there are kernels for; count indices."""
    n_blocks = 0
    for run in range(run_starts.size - 1):
        n_left = run_starts[run + 1] - run_starts[run]
        for rows in ROWS:
            n_blocks += n_left // rows
            n_left %= rows
    table = np.empty((n_blocks, 6), dtype=np.int64)
    block = 0
    n_indices = 0
    n_weights = 0
    for run in range(run_starts.size - 1):
        row = run_starts[run]
        n_inputs = degree[row]
        is_shared = row < n_shared
        index_start = n_indices
        while row < run_starts[run + 1]:
            n_rows = 1
            for rows in ROWS:
                if n_rows < rows <= run_starts[run + 1] - row:
                    n_rows = rows
            table[block, N_ROWS] = n_rows
            table[block, N_INPUTS] = n_inputs
            table[block, INDEX_START] = index_start if is_shared else n_indices
            table[block, WEIGHT_START] = n_weights
            table[block, IS_SHARED] = is_shared
            table[block, POSITION] = row
            if not is_shared:
                n_indices += n_rows * n_inputs
            n_weights += n_rows * n_inputs
            row += n_rows
            block += 1
        if is_shared:
            n_indices += n_inputs
    return table, n_indices


@jit
def _fill_blocks(
    table: npt.NDArray[np.int64],
    order: npt.NDArray[np.int32],
    indptr: npt.NDArray[Any],
    inputs: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    input_position: npt.NDArray[np.int32],
    indices: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
) -> None:
    """Write the indices and weights of every block, for `table` from `_block_table`."""
    for block in range(table.shape[0]):
        n_rows, n_inputs = table[block, N_ROWS], table[block, N_INPUTS]
        is_shared = table[block, IS_SHARED]
        for row in range(n_rows):
            start = indptr[order[table[block, POSITION] + row]]
            for k in range(n_inputs):
                entry = k * n_rows + row
                weights[table[block, WEIGHT_START] + entry] = values[start + k]
                if not is_shared:
                    indices[table[block, INDEX_START] + entry] = input_position[inputs[start + k]]
                elif row == 0:
                    indices[table[block, INDEX_START] + k] = input_position[inputs[start + k]]
