import hashlib
import itertools
import tarfile
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spdnn.errors import DataError
from spdnn.io.tsv import read_layers
from spdnn.io.tsv_writer import layer_text
from spdnn.network import Layer, Network
from spdnn.recipes.radixnet import (
    SEED,
    RadixLayers,
    Weights,
    equals_recipe,
    layers_per_group,
    official_network,
    radix_network,
)


def test_all_published_layers_of_1024_neurons_are_the_recipe_byte_for_byte(shared_data):
    network = official_network(1024, 120)
    n_compared = 0
    with tarfile.open(shared_data / "neuron1024-l1-120.tar.gz") as archive:
        for member in archive:
            number = int(member.name.split("-l")[1].removesuffix(".tsv"))
            text = layer_text(network.layers[number - 1].weights)
            assert archive.extractfile(member).read() == text, member.name
            n_compared += 1
    assert n_compared == 120


def test_the_published_archive_equals_the_recipe_as_matrices(shared_data):
    network = read_layers(shared_data / "neuron1024-l1-120.tar.gz", 1024, 120, Layer)
    assert equals_recipe(network)


def test_one_other_weight_is_not_the_recipe():
    layers = list(official_network(1024, 6).layers)
    assert equals_recipe(Network(layers))
    weights = layers[4].weights.copy()
    weights.data = weights.data.copy()
    weights.data[7] = 0.125
    layers[4] = Layer(weights, layers[4].bias, layers[4].ymax)
    assert not equals_recipe(Network(layers))


@pytest.mark.parametrize("neurons", [1024, 4096, 16384, 65536])
def test_every_official_layer_has_32_edges_of_one_sixteenth_a_neuron_on_both_sides(neurons):
    group = layers_per_group(neurons)
    network = official_network(neurons, 120)
    for index in (0, group - 1, group, 119):
        weights = network.layers[index].weights
        assert weights.has_canonical_format
        assert (np.diff(weights.indptr) == 32).all()
        assert (np.bincount(weights.indices, minlength=neurons) == 32).all()
        assert (weights.data == 1 / 16).all()


def test_official_depths_are_whole_groups():
    for neurons, depth in itertools.product((1024, 4096, 16384, 65536), (120, 480, 1920)):
        assert depth % layers_per_group(neurons) == 0


def test_a_shallow_official_network_is_the_beginning_of_a_deep_one():
    shallow, deep = official_network(1024, 20), official_network(1024, 120)
    for index in range(20):
        pair = shallow.layers[index].weights, deep.layers[index].weights
        assert np.array_equal(pair[0].indices, pair[1].indices)


def test_1920_layers_of_1024_neurons_take_under_3_seconds():
    started = time.process_time()
    network = official_network(1024, 1920)
    n_edges = sum(layer.n_edges for layer in network.layers)
    assert time.process_time() - started < 3
    assert n_edges == network.n_edges == 1920 * 32 * 1024


@pytest.mark.parametrize(
    ("neurons", "layers", "message"),
    [(1000, 120, "no network of 1000"), (1024, 0, "at least one layer"), (64, 1, "bias")],
)
def test_what_is_no_official_network_is_refused(neurons, layers, message):
    with pytest.raises(DataError, match=message):
        official_network(neurons, layers)


def test_the_official_network_is_a_special_case():
    radices = [[2] * 6] * 3
    general = radix_network(radices, 16, Weights("constant", 1 / 16), seed=SEED, shuffle=True)
    for made, official in zip(general.layers, official_network(1024, 18).layers, strict=True):
        assert np.array_equal(made.weights.indices, official.weights.indices)
        assert np.array_equal(made.weights.data, official.weights.data)


def shift(units: int, step: int) -> np.ndarray:
    """The cyclic permutation that makes output j take input j + step."""
    return np.roll(np.eye(units), step, axis=0)


