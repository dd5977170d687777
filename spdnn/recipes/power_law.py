"""Layers of which a few outputs have most edges, as they come out of graphs and of pruning."""

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import brentq


def power_law_degrees(n_inputs: int, n_outputs: int, mean: float) -> npt.NDArray[np.int64]:
    """Inputs of each output: all for the first, for the r-th that divided by a power of r.

    Parameters
    ----------
    n_inputs, n_outputs : int
    mean : float
        Between 1 and `n_inputs`: what the exponent is chosen for.

    Examples
    --------
    >>> power_law_degrees(1024, 1024, 32)[[0, 1, 9, 99, 1023]]
    array([1024,  659,  237,   55,   12])
    """
    ranks = np.arange(1.0, n_outputs + 1)

    def degrees(exponent: float) -> npt.NDArray[np.float64]:
        return np.maximum(n_inputs / ranks**exponent, 1.0)

    exponent = brentq(lambda exponent: degrees(exponent).mean() - mean, 0.0, 64.0)
    return np.rint(degrees(exponent)).astype(np.int64)


def power_law_layer(n_inputs: int, n_outputs: int, mean: float, seed: int = 0) -> sp.csr_array:
    """Weights of a layer with such degrees; which inputs they are, and the weights, is random.

    Weights are uniform between -1 and 1.
    """
    rng = np.random.default_rng(seed)
    degrees = power_law_degrees(n_inputs, n_outputs, mean)
    inputs = [rng.choice(n_inputs, degree, replace=False, shuffle=False) for degree in degrees]
    indices = np.concatenate(inputs)
    weights = rng.uniform(-1.0, 1.0, indices.size).astype(np.float32)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return sp.csc_array((weights, indices, indptr), shape=(n_inputs, n_outputs)).tocsr()
