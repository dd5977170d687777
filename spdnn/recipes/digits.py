"""Inputs made of scikit-learn's images of digits, which need no download, for demonstrations.

They are not the official inputs. There are 1797 images of 8 x 8 pixels, which are enlarged by the
official recipe and repeated with small shifts.
Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998.
"""

import numpy as np
import numpy.typing as npt

from spdnn.challenge import DEPTHS, FEATURES, KnownCategories
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.recipes.images import enlarge
from spdnn.recipes.mnist import image_side

NONZEROS = {1024: 12085581}
"""Non-zeros of 60000 features, by neurons. They tell these digits from others."""

CATEGORIES = {
    (1024, depth): KnownCategories(
        "14bfb79a4d179091b24c2f518d5a676b7df5dfacdd45b6afe7efa2b14ec4b97f",
        10590,
        is_published=False,
    )
    for depth in DEPTHS
}
"""Categories of an official network on 60000 features, by neurons and layers. They were computed
with this project's float64 reference and are the same at each depth."""

LARGEST_SHIFT = 3
"""Largest shift in pixels of a 32 x 32 image. Larger images are shifted in proportion."""


def digit_features(neurons: int, features: int) -> Features:
    """Make `features` inputs from scikit-learn's digits.

    Parameters
    ----------
    neurons : int
        Pixels of an image: the square of an even number from 8.
    features : int
        Number of features. The images are repeated in order, each time with another small shift.

    Returns
    -------
    Features
        All values are 1.

    Raises
    ------
    DataError
        If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the digits need scikit-learn: pip install 'spdnn[demo]', or give other `inputs`"
        ) from error
    side = image_side(neurons)
    grey = load_digits().images  # shape (1797, 8, 8), 0..16
    base = enlarge(np.rint(grey * (255 / 16)).astype(np.uint8), side)
    n_images = base.n_features
    shifts = _shifts(max(1, side // 32))
    n_rounds = -(-features // n_images)
    rounds = [_shifted(base, side, *shifts[i % len(shifts)]) for i in range(n_rounds)]
    offsets = np.cumsum([0] + [part.n_nonzeros for part in rounds])
    indptr = np.concatenate(
        [[0]] + [part.indptr[1:] + offset for part, offset in zip(rounds, offsets, strict=False)]
    )
    indices = np.concatenate([part.indices for part in rounds] or [base.indices[:0]])
    return Features(neurons, indptr, indices).part(0, features)


def known_categories(features: Features, layers: int) -> KnownCategories | None:
    """Find the known categories of an official network on digits.

    Parameters
    ----------
    features : Features
        Features that `digit_features` made.
    layers : int
        Depth of the network.

    Returns
    -------
    KnownCategories or None
        None where they are not known.
    """
    neurons = features.n_neurons
    if (features.n_features, features.n_nonzeros) != (FEATURES, NONZEROS.get(neurons)):
        return None
    return CATEGORIES.get((neurons, layers))


def _shifts(step: int) -> list[tuple[int, int]]:
    """All (column, row) shifts of up to `LARGEST_SHIFT` steps, in order of their length."""
    reach = range(-LARGEST_SHIFT, LARGEST_SHIFT + 1)
    by_length = sorted((c * c + r * r, c, r) for c in reach for r in reach)
    return [(column * step, row * step) for _, column, row in by_length]


def _shifted(base: Features, side: int, by_columns: int, by_rows: int) -> Features:
    """Shift every image. Pixels that leave it are lost."""
    column, row = np.divmod(base.indices.astype(np.int32), side)
    column, row = column + by_columns, row + by_rows
    kept: npt.NDArray[np.bool_] = (column >= 0) & (column < side) & (row >= 0) & (row < side)
    before = np.concatenate([[0], np.cumsum(kept)])
    return Features(base.n_neurons, before[base.indptr], (column * side + row)[kept])
