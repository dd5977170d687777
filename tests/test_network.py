"""Layers and networks check themselves when they are made."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spdnn import DataError, Layer, Network
from spdnn.network import LayerSequence
from tests.makers import dyadic_network


def test_weights_of_any_kind_become_canonical_float32_csr() -> None:
    dense = np.array([[0, 2.5], [1, 0], [0, 0]])
    unsorted = sp.csr_array((np.array([1.0, 2.0]), np.array([1, 0]), np.array([0, 2])), (1, 2))
    for weights, expected in (
        (dense, dense),
        (dense.tolist(), dense),
        (sp.coo_array(dense), dense),
        (sp.csc_matrix(dense), dense),
        (unsorted, [[2.0, 1.0]]),
    ):
        layer = Layer(weights)
        assert isinstance(layer.weights, sp.csr_array)
        assert layer.weights.dtype == np.float32
        assert layer.weights.has_canonical_format
        np.testing.assert_array_equal(layer.weights.toarray(), expected)


def test_a_layer_counts_inputs_outputs_and_stored_zeros_as_edges() -> None:
    layer = Layer(sp.csr_array(([0.0, 1.0], ([0, 2], [1, 0])), shape=(3, 2)))
    assert (layer.n_inputs, layer.n_outputs, layer.n_edges) == (3, 2, 2)


def test_weights_that_were_given_stay_as_they_were() -> None:
    weights = sp.csr_array((np.ones(2, np.float32), np.array([1, 0]), np.array([0, 2])), (1, 2))
    Layer(weights)
    assert weights.indices.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (sp.coo_array(([1.0, 1.0], ([0, 0], [1, 1]))).tocsr(), None),  # scipy adds them itself
        (sp.csr_array(([1.0, 1.0], [1, 1], [0, 2]), shape=(1, 2)), "1 edges .* stored twice"),
        ([[np.nan]], "NaN or infinite"),
        ([[-np.inf]], "NaN or infinite"),
        ([[1e300]], "NaN or infinite"),
        ([1.0, 2.0], "must be a matrix"),
        ("weights", "must be a matrix of numbers"),
        ([["a", "b"]], "must be a matrix of numbers"),
        (sp.csr_array(([1.0], [5], [0, 1]), shape=(1, 2)), "outside of its 2 outputs"),
    ],
)
def test_weights_that_are_no_layer_are_refused(weights: object, message: str | None) -> None:
    if message is None:
        assert Layer(weights).n_edges == 1
    else:
        with pytest.raises(DataError, match=message):
            Layer(weights)


@pytest.mark.parametrize("bias", [np.nan, np.inf, 1e39, [0.0, -np.inf]])
def test_a_bias_that_is_not_finite_is_refused(bias: object) -> None:
    with pytest.raises(DataError, match="bias of the layer is NaN or infinite"):
        Layer(np.eye(2), bias)


@pytest.mark.parametrize("bias", [[1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]]])
def test_a_bias_of_another_length_is_refused(bias: object) -> None:
    with pytest.raises(DataError, match="does not fit a layer of 2 outputs"):
        Layer(np.eye(2), bias)


@pytest.mark.parametrize("ymax", [0.0, -1.0, np.nan, np.inf, 1e-60, 1e60])
def test_a_cap_that_float32_cannot_hold_or_that_leaves_nothing_is_refused(ymax: float) -> None:
    with pytest.raises(DataError, match="ymax must be a positive number"):
        Layer(np.eye(2), ymax=ymax)


def test_the_cap_is_rounded_like_all_numbers() -> None:
    assert Layer(np.eye(2), ymax=0.1).ymax == np.float32(0.1)


def test_a_linear_layer_has_no_cap() -> None:
    with pytest.raises(DataError, match="linear layer has no cap"):
        Layer(np.eye(2), ymax=1.0, activation="linear")


def test_unknown_words_are_refused_with_the_known_ones() -> None:
    with pytest.raises(DataError, match="'tanh': relu or linear"):
        Layer(np.eye(2), activation="tanh")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'never': nonzero or always"):
        Layer(np.eye(2), bias_rule="never")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bias", "activation", "rule", "needs_test", "keeps_zero"),
    [
        (-0.5, "relu", "nonzero", False, True),
        (0.5, "relu", "nonzero", True, True),
        ([-0.5, 0.5], "relu", "nonzero", True, True),
        (-0.5, "linear", "nonzero", True, True),
        (0.0, "linear", "nonzero", False, True),
        (-0.5, "relu", "always", False, True),
        (0.5, "relu", "always", False, False),
        ([-0.5, 0.5], "relu", "always", False, False),
        (-0.5, "linear", "always", False, False),
        (0.0, "linear", "always", False, True),
    ],
)
def test_a_layer_knows_where_the_bias_rules_differ_and_whether_zeros_stay(
    bias: object, activation: str, rule: str, needs_test: bool, keeps_zero: bool
) -> None:
    layer = Layer(np.eye(2), bias, None, activation, rule)  # type: ignore[arg-type]
    assert layer.needs_nonzero_test is needs_test
    assert layer.maps_zero_to_zero is keeps_zero


@pytest.mark.parametrize("rule", ["nonzero", "always"])
@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_a_layer_without_outputs_keeps_zeros(activation: str, rule: str) -> None:
    layer = Layer(sp.csr_array((3, 0)), np.zeros(0), None, activation, rule)  # type: ignore[arg-type]
    assert not layer.needs_nonzero_test
    assert layer.maps_zero_to_zero


def test_a_network_tells_its_sizes() -> None:
    network = Network([Layer(np.ones((3, 7))), Layer(np.ones((7, 2)))], "two")
    assert (network.n_layers, network.n_inputs, network.n_outputs) == (2, 3, 2)
    assert network.max_width == 7
    assert network.layer_edges == (21, 14)
    assert network.n_edges == 35
    assert repr(network) == "Network('two': 2 layers, 3 inputs, 2 outputs, 35 edges)"


def test_edges_are_counted_beyond_32_bits() -> None:
    class Many(LayerSequence):
        shapes = ((65536, 65536),) * 1920
        edges = (65536 * 32,) * 1920

        def layer(self, index: int) -> Layer:
            raise AssertionError("counting needs no layer")

    assert Network(Many()).n_edges == 4_026_531_840


def test_layers_that_do_not_chain_are_refused_by_their_numbers() -> None:
    with pytest.raises(DataError, match="net: layer 3 takes 4 inputs, but layer 2 has 5 outputs"):
        Network([Layer(np.ones(shape)) for shape in ((2, 3), (3, 5), (4, 1))], "net")


def test_a_network_without_layers_is_refused() -> None:
    with pytest.raises(DataError, match="at least one layer"):
        Network([])


class Made(LayerSequence):
    """Layers made when they are asked for; remembers which were."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.shapes = [(layer.n_inputs, layer.n_outputs) for layer in layers]
        self.edges = [layer.n_edges for layer in layers]
        self.asked: list[int] = []

    def layer(self, index: int) -> Layer:
        self.asked.append(index)
        return self.layers[index]


@given(st.integers(1, 9), st.data())
def test_a_sequence_of_made_layers_is_indexed_and_sliced_like_a_list(
    n: int, data: st.DataObject
) -> None:
    layers = [Layer(np.eye(2)) for _ in range(n)]
    made = Made(layers)
    bounds = st.none() | st.integers(-n - 2, n + 2)
    cut = slice(data.draw(bounds), data.draw(bounds), data.draw(st.sampled_from([None, 2, -1])))
    assert list(made[cut]) == layers[cut]
    assert len(made[cut]) == len(layers[cut])
    index = data.draw(st.integers(-n, n - 1))
    assert made[index] is layers[index]
    with pytest.raises(IndexError):
        made[n]


def test_a_network_of_made_layers_makes_none_until_asked() -> None:
    made = Made(list(dyadic_network(1, [4, 5, 6, 3], ["full"] * 3).layers))
    network = Network(made[:2])
    assert network.shapes == ((4, 5), (5, 6))
    assert made.asked == []
    assert network.layers[-1] is made.layers[1]
    assert made.asked == [1]
