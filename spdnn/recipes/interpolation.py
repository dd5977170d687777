"""Weights that enlarge a row of images, and the part that far images have in it.

A row of the sheet has L = n_images * s values x[m] and is periodic. Padding its spectrum with zeros
gives at each place u::

    y(u) = sum_m x[m] D(u - m, L)        D(w, L) = sin(pi w) / (L tan(pi w / L))

D falls off as 1 / w only, so all images have a part in each. For those that are not neighbours the
sum is split. s is even, so that for u in image b at v = u - s b, and m in image b - d at q::

    D(u - m, L) = sin(pi v) (-1)^q cot(pi (s d + v - q) / L) / L

For d = 2 .. n_images - 2 the cotangent is smooth in v and in q. It is interpolated between `FAR`
Chebyshev nodes c_i of [0, s] in both. Its singularities are at least s away from the interval, so
an error of the interpolation is 5.8^-FAR of the value at most, up to a small factor (L. N.
Trefethen, Approximation Theory and Approximation Practice, 2013, theorem 8.2; 5.8 = 3 + sqrt 8)::

    F_b[i] = sum_d sum_l cot(pi (s d + c_i - c_l) / L) / L  M_{b - d}[l]
    M_b[l] = sum_q lagrange_l(q) (-1)^q x[s b + q]
    y(u) = sum over the neighbours of x[m] D(u - m, L)  +  sin(pi v) sum_i lagrange_i(v) F_b[i]

The sum over d is a convolution over the images. It is made by Fourier transforms whose length is
the number of images.
"""

from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from spdnn.recipes.kernels import couple, moments

Doubles = npt.NDArray[np.float64]

FAR = 16
"""Chebyshev nodes of an image. 5.8^-16 = 6e-13 of the far sums, which are a small part of a pixel.
Of the 3.9e9 official pixels of 65536 neurons the nearest to the threshold is about 1e-9 away."""

DIFFERENCE_NODES = 30
"""Chebyshev nodes for the differences c_i - c_l in [-s, s], whose singularities are s away from
the interval: 3.7^-30 = 7e-18."""

SUMMED = 1 << 11
"""Images whose moments a thread computes at a time."""

COUPLED = 1 << 10
"""Frequencies that a thread couples at a time."""


