"""Makes 0/1 features of grey images, as the challenge enlarged MNIST.

The images are placed side by side in one sheet, whose two-dimensional spectrum is padded with
zeros to the size that is wanted. A pixel is 1 where the magnitude of the enlarged sheet exceeds
half of its largest magnitude. The two axes are independent. Along the sheet a row is enlarged by
weights of an image and its neighbours, and by sums for the images farther away (see the module
`interpolation`). Across it a small matrix product enlarges each column.

The Nyquist term of an axis is on the negative side of the spectrum only. Along the sheet an
enlarged row is therefore the sum of a real signal and i * nyquist * g(t), with
g(t) = -sin(pi s t / side). So no complex sheet is needed. Across the sheet the enlargement is
likewise a real matrix plus i * (column of sines) * (row of signs).

Pixels are computed in float32 first. A bound of the error (`_error`) tells which of them may be on
the wrong side of the threshold, about one in 10000. Those are computed again in float64. So is the
largest magnitude. The result is the one of float64 everywhere.
"""

import math
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.errors import DataError
from spdnn.features import Features, index_dtype
from spdnn.machine.memory import promised_bytes
from spdnn.machine.threads import default_threads
from spdnn.recipes.interpolation import FAR, column_weights, dirichlet, far_sums, sine
from spdnn.recipes.kernels import (
    Bounds,
    Rough,
    Sheet,
    exact_largest,
    lit_pixels,
    lower_square,
    rough_largest,
    scratch,
)
from spdnn.recipes.products import COLUMNS_MULTIPLE

BLOCK_PIXELS = 1 << 21
"""Enlarged pixels that a thread computes at a time. Their indices take 4 or 8 MiB."""

LIT_FRACTION = 0.11
"""Largest fraction of lit pixels that is expected of handwritten digits, to ask for memory. MNIST
has 0.104 (1024 neurons) and 0.100 (65536)."""

FAR_SHARE = 0.2
"""Rough share of the time that the far sums take, for the progress bar."""

LIKELY = 64
"""One image of so many is searched for the largest magnitude before all are."""

Progress = Callable[[float], None]


def enlarge(
    images: npt.NDArray[np.uint8],
    side: int,
    count: int | None = None,
    progress: Progress | None = None,
    pool: Executor | None = None,
) -> Features:
    """Enlarge square images to `side` x `side` and take the pixels above half of the maximum.

    Parameters
    ----------
    images : ndarray, shape (n_images, s, s), uint8
        All images of the sheet. s is even and at most `side`.
    side : int
        Side of the enlarged images, an even number.
    count : int, optional
        Number of images to return, from the first; all where not given. The threshold is that of
        the whole sheet in any case.
    progress : callable, optional
        Called with the fraction done, 0 to 1.
    pool : Executor, optional
        Its threads do the work; `default_threads` threads where not given.

    Returns
    -------
    Features
        Features of ``side**2`` neurons. The neuron of a pixel is column * side + row, from 0.

    Raises
    ------
    DataError
        If the images are not square, empty, too large or fewer than `count`.
    DeviceError
        If there is too little memory. This is checked before the work starts.
    """
    if images.ndim != 3 or images.shape[1] != images.shape[2] or not images.size:
        raise DataError(f"square images are needed, not an array of shape {images.shape}")
    n_images, small = images.shape[:2]
    if small % 2 or side % 2 or small > side:
        raise DataError(f"images of side {small} cannot be enlarged to side {side}")
    count = n_images if count is None else count
    if not 0 <= count <= n_images:
        raise DataError(f"{count} images asked for, but there are {n_images}")
    told = progress or (lambda fraction: None)
    with promised_bytes(
        needed_bytes(n_images, small, side, count),
        f"enlarging {n_images} images to {side} x {side} pixels",
        "take a smaller size, or a machine with more memory",
    ):
        if pool is not None:
            return _enlarged(images, side, count, told, pool)
        with ThreadPoolExecutor(default_threads()) as own_pool:
            return _enlarged(images, side, count, told, own_pool)


def _enlarged(
    images: npt.NDArray[np.uint8], side: int, count: int, progress: Progress, pool: Executor
) -> Features:
    """Enlarge the images; see `enlarge`."""
    enlarger = _Enlarger(images, side, pool, progress)
    indptr, parts = enlarger.pixels(count)
    del enlarger  # joining the parts holds them twice
    indices = np.empty(indptr[-1], dtype=index_dtype(side**2))
    ends = np.cumsum([part.size for part in parts])

    def join(number: int) -> None:
        part, parts[number] = parts[number], indices[:0]
        indices[ends[number] - part.size : ends[number]] = part

    list(pool.map(join, range(len(parts))))
    return Features(side**2, indptr, indices)


