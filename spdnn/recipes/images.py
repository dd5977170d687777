"""Makes 0/1 features of grey images, as the challenge enlarged MNIST.

The images are placed side by side in one sheet, whose two-dimensional spectrum is padded with
zeros to the size that is wanted. A pixel is 1 where the magnitude of the enlarged sheet exceeds
half of its largest magnitude. The two axes are independent. Long Fourier transforms enlarge the
sheet along its length; a small matrix product enlarges each column across it. The columns are
computed twice: first to find the largest magnitude, then to find the pixels. All is in double
precision, since single precision changes pixels at 65536 neurons.
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
"""Enlarged pixels that a thread computes at a time. Their indices take 4 or 8 MiB."""

LIT_FRACTION = 0.11
"""Largest fraction of lit pixels that is expected of handwritten digits, to ask for memory. MNIST
has 0.104 (1024 neurons) and 0.100 (65536)."""

MAX_FFT_THREADS = 4
"""Most threads for transforms. Each needs memory for three of the 28 enlarged rows of the sheet."""

FFT_SHARE = 0.5
"""Rough share of the time that the transforms take, for the progress bar."""

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
        All images of the sheet. s is even and at most `side`.
    side : int
        Side of the enlarged images, an even number.
    count : int, optional
        Number of images to return, from the first; all where not given. The threshold is that of
        the whole sheet in any case.
    progress : callable, optional
        Called with the fraction done, 0 to 1.

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
    require_bytes(
        needed_bytes(n_images, small, side, count),
        f"enlarging {n_images} images to {side} x {side} pixels",
        "take a smaller size, or a machine with more memory",
    )
    sheet = _Sheet(images, side, progress or (lambda fraction: None))
    indptr, parts = sheet.pixels(count)
    del sheet  # it takes the most memory, and joining the parts holds them twice
    indices = np.concatenate(parts) if parts else np.empty(0, index_dtype(side**2))
    parts.clear()
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
    row = 8 * n_images * side
    lit = int(LIT_FRACTION * count * side**2) * np.dtype(index_dtype(side**2)).itemsize
    # First each thread holds the spectrum, its copy and the transform of one row. Then each holds
    # a block, and there are the indices.
    blocks = default_threads() * np.dtype(index_dtype(side**2)).itemsize * 2 * BLOCK_PIXELS
    return small * row + max(3 * row * _fft_threads(), lit + blocks)


def _fft_threads() -> int:
    return min(MAX_FFT_THREADS, default_threads())


class _Sheet:
    """The sheet, enlarged along its length. `rows` do not contain the Nyquist part.

    The Nyquist term of an axis is on the negative side of the spectrum only. Along the sheet an
    enlarged row is therefore the sum of a real signal (`rows`) and i * nyquist * g(t), with
    g(t) = -sin(pi s t / side). So no complex sheet is needed. Across the sheet the enlargement is
    likewise a real matrix plus i * (column of sines) * (row of signs).
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
        """Enlarge a row along the sheet and return its Nyquist term."""
        length, enlarged = self.n_images * self.small, self.n_images * self.side
        spectrum = np.zeros(enlarged // 2 + 1, dtype=np.complex128)
        line = images[:, row, :].reshape(-1).astype(np.float64)
        spectrum[: length // 2 + 1] = scipy.fft.rfft(line)
        nyquist = float(spectrum[length // 2].real)
        if enlarged > length:
            # irfft adds both signs of a frequency, so each gets half of the one-sided term.
            # (If the sheet is not enlarged, it is the one Nyquist term of the result.)
            spectrum[length // 2] *= 0.5
        # With "forward" the inverse transform does not have its factor 1 / enlarged.
        self.rows[row] = scipy.fft.irfft(spectrum, enlarged, norm="forward")
        return nyquist

    def pixels(self, count: int) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[Any]]]:
        """Find the pixels of the first `count` images.

        Threads take blocks of images. The result does not depend on the number of threads.

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
        """Report the progress of the work after the transforms."""
        self.progress(FFT_SHARE + (1 - FFT_SHARE) * fraction)


def _across(small: int, side: int, nyquist: npt.NDArray[np.float64]) -> Across:
    """Make the arrays that enlarge a column, of the Nyquist terms of the rows, shape (small,)."""
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
