"""The tables of formats, and the public functions that write by them: exact round trips, errors."""

import errno
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spdnn
from spdnn import DataError, DeviceError, Features, Layer, Network
from spdnn.cli.main import main
from spdnn.io import formats
from spdnn.io.formats import FEATURE_FORMATS, NETWORK_FORMATS, target_format
from spdnn.machine import memory
from spdnn.recipes.radixnet import official_network
from tests.makers import (
    dyadic_cases,
    dyadic_features,
    same_features,
    same_layers,
    small_network,
    trained_network,
    trained_networks,
)

ARCHIVES = ("net.tar.gz", "net.tgz", "net.tar")
INPUTS = ("f.spdnn", "f.npz", "f.npy", "f.tsv", "f.tsv.gz")

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


@st.composite
def layered(draw: st.DrawFn) -> tuple[Network, float]:
    """A network that layer files can hold, and the one bias of its neurons."""
    neurons = draw(st.integers(1, 12))
    bias = draw(st.floats(-2, 2, width=32))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        dense = rng.normal(size=(neurons, neurons)) * (rng.random((neurons, neurons)) < 0.4)
        layers.append(Layer(dense, bias, 32.0))
    return Network(layers), bias


@given(dyadic_cases(always=True))
def test_a_store_holds_any_network(case: tuple[Network, Features]) -> None:
    spdnn.write_network("net.spdnn", case[0])
    assert same_layers(spdnn.read_network("net.spdnn"), case[0])


@pytest.mark.parametrize("name", ["net.spdnn", "net.onnx", "net.safetensors", "folder"])
@given(trained_networks)
def test_a_trained_network_comes_back_as_it_was_written(name: str, network: Network) -> None:
    remove(Path(name))
    spdnn.write_network(Path(name), network)
    assert same_layers(spdnn.read_network(name), network)


@pytest.mark.parametrize("name", [*ARCHIVES, "folder"])
@given(layered())
def test_layer_files_come_back_as_they_were_written(name: str, case: tuple[Network, float]) -> None:
    network, bias = case
    remove(Path(name))
    spdnn.write_network(name, network, format="tsv")
    read = spdnn.read_network(name, network.n_inputs, network.n_layers, bias=bias)
    assert same_layers(read, network)


def test_an_official_network_comes_back_from_an_archive_as_an_official_one() -> None:
    network = official_network(1024, 2)
    spdnn.write_network("net.tar.gz", network)
    assert same_layers(spdnn.read_network("net.tar.gz", 1024, 2), network)
    with tarfile.open("net.tar.gz") as archive:
        assert archive.getnames() == ["neuron1024/n1024-l1.tsv", "neuron1024/n1024-l2.tsv"]


def test_equal_networks_make_equal_archives() -> None:
    for name in ("one.tar.gz", "two.tar.gz"):
        spdnn.write_network(name, small_network())
    assert Path("one.tar.gz").read_bytes() == Path("two.tar.gz").read_bytes()


@pytest.mark.parametrize("name", INPUTS)
@given(dyadic_cases())
def test_features_come_back_as_they_were_written(name: str, case: tuple[Network, Features]) -> None:
    features = case[1]
    spdnn.write_features(name, features)
    read = spdnn.read_features(name, features.n_neurons)
    assert same_features(read, features)
    assert read.n_features == features.n_features


@pytest.mark.parametrize("name", INPUTS)
@given(st.lists(st.lists(floats, min_size=4, max_size=4), min_size=1, max_size=5))
def test_values_of_features_come_back_bit_by_bit(name: str, rows: list[list[float]]) -> None:
    features = Features.from_matrix(np.array(rows, dtype=np.float32))
    spdnn.write_features(name, features)
    read = spdnn.read_features(name, 4)
    np.testing.assert_array_equal(read.to_csr(np.float32).toarray(), rows)


@pytest.mark.parametrize("name", INPUTS)
def test_a_part_of_features_is_written_as_it_is(name: str) -> None:
    features = dyadic_features(1, 30, 9)
    spdnn.write_features(name, features.part(5, 17))
    assert same_features(spdnn.read_features(name, 9), features.part(5, 17))


@pytest.mark.parametrize(
    ("layer", "fact"),
    [
        (Layer(np.eye(2), -1, 6.0), "that it has a cap of 6, not of 32"),
        (Layer(np.eye(2), -1), "that it has no cap, not of 32"),
        (Layer(np.eye(2), -1, activation="linear"), "that it is linear, not relu"),
        (Layer(np.eye(2), [-1, -2], 32.0), "that its bias is not -1 for all neurons"),
        (Layer(np.eye(2), -2, 32.0), "that its bias is not -1 for all neurons"),
        (Layer(np.eye(2, 3), -1, 32.0), "that it is 2 x 3, not 2 x 2"),
    ],
)
@pytest.mark.parametrize("name", ["net.tar.gz", "folder"])
def test_a_network_that_layer_files_cannot_hold_is_not_written(
    name: str, layer: Layer, fact: str
) -> None:
    network = Network([Layer(np.eye(2), -1, 32.0), layer])
    with pytest.raises(DataError, match=f"^layer 2: layer files cannot say {fact}; write a store$"):
        spdnn.write_network(name, network, format="tsv")
    assert list(Path().iterdir()) == []


