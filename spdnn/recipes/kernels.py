"""Kernels that enlarge images of a sheet, an image at a time.

Most pixels are computed in float32. Those whose float32 value cannot tell on which side of the
threshold they are, by the error bound of the module `images`, are computed again in float64.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.machine.jit import jit, jit_part
from spdnn.recipes.products import (
    ROWS,
    ROWS_MULTIPLE,
    VECTORS,
    WIDTH,
    product_tile,
)

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

ROWS_AT_ONCE = 4
"""Rows of an image that are enlarged along the sheet at once: a divisor of 28."""

COLUMNS_AT_ONCE = ROWS_MULTIPLE
"""Enlarged columns that are enlarged across the sheet at once."""

AT_ONCE = 64
"""Images, or frequencies, that a loop of the far sums takes at once, to use vectors."""

ALL_LIT = np.uint64(0x0101010101010101)
"""Eight pixels of a byte each that are all 1."""


class Sheet(NamedTuple):
    """A sheet of images, and what enlarges it.

    With y[k] the enlarged rows at column t of an image, pixel j of the enlarged column is::

        real = sum_k y[k] pixels[j, k] - waves[t] nyquist sines[j]
        imaginary = (sum_k (-1)^k y[k]) sines[j] + waves[t] nyquist_pixels[j]

    Attributes
    ----------
    images : ndarray, shape (n_images, s, s), uint8
        The images.
    far : ndarray, shape (s, FAR, n_images), float64
        See the module `interpolation`.
    columns : ndarray, shape (side, 3 * s + FAR), float64
        Weights of the inputs of each enlarged column.
    pixels : ndarray, shape (side, s), float64
        Weights of the rows for each enlarged pixel of a column.
    sines, waves, nyquist_pixels : ndarray, shape (side,), float64
        Factors of the Nyquist terms.
    largest_far : ndarray, shape (FAR,), float64
        The largest magnitude of each of the far sums.
    nyquist : float
        Sum of the Nyquist terms of the rows, with alternating signs.
    """

    images: Bytes
    far: Doubles
    columns: Doubles
    pixels: Doubles
    sines: Doubles
    waves: Doubles
    nyquist_pixels: Doubles
    largest_far: Doubles
    nyquist: float


class Rough(NamedTuple):
    """The weights of a `Sheet` in float32, for all columns of an image or for some.

    Rows are padded with zeros to a multiple of `COLUMNS_MULTIPLE` (see the module `products`).

    Attributes
    ----------
    columns : ndarray, shape (3 * s + FAR, n_columns padded), float32
        Weights of the inputs of each enlarged column.
    pixels : ndarray, shape (1 + s, side padded), float32
        First `Sheet.sines`, then the weights of each row for the enlarged pixels.
    nyquist_pixels : ndarray, shape (side padded,), float32
        As in the sheet.
    waves : ndarray, shape (n_columns,), float32
        As in the sheet.
    nyquist : float32
        As in the sheet.
    """

    columns: Floats
    pixels: Floats
    nyquist_pixels: Floats
    waves: Floats
    nyquist: np.float32


class Bounds(NamedTuple):
    """Between which float32 squares of magnitudes a pixel is in doubt.

    Attributes
    ----------
    low, high : float32
        A pixel is not lit up to `low`, and is lit above `high`.
    square : float64
        Between them it is lit if its float64 square exceeds this.
    """

    low: np.float32
    high: np.float32
    square: float


class Scratch(NamedTuple):
    """Memory of a thread, which holds one image."""

    inputs: Floats
    rows: Floats
    signed: Floats
    reals: Floats
    squares: Floats
    largest: Floats
    words: npt.NDArray[np.uint64]
    lit: Bytes
    column: Doubles


def scratch(sheet: Sheet, rough: Rough) -> Scratch:
    """Make the memory that a thread needs."""
    small = sheet.pixels.shape[1]
    n_inputs, n_columns = rough.columns.shape
    side = rough.pixels.shape[1]
    padded = -(-small // ROWS_AT_ONCE) * ROWS_AT_ONCE
    words = np.zeros((2, side // 8), dtype=np.uint64)
    made = Scratch(
        inputs=np.zeros((padded, n_inputs), dtype=np.float32),
        rows=np.zeros((1 + padded, n_columns), dtype=np.float32),
        signed=np.zeros(n_columns, dtype=np.float32),
        reals=np.zeros((COLUMNS_AT_ONCE, side), dtype=np.float32),
        squares=np.zeros(side, dtype=np.float32),
        largest=np.zeros(side, dtype=np.float32),
        words=words,
        lit=words.view(np.uint8),
        column=np.zeros(small),
    )
    made.rows[0, : rough.waves.size] = -rough.waves * rough.nyquist
    return made


@jit
def moments(images: Bytes, start: int, stop: int, weights: Doubles, out: Doubles) -> None:
    """Fill `out`, shape (s, FAR, n_images), with the moments of the rows of some images.

    `weights`, shape (FAR, s), are those of the pixels.
    """
    small = images.shape[1]
    pixels = np.zeros((small, AT_ONCE))
    sums = np.empty(AT_ONCE)
    for first in range(start, stop, AT_ONCE):
        n = min(AT_ONCE, stop - first)
        for row in range(small):
            for b in range(n):
                for q in range(small):
                    pixels[q, b] = images[first + b, row, q]
            for i in range(weights.shape[0]):
                sums[:] = 0.0
                for q in range(0, small, 2):  # small is even
                    one, two = weights[i, q], weights[i, q + 1]
                    for b in range(AT_ONCE):
                        sums[b] += one * pixels[q, b] + two * pixels[q + 1, b]
                for b in range(n):
                    out[row, i, first + b] = sums[b]


@jit
def couple(
    spectra: npt.NDArray[np.complex128],
    start: int,
    stop: int,
    kernels: npt.NDArray[np.complex128],
    differences: Doubles,
) -> None:
    """Turn the spectra of moments into those of far sums, at the frequencies of a range.

    Parameters
    ----------
    spectra : ndarray, shape (s, FAR, n_frequencies), complex128
        Spectra of the rows' moments, and after the call of their far sums.
    start, stop : int
        The frequencies.
    kernels : ndarray, shape (n_nodes, n_frequencies), complex128
        Spectra of the cotangent at some nodes.
    differences : ndarray, shape (FAR * FAR, n_nodes), float64
        Weights of the nodes for each pair of target and source.
    """
    n_rows, n_far = spectra.shape[:2]
    n_nodes = kernels.shape[0]
    shape = (n_far, AT_ONCE)
    real, imaginary = np.empty((n_nodes, AT_ONCE)), np.empty((n_nodes, AT_ONCE))
    pair_real, pair_imaginary = np.zeros((n_far, *shape)), np.zeros((n_far, *shape))
    in_real, in_imaginary = np.zeros(shape), np.zeros(shape)
    sum_real, sum_imaginary = np.empty(AT_ONCE), np.empty(AT_ONCE)
    for first in range(start, stop, AT_ONCE):
        n = min(AT_ONCE, stop - first)
        for c in range(n_nodes):
            for f in range(n):
                real[c, f] = kernels[c, first + f].real
                imaginary[c, f] = kernels[c, first + f].imag
        for i in range(n_far):
            for m in range(n_far):
                sum_real[:] = 0.0
                sum_imaginary[:] = 0.0
                for c in range(n_nodes):
                    weight = differences[i * n_far + m, c]
                    for f in range(AT_ONCE):
                        sum_real[f] += weight * real[c, f]
                        sum_imaginary[f] += weight * imaginary[c, f]
                for f in range(AT_ONCE):  # numba compiles text for errors into a copy of a slice
                    pair_real[i, m, f] = sum_real[f]
                    pair_imaginary[i, m, f] = sum_imaginary[f]
        for r in range(n_rows):
            for m in range(n_far):
                for f in range(n):
                    in_real[m, f] = spectra[r, m, first + f].real
                    in_imaginary[m, f] = spectra[r, m, first + f].imag
            for i in range(n_far):
                sum_real[:] = 0.0
                sum_imaginary[:] = 0.0
                for m in range(n_far):
                    for f in range(AT_ONCE):
                        a, b = pair_real[i, m, f], pair_imaginary[i, m, f]
                        c, d = in_real[m, f], in_imaginary[m, f]
                        sum_real[f] += a * c - b * d
                        sum_imaginary[f] += a * d + b * c
                for f in range(n):
                    spectra[r, i, first + f] = complex(sum_real[f], sum_imaginary[f])


@jit_part
def _enlarge_rows(sheet: Sheet, rough: Rough, memory: Scratch, image: int) -> None:
    """Enlarge the rows of an image along the sheet, and add them up with alternating signs."""
    n_images, small = sheet.images.shape[:2]
    before, after = (image - 1) % n_images, (image + 1) % n_images
    inputs, rows, signed = memory.inputs, memory.rows, memory.signed
    for k in range(small):
        for q in range(small):
            inputs[k, q] = sheet.images[before, k, q]
            inputs[k, small + q] = sheet.images[image, k, q]
            inputs[k, 2 * small + q] = sheet.images[after, k, q]
        for i in range(sheet.far.shape[1]):
            inputs[k, 3 * small + i] = sheet.far[k, i, image]
    n_inputs, n_columns = rough.columns.shape
    flat_inputs, flat_rows = inputs.reshape(-1), rows.reshape(-1)
    flat_columns = rough.columns.reshape(-1)
    for t in range(0, n_columns, VECTORS * WIDTH):
        for k in range(0, inputs.shape[0], ROWS_AT_ONCE):
            product_tile(
                (ROWS_AT_ONCE, VECTORS, WIDTH),
                flat_inputs, k * n_inputs, n_inputs, 1,
                flat_columns, t, n_columns,
                n_inputs,
                flat_rows, (1 + k) * n_columns + t, n_columns,
            )  # fmt: skip
    signed[:] = np.float32(0.0)
    for k in range(0, small, 2):
        for t in range(n_columns):
            signed[t] += rows[1 + k, t] - rows[2 + k, t]


@jit_part
def _enlarge_columns(rough: Rough, memory: Scratch, first: int) -> None:
    """Compute the real parts of `COLUMNS_AT_ONCE` enlarged columns."""
    n_terms, side = rough.pixels.shape
    n_columns = memory.rows.shape[1]
    flat_rows, flat_reals = memory.rows.reshape(-1), memory.reals.reshape(-1)
    flat_pixels = rough.pixels.reshape(-1)
    for c in range(0, COLUMNS_AT_ONCE, ROWS):
        for j in range(0, side, VECTORS * WIDTH):
            product_tile(
                (ROWS, VECTORS, WIDTH),
                flat_rows, first + c, 1, n_columns,
                flat_pixels, j, side,
                n_terms,
                flat_reals, c * side + j, side,
            )  # fmt: skip


@jit_part
def _square(rough: Rough, memory: Scratch, column: int) -> None:
    """Compute squared magnitudes of an enlarged column, and the largest ones of each pixel."""
    reals = memory.reals[column % COLUMNS_AT_ONCE]
    squares, largest = memory.squares, memory.largest
    sines, nyquist_pixels = rough.pixels[0], rough.nyquist_pixels
    signed, wave = memory.signed[column], rough.waves[column]
    for j in range(squares.size):
        imaginary = signed * sines[j] + wave * nyquist_pixels[j]
        square = reals[j] * reals[j] + imaginary * imaginary
        squares[j] = square
        largest[j] = square if square > largest[j] else largest[j]


@jit_part
def _largest_of(squares: Floats) -> np.float32:
    """The largest of some squares. numba's own ``max`` takes three times as long to compile."""
    largest = np.float32(0.0)
    for j in range(squares.size):
        largest = squares[j] if squares[j] > largest else largest
    return largest


