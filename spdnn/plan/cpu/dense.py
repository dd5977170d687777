"""Taking outputs of very many inputs as dense: edges that are missing become edges of weight zero.

Outputs that share their inputs are computed several times as fast for each edge. Where an output
has more than a third or so of all inputs, it is faster to give it the others, too, with weight 0:
all such outputs of a layer then have the same inputs. Zero times an activation changes no sum, as
long as activations are finite, and a result in which one is not is refused.
"""

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.machine.jit import jit
from spdnn.plan.cpu.blocks import MAX_ROWS, BlockCosts
from spdnn.plan.groups import NOTHING, group_columns


def may_have_dense_outputs(degree: npt.NDArray[np.int64], n_inputs: int, costs: BlockCosts) -> bool:
    """Whether there are enough outputs with so many inputs that `with_dense_outputs` may act.

    Parameters
    ----------
    degree : ndarray, shape (n_outputs,), int64
        Inputs of each output.
    n_inputs : int
        Inputs of the layer.
    costs : BlockCosts
        What blocks cost on this machine.
    """
    n_of_degree = np.bincount(degree)
    is_dense = _are_dearer(np.arange(n_of_degree.size), n_inputs, costs)
    return bool(n_of_degree[is_dense].sum() >= MAX_ROWS)


def _are_dearer(
    degree: npt.NDArray[np.int64], n_inputs: int, costs: BlockCosts
) -> npt.NDArray[np.bool_]:
    """Whether an output of each degree is dearer by itself than as a dense one."""
    return costs.of_alone(np.ones_like(degree), degree) > _dense_cost(n_inputs, costs)


def _dense_cost(n_inputs: int, costs: BlockCosts) -> float:
    """What an output costs as one of a block of dense ones."""
    full, all_inputs = np.array([MAX_ROWS]), np.array([n_inputs])
    return float(costs.of_shared(full, all_inputs)[0]) / MAX_ROWS


def with_dense_outputs(columns: sp.csc_array, costs: BlockCosts) -> sp.csc_array:
    """Complete those outputs of a layer that are cheaper as dense ones.

    Parameters
    ----------
    columns : csc_array, shape (n_inputs, n_outputs), float32
        Indices ascending in each column.
    costs : BlockCosts
        What blocks cost on this machine.

    Returns
    -------
    csc_array
        `columns` itself where there are no such outputs.
    """
    degree = np.diff(columns.indptr).astype(np.int64)
    is_dense = _are_dearer(degree, columns.shape[0], costs)
    if np.count_nonzero(is_dense) < MAX_ROWS:
        return columns
    dense_cost = _dense_cost(columns.shape[0], costs)
    # Those that share their inputs already may be cheaper as they are.
    group, n_groups = group_columns(columns.indptr, columns.indices, NOTHING, NOTHING)
    size = np.bincount(group, minlength=n_groups)[group]
    is_dense &= (size == 1) | (costs.of_shared(size, degree) / size > dense_cost)
    wanted = np.zeros(columns.shape[0], dtype=np.bool_)
    wanted[columns.indices[np.repeat(is_dense, degree)]] = True
    inputs = np.flatnonzero(wanted).astype(np.int32)
    is_dense &= degree < inputs.size
    if np.count_nonzero(is_dense) < MAX_ROWS:
        return columns
    completed = np.where(is_dense, inputs.size, degree)
    indptr = np.append(0, np.cumsum(completed))
    indices = np.empty(indptr[-1], dtype=np.int32)
    weights = np.zeros(indptr[-1], dtype=np.float32)
    _complete(
        columns.indptr.astype(np.int64),
        columns.indices,
        columns.data,
        is_dense,
        inputs,
        indptr,
        indices,
        weights,
    )
    return sp.csc_array((weights, indices, indptr), shape=columns.shape)


@jit
def _complete(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    is_dense: npt.NDArray[np.bool_],
    inputs: npt.NDArray[np.int32],
    new_indptr: npt.NDArray[np.int64],
    new_indices: npt.NDArray[np.int32],
    new_weights: npt.NDArray[np.float32],
) -> None:
    """Copy the columns of a CSC matrix, those that are dense with all `inputs`, zeros between."""
    for column in range(is_dense.size):
        start, end = indptr[column], indptr[column + 1]
        new_start = new_indptr[column]
        if not is_dense[column]:
            for k in range(end - start):
                new_indices[new_start + k] = indices[start + k]
                new_weights[new_start + k] = weights[start + k]
            continue
        k = start
        for i in range(inputs.size):
            new_indices[new_start + i] = inputs[i]
            if k < end and indices[k] == inputs[i]:
                new_weights[new_start + i] = weights[k]
                k += 1