def test_layer_files_cannot_say_that_a_bias_is_added_everywhere() -> None:
    layer = Layer(np.eye(2), 1, 32.0, bias_rule="always")
    with pytest.raises(DataError, match="cannot say that its bias is added where the sum is zero"):
        spdnn.write_network("net.tar", Network([layer]))


def test_layer_files_of_an_official_size_have_the_official_bias() -> None:
    with pytest.raises(DataError, match=r"its bias is not -0\.3 for all neurons"):
        spdnn.write_network("net.tar", official_network(1024, 1, bias=-0.5))


def test_caps_are_not_lost_in_a_state_dict() -> None:
    with pytest.raises(DataError, match=r"^layer 1: safetensors cannot say a cap of 32"):
        spdnn.write_network("net.safetensors", small_network())
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("name", ["net.npz", "net.pt", "net.spdnn.zip", "net.v2"])
def test_the_ending_of_a_network_says_what_to_write(name: str) -> None:
    kinds = r"\*\.spdnn, \*\.onnx, \*\.safetensors, no ending, \*\.tar\.gz, \*\.tgz, \*\.tar"
    with pytest.raises(DataError, match=f"^{name}: the ending of its name says .*: {kinds}$"):
        spdnn.write_network(name, trained_network())


@pytest.mark.parametrize("name", ["f.onnx", "f", "f.gz"])
def test_the_ending_of_features_says_what_to_write(name: str) -> None:
    kinds = r"\*\.spdnn, \*\.npz, \*\.npy, \*\.tsv, \*\.tsv\.gz"
    with pytest.raises(DataError, match=f"^{name}: the ending of its name says .*: {kinds}$"):
        spdnn.write_features(name, dyadic_features(1, 3, 4))


def test_a_format_and_the_ending_must_agree() -> None:
    with pytest.raises(DataError, match=r"^f\.npz: the ending .* what to write: \*\.spdnn$"):
        spdnn.write_features("f.npz", dyadic_features(1, 3, 4), format="store")


def test_an_unknown_format_is_told_with_the_known_ones() -> None:
    known = "store, onnx, safetensors, npz, tsv"
    with pytest.raises(DataError, match=f"^net: unknown format 'torch' to write: {known}$"):
        spdnn.write_network("net", trained_network(), format="torch")


@pytest.mark.parametrize("name", [".spdnn", ".npz", "folder", "a.b/folder"])
def test_a_name_without_an_ending_is_a_folder(name: str) -> None:
    assert target_format(NETWORK_FORMATS, Path(name)).name == "npz"


def test_a_folder_that_is_there_is_not_touched() -> None:
    Path("folder").mkdir()
    for form in ("npz", "tsv"):
        with pytest.raises(DataError, match=r"^cannot write folder: it is there already"):
            spdnn.write_network("folder", Network([Layer(np.eye(2), activation="linear")]),
                                format=form)  # fmt: skip
    assert list(Path("folder").iterdir()) == []


NETWORK_TARGETS = ("net.spdnn", "net.onnx", "net.safetensors", "folder", *ARCHIVES)


def write(name: str, network: Network, features: Features) -> None:
    """Write what a name stands for."""
    if name in INPUTS:
        spdnn.write_features(name, features)
    else:
        spdnn.write_network(name, network)


@pytest.mark.parametrize("name", [*NETWORK_TARGETS, *INPUTS])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", no_room)
    is_text = name.startswith("net.t")  # of which trained networks are not written
    with pytest.raises(DataError, match=f"^cannot write {name}: No space left on device$"):
        write(name, small_network() if is_text else trained_network(), dyadic_features(1, 3, 4))
    assert list(Path().iterdir()) == []


def test_a_dense_matrix_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    with pytest.raises(DeviceError, match=r"^f\.npy: all values with the zeros needs"):
        spdnn.write_features("f.npy", dyadic_features(1, 30, 9))
    assert not Path("f.npy").exists()


@pytest.mark.parametrize("table", [NETWORK_FORMATS, FEATURE_FORMATS])
def test_every_written_file_is_read_as_the_format_it_is_written_in(table: Any) -> None:
    find: Any = formats.network_format if table is NETWORK_FORMATS else formats.feature_format
    for each in table:
        for ending in filter(None, each.written):
            assert find(Path(f"name{ending}")) is each
            assert target_format(table, Path(f"name{ending}")) is each


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar"])
def test_weights_are_converted_to_an_archive_of_layer_files(ending: str) -> None:
    network = official_network(1024, 6)
    spdnn.write_network("net.spdnn", network)
    target = f"net{ending}"
    assert main(["data", "convert", "--weights", "net.spdnn", target]) == 0
    assert same_layers(spdnn.read_network(target, 1024, 6), network)


@pytest.mark.parametrize("target", ["g.npy", "g.tsv", "g.tsv.gz"])
def test_inputs_are_converted_to_every_format(target: str) -> None:
    features = dyadic_features(3, 20, 9)
    spdnn.write_features("f.spdnn", features)
    assert main(["data", "convert", "--inputs", "f.spdnn", target]) == 0
    assert same_features(spdnn.read_features(target, 9), features)