@jit
def rough_largest(
    sheet: Sheet, rough: Rough, memory: Scratch, start: int, stop: int, largest: Floats
) -> None:
    """Find the largest float32 squared magnitude of each of some images.

    Parameters
    ----------
    sheet, rough, memory : Sheet, Rough, Scratch
        The sheet, and which columns of each image.
    start, stop : int
        The images, from `start` to before `stop`.
    largest : ndarray, shape (n_images,), float32
        Is filled for these images.
    """
    for image in range(start, stop):
        _enlarge_rows(sheet, rough, memory, image)
        memory.largest[:] = np.float32(0.0)
        for first in range(0, rough.waves.size, COLUMNS_AT_ONCE):
            _enlarge_columns(rough, memory, first)
            for column in range(first, min(first + COLUMNS_AT_ONCE, rough.waves.size)):
                _square(rough, memory, column)
        largest[image] = _largest_of(memory.largest)


@jit_part
def _exact_rows(sheet: Sheet, image: int, column: int, rows: Doubles) -> None:
    """Compute the enlarged rows at a column of an image in float64."""
    n_images, small = sheet.images.shape[:2]
    before, after = (image - 1) % n_images, (image + 1) % n_images
    weights = sheet.columns[column]
    for k in range(small):
        total = 0.0
        for i in range(sheet.far.shape[1]):
            total += weights[3 * small + i] * sheet.far[k, i, image]
        for q in range(small):
            total += weights[q] * sheet.images[before, k, q]
            total += weights[2 * small + q] * sheet.images[after, k, q]
        for q in range(small):
            total += weights[small + q] * sheet.images[image, k, q]
        rows[k] = total


