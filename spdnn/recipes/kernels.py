"""Kernels of the enlargement: one column of the sheet at a time, all of it in the first cache.

All take the rows of a sheet that is already enlarged along its length, and `Across`: what
enlarges a column. Nothing is checked here; `images` makes the arrays.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.machine.jit import jit

Doubles = npt.NDArray[np.float64]

STRIDE = 4
"""Rows of the small image taken together: so many products for each load and store of a sum."""


class Across(NamedTuple):
    """What enlarges a column c of the sheet, its `small` values, to `side` values.

    real[j] = sum_k c[k] cosines[k, j] - g(t) nyquist sines[j]
    imaginary[j] = (sum_k signs[k] c[k]) sines[j] + g(t) nyquist_cosines[j]

    cosines : shape (small rounded up to `STRIDE`, side), the rows beyond are zero
    signs : shape (small,)
    sines, nyquist_cosines : shape (side,)
    nyquist : float
    waves : shape (2 * side,), g(t) at (small * t) mod (2 * side)
    """

    cosines: Doubles
    signs: Doubles
    sines: Doubles
    nyquist: float
    nyquist_cosines: Doubles
    waves: Doubles


@jit
def _squared_magnitudes(
    rows: Doubles, t: int, across: Across, column: Doubles, squares: Doubles
) -> None:
    """Fill `squares`, shape (side,), for column t; `column`, as long as cosines, is scratch."""
    small, side = across.signs.size, squares.size
    along = 0.0
    for k in range(small):
        column[k] = rows[k, t]
        along += across.signs[k] * column[k]
    # The phase is reduced in whole numbers, so that it is exact anywhere in the sheet.
    g = across.waves[(small * t) % (2 * side)]
    for j in range(side):
        squares[j] = -g * across.nyquist * across.sines[j]
    for k in range(0, column.size, 4):
        c0, c1, c2, c3 = column[k], column[k + 1], column[k + 2], column[k + 3]
        for j in range(side):
            squares[j] += (
                c0 * across.cosines[k, j]
                + c1 * across.cosines[k + 1, j]
                + c2 * across.cosines[k + 2, j]
                + c3 * across.cosines[k + 3, j]
            )
    for j in range(side):
        imaginary = along * across.sines[j] + g * across.nyquist_cosines[j]
        squares[j] = squares[j] * squares[j] + imaginary * imaginary


@jit
def largest_square(rows: Doubles, start: int, stop: int, across: Across) -> float:
    """Largest squared magnitude in the columns `start` to `stop` of the sheet."""
    column = np.zeros(across.cosines.shape[0])
    squares = np.empty(across.sines.size)
    largest = 0.0
    for t in range(start, stop):
        _squared_magnitudes(rows, t, across, column, squares)
        for j in range(squares.size):
            if squares[j] > largest:
                largest = squares[j]
    return largest


@jit
def lit_pixels(
    rows: Doubles,
    start: int,
    stop: int,
    across: Across,
    threshold: float,
    counts: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
) -> int:
    """Find the pixels of images `start` to `stop` whose squared magnitude exceeds `threshold`.

    Fills `counts`, shape (stop - start,), and the beginning of `indices` (uint16 or int32), which
    has room for all pixels and one more; returns how many there are.
    """
    column = np.zeros(across.cosines.shape[0])
    side = across.sines.size
    squares = np.empty(side)
    n_lit = 0
    for image in range(start, stop):
        n_before = n_lit
        for x in range(side):
            _squared_magnitudes(rows, image * side + x, across, column, squares)
            for j in range(side):
                # Written always, kept if lit: no branch that would be guessed wrong.
                indices[n_lit] = x * side + j
                n_lit += squares[j] > threshold
        counts[image - start] = n_lit - n_before
    return n_lit