def needed_bytes(n_images: int, small: int, side: int, count: int) -> int:
    """Estimate the peak memory of `enlarge`, without that of the images.

    Parameters
    ----------
    n_images : int
        Number of images of the sheet.
    small : int
        Side of the images.
    side : int
        Side of the enlarged images.
    count : int
        Number of enlarged images to return.

    Returns
    -------
    int
        Bytes.
    """
    size = np.dtype(index_dtype(side**2)).itemsize
    lit = int(LIT_FRACTION * count * side**2) * size
    # The far sums and their spectra, of the same size. Then the far sums, blocks, and the indices,
    # which are joined from parts.
    far = 8 * small * FAR * n_images
    blocks = default_threads() * size * 2 * BLOCK_PIXELS
    return far + max(far, 2 * lit + blocks)


class _Enlarger:
    """A sheet with its weights, and the bound of what float32 may get wrong."""

    def __init__(
        self, images: npt.NDArray[np.uint8], side: int, pool: Executor, progress: Progress
    ) -> None:
        self.n_images = len(images)
        self.side = side
        self.pool = pool
        self.progress = progress
        far, largest_far = far_sums(images, pool, lambda part: progress(FAR_SHARE * part))
        self.sheet = _sheet(images, side, far, largest_far)
        self.error = _error(self.sheet)
        self.all_columns = _rough(self.sheet, 1)
        self.largest = np.zeros(self.n_images, dtype=np.float32)
        self.step = max(1, BLOCK_PIXELS // side**2)

    def starts(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Blocks of images for one thread each."""
        return [(first, min(first + self.step, stop)) for first in range(start, stop, self.step)]

    def guess(self) -> float:
        """Find the largest squared magnitude of some images that are likely to have it."""
        some = _rough(self.sheet, max(2, self.side // self.sheet.pixels.shape[1]))
        self.roughly(some, 0, self.n_images)
        order = np.argsort(-self.largest, kind="stable")[: 1 + self.n_images // LIKELY]
        least = 0.99 * lower_square(float(self.largest[order[0]]), self.error)
        first = self.exactly(order[:1], max(0.0, least))
        return self.exactly(order[1:], first)

    def roughly(self, rough: Rough, start: int, stop: int) -> None:
        """Find the largest float32 squared magnitude of each of some images."""

        def of_block(block: tuple[int, int]) -> None:
            memory = scratch(self.sheet, rough)
            rough_largest(self.sheet, rough, memory, *block, self.largest)

        list(self.pool.map(of_block, self.starts(start, stop)))

    def exactly(self, images: npt.NDArray[np.intp], least: float) -> float:
        """Find the largest float64 squared magnitude of some images, or `least`."""

        def of_image(image: int) -> float:
            memory = scratch(self.sheet, self.all_columns)
            return exact_largest(self.sheet, self.all_columns, memory, image, least, self.error)

        return max(self.pool.map(of_image, images.tolist()), default=least)

    def pixels(self, count: int) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[Any]]]:
        """Find the pixels of the first `count` images.

        The largest magnitude is guessed first, from some images. While the pixels are found, no
        image may have a larger one, or else they are found again. So the guess is not more than a
        matter of speed. The result does not depend on the number of threads.

        Parameters
        ----------
        count : int
            Number of images.

        Returns
        -------
        ndarray, shape (count + 1,), int64
            Where each image begins in the indices.
        list of ndarray
            The indices, in parts.
        """
        largest = self.guess()
        while True:
            self.roughly(self.all_columns, count, self.n_images)
            indptr, parts = self.lit(count, 0.25 * largest)
            may_exceed = self.largest > lower_square(largest, self.error)
            found = self.exactly(np.flatnonzero(may_exceed), largest)
            if found == largest:
                return indptr, parts
            largest = found
            parts.clear()

    def lit(self, count: int, square: float) -> tuple[npt.NDArray[np.int64], list[Any]]:
        """Find the pixels of the first `count` images whose squared magnitude exceeds `square`."""
        bounds = _bounds(square, self.error)
        dtype = index_dtype(self.side**2)

        def of_block(block: tuple[int, int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
            counts = np.empty(block[1] - block[0], dtype=np.int64)
            indices = np.empty(counts.size * self.side**2 + 8, dtype=dtype)
            memory = scratch(self.sheet, self.all_columns)
            given = self.sheet, self.all_columns, memory, *block, bounds
            n_lit = lit_pixels(*given, counts, indices, self.largest)
            return counts, indices[:n_lit].copy()

        indptr = np.zeros(count + 1, dtype=np.int64)
        parts = []
        blocks = self.starts(0, count)
        for (start, stop), (counts, part) in zip(
            blocks, self.pool.map(of_block, blocks), strict=True
        ):
            indptr[start + 1 : stop + 1] = counts
            parts.append(part)
            self.progress(1 - (1 - FAR_SHARE) * (count - stop) / count)
        return np.cumsum(indptr), parts


def _sheet(
    images: npt.NDArray[np.uint8],
    side: int,
    far: npt.NDArray[np.float64],
    largest_far: npt.NDArray[np.float64],
) -> Sheet:
    """Make the float64 weights. Values are those of the images, not scaled by a transform."""
    n_images, small = images.shape[:2]
    out, row = np.arange(side), np.arange(small)
    signs = np.where(row % 2, -1, 1)
    # Sums of integers, so these are exact.
    nyquist = (images.sum(axis=0, dtype=np.int64) @ signs) / (n_images * small)
    pixels = dirichlet(small * out[:, None] - side * row[None, :], side, small)
    return Sheet(
        images=np.ascontiguousarray(images),
        far=far,
        columns=column_weights(n_images, small, side),
        pixels=pixels,
        sines=-sine(small * out, side) / small,
        waves=-sine(small * out, side),
        nyquist_pixels=pixels @ nyquist,
        largest_far=largest_far,
        nyquist=float(nyquist @ signs),
    )


def _rough(sheet: Sheet, step: int) -> Rough:
    """Make the float32 weights of every `step`th column."""

    def padded(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        n_columns = -(-rows.shape[1] // COLUMNS_MULTIPLE) * COLUMNS_MULTIPLE
        wide = np.zeros((rows.shape[0], n_columns), dtype=np.float32)
        wide[:, : rows.shape[1]] = rows
        return wide

    return Rough(
        columns=padded(sheet.columns[::step].T),
        pixels=padded(np.vstack([sheet.sines, sheet.pixels.T])),
        nyquist_pixels=padded(sheet.nyquist_pixels[None])[0],
        waves=sheet.waves[::step].astype(np.float32),
        nyquist=np.float32(sheet.nyquist),
    )


def _error(sheet: Sheet) -> float:
    """Bound how far a magnitude in float32 is from the one in float64.

    A sum of n products of float32 numbers, in any order, fused or not, is off by at most
    g(n) = n u / (1 - n u) times the sum of the products' magnitudes, where u = 2**-24 (N. J.
    Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1). Factors that were
    rounded to float32 add 1 each to n. The same holds of float64 with 2**-53; a hundredth more
    covers that.
    """

    def relative(n_terms: int) -> float:
        return n_terms * 2.0**-24 / (1 - n_terms * 2.0**-24)

    small = sheet.pixels.shape[1]
    inputs = np.full(sheet.columns.shape[1], float(sheet.images.max()))
    inputs[3 * small :] = sheet.largest_far
    # An enlarged row: its largest value, and how far it is off.
    largest = float((np.abs(sheet.columns) @ inputs).max())
    error = relative(inputs.size + 2) * largest
    # The real part adds to this what its own sum is off; the first term is the Nyquist term.
    growth = float(np.abs(sheet.pixels).sum(axis=1).max())
    nyquist = abs(sheet.nyquist) / small
    terms = growth * (largest + error) + nyquist
    real = growth * error + relative(small + 4) * terms
    # The imaginary part is the sum of the rows with alternating signs, divided by `small` (the
    # sines), and one more term.
    terms = largest + error + float(np.abs(sheet.nyquist_pixels).max())
    imaginary = error + relative(small + 4) * terms
    return 1.01 * math.hypot(real, imaginary)


def _bounds(square: float, error: float) -> Bounds:
    """Between which float32 squares a pixel is in doubt, for a float64 threshold.

    A float32 square of two parts is off by less than 3 * 2**-24 < 2e-7 of its value.
    """
    low = lower_square(square, error)
    high = (math.sqrt(square) + error) ** 2 * (1 + 2e-7)
    return Bounds(
        low=np.nextafter(np.float32(low), np.float32(-np.inf)),
        high=np.nextafter(np.float32(high), np.float32(np.inf)),
        square=square,
    )