def test_a_layer_is_the_papers_sum_of_cyclic_shifts_times_a_block_of_ones():
    network = radix_network([[2, 3], [3, 2]], widths=[1, 2, 3, 2, 1])
    places = [(2, 1), (3, 2), (3, 1), (2, 3)]  # radix, and the product of those before it
    for number, (radix, place) in enumerate(places):
        base = sum(shift(6, n * place) for n in range(radix))
        ones = np.ones((network.shapes[number][0] // 6, network.shapes[number][1] // 6))
        assert np.array_equal(network.layers[number].weights.toarray(), np.kron(ones, base))


systems = st.lists(
    st.sampled_from([[2, 2, 3], [3, 4], [12], [4, 3], [2, 6]]), min_size=1, max_size=3
)


@given(systems=systems, widths=st.integers(1, 3), shuffle=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_input_reaches_every_output_by_equally_many_paths(systems, widths, shuffle, seed):
    """The paper's theorem, section III: symmetry."""
    network = radix_network(systems, widths, seed=seed, shuffle=shuffle)
    paths = np.eye(network.n_inputs)
    for layer in network.layers:
        paths = paths @ layer.weights.toarray()
    assert (paths == paths[0, 0]).all()
    assert paths[0, 0] > 0


def test_the_last_system_may_divide_the_others():
    network = radix_network([[2, 2, 2], [4]])
    assert network.shapes == ((8, 8),) * 4
    assert network.layer_edges == (16, 16, 16, 32)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_random_weights_depend_on_the_seed_and_the_layer_only(kind):
    rule = Weights(kind, -0.5, 0.5)
    a, b = (radix_network([[4, 4]], 4, rule, seed=3) for _ in range(2))
    b.layers[0]
    assert np.array_equal(a.layers[1].weights.data, b.layers[1].weights.data)
    other = radix_network([[4, 4]], 4, rule, seed=4)
    assert not np.array_equal(a.layers[1].weights.data, other.layers[1].weights.data)
    assert not np.array_equal(a.layers[0].weights.data, a.layers[1].weights.data)


def test_random_weights_have_their_distribution():
    uniform = radix_network([[8, 8]], 16, Weights("uniform", -1, 3)).layers[0].weights.data
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    assert uniform.mean() == pytest.approx(1, abs=0.05)
    normal = radix_network([[8, 8]], 16, Weights("normal", 2, 0.5)).layers[0].weights.data
    assert normal.mean() == pytest.approx(2, abs=0.02)
    assert normal.std() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("radices", "widths", "message"),
    [
        ([], 1, "at least one system"),
        ([[]], 1, "at least one system"),
        ([[2, 1]], 1, "at least 2, not 1"),
        ([[2, 2], [3], [4]], 1, "system 2 has the product 3"),
        ([[2, 2], [8]], 1, "system 2 has the product 8"),
        ([[2, 2]], [1, 2], "2 layers need 3 widths"),
        ([[2, 2]], [1, 0, 1], "at least 1, not 0"),
        ([[2, 2]], 2**15, "edges"),
    ],
)
def test_systems_that_do_not_fit_together_are_refused(radices, widths, message):
    with pytest.raises(DataError, match=message):
        radix_network(radices, widths)


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [("uniform", 2, 1), ("normal", 0, -1), ("constant", float("nan"), 0), ("cauchy", 0, 1)],
)
def test_weights_that_cannot_be_are_refused(kind, first, second):
    with pytest.raises(DataError):
        Weights(kind, first, second)


def test_the_recipe_does_not_change_unnoticed():
    """Sizes whose files are not at hand: as they were when their categories came out right."""
    digest = hashlib.sha256()
    for neurons in (4096, 16384):
        for index in (0, 11, 119):
            digest.update(official_network(neurons, 120).layers[index].weights.indices.tobytes())
    assert digest.hexdigest() == "9fcf99ddcc93d9ff2ebe84802ef2decc3bfd1dd38fef42afe641e47d72f24c7d"


def test_permutations_are_made_with_the_first_layer_and_not_for_a_fingerprint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("permutations were made")

    monkeypatch.setattr(RadixLayers, "_permutations", refuse)
    network = official_network(64, 4, -0.3)
    shuffled, plain = (
        radix_network([[2, 2], [2, 2]], 16, shuffle=shuffle).fingerprint
        for shuffle in (True, False)
    )
    assert shuffled != plain
    assert network.fingerprint
    with pytest.raises(AssertionError, match="permutations were made"):
        network.layers[0]
