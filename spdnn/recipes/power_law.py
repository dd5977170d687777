"""Layers in which a few outputs have most edges, as layers made of graphs or by pruning have."""

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import brentq


def power_law_degrees(n_inputs: int, n_outputs: int, mean: float) -> npt.NDArray[np.int64]:
    """Numbers of inputs of outputs that follow a power law.

    The first output has all inputs. Output r has that number divided by a power of r, but at least
    one input.

    Parameters
    ----------
    n_inputs : int
        Inputs of the layer.
    n_outputs : int
        Outputs of the layer.
    mean : float
        Mean number of inputs, between 1 and `n_inputs`. The exponent is chosen for it.

    Returns
    -------
    ndarray, shape (n_outputs,), int64
        Descending.

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
    """Make random weights of a layer whose outputs have `power_law_degrees`.

    Parameters
    ----------
    n_inputs : int
        Inputs of the layer.
    n_outputs : int
        Outputs of the layer.
    mean : float
        Mean number of inputs of an output, between 1 and `n_inputs`.
    seed : int
        Seed of the random inputs and weights.

    Returns
    -------
    csr_array, shape (n_inputs, n_outputs), float32
        Weights are uniform between -1 and 1.
    """
    rng = np.random.default_rng(seed)
    degrees = power_law_degrees(n_inputs, n_outputs, mean)
    inputs = [rng.choice(n_inputs, degree, replace=False, shuffle=False) for degree in degrees]
    indices = np.concatenate(inputs)
    weights = rng.uniform(-1.0, 1.0, indices.size).astype(np.float32)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return sp.csc_array((weights, indices, indptr), shape=(n_inputs, n_outputs)).tocsr()
