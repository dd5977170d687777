"""Features between two segments: columns of activations, wherever they are in memory."""

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.tile import gather_rows
from spdnn.engines.cpu.kernels.vectors import LANES

ROWS = 1024
"""Features whose activations one task copies."""


@dataclass(eq=False)
class Columns:
    """Some features, and where their activations are.

    Attributes
    ----------
    ids, stands_for : ndarray, shape (n_features,), int64
        The features' numbers, and how many features each stands for.
    addresses, strides : ndarray, shape (n_features,), int64
        The address of each feature's first activation, and the bytes from one activation to the
        next. Up to 60 bytes behind the last activation may be read.
    codes : ndarray, shape (n_features,), uint64
        A hash of each feature's activations; empty if none were taken.
    memory : list of ndarray
        The arrays that the addresses point into, kept alive.
    """

    ids: npt.NDArray[np.int64]
    stands_for: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]
    strides: npt.NDArray[np.int64]
    codes: npt.NDArray[np.uint64]
    memory: list[npt.NDArray[Any]]

    @property
    def size(self) -> int:
        """Number of features."""
        return int(self.ids.size)

    @property
    def n_bytes(self) -> int:
        """Size of the memory that is kept alive."""
        return sum(array.nbytes for array in self.memory)

    def take(self, which: npt.NDArray[np.bool_]) -> "Columns":
        """Return the features that are marked, with the same memory."""
        codes = self.codes[which] if self.codes.size else self.codes
        return Columns(
            self.ids[which],
            self.stands_for[which],
            self.addresses[which],
            self.strides[which],
            codes,
            self.memory,
        )

    def rows(
        self, which: npt.NDArray[np.int64], position: npt.NDArray[np.int32], pool: Executor
    ) -> npt.NDArray[np.float32]:
        """Copy the activations of some features, at some positions, into rows.

        Parameters
        ----------
        which : ndarray, shape (n_rows,), int64
            Places of the features among these; a feature may be named more than once.
        position : ndarray, shape (n_neurons,), int32
            Which of a feature's activations are copied, in this order.
        pool : Executor
            Its threads copy.

        Returns
        -------
        ndarray, shape (n_rows, n_neurons), float32
        """
        rows = np.empty((which.size, position.size), dtype=np.float32)

        def gather(part: slice) -> None:
            places = which[part]
            gather_rows(self.addresses[places], self.strides[places], position, rows[part])

        parts = [slice(first, first + ROWS) for first in range(0, which.size, ROWS)]
        list(pool.map(gather, parts) if len(parts) > 1 else map(gather, parts))
        return rows


def from_rows(rows: npt.NDArray[np.float32], stands_for: npt.NDArray[np.int64]) -> Columns:
    """Make columns of features that are numbered from 0.

    Parameters
    ----------
    rows : ndarray, shape (n_features, n_neurons), float32
        Their activations, which are copied.
    stands_for : ndarray, shape (n_features,), int64
        How many features each stands for.
    """
    n_features, n_neurons = rows.shape
    numbers = np.empty(n_features * n_neurons + LANES, dtype=np.float32)
    numbers[: n_features * n_neurons].reshape(n_neurons, n_features)[:] = rows.T
    ids = np.arange(n_features, dtype=np.int64)
    return Columns(
        ids,
        stands_for,
        numbers.ctypes.data + 4 * ids,
        np.full(n_features, 4 * n_features),
        np.empty(0, np.uint64),
        [numbers],
    )


def joined(parts: list[Columns]) -> Columns:
    """Put several columns together, in order; hashes are kept if all features have them."""
    if len(parts) == 1:
        return parts[0]
    parts = parts or [from_rows(np.empty((0, 0), np.float32), np.empty(0, np.int64))]
    ids, stands_for, addresses, strides, codes = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("ids", "stands_for", "addresses", "strides", "codes")
    )
    if codes.size != ids.size:
        codes = codes[:0]
    memory = [array for part in parts for array in part.memory]
    return Columns(ids, stands_for, addresses, strides, codes, memory)


def aligned_empty(size: int) -> npt.NDArray[np.float32]:
    """Make an uninitialised float32 array that begins at a multiple of 64 bytes, a cache line."""
    longer = np.empty(size + 16, dtype=np.float32)
    first = -longer.ctypes.data % 64 // 4
    return longer[first : first + size]
