import errno
import os

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.io.files import whole_file, whole_folder
from spdnn.io.triples import parse_triples, triples_to_csr
from spdnn.io.tsv import read_inputs, read_layers
from spdnn.io.tsv_writer import layer_text, write_inputs, write_layers
from spdnn.network import Layer, Network
from spdnn.recipes.radixnet import official_network


def test_lines_ascend_by_output_then_input_and_count_from_1():
    weights = sp.csr_array(np.array([[0, 0.0625], [0.0625, 0.0625]], dtype=np.float32))
    assert layer_text(weights) == (b"2\t1\t6.250000e-02\n1\t2\t6.250000e-02\n2\t2\t6.250000e-02\n")


def test_a_layer_without_edges_is_one_newline_and_reads_back(tmp_path):
    empty = sp.csr_array((8, 8), dtype=np.float32)
    write_layers(tmp_path / "neuron8", Network([Layer(empty, 0.5, 32.0)]))
    assert (tmp_path / "neuron8" / "n8-l1.tsv").read_bytes() == b"\n"
    assert read_layers(tmp_path, 8, 1, Layer).n_edges == 0


@pytest.mark.parametrize(("n_features", "text"), [(0, b"\n"), (3, b"3\t1\t0\n")])
def test_inputs_that_are_all_zero_read_back(tmp_path, n_features, text):
    write_inputs(tmp_path / "f.tsv", Features.from_matrix(np.zeros((n_features, 8))))
    assert (tmp_path / "f.tsv").read_bytes() == text
    assert read_inputs(tmp_path / "f.tsv", 8).n_features == n_features


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(values=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=3, max_size=3))
def test_what_is_written_reads_back_exactly(values):
    weights = sp.csr_array(np.array(values, dtype=np.float32))
    text = layer_text(weights)
    read = triples_to_csr(parse_triples(text, "text"), text, "text", (3, 3), ("input", "output"))
    assert np.array_equal(read.toarray(), weights.toarray())


def test_layers_read_back_as_they_were(tmp_path):
    network = official_network(64, 5, bias=-0.3)
    seen = []
    write_layers(tmp_path / "neuron64", network, seen.append)
    read = read_layers(tmp_path, 64, 5, Layer)
    for written, back in zip(network.layers, read.layers, strict=True):
        assert np.array_equal(written.weights.indices, back.weights.indices)
    assert seen[-1] == 1


def test_inputs_read_back_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr("spdnn.io.tsv_writer.BLOCK_LINES", 10)
    matrix = np.random.default_rng(1).random((20, 16)) < 0.3
    matrix[-1, 3] = True
    features = Features.from_matrix(matrix)
    write_inputs(tmp_path / "inputs.tsv", features)
    back = read_inputs(tmp_path / "inputs.tsv", 16)
    assert np.array_equal(back.indices, features.indices)
    assert np.array_equal(back.indptr, features.indptr)


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    (tmp_path / "neuron64").mkdir()
    with pytest.raises(DataError, match="it is there already; remove it first"):
        write_layers(tmp_path / "neuron64", official_network(64, 1, bias=0))
    assert list(tmp_path.iterdir()) == [tmp_path / "neuron64"]


class FullDisk(Network):
    """Its second layer finds no room."""

    def __init__(self):
        super().__init__(official_network(64, 2, bias=0).layers)
        self.layers = self._layers()

    def _layers(self):
        yield official_network(64, 1, bias=0).layers[0]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_nothing_of_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"cannot write .*neuron64: No space left on device"):
        write_layers(tmp_path / "neuron64", FullDisk())
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_file_or_folder_leaves_nothing(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    def half_a_file():
        with whole_file(tmp_path / "file") as file:
            file.write(b"half")
            interrupt()

    def half_a_folder():
        with whole_folder(tmp_path / "folder") as folder:
            (folder / "file").write_bytes(b"half")
            interrupt()

    for write in (half_a_file, half_a_folder):
        with pytest.raises(KeyboardInterrupt):
            write()
    assert list(tmp_path.iterdir()) == []