@jit_part
def _exact_square(sheet: Sheet, column: int, pixel: int, rows: Doubles) -> float:
    """Compute the squared magnitude of a pixel in float64, from `_exact_rows`."""
    wave = sheet.waves[column]
    real = -wave * sheet.nyquist * sheet.sines[pixel]
    signed = 0.0
    for k in range(0, rows.size, 2):
        real += rows[k] * sheet.pixels[pixel, k] + rows[k + 1] * sheet.pixels[pixel, k + 1]
        signed += rows[k] - rows[k + 1]
    imaginary = signed * sheet.sines[pixel] + wave * sheet.nyquist_pixels[pixel]
    square: float = real * real + imaginary * imaginary
    return square


@jit
def exact_largest(
    sheet: Sheet, rough: Rough, memory: Scratch, image: int, least: float, error: float
) -> float:
    """Find the largest squared magnitude of an image in float64.

    Parameters
    ----------
    sheet, rough, memory : Sheet, Rough, Scratch
        The sheet, and all columns of an image.
    image : int
        The image.
    least : float
        A squared magnitude. Smaller ones need not be found.
    error : float
        Bound of the error of a float32 magnitude.

    Returns
    -------
    float
        The largest squared magnitude, or `least` if none is larger.
    """
    found = least
    limit = lower_square(found, error)
    _enlarge_rows(sheet, rough, memory, image)
    for first in range(0, rough.waves.size, COLUMNS_AT_ONCE):
        _enlarge_columns(rough, memory, first)
        for column in range(first, min(first + COLUMNS_AT_ONCE, rough.waves.size)):
            _square(rough, memory, column)
            has_rows = False
            for j in range(sheet.sines.size):
                if memory.squares[j] > limit:
                    if not has_rows:
                        _exact_rows(sheet, image, column, memory.column)
                        has_rows = True
                    square = _exact_square(sheet, column, j, memory.column)
                    if square > found:
                        found = square
                        limit = lower_square(found, error)
    return found


