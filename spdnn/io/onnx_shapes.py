"""Shapes in an ONNX graph: which reshapes keep the numbers of each feature together."""

from collections.abc import Sequence
from math import prod

Dims = tuple[int | None, ...] | None
"""Lengths of the axes after the first, which features lie along; None where unknown."""

Shape = list[int | None]
"""A shape that a tensor holds as its value; None stands for the number of features."""


class UnsupportedError(Exception):
    """An operator that no chain of layers has. It becomes a DataError that names the node."""


def n_numbers(dims: Dims) -> int | None:
    """Number of values of a feature; None where it is unknown."""
    lengths = [None] if dims is None else list(dims)
    known = [length for length in lengths if length is not None]
    return prod(known) if len(known) == len(lengths) else None


def flattened(dims: Dims, axis: int) -> Dims:
    """Dimensions after a Flatten; UnsupportedError unless each feature becomes a row."""
    if axis < 0 and dims is not None:
        axis += len(dims) + 1
    if axis != 1:
        raise UnsupportedError("has another axis than 1, which features lie along")
    return (n_numbers(dims),)


def squeezed(dims: Dims, axes: Sequence[int] | None) -> Dims:
    """Dimensions after a Squeeze of some axes, or (None) of all of length 1."""
    if dims is None:
        raise UnsupportedError("is of features of unknown shape")
    if axes is None:
        return tuple(length for length in dims if length != 1)
    axes = [axis + len(dims) + 1 if axis < 0 else axis for axis in axes]
    if not all(1 <= axis <= len(dims) and dims[axis - 1] == 1 for axis in axes):
        raise UnsupportedError("drops an axis that is more than one number a feature")
    return tuple(length for axis, length in enumerate(dims, start=1) if axis not in axes)


def reshaped(dims: Dims, n_rows: int | None, shape: Shape, allowzero: bool) -> Dims:
    """Dimensions after a Reshape; UnsupportedError unless each feature keeps its numbers.

    Parameters
    ----------
    dims : Dims
        Dimensions of the features before.
    n_rows : int or None
        Number of features that the model is for; None for any number.
    shape : Shape
        The shape that the Reshape makes.
    allowzero : bool
        Whether 0 is a length. Otherwise it stands for the length that was there before.

    Returns
    -------
    Dims
        Dimensions of the features after.

    Raises
    ------
    UnsupportedError
        If the numbers of a feature do not stay together.
    """
    if not shape:
        raise UnsupportedError("makes one number of all features")
    size = n_numbers(dims)
    first, rest = shape[0], list(shape[1:])
    if not allowzero:
        first = None if first == 0 else first
        for at, length in enumerate(rest):
            if length == 0:
                rest[at] = dims[at] if dims is not None and at < len(dims) else None
    if first == n_rows:
        first = None
    if first is None and size is not None and rest.count(-1) == 1:
        others = n_numbers(tuple(length for length in rest if length != -1))
        rest[rest.index(-1)] = size // others if others else None
    wanted = None if -1 in rest else n_numbers(tuple(rest))
    keeps_rows = first is None or (first == -1 and wanted is not None)
    if not keeps_rows or (wanted is not None and size is not None and wanted != size):
        before = "?" if size is None else str(size)
        raise UnsupportedError(
            f"is to shape {tuple('n' if length is None else length for length in shape)}: expected "
            f"a row of all numbers for each feature, which has {before}"
        )
    return tuple(None if length == -1 else length for length in rest)
