import gzip
import hashlib
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from spdnn import challenge
from spdnn.errors import DataError, DeviceError
from spdnn.machine import memory
from spdnn.recipes import images as recipe
from spdnn.recipes import kernels
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


def same(a, b):
    return np.array_equal(a.indptr, b.indptr) and np.array_equal(a.indices, b.indices)


@pytest.mark.parametrize("n_images", [1, 2, 3, 4, 5, 7, 130])
@pytest.mark.parametrize("side", [28, 30, 32, 34, 40, 64])
def test_the_separated_transforms_are_the_two_dimensional_one(side, n_images):
    images = random_images(n_images)
    made = enlarge(images, side).to_csr(bool).toarray()
    assert np.array_equal(made, by_the_book(images, side))


@pytest.mark.parametrize(("small", "side"), [(2, 2), (2, 6), (8, 32), (10, 14), (30, 40), (40, 72)])
def test_images_of_other_sides_are_enlarged_by_the_book(small, side):
    images = random_images(6, small)
    made = enlarge(images, side).to_csr(bool).toarray()
    assert np.array_equal(made, by_the_book(images, side))


def test_blank_images_have_no_pixels():
    assert enlarge(np.zeros((5, 28, 28), np.uint8), 32).n_nonzeros == 0


def test_pixels_at_half_of_the_largest_are_not_lit():
    """Images that are not enlarged: 100 is exactly half of 200, and 101 is more."""
    images = np.random.default_rng(4).choice([0, 100, 101, 200], (9, 28, 28)).astype(np.uint8)
    made = enlarge(images, 28).to_csr(bool).toarray()
    expected = np.stack([image.T.reshape(-1) > 100 for image in images])
    assert np.array_equal(made, expected)


def grey_images(n_images):
    """Smooth images, as digits are."""
    noise = np.random.default_rng(3).random((n_images, 28, 28))
    for _ in range(3):
        noise = noise + np.roll(noise, 1, 1) + np.roll(noise, 1, 2)
    return np.rint(255 * (noise - noise.min()) / np.ptp(noise)).astype(np.uint8)


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("factor", [1e2, 1e5])
def test_pixels_that_float64_decides_are_those_that_float32_decides(monkeypatch, side, factor):
    """With a larger bound more pixels are in doubt; with the largest one all are."""
    images = grey_images(20)
    expected = enlarge(images, side)
    bound = recipe._error
    monkeypatch.setattr(recipe, "_error", lambda sheet: factor * bound(sheet))
    assert same(enlarge(images, side), expected)


def test_the_error_of_float32_is_within_its_bound():
    """The largest error of float32 magnitudes is below the bound, and not by too much."""
    side, images = 32, grey_images(70)
    with recipe.ThreadPoolExecutor(1) as pool:
        enlarger = recipe._Enlarger(images, side, pool, lambda fraction: None)
    sheet, rough = enlarger.sheet, enlarger.all_columns
    memory = kernels.scratch(sheet, rough)
    rows, worst = np.zeros(28), 0.0
    for image in (0, 33, 69):
        kernels._enlarge_rows(sheet, rough, memory, image)
        for column in range(side):
            if column % kernels.COLUMNS_AT_ONCE == 0:
                kernels._enlarge_columns(rough, memory, column)
            kernels._square(rough, memory, column)
            kernels._exact_rows(sheet, image, column, rows)
            exact = [kernels._exact_square(sheet, column, j, rows) for j in range(side)]
            off = np.sqrt(memory.squares[:side].astype(np.float64)) - np.sqrt(exact)
            worst = max(worst, float(np.abs(off).max()))
    assert 0 < worst < enlarger.error < 1e5 * worst


@pytest.mark.parametrize("wrong_side", [-1, 1])
def test_a_pixel_next_to_the_threshold_is_decided_in_float64(wrong_side):
    """The threshold is put between a pixel's float32 and its float64 value, for many pixels."""
    side, images = 32, grey_images(6)
    with recipe.ThreadPoolExecutor(1) as pool:
        enlarger = recipe._Enlarger(images, side, pool, lambda fraction: None)
        sheet, rows = enlarger.sheet, np.zeros(28)
        for pixel in range(0, side, 3):
            kernels._exact_rows(sheet, 2, pixel, rows)
            exact = kernels._exact_square(sheet, pixel, pixel, rows)
            indptr, parts = enlarger.lit(6, exact * (1 + wrong_side * 1e-14))
            lit = np.concatenate(parts)[indptr[2] : indptr[3]]
            assert (pixel * side + pixel in lit) == (wrong_side < 0)


def test_a_wrong_guess_of_the_largest_magnitude_changes_nothing(monkeypatch):
    images = grey_images(20)
    expected = enlarge(images, 32, 7)
    monkeypatch.setattr(recipe._Enlarger, "guess", lambda self: 1.0)
    assert same(enlarge(images, 32, 7), expected)


def test_the_number_of_threads_changes_nothing(monkeypatch):
    images = random_images(300)
    monkeypatch.setattr(recipe, "BLOCK_PIXELS", 1 << 15)
    made = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(recipe, "default_threads", lambda threads=threads: threads)
        made.append(enlarge(images, 40))
    assert same(made[0], made[1])
    assert same(made[0], made[2])


INDEX_DIGESTS = {
    1024: "5801562b9d8debf78f1184b43c54a938d57407c848bd5ebf8c6145fd5c688769",
    4096: "62d95cfdb77c09281ea10461ed69ec77b495aff6533507eeabb9e84c5995ddd9",
    16384: "5ec8df7506e8f0facb7b7bb657a73984ebbde7cc2c7b7bf03379b6748cbb1630",
    65536: "661367a23ae0bb0600dbbd97a9640c9645adad3e1d0f99caec59aa294f81a042",
}
"""sha256 of the indices (uint16), as float64 transforms of the whole sheet made them."""


slow = [pytest.param(neurons, marks=pytest.mark.slow) for neurons in (16384, 65536)]


@pytest.mark.parametrize("neurons", [1024, 4096, *slow])
def test_the_non_zeros_are_exactly_the_published_number(training_images, neurons):
    features, is_official = mnist_features(training_images, neurons)
    assert features.n_nonzeros == challenge.SIZES[neurons].input_nonzeros
    assert features.n_features == 60000
    assert is_official
    assert hashlib.sha256(features.indices).hexdigest() == INDEX_DIGESTS[neurons]


def test_the_1024_inputs_take_under_15_seconds(training_images):
    started = time.perf_counter()
    mnist_features(training_images, 1024)
    assert time.perf_counter() - started < 15


@pytest.mark.slow
def test_65536_neurons_take_under_3_gigabytes(training_images, tmp_path):
    """In a process of its own, whose peak is its own."""
    code = (
        "import pathlib, sys; from spdnn.machine.memory import peak_bytes; "
        "from spdnn.recipes.mnist import mnist_features; "
        "mnist_features(pathlib.Path(sys.argv[1]), 65536); "
        "print(peak_bytes())"
    )
    command = [sys.executable, "-c", code, str(training_images)]
    peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(peak) < 3e9


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


def test_the_memory_asked_for_at_65536_neurons_is_under_3_gigabytes():
    assert needed_bytes(60000, 28, 256, 60000) < 3e9


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
