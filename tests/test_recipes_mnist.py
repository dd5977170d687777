import gzip
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from spdnn import challenge
from spdnn.errors import DataError, DeviceError
from spdnn.machine import memory
from spdnn.recipes.images import enlarge, needed_bytes
from spdnn.recipes.mnist import mnist_features


@pytest.fixture(scope="module")
def training_images(shared_data):
    return shared_data / "train-images-idx3-ubyte.gz"


def write_idx(path, images, magic=2051):
    header = struct.pack(">4I", magic, *images.shape)
    path.write_bytes(header + images.astype(np.uint8).tobytes())
    return path


def random_images(n_images, side=28):
    return np.random.default_rng(1).integers(0, 256, (n_images, side, side), dtype=np.uint8)


def by_the_book(images, side):
    """The recipe in its own words: one complex 2-D transform of the whole sheet."""
    n_images, small, _ = images.shape
    sheet = np.concatenate(list(images), axis=1).astype(float)
    spectrum = np.fft.fft2(sheet)
    padded = np.zeros((side, n_images * side), dtype=complex)
    rows = np.arange(-small // 2, small // 2)
    columns = np.arange(-sheet.shape[1] // 2, sheet.shape[1] // 2)
    padded[np.ix_(rows % side, columns % padded.shape[1])] = spectrum[np.ix_(rows, columns)]
    magnitude = np.abs(np.fft.ifft2(padded))
    lit = magnitude > magnitude.max() / 2
    return np.stack([part.T.reshape(-1) for part in np.split(lit, n_images, axis=1)])


@pytest.mark.parametrize("side", [28, 32, 40, 64])
def test_the_separated_transforms_are_the_two_dimensional_one(side):
    images = random_images(5)
    made = enlarge(images, side).to_csr(bool).toarray()
    assert np.array_equal(made, by_the_book(images, side))


slow = [pytest.param(neurons, marks=pytest.mark.slow) for neurons in (16384, 65536)]


@pytest.mark.parametrize("neurons", [1024, 4096, *slow])
def test_the_non_zeros_are_exactly_the_published_number(training_images, neurons):
    features, is_official = mnist_features(training_images, neurons)
    assert features.n_nonzeros == challenge.SIZES[neurons].input_nonzeros
    assert features.n_features == 60000
    assert is_official


def test_the_1024_inputs_take_under_15_seconds(training_images):
    started = time.perf_counter()
    mnist_features(training_images, 1024)
    assert time.perf_counter() - started < 15


@pytest.mark.slow
def test_65536_neurons_take_under_6_gigabytes(training_images, tmp_path):
    """In a process of its own, whose peak is its own."""
    code = (
        "import pathlib, sys; from spdnn.machine.memory import peak_bytes; "
        "from spdnn.recipes.mnist import mnist_features; "
        "mnist_features(pathlib.Path(sys.argv[1]), 65536); "
        "print(peak_bytes())"
    )
    command = [sys.executable, "-c", code, str(training_images)]
    peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(peak) < 6e9


def test_the_first_features_keep_the_threshold_of_the_whole_sheet():
    images = random_images(4)
    whole, first = enlarge(images, 32), enlarge(images, 32, count=2)
    assert np.array_equal(first.indices, whole.indices[: whole.indptr[2]])
    assert first.n_features == 2


def test_progress_ascends_to_the_end():
    seen = []
    enlarge(random_images(3), 32, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_memory_is_asked_for_before_the_work_starts(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)
    with pytest.raises(DeviceError, match=r"enlarging 9 images to 256 x 256 pixels needs"):
        enlarge(random_images(9), 256)


def test_the_memory_asked_for_at_65536_neurons_is_under_6_gigabytes():
    assert needed_bytes(60000, 28, 256, 60000) < 6e9


def test_packed_and_unpacked_files_are_the_same(tmp_path):
    plain = write_idx(tmp_path / "images", random_images(3))
    packed = tmp_path / "images.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    a, b = (mnist_features(path, 1024, 3)[0] for path in (plain, packed))
    assert np.array_equal(a.indices, b.indices)


def test_other_images_are_not_official(tmp_path):
    _, is_official = mnist_features(write_idx(tmp_path / "images", random_images(3)), 1024, 3)
    assert not is_official


def test_the_test_set_is_not_taken_for_the_training_set(tmp_path):
    path = write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((10000, 28, 28)))
    with pytest.raises(DataError, match=r"10000 images \(MNIST's test set\?\).*60000 of train"):
        mnist_features(path, 1024)


def test_too_few_images_are_refused(tmp_path):
    path = write_idx(tmp_path / "images", random_images(7))
    with pytest.raises(DataError, match="it holds 7 images; the official inputs need the 60000"):
        mnist_features(path, 1024)
    with pytest.raises(DataError, match="8 features asked for, but it holds 7 images"):
        mnist_features(path, 1024, 8)


def test_a_wrong_magic_is_named(tmp_path):
    path = write_idx(tmp_path / "images", random_images(2), magic=2052)
    with pytest.raises(DataError, match="magic 2052, expected 2051"):
        mnist_features(path, 1024)


def test_the_labels_are_told_from_the_images(shared_data):
    with pytest.raises(DataError, match="holds labels"):
        mnist_features(shared_data / "train-labels-idx1-ubyte.gz", 1024)


def test_a_truncated_file_is_named(tmp_path):
    path = write_idx(tmp_path / "images", random_images(2))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="damaged IDX file: 1583 bytes, where its header says 1584"):
        mnist_features(path, 1024)


def test_a_damaged_gzip_file_is_named(tmp_path, training_images):
    path = tmp_path / "images.gz"
    path.write_bytes(training_images.read_bytes()[:5000])
    with pytest.raises(DataError, match="damaged or truncated gzip file"):
        mnist_features(path, 1024)


@pytest.mark.parametrize("neurons", [1000, 961, 16])
def test_sizes_that_are_no_enlarged_image_are_refused(tmp_path, neurons):
    path = write_idx(tmp_path / "images", random_images(2))
    with pytest.raises(DataError):
        mnist_features(path, neurons, 2)
