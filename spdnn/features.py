"""Features: the inputs of a network, by the indices of what is not zero."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError


def index_dtype(n_neurons: int) -> type[np.uint16] | type[np.int32]:
    """The smaller of uint16 and int32 that can number all neurons."""
    return np.uint16 if n_neurons <= 2**16 else np.int32


CHECKED_AT_ONCE = 1 << 18
"""Indices that are checked at a time: they and what is found of them fit into a core's cache."""


@dataclass(frozen=True, eq=False)
class Features:
    """A sparse feature map Y (features x neurons), stored by rows.

    Parameters
    ----------
    n_neurons : int
        Number of columns of the feature map.
    indptr : ndarray, shape (n_features + 1,), int64
        Where each feature begins in `indices`. The first one may begin anywhere (see `part`).
    indices : ndarray, shape (n_stored,), uint16 or int32
        The neurons that are not zero, counted from 0 and ascending within a feature. They are kept
        as uint16 where that can number all neurons.
    values : ndarray, shape (n_stored,), float32, or None
        Values of these neurons; None where all are 1, as in the challenge.

    Raises
    ------
    DataError
        If an index is out of range or not ascending, a value is not finite, or the lengths
        disagree.
    """

    n_neurons: int
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.integer[Any]]
    values: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        indptr = np.ascontiguousarray(self.indptr, dtype=np.int64)
        indices = np.asarray(self.indices)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise DataError("features: indices must be one row of whole numbers")
        if indptr.ndim != 1 or indptr.size == 0 or (np.diff(indptr) < 0).any():
            raise DataError("features: indptr must be one ascending row of at least one number")
        if indptr[0] < 0 or indptr[-1] > indices.size:
            raise DataError("features: indptr points outside of the indices")
        _require_ascending(indptr, indices[indptr[0] : indptr[-1]], self.n_neurons)
        if self.values is not None:
            values = np.ascontiguousarray(self.values, dtype=np.float32)
            if values.shape != indices.shape:
                raise DataError("features: there must be one value an index")
            if not np.isfinite(values).all():
                raise DataError("features: a value is NaN or infinite")
            object.__setattr__(self, "values", values)
        object.__setattr__(self, "indptr", indptr)
        object.__setattr__(
            self, "indices", np.ascontiguousarray(indices, dtype=index_dtype(self.n_neurons))
        )

    @classmethod
    def from_matrix(cls, matrix: npt.ArrayLike | sp.sparray | sp.spmatrix) -> "Features":
        """Make features of a matrix.

        Parameters
        ----------
        matrix : array_like or sparse matrix, shape (n_features, n_neurons)
            All values are rounded to float32. Stored zeros are dropped.

        Returns
        -------
        Features
            One for each row.

        Raises
        ------
        DataError
            If it is no matrix, or a value is not finite in float32.
        """
        try:
            with np.errstate(over="ignore"):  # too large becomes infinite and is refused
                csr = sp.csr_array(matrix, dtype=np.float32, copy=True)
        except (TypeError, ValueError) as error:
            raise DataError(f"features must be a matrix of numbers ({error})") from error
        if csr.ndim != 2:
            raise DataError(f"features must be a matrix, not of shape {csr.shape}")
        csr.sum_duplicates()
        csr.eliminate_zeros()
        values = None if (csr.data == 1).all() else csr.data
        return cls(int(csr.shape[1]), csr.indptr.astype(np.int64), csr.indices, values)

    def __len__(self) -> int:
        return self.n_features

    def __repr__(self) -> str:
        return (
            f"Features({self.n_features} features, {self.n_neurons} neurons, "
            f"{self.n_nonzeros} non-zeros)"
        )

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.indptr.size - 1)

    @property
    def n_nonzeros(self) -> int:
        """Number of stored values of all features."""
        return int(self.indptr[-1] - self.indptr[0])

    def part(self, start: int, stop: int) -> "Features":
        """Take the features from `start` to `stop`, as a slice does; memory is shared."""
        start, stop, _ = slice(start, stop).indices(self.n_features)
        part = object.__new__(Features)  # a part of checked features needs no check
        object.__setattr__(part, "n_neurons", self.n_neurons)
        object.__setattr__(part, "indptr", self.indptr[start : max(start, stop) + 1])
        object.__setattr__(part, "indices", self.indices)
        object.__setattr__(part, "values", self.values)
        return part

    def every(self, start: int, stop: int, step: int) -> "Features":
        """Take the features `start`, `start` + `step`, ... below `stop`.

        Memory is shared where `step` is 1. Otherwise the indices and values are copied.

        Parameters
        ----------
        start, stop, step : int
            The features to take, as those of a range within the features.
        """
        begins, ends = self.indptr[start:stop:step], self.indptr[start + 1 : stop + 1 : step]
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - begins)])
        taken: slice | npt.NDArray[np.int64]
        taken = slice(int(begins[0]), int(ends[-1])) if begins.size else slice(0, 0)
        if step != 1:
            # The indices of each feature, from its beginning.
            taken = np.arange(indptr[-1]) + np.repeat(begins - indptr[:-1], ends - begins)
        every = object.__new__(Features)  # taken from checked features
        object.__setattr__(every, "n_neurons", self.n_neurons)
        object.__setattr__(every, "indptr", indptr)
        object.__setattr__(every, "indices", self.indices[taken])
        object.__setattr__(every, "values", None if self.values is None else self.values[taken])
        return every

    def to_csr(self, dtype: npt.DTypeLike = np.float64) -> sp.csr_array:
        """Make a scipy.sparse.csr_array of the feature map, shape (n_features, n_neurons).

        Parameters
        ----------
        dtype : dtype
            Type of its values.
        """
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        data = (
            np.ones(last - first, dtype=dtype)
            if self.values is None
            else self.values[first:last].astype(dtype)
        )
        indices = self.indices[first:last].astype(np.int32)
        shape = (self.n_features, self.n_neurons)
        return sp.csr_array((data, indices, self.indptr - first), shape=shape)


def _require_ascending(
    indptr: npt.NDArray[np.int64], used: npt.NDArray[np.integer[Any]], n_neurons: int
) -> None:
    """Refuse indices that are out of range, or do not ascend within each feature (DataError)."""
    if _are_ascending(indptr, used, n_neurons):
        return
    if not (int(used.min()) >= 0 and int(used.max()) < n_neurons):
        raise DataError(
            f"features: an index is outside of 0..{n_neurons - 1}, the network's inputs"
        )
    raise DataError("features: the indices of a feature must ascend, each named once")


def _are_ascending(
    indptr: npt.NDArray[np.int64], used: npt.NDArray[np.integer[Any]], n_neurons: int
) -> bool:
    """Whether indices ascend within each feature, the first from 0, the last to `n_neurons` - 1.

    Indices fall nowhere but where another feature begins. They are read once, in pieces that stay
    in the cache: there may be hundreds of millions.
    """
    bounds = np.unique(indptr) - indptr[0]
    starts, ends = bounds[:-1], bounds[1:]
    if not starts.size:
        return True
    if int(used[starts].min()) < 0 or int(used[ends - 1].max()) >= n_neurons:
        return False
    n_falls = 0
    for first in range(0, used.size, CHECKED_AT_ONCE):
        piece = used[first : first + CHECKED_AT_ONCE + 1]
        n_falls += int(np.count_nonzero(piece[1:] <= piece[:-1]))
    later = starts[1:]
    return bool(n_falls == np.count_nonzero(used[later] <= used[later - 1]))
