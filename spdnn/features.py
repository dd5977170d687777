"""Features: the inputs of a network in index form, never dense."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError


def index_dtype(n_neurons: int) -> type[np.uint16] | type[np.int32]:
    """Smallest of the two index types used here that can name every neuron."""
    return np.uint16 if n_neurons <= 2**16 else np.int32


@dataclass(frozen=True, eq=False)
class Features:
    """A sparse feature map Y (features x neurons), row by row in index form.

    Parameters
    ----------
    n_neurons : int
        Columns of the feature map.
    indptr : ndarray, shape (n_features + 1,), int64
        Where each feature begins in `indices`; starts at any offset (see `part`).
    indices : ndarray, uint16 or int32
        The neurons (0-based) that are not zero, ascending within a feature. uint16 wherever
        it can name every neuron.
    values : ndarray, same length as `indices`, float32, or None
        Their values; None where all are 1, as in the challenge.

    Raises
    ------
    DataError
        If an index is out of range or not ascending, a value is not finite, or the lengths
        disagree.
    """

    n_neurons: int
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[Any]
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
        used = indices[indptr[0] : indptr[-1]]
        if used.size and not (int(used.min()) >= 0 and int(used.max()) < self.n_neurons):
            raise DataError(
                f"features: an index is outside of 0..{self.n_neurons - 1}, the network's inputs"
            )
        if used.size > 1:
            is_start = np.zeros(used.size + 1, dtype=bool)
            is_start[indptr - indptr[0]] = True
            if not ((used[1:] > used[:-1]) | is_start[1:-1]).all():
                raise DataError("features: the indices of a feature must ascend, each named once")
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
    def from_matrix(cls, matrix: Any) -> "Features":
        """Features from a dense or scipy.sparse matrix, shape (n_features, n_neurons).

        Stored zeros are dropped; all values are taken as float32.

        Raises
        ------
        DataError
            If it is no matrix, or a value is not finite in float32.
        """
        try:
            with np.errstate(over="ignore"):  # too large becomes infinite, which is refused
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
        """Stored non-zeros of all features."""
        return int(self.indptr[-1] - self.indptr[0])

    def part(self, start: int, stop: int) -> "Features":
        """Features `start` to `stop` of it, as a slice takes them; memory is shared."""
        start, stop, _ = slice(start, stop).indices(self.n_features)
        part = object.__new__(Features)  # a part of what was checked needs no second check
        object.__setattr__(part, "n_neurons", self.n_neurons)
        object.__setattr__(part, "indptr", self.indptr[start : max(start, stop) + 1])
        object.__setattr__(part, "indices", self.indices)
        object.__setattr__(part, "values", self.values)
        return part

    def every(self, start: int, stop: int, step: int) -> "Features":
        """Features `start`, `start` + `step`, ... below `stop`, holding nothing of the others.

        Memory is shared where `step` is 1.
        """
        begins, ends = self.indptr[start:stop:step], self.indptr[start + 1 : stop + 1 : step]
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - begins)])
        taken: Any = slice(int(begins[0]), int(ends[-1])) if begins.size else slice(0, 0)
        if step != 1:
            # Runs of indices, each from its beginning.
            taken = np.arange(indptr[-1]) + np.repeat(begins - indptr[:-1], ends - begins)
        every = object.__new__(Features)  # taken from what was checked
        object.__setattr__(every, "n_neurons", self.n_neurons)
        object.__setattr__(every, "indptr", indptr)
        object.__setattr__(every, "indices", self.indices[taken])
        object.__setattr__(every, "values", None if self.values is None else self.values[taken])
        return every

    def to_csr(self, dtype: npt.DTypeLike = np.float64) -> sp.csr_array:
        """Return the feature map as scipy.sparse.csr_array, shape (n_features, n_neurons)."""
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        data = (
            np.ones(last - first, dtype=dtype)
            if self.values is None
            else self.values[first:last].astype(dtype)
        )
        indices = self.indices[first:last].astype(np.int32)
        shape = (self.n_features, self.n_neurons)
        return sp.csr_array((data, indices, self.indptr - first), shape=shape)
