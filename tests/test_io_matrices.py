"""SciPy's and NumPy's files: layers and features."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from spdnn import DataError, Features, read_features, read_network
from spdnn.io import matrices
from tests.makers import same_features


def write_npz(**layers: Any) -> Path:
    folder = Path("folder")
    folder.mkdir()
    for name, weights in layers.items():
        sp.save_npz(folder / f"{name}.npz", sp.csr_array(weights))
    return folder


def test_npz_layers_follow_each_other_as_people_count() -> None:
    widths = range(2, 13)
    folder = write_npz(**{f"fc{n}": np.ones((n, n + 1)) for n in widths})
    np.save(folder / "fc3.bias.npy", [1, 2, 3, 4])
    network = read_network(folder)
    assert network.shapes == tuple((n, n + 1) for n in widths)
    assert network.layers[1].bias.tolist() == [1, 2, 3, 4]
    assert network.layers[0].bias == 0
    assert {layer.bias_rule for layer in network.layers} == {"always"}
    assert read_network(folder / "fc12.npz").shapes == ((12, 13),)


@pytest.mark.parametrize("kind", [sp.csc_array, sp.coo_array, sp.bsr_array, sp.csr_matrix])
def test_npz_layers_may_be_of_any_sparse_kind(kind: type) -> None:
    sp.save_npz("one.npz", kind(np.diag([1.0, 2.0])))
    assert read_network("one.npz").layers[0].weights.toarray().tolist() == [[1, 0], [0, 2]]


def test_a_gap_in_the_numbers_of_npz_files_is_a_missing_layer() -> None:
    folder = write_npz(**{name: np.eye(2) for name in ("w1", "w2", "w4")})
    with pytest.raises(DataError, match=r"^folder: a layer is missing: no w3\.npz, but a later"):
        read_network(folder)


def test_an_npz_layer_that_is_there_twice_is_refused_with_both_files() -> None:
    folder = write_npz(**{name: np.eye(2) for name in ("w1", "w2", "w02")})
    with pytest.raises(DataError, match="this layer is there twice, also as") as caught:
        read_network(folder)
    assert "w2.npz" in str(caught.value)
    assert "w02.npz" in str(caught.value)


def test_a_bias_whose_layer_is_not_there_is_refused() -> None:
    folder = write_npz(**{"1": np.eye(2)})
    np.save(folder / "01.bias.npy", [1, 2])
    with pytest.raises(
        DataError, match=r"01\.bias\.npy: a bias without a layer: there is no 01\.npz"
    ):
        read_network(folder)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (np.ones((4, 3)), r"\(2\.npz\): expected 3 inputs, the outputs of layer 1 \(1\.npz\), not "
         r"4; are its weights transposed\? inputs x outputs are expected"),
        (np.ones((4, 5)), r"\(2\.npz\): expected 3 inputs, .* not 4$"),
        (np.full((3, 5), np.nan), r"\(2\.npz\): a weight of the layer is NaN or infinite"),
    ],
)  # fmt: skip
def test_npz_layers_that_do_not_follow_each_other_are_named(
    second: np.ndarray, message: str
) -> None:
    folder = write_npz(**{"1": np.ones((2, 3)), "2": second})
    with pytest.raises(DataError, match=f"^folder, layer 2 {message}"):
        read_network(folder)


def test_npz_files_of_something_else_are_refused() -> None:
    np.savez("arrays.npz", np.eye(3))
    Path("text.npz").write_bytes(b"1\t1\t1\n")
    Path("cut.npz").write_bytes(Path("arrays.npz").read_bytes()[:-9])
    Path("empty.npz").write_bytes(b"")
    for name in ("arrays", "text", "cut", "empty"):
        with pytest.raises(DataError, match=rf"^{name}\.npz: not a sparse matrix as scipy"):
            read_network(f"{name}.npz")
        with pytest.raises(DataError, match=rf"^{name}\.npz: not a sparse matrix as scipy"):
            read_features(f"{name}.npz")
    with pytest.raises(DataError, match=r"^nowhere\.npz: No such file"):
        read_network("nowhere.npz")


def test_features_are_matrices_dense_or_sparse() -> None:
    dense = np.array([[0, 1.5, 0], [0, 0, 0], [2, 0, 1]])
    expected = Features.from_matrix(dense)
    np.save("f.npy", dense)
    matrices.write_features(Path("f.npz"), expected)
    for name in ("f.npy", "f.npz"):
        assert same_features(read_features(name), expected)
        assert same_features(read_features(name, 3, 2), expected.part(0, 2))
        with pytest.raises(DataError, match=f"^{name}: features of 3 neurons, not of 4$"):
            read_features(name, 4)
    np.save("g.npy", np.array([[0, 255]], np.uint8))
    assert read_features("g.npy").values.tolist() == [255]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(3), r"features must be a matrix, not of shape \(3,\)"),
        (np.array([[1, np.inf]]), "a value is NaN or infinite"),
        (np.array([["a"]]), "not an array of numbers"),
        (np.array([{}], dtype=object), "not an array of numbers"),
    ],
)
def test_arrays_that_are_no_features_are_refused(array: np.ndarray, message: str) -> None:
    np.save("f.npy", array)
    with pytest.raises(DataError, match=rf"^f\.npy: .*{message}"):
        read_features("f.npy")


def test_matrices_of_complex_numbers_are_refused() -> None:
    sp.save_npz("f.npz", sp.csr_array([[1j]]))
    np.save("f.npy", [[1j]])
    for name in ("f.npz", "f.npy"):
        with pytest.raises(DataError, match=f"^{name}: not a"):
            read_features(name)
