"""Grey images to 0/1 features, as the challenge enlarged MNIST.

The images lie side by side in one sheet, whose two-dimensional spectrum is padded with
zeros to the size asked for. A pixel is 1 where the magnitude of the enlarged sheet exceeds half of
its largest magnitude. The two axes separate: long Fourier transforms along the
sheet, then a small matrix product across it, taken column by column, twice: once for the largest
magnitude, once for the pixels. All in double precision: single precision moves
pixels at 65536 neurons.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from spdnn.errors import DataError
from spdnn.features import Features, index_dtype
from spdnn.machine.memory import require_bytes
from spdnn.machine.threads import default_threads
from spdnn.recipes.kernels import STRIDE, Across, largest_square, lit_pixels

BLOCK_PIXELS = 1 << 21
"""Enlarged pixels that a thread handles at a time: their indices take 4 or 8 MiB."""

LIT_FRACTION = 0.11
"""Pixels above half of the maximum, at most, of handwritten digits: MNIST has 0.104 (1024
neurons) and 0.100 (65536); only used to ask for memory."""

MAX_FFT_THREADS = 4
"""Each needs memory for three enlarged rows of the sheet, of which all have 28."""

FFT_SHARE = 0.5
"""Of the time, roughly, that the transforms take; for the progress bar."""

Progress = Callable[[float], None]


def enlarge(
    images: npt.NDArray[np.uint8],
    side: int,
    count: int | None = None,
    progress: Progress | None = None,
) -> Features:
    """Enlarge square images to `side` x `side` and take the pixels above half of the maximum.

    Parameters
    ----------
    images : ndarray, shape (n_images, s, s), uint8
        All images of the sheet; s even and at most `side`.
    side : int
        Side of the enlarged images, even.
    count : int, optional
        Return the first `count` images only. The threshold is that of the whole sheet all
        the same.
    progress : callable, optional
        Called with the fraction done, 0 to 1.

    Returns
    -------
    Features
        ``side**2`` neurons; neuron = column * side + row (0-based).

    Raises
    ------
    DataError
        If the images are not square, empty, too large or fewer than `count`.
    DeviceError
        If there is too little memory; it is asked for before the work starts.
    """
    if images.ndim != 3 or images.shape[1] != images.shape[2] or not images.size:
        raise DataError(f"square images are needed, not an array of shape {images.shape}")
    n_images, small = images.shape[:2]
    if small % 2 or side % 2 or small > side:
        raise DataError(f"images of side {small} cannot be enlarged to side {side}")
    count = n_images if count is None else count
    if not 0 <= count <= n_images:
        raise DataError(f"{count} images asked for, but there are {n_images}")
    require_bytes(
        needed_bytes(n_images, small, side, count),
        f"enlarging {n_images} images to {side} x {side} pixels",
        "take a smaller size, or a machine with more memory",
    )
    sheet = _Sheet(images, side, progress or (lambda fraction: None))
    indptr, parts = sheet.pixels(count)
    del sheet  # it is the larger part of the memory, and joining the parts takes them twice
    indices = np.concatenate(parts) if parts else np.empty(0, index_dtype(side**2))
    parts.clear()
    return Features(side**2, indptr, indices)


def needed_bytes(n_images: int, small: int, side: int, count: int) -> int:
    """Peak memory of `enlarge` in bytes, beyond that of the images."""
    row = 8 * n_images * side
    lit = int(LIT_FRACTION * count * side**2) * np.dtype(index_dtype(side**2)).itemsize
    # First the spectrum, its copy and the transform of one row a thread, then a block a thread
    # and the indices.
    blocks = default_threads() * np.dtype(index_dtype(side**2)).itemsize * 2 * BLOCK_PIXELS
    return small * row + max(3 * row * _fft_threads(), lit + blocks)


def _fft_threads() -> int:
    return min(MAX_FFT_THREADS, default_threads())


class _Sheet:
    """The sheet, already enlarged along its length: `rows` and the Nyquist part apart.

    The Nyquist term of an axis stands on the negative side only. Along the sheet it
    makes an enlarged row the sum of a real signal (`rows`) and i * nyquist * g(t), with
    g(t) = -sin(pi s t / side); so no complex sheet is ever held. Across the sheet the
    enlargement is likewise a real matrix plus i * (column of sines) * (row of signs).
    """

    def __init__(self, images: npt.NDArray[np.uint8], side: int, progress: Progress) -> None:
        self.n_images, self.small = images.shape[:2]
        self.side = side
        self.progress = progress
        self.rows = np.empty((self.small, self.n_images * side))
        nyquist = np.empty(self.small)
        with ThreadPoolExecutor(_fft_threads()) as pool:
            terms = pool.map(lambda row: self._enlarge_row(images, row), range(self.small))
            for row, term in enumerate(terms):
                nyquist[row] = term
                self.progress(FFT_SHARE * (row + 1) / self.small)
        self.across = _across(self.small, side, nyquist)

    def _enlarge_row(self, images: npt.NDArray[np.uint8], row: int) -> float:
        """Enlarge a row along the sheet; returns its Nyquist term."""
        length, enlarged = self.n_images * self.small, self.n_images * self.side
        spectrum = np.zeros(enlarged // 2 + 1, dtype=np.complex128)
        line = images[:, row, :].reshape(-1).astype(np.float64)
        spectrum[: length // 2 + 1] = scipy.fft.rfft(line)
        nyquist = float(spectrum[length // 2].real)
        if enlarged > length:
            # irfft stands for both signs of a frequency: each takes half of the one-sided term.
            # (Not enlarged, it is the one Nyquist term of the result.)
            spectrum[length // 2] *= 0.5
        # "forward" leaves the inverse transform without its factor 1 / enlarged.
        self.rows[row] = scipy.fft.irfft(spectrum, enlarged, norm="forward")
        return nyquist

    def pixels(self, count: int) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[Any]]]:
        """Index form of the first `count` images: where each begins, and the indices in parts.

        Blocks of images go to threads; what comes out does not depend on how many there are.
        """
        step = max(1, BLOCK_PIXELS // self.side**2)
        total = self.n_images + count

        def largest_in(start: int) -> float:
            stop = min(start + step, self.n_images)
            columns = start * self.side, stop * self.side
            return largest_square(self.rows, *columns, self.across)

        def lit(start: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
            return self._lit(start, min(start + step, count), 0.25 * largest)

        largest = 0.0
        with ThreadPoolExecutor(default_threads()) as pool:
            starts = range(0, self.n_images, step)
            for start, found in zip(starts, pool.map(largest_in, starts), strict=True):
                largest = max(largest, found)
                self._done(min(start + step, self.n_images) / total)
            counts = [np.zeros(1, dtype=np.int64)]
            parts = []
            starts = range(0, count, step)
            for start, (part_counts, indices) in zip(starts, pool.map(lit, starts), strict=True):
                counts.append(part_counts)
                parts.append(indices)
                self._done((self.n_images + min(start + step, count)) / total)
        return np.cumsum(np.concatenate(counts)), parts

    def _lit(
        self, start: int, stop: int, threshold: float
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        counts = np.empty(stop - start, dtype=np.int64)
        neurons = self.side**2
        indices = np.empty((stop - start) * neurons + 1, dtype=index_dtype(neurons))
        n_lit = lit_pixels(self.rows, start, stop, self.across, threshold, counts, indices)
        return counts, indices[:n_lit].copy()

    def _done(self, fraction: float) -> None:
        """Report progress in what follows the transforms."""
        self.progress(FFT_SHARE + (1 - FFT_SHARE) * fraction)


def _across(small: int, side: int, nyquist: npt.NDArray[np.float64]) -> Across:
    """What enlarges a column; `nyquist` are the Nyquist terms of the rows, shape (small,)."""
    half = small // 2
    out, row = np.arange(side), np.arange(small)
    turn = out[None, :] / side - row[:, None] / small
    signs = np.where(row % 2, -1.0, 1.0)
    phase = 2 * np.pi * half * out / side
    cosines = np.zeros((-(-small // STRIDE) * STRIDE, side))
    cosines[:small] = sum(np.cos(2 * np.pi * k * turn) for k in range(1 - half, half))
    cosines[:small] += signs[:, None] * np.cos(phase)
    return Across(
        cosines=cosines,
        signs=signs,
        sines=-np.sin(phase),
        nyquist=math.fsum(signs * nyquist),
        nyquist_cosines=nyquist @ cosines[:small],
        waves=-np.sin(np.pi * np.arange(2 * side) / side),
    )
