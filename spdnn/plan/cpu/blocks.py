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
from spdnn.plan.columns import compressed_arrays
from spdnn.plan.groups import Groups, group_outputs

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


class Arrangement(NamedTuple):
    """How a layer is cut into blocks: all but the numbers in them.

    Attributes
    ----------
    table : ndarray, shape (n_blocks, 6), int64
        Rows, inputs a row, where its indices and weights begin, whether indices are shared, and
        the position of its first output.
    order : ndarray, shape (n_outputs,), int32
        The output neuron at each position: block after block.
    n_indices, n_weights : int
        Indices and weights in all blocks.
    """

    table: npt.NDArray[np.int64]
    order: npt.NDArray[np.int32]
    n_indices: int
    n_weights: int


class LayerBlocks(NamedTuple):
    """The blocks of one layer.

    Attributes
    ----------
    table : ndarray, shape (n_blocks, 6), int64
        See `Arrangement`.
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
        Indices ascending in each row or column.
    input_position : ndarray, shape (n_inputs,), int32
        Where each input stands, from the order of the layer before.
    costs : BlockCosts
        See `arrange`.
    """
    arrangement = arrange(group_outputs(weights), costs)
    indices = np.empty(arrangement.n_indices, dtype=np.int32)
    block_weights = np.empty(arrangement.n_weights, dtype=np.float32)
    fill_blocks(weights, arrangement, input_position, indices, block_weights)
    return LayerBlocks(arrangement.table, indices, block_weights, arrangement.order)


def arrange(outputs: Groups, costs: BlockCosts) -> Arrangement:
    """Choose the blocks of a layer. Where its inputs stand does not matter.

    Parameters
    ----------
    outputs : Groups
        The layer's outputs, grouped by their inputs.
    costs : BlockCosts
        A group of outputs becomes shared blocks only where that is cheaper. The choice moves
        outputs, but changes no sum.
    """
    group_size = np.bincount(outputs.group, minlength=outputs.first.size)
    group_degree = outputs.degree[outputs.first]
    shared, alone = (cost(group_size, group_degree) for cost in (costs.of_shared, costs.of_alone))
    is_alone = (group_size == 1) | (shared > alone)
    order, run_starts, n_shared = _order_of_blocks(*outputs, is_alone)
    table, n_indices = _block_table(run_starts, n_shared, outputs.degree[order])
    return Arrangement(table, order, n_indices, int(outputs.degree.sum()))


def fill_blocks(
    weights: sp.csr_array | sp.csc_array,
    arrangement: Arrangement,
    input_position: npt.NDArray[np.int32],
    indices: npt.NDArray[Any],
    block_weights: npt.NDArray[np.float32],
) -> None:
    """Write the indices and weights of all blocks of a layer, or one of both.

    Parameters
    ----------
    weights, input_position
        As `cut_layer` takes them.
    arrangement : Arrangement
        The layer's blocks.
    indices : ndarray, shape (n_indices,), uint16 or int32
        Receives the positions of inputs; empty if they are not wanted.
    block_weights : ndarray, shape (n_weights,), float32
        Receives the weights; empty if they are not wanted.
    """
    fill = _fill_from_rows if isinstance(weights, sp.csr_array) else _fill_from_columns
    arrays = compressed_arrays(weights)
    fill(arrangement.table, arrangement.order, *arrays, input_position, indices, block_weights)


@jit
def _order_of_blocks(
    degree: npt.NDArray[np.int64],
    group: npt.NDArray[np.int32],
    first: npt.NDArray[np.int32],
    is_alone: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], int]:
    """The order of outputs: groups in the order of their first output, then the others by degree.

    Gives the order; where runs of outputs begin that may share a block, a group or a degree, and
    the end of the last one; and how many outputs are in groups.
    """
    n_outputs, n_groups = group.size, first.size
    n_degrees = np.int64(1)
    for output in range(n_outputs):
        n_degrees = max(n_degrees, degree[output] + 1)
    # A key for each output: its group, or behind all groups its degree.
    place = np.zeros(n_groups + n_degrees, dtype=np.int64)
    for output in range(n_outputs):
        g = group[output]
        place[n_groups + degree[output] if is_alone[g] else g] += 1
    runs = np.empty(place.size + 1, dtype=np.int64)
    n_runs = 0
    n_shared = n_before = np.int64(0)
    for key in range(place.size):
        n_own = place[key]
        place[key] = n_before
        if n_own:
            runs[n_runs] = n_before
            n_runs += 1
        n_before += n_own
        if key < n_groups:
            n_shared = n_before
    runs[n_runs] = n_outputs
    order = np.empty(n_outputs, dtype=np.int32)
    for output in range(n_outputs):
        g = group[output]
        own_key = n_groups + degree[output] if is_alone[g] else np.int64(g)
        order[place[own_key]] = output
        place[own_key] += 1
    return order, runs[: n_runs + 1].copy(), int(n_shared)


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
def _fill_from_columns(
    table: npt.NDArray[np.int64],
    order: npt.NDArray[np.int32],
    indptr: npt.NDArray[np.int64],
    inputs: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    input_position: npt.NDArray[np.int32],
    indices: npt.NDArray[Any],
    weights: npt.NDArray[np.float32],
) -> None:
    """See `fill_blocks`: output by output, of a CSC matrix."""
    has_indices, has_weights = indices.size > 0, weights.size > 0
    for block in range(table.shape[0]):
        n_rows, n_inputs = table[block, N_ROWS], table[block, N_INPUTS]
        is_shared = table[block, IS_SHARED]
        for row in range(n_rows):
            start = indptr[order[table[block, POSITION] + row]]
            for k in range(n_inputs):
                entry = k * n_rows + row
                if has_weights:
                    weights[table[block, WEIGHT_START] + entry] = values[start + k]
                if has_indices and not is_shared:
                    indices[table[block, INDEX_START] + entry] = input_position[inputs[start + k]]
                elif has_indices and row == 0:
                    indices[table[block, INDEX_START] + k] = input_position[inputs[start + k]]


@jit
def _fill_from_rows(
    table: npt.NDArray[np.int64],
    order: npt.NDArray[np.int32],
    indptr: npt.NDArray[np.int64],
    outputs: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    input_position: npt.NDArray[np.int32],
    indices: npt.NDArray[Any],
    weights: npt.NDArray[np.float32],
) -> None:
    """See `fill_blocks`: input by input, of a CSR matrix. Each output has its edges one by one.

    All outputs of a group write the positions of their inputs, to one place: the same numbers.
    """
    has_indices, has_weights = indices.size > 0, weights.size > 0
    # Of each output: where its next weight and index go, and how far it is to those after them.
    nexts = np.empty((order.size, 4), dtype=np.int64)
    for block in range(table.shape[0]):
        n_rows, is_shared = table[block, N_ROWS], table[block, IS_SHARED]
        for row in range(n_rows):
            output = order[table[block, POSITION] + row]
            nexts[output, 0] = table[block, WEIGHT_START] + row
            nexts[output, 1] = table[block, INDEX_START] + (0 if is_shared else row)
            nexts[output, 2] = n_rows
            nexts[output, 3] = 1 if is_shared else n_rows
    for i in range(indptr.size - 1):
        position = input_position[i] if has_indices else np.int32(0)
        for k in range(indptr[i], indptr[i + 1]):
            output = outputs[k]
            weight, index = nexts[output, 0], nexts[output, 1]
            if has_weights:
                weights[weight] = values[k]
            if has_indices:
                indices[index] = position
            nexts[output, 0] = weight + nexts[output, 2]
            nexts[output, 1] = index + nexts[output, 3]
