"""Finding equal features among many strips in one pass."""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spdnn.jit import jit

_EMPTY = -1


@intrinsic  # type: ignore[untyped-decorator]
def float_at(typing_context: Any, address: Any) -> Any:
    """The float32 number at an address: strips are many arrays, of which a kernel takes one."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.FloatType().as_pointer()), align=4)

    return types.float32(types.int64), codegen


@jit
def find_equal(
    codes: npt.NDArray[np.uint64],
    addresses: npt.NDArray[np.int64],
    strides: npt.NDArray[np.int64],
    n_neurons: int,
) -> npt.NDArray[np.int64]:
    """Find for each feature the first one that equals it.

    Parameters
    ----------
    codes : ndarray, shape (n_features,), uint64
        Hashes; equal features have equal ones.
    addresses, strides : ndarray, shape (n_features,), int64
        Where a feature's first activation stands in memory, and how many bytes lie from one to the
        next; that memory must stay alive.
    n_neurons : int

    Returns
    -------
    ndarray, shape (n_features,), int64
        The number of the first equal feature; its own where there is none before it.

    Notes
    -----
    A hash table with open addressing; where hashes are equal, all activations are compared.
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
            other = slots[slot]
            if codes[other] == codes[feature]:
                p = 0
                while p < n_neurons and float_at(addresses[other] + p * strides[other]) == float_at(
                    addresses[feature] + p * strides[feature]
                ):
                    p += 1
                if p == n_neurons:
                    first[feature] = other
                    break
            slot = (slot + 1) & (size - 1)
        if first[feature] == feature:
            slots[slot] = feature
    return first
