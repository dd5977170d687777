import numpy as np
import pytest

from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.io.store import write_network
from spdnn.io.tsv_writer import write_layers
from spdnn.network import Layer, Network
from spdnn.recipes.radixnet import official_network
from spdnn.sources.recipe_check import check_inputs, check_weights


@pytest.fixture
def folder(tmp_path):
    write_layers(tmp_path / "neuron1024", official_network(1024, 12))
    return tmp_path / "neuron1024"


def edit(folder, layer, line, new):
    file = folder / f"n1024-l{layer}.tsv"
    lines = file.read_text().splitlines()
    lines[line] = new
    file.write_text("\n".join(lines) + "\n")


def test_the_published_archive_equals_the_recipe(shared_data):
    check = check_weights(shared_data / "neuron1024-l1-120.tar.gz", 1024, 120)
    assert (check.n_compared, check.n_different, check.first) == (120, 0, None)


def test_layers_in_any_order_of_lines_are_equal(folder):
    file = folder / "n1024-l3.tsv"
    file.write_text("\n".join(reversed(file.read_text().splitlines())))
    assert check_weights(folder, 1024, 12).first is None


def test_another_weight_is_the_first_difference(folder):
    edit(folder, 5, 2, "65\t1\t0.5")
    # Line 3 of layer 5 held this triple's place, whichever input it named.
    check = check_weights(folder, 1024)
    assert check.n_different == 1
    assert check.first.startswith("layer 5 (")
    assert "n1024-l5.tsv" in check.first


def test_an_extra_edge_is_named(folder):
    file = folder / "n1024-l1.tsv"
    file.write_text("3\t1\t0.0625\n" + file.read_text())
    check = check_weights(folder, 1024)
    assert check.first.endswith("input 3, output 1: 0.0625, the recipe has none there")


def test_a_missing_edge_is_named(folder):
    file = folder / "n1024-l1.tsv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    check = check_weights(folder, 1024)
    assert check.first.endswith("input 1024, output 1024: missing, the recipe has 0.0625")


def test_a_changed_value_is_named(folder):
    edit(folder, 1, 0, "1\t1\t0.0626")
    check = check_weights(folder, 1024)
    assert check.first.endswith("input 1, output 1: 0.0626000017, the recipe has 0.0625")


def test_the_first_of_several_layers_is_the_one_of_the_smallest_number(folder):
    for layer in (10, 2):
        edit(folder, layer, 0, "1000\t1\t1")
    check = check_weights(folder, 1024, 12)
    assert check.n_different == 2
    assert check.first.startswith("layer 2 ")


def test_a_single_layer_file_can_be_checked(folder):
    assert check_weights(folder / "n1024-l7.tsv", 1024).n_compared == 1


def test_a_missing_layer_is_an_error_where_a_depth_is_asked_for(folder):
    (folder / "n1024-l4.tsv").unlink()
    assert check_weights(folder, 1024).n_compared == 11
    with pytest.raises(DataError, match="layer 4 of 12 is missing"):
        check_weights(folder, 1024, 12)


def test_a_folder_of_another_size_is_an_error(folder):
    with pytest.raises(DataError, match="it holds layers of 1024 neurons"):
        check_weights(folder, 4096)


def test_a_store_is_checked_with_its_bias_and_cap(tmp_path):
    path = tmp_path / "network.spdnn"
    network = official_network(1024, 3)
    write_network(path, network)
    assert check_weights(path, 1024).first is None
    layers = list(network.layers)
    layers[1] = Layer(layers[1].weights, -0.35, 32.0)
    write_network(path, Network(layers))
    check = check_weights(path, 1024)
    assert check.first == "layer 2 (network.spdnn): the bias is not -0.3, or the cap not 32.0"


def features_of(matrix):
    return Features.from_matrix(np.array(matrix))


TRUE = [[0, 1, 0, 1], [1, 0, 0, 1], [0, 0, 1, 0]]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([[0, 1, 0, 1], [1, 1, 0, 1], [0, 0, 1, 0]], "image 2, neuron 2: 1, the recipe has none"),
        ([[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0]], "image 2, neuron 4: missing, the recipe has"),
        ([[0, 1, 0, 2], [1, 0, 0, 1], [0, 0, 1, 0]], "image 1, neuron 4: 2, the recipe has 1"),
        ([[0, 1, 0, 1], [1, 0, 0, 1]], "image 3: 2 images, the recipe has 3"),
    ],
)
def test_the_first_difference_of_inputs_is_named(found, text, monkeypatch):
    monkeypatch.setattr("spdnn.sources.recipe_check.BLOCK_FEATURES", 2)
    check = check_inputs(features_of(found), features_of(TRUE))
    assert check.first.startswith(text)


def test_equal_inputs_are_equal():
    check = check_inputs(features_of(TRUE), features_of(TRUE))
    assert (check.n_compared, check.first) == (3, None)
