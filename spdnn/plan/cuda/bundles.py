"""Bundles of groups: outputs with the same inputs, as small dense products.

A group is a few outputs, padded to the same number in each. A bundle is some groups of about
equally many inputs, padded to those of the group with the most. A thread block takes a bundle at a
time.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.machine.jit import jit

UNROLL = 4
"""Inputs of a group are padded to a multiple of this, with weight 0: so many are loaded at once."""

LEAST_SHARED = 4
"""Outputs from which a group is cheaper as a dense product that is padded to 16 than in ELL."""


class Bundles(NamedTuple):
    """The bundles of one step.

    Attributes
    ----------
    bundles : ndarray, shape (n_bundles, 2), int64
        Inputs of each of its groups, with the padding, and where they begin. The weights begin at
        that place times the rows of a group.
    groups : ndarray, shape (n_bundles * bundle, 2), int64
        First output, and number of outputs: 0 in groups that only fill up a bundle.
    inputs : ndarray, int32
        Positions of inputs, ``[k, group]`` in each bundle.
    weights : ndarray, float32
        ``[k, four outputs, group, output of the four]`` in each bundle.
    """

    bundles: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    inputs: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]


def cut_bundles(
    columns: sp.csc_array,
    inputs: npt.NDArray[np.int32],
    outputs: npt.NDArray[np.int32],
    sizes: npt.NDArray[np.int64],
    bundle: int,
    rows: int,
) -> Bundles:
    """Pack groups into bundles.

    Parameters
    ----------
    columns : csc_array, shape (n_inputs, n_outputs)
        The weights of the step.
    inputs : ndarray, int32
        What names each of its entries' inputs in the plan.
    outputs : ndarray, int32
        The outputs of all groups, group by group.
    sizes : ndarray, int64
        Outputs of each group.
    bundle : int
        Groups of a bundle.
    rows : int
        Outputs of a group at most, a multiple of 4.
    """
    n_bundles = -(-sizes.size // bundle)
    firsts = np.cumsum(sizes) - sizes
    groups = np.zeros((n_bundles * bundle, 2), dtype=np.int64)
    groups[: sizes.size, 0], groups[: sizes.size, 1] = firsts, sizes
    degrees = np.zeros(n_bundles * bundle, dtype=np.int64)
    degrees[: sizes.size] = np.diff(columns.indptr)[outputs[firsts]]
    widest = degrees.reshape(n_bundles, bundle).max(axis=1, initial=0)
    n_inputs = -(-widest // UNROLL) * UNROLL
    ends = np.cumsum(n_inputs) * bundle
    starts = ends - n_inputs * bundle
    total = int(ends[-1]) if n_bundles else 0
    group_inputs = np.zeros(total, dtype=np.int32)
    group_weights = np.zeros(total * rows, dtype=np.float32)
    _fill_bundles(
        columns.indptr, inputs, columns.data, outputs, groups, starts, bundle, rows,
        group_inputs, group_weights,
    )  # fmt: skip
    return Bundles(np.stack([n_inputs, starts], axis=1), groups, group_inputs, group_weights)


@jit
def _fill_bundles(
    indptr: npt.NDArray[Any],
    inputs: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    outputs: npt.NDArray[np.int32],
    groups: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    bundle: int,
    rows: int,
    group_inputs: npt.NDArray[np.int32],
    group_weights: npt.NDArray[np.float32],
) -> None:
    """Write inputs and weights of all groups; what is not written is padding and stays 0."""
    for group in range(groups.shape[0]):
        start = starts[group // bundle]
        inner = group % bundle
        for row in range(groups[group, 1]):
            output = outputs[groups[group, 0] + row]
            first, end = indptr[output], indptr[output + 1]
            for k in range(end - first):
                if row == 0:
                    group_inputs[start + k * bundle + inner] = inputs[first + k]
                place = ((k * rows // 4 + row // 4) * bundle + inner) * 4 + row % 4
                group_weights[start * rows + place] = values[first + k]