def dirichlet(numerator: npt.NDArray[np.int64], denominator: int, period: int) -> Doubles:
    """Compute D(w, `period`) at w = numerator / denominator; `period` is even.

    Phases are reduced in integers, so that zeros are exact.
    """
    reduced = (numerator + period * denominator // 2) % (period * denominator)
    reduced = reduced - period * denominator // 2
    at_whole = reduced % denominator == 0
    turn = np.where(at_whole, 1.0, np.tan(np.pi * reduced / (denominator * period)))
    value = sine(reduced, denominator) / (period * turn)
    weights: Doubles = np.where(reduced == 0, 1.0, np.where(at_whole, 0.0, value))
    return weights


def sine(numerator: npt.NDArray[np.int64], denominator: int) -> Doubles:
    """Compute sin(pi numerator / denominator), exactly zero at whole numbers."""
    phase = numerator % (2 * denominator)
    value: Doubles = np.where(numerator % denominator, np.sin(np.pi * phase / denominator), 0.0)
    return value


def nodes(low: float, high: float, number: int) -> Doubles:
    """Chebyshev nodes of an interval, descending."""
    angles = np.pi * (np.arange(number) + 0.5) / number
    places: Doubles = (low + high) / 2 + (high - low) / 2 * np.cos(angles)
    return places


def lagrange(points: Doubles, low: float, high: float, number: int) -> Doubles:
    """Lagrange polynomials of the Chebyshev nodes, shape (number, n_points), at some points."""
    angles = np.pi * (np.arange(number) + 0.5) / number
    place = np.arccos(np.clip((2 * points - low - high) / (high - low), -1, 1))
    order = np.arange(number)
    weight = np.where(order, 2.0, 1.0) / number
    values: Doubles = (weight * np.cos(np.outer(angles, order))) @ np.cos(np.outer(order, place))
    return values


def column_weights(n_images: int, small: int, side: int) -> Doubles:
    """Weights of the inputs of an enlarged column of an image.

    Returns
    -------
    ndarray, shape (side, 3 * small + FAR), float64
        Weights of the pixels of a row of the image before, of the image itself, of the image after
        it, and of `far_sums`. A neighbour that is the image itself, or both neighbours, counts
        once.
    """
    numerator = small * np.arange(side)[:, None] - side * np.arange(small)[None, :]
    weights = np.zeros((side, 3 * small + FAR))
    for part, distance in enumerate((1, 0, -1)):
        if distance == 0 or n_images > 2 or (distance == 1 and n_images == 2):
            place = numerator + distance * small * side
            weights[:, part * small : (part + 1) * small] = dirichlet(place, side, n_images * small)
    inside = small * np.arange(side) / side
    far = sine(small * np.arange(side), side) * lagrange(inside, 0, small, FAR)
    weights[:, 3 * small :] = far.T
    return weights


def far_sums(
    images: npt.NDArray[np.uint8], pool: Executor, progress: Callable[[float], None]
) -> tuple[Doubles, Doubles]:
    """Sum what the images that are no neighbours have in each row of each image.

    Parameters
    ----------
    images : ndarray, shape (n_images, s, s), uint8
        The images of the sheet.
    pool : Executor
        Its threads do the work.
    progress : callable
        Called with the fraction done.

    Returns
    -------
    ndarray, shape (s, FAR, n_images), float64
        F_b[i] of each row.
    ndarray, shape (FAR,), float64
        The largest magnitude of each F[i].
    """
    n_images, small = images.shape[:2]
    if n_images < 4:
        return np.zeros((small, FAR, n_images)), np.zeros(FAR)
    weights = lagrange(np.arange(small, dtype=np.float64), 0, small, FAR)
    weights *= np.where(np.arange(small) % 2, -1.0, 1.0)
    n_frequencies = n_images // 2 + 1
    far = np.empty((small, FAR, n_images))
    spectra = np.empty((small, FAR, n_frequencies), dtype=np.complex128)
    kernels, differences = _coupling(n_images, small)

    def sum_up(start: int) -> None:
        moments(images, start, min(start + SUMMED, n_images), weights, far)

    def transform(row: int) -> None:
        np.fft.rfft(far[row], axis=1, out=spectra[row])

    def couple_at(start: int) -> None:
        couple(spectra, start, min(start + COUPLED, n_frequencies), kernels, differences)

    def transform_back(row: int) -> Doubles:
        np.fft.irfft(spectra[row], n_images, axis=1, out=far[row])
        of_row: Doubles = np.maximum(far[row].max(axis=1), -far[row].min(axis=1))
        return of_row

    list(pool.map(sum_up, range(0, n_images, SUMMED)))
    for row, _ in enumerate(pool.map(transform, range(small))):
        progress((row + 1) / (3 * small))
    list(pool.map(couple_at, range(0, n_frequencies, COUPLED)))
    largest = np.zeros(FAR)
    for row, of_row in enumerate(pool.map(transform_back, range(small))):
        largest = np.maximum(largest, of_row)
        progress((2 + (row + 1) / small) / 3)
    return far, largest


def _coupling(n_images: int, small: int) -> tuple[npt.NDArray[np.complex128], Doubles]:
    """Spectra over d of the cotangent at nodes of [-s, s], and each difference's Lagrange weights.

    Returns
    -------
    ndarray, shape (DIFFERENCE_NODES, n_images // 2 + 1), complex128
        The spectra.
    ndarray, shape (FAR * FAR, DIFFERENCE_NODES), float64
        The weights of the nodes for each difference c_i - c_l.
    """
    between = nodes(-small, small, DIFFERENCE_NODES)
    cotangents = np.zeros((DIFFERENCE_NODES, n_images))
    place = small * np.arange(2, n_images - 1)[None, :] + between[:, None]
    length = n_images * small
    cotangents[:, 2:-1] = 1 / (length * np.tan(np.pi * place / length))
    inside = nodes(0, small, FAR)
    differences = (inside[:, None] - inside[None, :]).reshape(-1)
    weights = lagrange(differences, -small, small, DIFFERENCE_NODES)
    return np.fft.rfft(cotangents, axis=1), np.ascontiguousarray(weights.T)
