"""Finding equal features in one pass, hashes propose, values decide; and those at the cap."""

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.vectors import float_at
from spdnn.machine.jit import jit

_EMPTY = -1


@jit
def propose(codes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Find for each feature the first one that has its hash.

    Parameters
    ----------
    codes : ndarray, shape (n_features,), uint64

    Returns
    -------
    ndarray, shape (n_features,), int64
        The number of that feature; its own where there is none before it.

    Notes
    -----
    A hash table with open addressing.
    """
    n_features = codes.size
    size = 2
    while size < 2 * n_features:
        size *= 2
    slots = np.empty(size, dtype=np.int64)
    for empty in range(size):
        slots[empty] = _EMPTY
    first = np.empty(n_features, dtype=np.int64)
    for feature in range(n_features):
        slot = np.int64(codes[feature] >> np.uint64(20)) & (size - 1)
        first[feature] = feature
        while slots[slot] != _EMPTY:
            if codes[slots[slot]] == codes[feature]:
                first[feature] = slots[slot]
                break
            slot = (slot + 1) & (size - 1)
        if first[feature] == feature:
            slots[slot] = feature
    return first


@jit
def are_all(
    addresses: npt.NDArray[np.int64],
    strides: npt.NDArray[np.int64],
    n_neurons: int,
    value: np.float32,
) -> npt.NDArray[np.bool_]:
    """Whether all activations of each feature are `value`; arguments as for `confirm`."""
    is_so = np.empty(addresses.size, dtype=np.bool_)
    for f in range(addresses.size):
        p = 0
        while p < n_neurons and float_at(addresses[f] + p * strides[f]) == value:
            p += 1
        is_so[f] = p == n_neurons
    return is_so


@jit
def confirm(
    features: npt.NDArray[np.int64],
    others: npt.NDArray[np.int64],
    addresses: npt.NDArray[np.int64],
    strides: npt.NDArray[np.int64],
    n_neurons: int,
) -> npt.NDArray[np.bool_]:
    """Whether each feature's activations equal those of the other one named with it.

    Parameters
    ----------
    features, others : ndarray, shape (n,), int64
        Numbers of features.
    addresses, strides : ndarray, shape (n_features,), int64
        Where a feature's first activation stands in memory, and how many bytes lie from one to the
        next; that memory must stay alive.
    n_neurons : int

    Returns
    -------
    ndarray, shape (n,), bool
    """
    is_equal = np.empty(features.size, dtype=np.bool_)
    for i in range(features.size):
        one, other = features[i], others[i]
        p = 0
        while p < n_neurons and float_at(addresses[one] + p * strides[one]) == float_at(
            addresses[other] + p * strides[other]
        ):
            p += 1
        is_equal[i] = p == n_neurons
    return is_equal
