"""MNIST's image files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from spdnn import DataError
from spdnn.io.idx import read_images


def idx(images: np.ndarray, magic: int = 2051) -> bytes:
    return struct.pack(">4I", magic, *images.shape) + images.tobytes()


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, min_side=0, max_side=5)))
def test_images_come_back_packed_or_not(images: np.ndarray) -> None:
    Path("images").write_bytes(idx(images))
    Path("images.gz").write_bytes(gzip.compress(idx(images)))
    for name in ("images", "images.gz"):
        read = read_images(Path(name))
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, images)


WHOLE = idx(np.zeros((2, 3, 4), np.uint8))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"empty \(0 bytes\)"),
        (WHOLE[:15], r"not an IDX image file \(only 15 bytes\)"),
        (WHOLE[:-1], "damaged IDX file: 39 bytes, where its header says 40"),
        (WHOLE + b"x", "damaged IDX file: 41 bytes, where its header says 40"),
        (b"1\t2\t1\n" * 9, r"not an IDX image file \(magic \d+, expected 2051\)"),
        (idx(np.zeros((2, 3, 4), np.uint8), 2049), "this IDX file holds labels; the images"),
        (struct.pack(">4I", 2051, *[2**32 - 1] * 3), "damaged IDX file"),
    ],
)
def test_what_is_no_image_file_is_refused(content: bytes, message: str) -> None:
    Path("images").write_bytes(content)
    with pytest.raises(DataError, match=f"^images: {message}"):
        read_images(Path("images"))


def test_a_packed_file_that_was_cut_short_is_refused() -> None:
    Path("images.gz").write_bytes(gzip.compress(WHOLE)[:-4])
    with pytest.raises(DataError, match=r"images\.gz: damaged or truncated gzip file"):
        read_images(Path("images.gz"))


def test_the_published_training_images_are_read(shared_data: Path) -> None:
    assert read_images(shared_data / "train-images-idx3-ubyte.gz").shape == (60000, 28, 28)


def test_the_published_labels_are_told_from_images(shared_data: Path) -> None:
    with pytest.raises(DataError, match="holds labels"):
        read_images(shared_data / "train-labels-idx1-ubyte.gz")