@jit
def lower_square(square: float, error: float) -> float:
    """The float32 square that a float64 square of at least `square` exceeds; -1 if any may.

    2e-7 is more than 3 * 2**-24, the rounding of a float32 sum of two squares.
    """
    root: float = math.sqrt(square) - error
    return root * root * (1 - 2e-7) if root >= 0.0 else -1.0


@jit
def lit_pixels(
    sheet: Sheet,
    rough: Rough,
    memory: Scratch,
    start: int,
    stop: int,
    bounds: Bounds,
    counts: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    largest: Floats,
) -> int:
    """Find the pixels of some images whose squared magnitude exceeds a threshold.

    Parameters
    ----------
    sheet, rough, memory : Sheet, Rough, Scratch
        The sheet, and all columns of an image.
    start, stop : int
        The images, from `start` to before `stop`.
    bounds : Bounds
        The threshold.
    counts : ndarray, shape (stop - start,), int64
        Is filled with the number of pixels of each image.
    indices : ndarray, shape (n_all_pixels + 8,), uint16 or int32
        Its beginning is filled with the pixels.
    largest : ndarray, shape (n_images,), float32
        Is filled with the largest float32 squared magnitude of each of these images.

    Returns
    -------
    int
        Number of pixels found.
    """
    side = sheet.sines.size
    squares = memory.squares
    perhaps, surely = memory.lit[0], memory.lit[1]
    n_lit = int(
        np.int64(0)
    )  # a literal 0 has a type of its own, for which `_number` is compiled, too
    for image in range(start, stop):
        n_before = n_lit
        _enlarge_rows(sheet, rough, memory, image)
        memory.largest[:] = np.float32(0.0)
        for first in range(0, side, COLUMNS_AT_ONCE):
            _enlarge_columns(rough, memory, first)
            for column in range(first, min(first + COLUMNS_AT_ONCE, side)):
                _square(rough, memory, column)
                for j in range(squares.size):
                    perhaps[j] = squares[j] > bounds.low
                    surely[j] = squares[j] > bounds.high
                in_doubt = False
                for word in range(memory.words.shape[1]):
                    in_doubt |= memory.words[0, word] != memory.words[1, word]
                if in_doubt:  # seldom; a call takes as long as all of this column
                    _decide(sheet, memory, image, column, bounds.square)
                n_lit = _number(memory, column * side, n_lit, indices)
        counts[image - start] = n_lit - n_before
        largest[image] = _largest_of(memory.largest)
    return n_lit


@jit_part
def _decide(sheet: Sheet, memory: Scratch, image: int, column: int, square: float) -> None:
    """Compute the pixels of a column that are in doubt in float64."""
    _exact_rows(sheet, image, column, memory.column)
    for j in range(sheet.sines.size):
        if memory.lit[0, j] != memory.lit[1, j]:
            memory.lit[1, j] = _exact_square(sheet, column, j, memory.column) > square


@jit_part
def _number(memory: Scratch, start: int, n_lit: int, indices: npt.NDArray[Any]) -> int:
    """Append the lit pixels of a column that begins at pixel `start` to the indices."""
    words, lit = memory.words[1], memory.lit[1]
    for word in range(words.size):
        if words[word] == 0:
            continue
        place = start + 8 * word
        if words[word] == ALL_LIT:
            for j in range(8):
                indices[n_lit + j] = place + j
            n_lit += 8
        else:
            # Each pixel is written, but only kept if lit. A branch would often be mispredicted.
            for j in range(8):
                indices[n_lit] = place + j
                n_lit += lit[8 * word + j]
    return n_lit
