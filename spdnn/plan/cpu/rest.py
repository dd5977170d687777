"""Activations that stay: all are at the cap, and every further layer keeps them there."""

import math

import numpy as np
import numpy.typing as npt

from spdnn.machine.jit import jit, read_only
from spdnn.plan.columns import compressed_arrays
from spdnn.plan.steps import Step

_EPS = float(np.finfo(np.float32).eps)


def keeps_cap(step: Step, cap_before: float) -> bool:
    """Whether inputs that are all at the cap give outputs that are all at the cap.

    Parameters
    ----------
    step : Step
        The step that ends a layer.
    cap_before : float
        The cap of the layer before; infinite for the first layer, or where that layer has none.

    Notes
    -----
    Sums are taken in double precision. They must reach the cap by more than single precision can
    be wrong in any order: n 2^-24 times the sum of magnitudes, for n numbers (N. Higham, Accuracy
    and Stability of Numerical Algorithms, 2002, section 4.2). Twice that is demanded.
    """
    cap = step.rules.cap
    if math.isinf(cap_before) or math.isinf(cap):
        return False
    weights = step.weights.tocsc()
    n_summed = np.ones(weights.shape[0])
    if step.sums is not None:
        sums = step.sums
        of_sum = np.repeat(np.arange(sums.shape[1]), np.diff(sums.indptr))
        n_summed = np.bincount(of_sum, weights=sums.data, minlength=sums.shape[1])
    arrays = compressed_arrays(weights)
    return _reach(*arrays, read_only(n_summed), read_only(step.bias), cap_before, cap)


@jit
def _reach(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    n_summed: npt.NDArray[np.float64],
    bias: npt.NDArray[np.float32],
    cap_before: float,
    cap: float,
) -> bool:
    """Whether every column's sum of inputs at the cap before reaches the cap, whatever rounding."""
    most_summed = 0.0
    for i in range(n_summed.size):
        most_summed = max(most_summed, n_summed[i])
    for j in range(indptr.size - 1):
        total = 0.0
        magnitude = 0.0
        for k in range(indptr[j], indptr[j + 1]):
            number = np.float64(weights[k]) * (cap_before * n_summed[indices[k]])
            total += number
            magnitude += abs(number)
        n_numbers = indptr[j + 1] - indptr[j] + most_summed + 1
        doubt = 2.0 * n_numbers * _EPS * magnitude
        if not total - doubt + bias[j] >= cap:
            return False
    return True
