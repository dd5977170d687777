"""Grey images to 0/1 features, as the challenge enlarged MNIST.

The images lie side by side in one sheet, whose two-dimensional spectrum is padded with
zeros to the size asked for. A pixel is 1 where the magnitude of the enlarged sheet exceeds half of
its largest magnitude. The two axes separate: long Fourier transforms along the
sheet, then a small matrix product across it, taken block by block, twice: once for the largest
magnitude, once for the pixels. All in double precision: single precision moves
pixels at 65536 neurons.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from spdnn.errors import DataError
from spdnn.features import Features, index_dtype
from spdnn.memory import require_bytes

BLOCK_PIXELS = 1 << 21
"""Enlarged pixels handled at a time: 16 MiB in double precision."""

LIT_FRACTION = 0.11
"""Pixels above half of the maximum, at most, of handwritten digits: MNIST has 0.104 (1024
neurons) and 0.100 (65536); only used to ask for memory."""

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
    # All rows; the spectrum, its product and the transform of one row; a few blocks.
    sheet = (small + 3) * row + 4 * 8 * BLOCK_PIXELS
    return sheet + lit


class _Sheet:
    """The sheet, already enlarged along its length: `rows` and the Nyquist part apart.

    The Nyquist term of an axis stands on the negative side only. Along the sheet it
    makes an enlarged row the sum of a real signal (`rows`) and i * `nyquist` * g(t), with
    g(t) = -sin(pi s t / side); so no complex sheet is ever held. Across the sheet the
    enlargement is likewise a real matrix plus i * (column of sines) * (row of signs).
    """

    def __init__(self, images: npt.NDArray[np.uint8], side: int, progress: Progress) -> None:
        self.n_images, self.small = images.shape[:2]
        self.side = side
        self.progress = progress
        length, enlarged = self.n_images * self.small, self.n_images * side
        self.rows = np.empty((self.small, enlarged))
        self.nyquist = np.empty(self.small)
        spectrum = np.zeros(enlarged // 2 + 1, dtype=np.complex128)
        for row in range(self.small):
            line = images[:, row, :].reshape(-1).astype(np.float64)
            spectrum[: length // 2 + 1] = scipy.fft.rfft(line, workers=-1)
            # irfft stands for both signs of a frequency: each takes half of the one-sided term.
            self.nyquist[row] = spectrum[length // 2].real
            spectrum[length // 2] *= 0.5
            # "forward" leaves the inverse transform without its factor 1 / enlarged.
            self.rows[row] = scipy.fft.irfft(spectrum, enlarged, norm="forward", workers=-1)
            self.progress(0.5 * (row + 1) / self.small)
        half = self.small // 2
        out, row_index = np.arange(side), np.arange(self.small)
        turn = out[:, None] / side - row_index[None, :] / self.small
        self.signs = (-1.0) ** row_index
        self.sines = -np.sin(2 * np.pi * half * out / side)
        cosines = np.cos(2 * np.pi * half * out / side)[:, None] * self.signs
        self.across = cosines + sum(np.cos(2 * np.pi * k * turn) for k in range(1 - half, half))

    def squared_magnitudes(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        """|sheet|^2 of images `start` to `stop`, shape (columns, side)."""
        columns = self.rows[:, start * self.side : stop * self.side]
        t = np.arange(start * self.side, stop * self.side)
        # The phase is reduced in whole numbers, so that it is exact anywhere in the sheet.
        g = -np.sin(np.pi * ((self.small * t) % (2 * self.side)) / self.side)
        real: npt.NDArray[np.float64] = columns.T @ self.across.T
        real -= (g * (self.signs @ self.nyquist))[:, None] * self.sines
        imaginary = (self.signs @ columns)[:, None] * self.sines
        imaginary += g[:, None] * (self.across @ self.nyquist)
        real *= real
        imaginary *= imaginary
        real += imaginary
        return real

    def pixels(self, count: int) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[Any]]]:
        """Index form of the first `count` images: where each begins, and the indices in parts."""
        step = max(1, BLOCK_PIXELS // self.side**2)
        largest = 0.0
        total = self.n_images + count
        for start in range(0, self.n_images, step):
            stop = min(start + step, self.n_images)
            largest = max(largest, float(self.squared_magnitudes(start, stop).max()))
            self.progress(0.5 + 0.5 * stop / total)
        neurons = self.side**2
        counts = np.zeros(count + 1, dtype=np.int64)
        parts = []
        for start in range(0, count, step):
            stop = min(start + step, count)
            lit = self.squared_magnitudes(start, stop) > 0.25 * largest
            lit = lit.reshape(stop - start, neurons)
            counts[start + 1 : stop + 1] = np.count_nonzero(lit, axis=1)
            parts.append((np.flatnonzero(lit) % neurons).astype(index_dtype(neurons)))
            self.progress(0.5 + 0.5 * (self.n_images + stop) / total)
        return np.cumsum(counts), parts
