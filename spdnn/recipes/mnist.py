"""The official inputs, from the 60000 training images of MNIST."""

import hashlib
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.io.idx import read_images
from spdnn.recipes.images import Progress, enlarge

IMAGES_FILE = "train-images-idx3-ubyte"
TEST_IMAGES = 10000
"""Images in MNIST's test set, t10k-images-idx3-ubyte."""

TRAINING_SHA256 = "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757"
"""sha256 of the 60000 x 28 x 28 image bytes of the training set, header left out."""


def is_training_set(images: npt.NDArray[np.uint8]) -> bool:
    """Whether these are MNIST's 60000 training images, byte by byte."""
    return hashlib.sha256(np.ascontiguousarray(images)).hexdigest() == TRAINING_SHA256


def mnist_features(
    path: Path, neurons: int, features: int | None = None, progress: Progress | None = None
) -> tuple[Features, bool]:
    """Make the challenge's inputs from an IDX file of images.

    Parameters
    ----------
    path : Path
        IDX images, ``.gz`` or not.
    neurons : int
        An even square not under 28 * 28; 1024, 4096, 16384, 65536 are official.
    features : int, optional
        Return the first `features` only; all images set the threshold all the same. At an
        official size it must be given for a file of fewer than 60000 images, such as the test
        set: so nobody takes them for the official inputs unawares.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    Features
    bool
        Whether they are official: the training images at an official size.

    Raises
    ------
    DataError
        If the file is damaged, holds something else, or too few images.
    DeviceError
        If there is too little memory.
    """
    side = image_side(neurons)
    images = read_images(path)
    if features is not None and features > len(images):
        raise DataError(f"{path}: {features} features asked for, but it holds {len(images)} images")
    if features is None and neurons in challenge.SIZES:
        _require_enough(path, images)
    try:
        made = enlarge(images, side, features, progress)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return made, neurons in challenge.SIZES and is_training_set(images)


def official_features(path: Path, neurons: int, progress: Progress | None = None) -> Features:
    """Make the official inputs, of nothing but MNIST's training images.

    Parameters are those of `mnist_features`.

    Raises
    ------
    DataError
        If the file is damaged, or holds other images; before any work is done.
    DeviceError
        If there is too little memory.
    """
    images = read_images(path)
    _require_enough(path, images)
    if not is_training_set(images):
        raise DataError(
            f"{path}: these are not MNIST's {challenge.FEATURES} training images, of which the "
            "official inputs are made"
        )
    return enlarge(images, image_side(neurons), progress=progress)


def _require_enough(path: Path, images: npt.NDArray[np.uint8]) -> None:
    if len(images) < challenge.FEATURES:
        kind = " (MNIST's test set?)" if len(images) == TEST_IMAGES else ""
        raise DataError(
            f"{path}: it holds {len(images)} images{kind}; the official inputs need the "
            f"{challenge.FEATURES} of {IMAGES_FILE}.gz; to run these all the same, give `features`"
        )


def image_side(neurons: int) -> int:
    """Side of the square image of `neurons` pixels; DataError if there is none, or odd."""
    side = math.isqrt(max(neurons, 0))
    if side * side != neurons or side % 2:
        raise DataError(f"{neurons} neurons are not a square image of even side")
    return side
