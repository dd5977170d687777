"""Which kernel takes which output of a step: groups, long outputs, and single ones."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.plan.cuda.bundles import LEAST_SHARED
from spdnn.plan.cuda.sizes import PlanSizes
from spdnn.plan.groups import NOTHING, group_columns


class Outputs(NamedTuple):
    """The outputs of a step by the kernel that takes them.

    Attributes
    ----------
    shared : ndarray, int32
        The outputs of all groups, group by group, those with the most inputs first.
    group_sizes : ndarray, int64
        Outputs of each group, at most the rows of a group.
    long : ndarray, int32
        Long outputs, those with the most inputs first.
    alone : ndarray, int32
        The other outputs: those with the most inputs first, and those with the same inputs side by
        side.
    """

    shared: npt.NDArray[np.int32]
    group_sizes: npt.NDArray[np.int64]
    long: npt.NDArray[np.int32]
    alone: npt.NDArray[np.int32]

    @property
    def order(self) -> npt.NDArray[np.int32]:
        """All outputs, in the order in which the plan numbers them."""
        return np.concatenate([self.shared, self.long, self.alone])


def most_whole(degree: npt.NDArray[np.integer], chunk: int, skew: int) -> float:
    """Inputs up to which an output of a layer stays whole; a longer one is cut into chunks.

    Parameters
    ----------
    degree : ndarray, shape (n_outputs,), whole numbers
        Inputs of each output of the layer.
    chunk : int
        Edges of a chunk.
    skew : int
        How many times the mean an output has at least to be long.

    Notes
    -----
    *The skew.* A full multiprocessor holds 32 warps of the staged kernel. Its shared memory gives
    each thread of one warp 16 numbers in 16 clocks, so that each of the warps goes on to its next
    edge every 512 clocks. A warp by itself waits for two weights at a time, from L2 some 200
    clocks and more, so that it is about four times as fast. An output of four times the mean
    therefore ends within the time of one more wave of thread blocks.

    *The chunk.* An output of d edges takes the time of `chunk` edges, and then of d / `chunk`
    partial sums. Their sum is smallest where `chunk` is the root of d: 64 for 4096 edges. With 64
    an output of 16384 edges takes 320, not the least, 256. Shorter chunks also have their block
    stage less: 128 chunks of 64 edges name 8192 inputs at most. A partial sum is written and read,
    which is 8 bytes for 64 edges. An output of no more than two chunks stays whole.

    Both are calculated, not measured.
    """
    return max(2 * chunk, skew * degree.mean()) if degree.size else 0.0


def sort_outputs(columns: sp.csc_array, sizes: PlanSizes) -> Outputs:
    """Find the long outputs, and groups of the others with the same inputs; the rest is alone.

    Parameters
    ----------
    columns : csc_array, shape (n_inputs, n_outputs)
        The weights of the step.
    sizes : PlanSizes
    """
    of_column, _ = group_columns(columns.indptr, columns.indices, NOTHING, NOTHING)
    degree = np.diff(columns.indptr)
    order = np.lexsort((of_column, -degree)).astype(np.int32)
    starts = np.flatnonzero(np.diff(of_column[order], prepend=-1))
    n_same = np.diff(np.append(starts, order.size))
    in_pattern = np.arange(order.size) - np.repeat(starts, n_same)
    starts = np.flatnonzero(in_pattern % sizes.rows == 0)
    n_of_group = np.diff(np.append(starts, order.size))
    is_long = degree[order] > most_whole(degree, sizes.chunk, sizes.skew)
    is_shared = (n_of_group >= LEAST_SHARED) & (degree[order[starts]] > 0) & ~is_long[starts]
    in_group = np.repeat(is_shared, n_of_group)
    return Outputs(
        order[in_group], n_of_group[is_shared], order[is_long], order[~in_group & ~is_long]
    )
