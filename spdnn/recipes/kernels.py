"""Kernels that enlarge one column of the sheet at a time, which fits into the first cache.

They take the rows of a sheet that was enlarged along its length, and the arrays that enlarge a
column (`Across`). The module `images` makes and checks the arrays.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.machine.jit import jit

Doubles = npt.NDArray[np.float64]

STRIDE = 4
"""Rows of the small image that are added at once, for each load and store of a sum."""


class Across(NamedTuple):
    """Arrays that enlarge a column c of the sheet from `small` to `side` values.

    The enlarged column t is::

        real[j] = sum_k c[k] cosines[k, j] - g(t) nyquist sines[j]
        imaginary[j] = (sum_k signs[k] c[k]) sines[j] + g(t) nyquist_cosines[j]

    Attributes
    ----------
    cosines : ndarray, shape (small rounded up to `STRIDE`, side), float64
        Factors of the real part. The rows from `small` are zero.
    signs : ndarray, shape (small,), float64
        Alternating 1 and -1.
    sines : ndarray, shape (side,), float64
        Factors of the imaginary part.
    nyquist : float
        Sum of the Nyquist terms of the rows, with their signs.
    nyquist_cosines : ndarray, shape (side,), float64
        The enlarged column of the Nyquist terms of the rows.
    waves : ndarray, shape (2 * side,), float64
        g(t) at (small * t) mod (2 * side).
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
    """Fill `squares`, shape (side,), with the squared magnitudes of the enlarged column t.

    `column` is scratch memory, shape (n_rows_of_cosines,).
    """
    small, side = across.signs.size, squares.size
    along = 0.0
    for k in range(small):
        column[k] = rows[k, t]
        along += across.signs[k] * column[k]
    # The phase is reduced in integers, so that it is exact everywhere in the sheet.
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
    """Find the largest squared magnitude in some columns of the sheet.

    Parameters
    ----------
    rows : ndarray, shape (small, n_columns), float64
        The sheet.
    start, stop : int
        The columns, from `start` to before `stop`.
    across : Across
        Arrays that enlarge a column.
    """
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
    """Find the pixels of some images whose squared magnitude exceeds a threshold.

    Parameters
    ----------
    rows : ndarray, shape (small, n_columns), float64
        The sheet.
    start, stop : int
        The images, from `start` to before `stop`.
    across : Across
        Arrays that enlarge a column.
    threshold : float
        The squared magnitude to exceed.
    counts : ndarray, shape (stop - start,), int64
        Is filled with the number of pixels of each image.
    indices : ndarray, shape (n_all_pixels + 1,), uint16 or int32
        Its beginning is filled with the pixels.

    Returns
    -------
    int
        Number of pixels found.
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
                # Each pixel is written, but only kept if lit. A branch would often be mispredicted.
                indices[n_lit] = x * side + j
                n_lit += squares[j] > threshold
        counts[image - start] = n_lit - n_before
    return n_lit
