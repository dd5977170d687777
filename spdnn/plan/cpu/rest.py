"""Activations that stay: all are at the cap, and every further layer keeps them there."""

import numpy as np
import numpy.typing as npt

from spdnn.network import Layer
from spdnn.plan.merge import MergedLayer


def keeps_cap(layer: Layer, merged: MergedLayer, cap_before: float | None) -> bool:
    """Whether inputs that are all at the cap give outputs that are all at the cap.

    Parameters
    ----------
    layer : Layer
    merged : MergedLayer
        What is computed of the layer.
    cap_before : float or None
        The cap of the layer before; None for the first layer, or where that layer has none.

    Notes
    -----
    Sums are taken in double precision. They must reach the cap by more than single precision can
    be wrong in any order: n 2^-24 times the sum of magnitudes, for n numbers (N. Higham, Accuracy
    and Stability of Numerical Algorithms, 2002, section 4.2). Twice that is demanded.
    """
    if cap_before is None or layer.ymax is None:
        return False
    weights = merged.weights.astype(np.float64)
    n_summed = np.ones(weights.shape[0])
    if merged.sums is not None:
        n_summed = np.asarray(merged.sums.sum(axis=0, dtype=np.float64))
    inputs = cap_before * n_summed
    n_numbers = np.diff(weights.tocsc().indptr) + n_summed.max(initial=0) + 1
    doubt = 2.0 * n_numbers * np.finfo(np.float32).eps * (abs(weights).T @ inputs)
    lowest: npt.NDArray[np.float64] = weights.T @ inputs - doubt + merged.bias
    return bool((lowest >= layer.ymax).all())
