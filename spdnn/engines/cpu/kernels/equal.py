"""Finding equal features, by their hashes and then number by number, and features at the cap."""

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.vectors import float_at
from spdnn.machine.jit import jit

_EMPTY = -1


@jit
def propose(codes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Find, for each feature, the first feature with the same hash.

    Parameters
    ----------
    codes : ndarray, shape (n_features,), uint64
        The hashes.

    Returns
    -------
    ndarray, shape (n_features,), int64
        The number of that feature; a feature's own number if no earlier one has its hash.

    Notes
    -----
    This is a hash table with open addressing.
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
    """Find the features whose activations are all equal to one value.

    Parameters
    ----------
    addresses, strides, n_neurons
        As for `confirm`.
    value : float32
        The value.

    Returns
    -------
    ndarray, shape (n_features,), bool
    """
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
    """Compare the activations of pairs of features.

    Parameters
    ----------
    features, others : ndarray, shape (n,), int64
        Numbers of the features of each pair.
    addresses, strides : ndarray, shape (n_features,), int64
        The address of each feature's first activation, and the bytes from one activation to the
        next. The memory must stay alive.
    n_neurons : int
        Activations of each feature.

    Returns
    -------
    ndarray, shape (n,), bool
        Whether all activations of a pair are equal.
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
