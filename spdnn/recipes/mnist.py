"""The official inputs, made of the 60000 training images of MNIST."""

import hashlib
import math
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spdnn import challenge
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.io.idx import read_images
from spdnn.recipes.images import Progress, enlarge

IMAGES_FILE = "train-images-idx3-ubyte"
"""Name of the file of the training images, without ``.gz``."""

TEST_IMAGES = 10000
"""Images in MNIST's test set, t10k-images-idx3-ubyte."""

TRAINING_SHA256 = "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757"
"""sha256 of the 60000 x 28 x 28 bytes of the training images, without the header."""


def is_training_set(images: npt.NDArray[np.uint8]) -> bool:
    """Whether images are MNIST's 60000 training images, byte by byte."""
    return hashlib.sha256(np.ascontiguousarray(images)).hexdigest() == TRAINING_SHA256


def mnist_features(
    path: Path,
    neurons: int,
    features: int | None = None,
    progress: Progress | None = None,
    pool: Executor | None = None,
) -> tuple[Features, bool]:
    """Make the challenge's inputs from an IDX file of images.

    Parameters
    ----------
    path : Path
        An IDX file of images, packed (``.gz``) or not.
    neurons : int
        Pixels of an enlarged image: the square of an even number from 28. The official sizes are
        1024, 4096, 16384 and 65536.
    features : int, optional
        Number of features to return, from the first; all where not given. The threshold is that of
        all images in any case. At an official size it must be given for a file of fewer than 60000
        images, such as the test set, so that nobody takes them for the official inputs.
    progress : callable, optional
        Called with the fraction done.
    pool : Executor, optional
        Its threads do the work; see `spdnn.recipes.images.enlarge`.

    Returns
    -------
    Features
        All values are 1.
    bool
        Whether they are official: made of the training images, at an official size.

    Raises
    ------
    DataError
        If the file is damaged, or does not hold enough images.
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
        made = enlarge(images, side, features, progress, pool)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return made, neurons in challenge.SIZES and is_training_set(images)


def official_features(path: Path, neurons: int, progress: Progress | None = None) -> Features:
    """Make the official inputs, which are made of MNIST's training images only.

    Parameters
    ----------
    path : Path
        An IDX file of images, packed (``.gz``) or not.
    neurons : int
        Pixels of an enlarged image, an official size.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    Features
        All values are 1.

    Raises
    ------
    DataError
        If the file is damaged or holds other images. This is known before any work is done.
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
    """Side of a square image of `neurons` pixels; DataError if it is no even number."""
    side = math.isqrt(max(neurons, 0))
    if side * side != neurons or side % 2:
        raise DataError(f"{neurons} neurons are not a square image of even side")
    return side
