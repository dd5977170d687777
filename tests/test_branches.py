"""Fused branches: each gives the bits that it gives alone; what does not fit is one line."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from spdnn import DataError, Features, Layer, Network, fuse, infer, predict
from spdnn.network import Activation, BiasRule
from tests.makers import (
    PATTERNS,
    dyadic_features,
    dyadic_network,
    edge_pattern,
    same_layers,
    trained_network,
)

Rule = tuple[float | None, Activation, BiasRule]

CAPS = (None, 0.7, 1.3)
BIAS_RULES: tuple[BiasRule, ...] = ("nonzero", "always")


def branch(rng: np.random.Generator, n_inputs: int, rules: list[Rule], pattern: str) -> Network:
    """Layers of any weights and biases, of random widths, with such rules."""
    layers = []
    for rule in rules:
        n_outputs = int(rng.integers(1, 30))
        mask = edge_pattern(rng, pattern, n_inputs, n_outputs)
        weights = sp.csr_array(mask * rng.normal(size=mask.shape))
        layers.append(Layer(weights, rng.normal(size=n_outputs) * 0.3, *rule))
        n_inputs = n_outputs
    return Network(layers, "branch")


@st.composite
def branches_and_features(draw: st.DrawFn) -> tuple[list[Network], Features]:
    """One to four branches, of which some lack a relu layer behind one with the same cap."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_layers = draw(st.integers(1, 5))
    cap = draw(st.sampled_from(CAPS))
    rules: list[Rule] = [(cap, "relu", draw(st.sampled_from(BIAS_RULES))) for _ in range(n_layers)]
    if draw(st.booleans()):
        rules[-1] = (None, "linear", rules[-1][2])
    n_inputs = draw(st.integers(1, 20))
    branches = []
    for number in range(draw(st.integers(1, 4))):
        n_relu = sum(activation == "relu" for _, activation, _ in rules)
        n_kept = draw(st.integers(1, n_relu)) if number and n_relu else n_relu
        own = rules[:n_kept] + rules[n_relu:]
        branches.append(branch(rng, n_inputs, own, draw(st.sampled_from(PATTERNS))))
    n_features = draw(st.sampled_from([1, 15, 17, 70]))
    dense = rng.random((n_features, n_inputs)) * (rng.random((n_features, n_inputs)) < 0.4)
    if draw(st.booleans()):
        dense = np.ceil(dense)
    return branches, Features.from_matrix(dense)


def outputs(network: Network, features: Features, engine: str) -> np.ndarray:
    """Activations of all features in mode edges."""
    return predict(network, features, engine=engine, mode="edges").scores


def bits(activations: np.ndarray) -> np.ndarray:
    """Numbers as whole numbers, so that 0.0 is not -0.0."""
    return activations.view(np.uint32 if activations.dtype == np.float32 else np.uint64)


@pytest.mark.parametrize("engine", ["cpu", "scipy"])
@given(branches_and_features())
def test_every_branch_has_the_bits_that_it_has_alone(
    engine: str, case: tuple[list[Network], Features]
) -> None:
    branches, features = case
    fused = fuse(branches)
    assert fused.n_layers == max(each.n_layers for each in branches)
    alone = np.hstack([outputs(each, features, engine) for each in branches])
    np.testing.assert_array_equal(bits(outputs(fused, features, engine)), bits(alone))


@given(branches_and_features())
def test_summed_branches_are_their_outputs_added_up(case: tuple[list[Network], Features]) -> None:
    branches, features = case
    n_outputs = min(each.n_outputs for each in branches)
    cut = []
    for each in branches:
        last = each.layers[-1]
        rest = (last.ymax, last.activation, last.bias_rule)
        kept = Layer(last.weights[:, :n_outputs], last.bias[:n_outputs], *rest)
        cut.append(Network([*each.layers[:-1], kept]))
    fused = fuse(cut, "sum")
    expected = sum(outputs(each, features, "scipy") for each in cut)
    for engine in ("scipy", "cpu"):
        found = outputs(fused, features, engine)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4),
    st.sampled_from(PATTERNS),
    st.sampled_from([2, 17, 40]),
)
def test_categories_of_mode_merge_are_those_of_any_branch(
    seeds: list[int], pattern: str, n_features: int
) -> None:
    layers = [dyadic_network(seed, [12, 20, 9], [pattern] * 2).layers for seed in seeds]
    branches = [Network([Layer(each.weights, each.bias, 4.0) for each in own]) for own in layers]
    features = dyadic_features(seeds[0], n_features, 12, "binary")
    fused = infer(fuse(branches), features, engine="cpu", mode="merge").categories
    alone = [infer(each, features, engine="cpu", mode="merge").categories for each in branches]
    np.testing.assert_array_equal(fused, np.unique(np.concatenate(alone)))


def test_one_branch_is_itself() -> None:
    network = trained_network(3)
    assert same_layers(fuse([network]), network)
    assert same_layers(fuse([network], "sum"), network)


def test_linear_last_layers_are_stacked_with_their_biases_added_up() -> None:
    branches = [trained_network(seed, [7, width, 3]) for seed, width in ((1, 5), (2, 4))]
    fused = fuse(branches, "sum", name="both")
    assert (fused.name, fused.shapes) == ("both", ((7, 9), (9, 3)))
    first, second = (each.layers[-1] for each in branches)
    expected = np.vstack([first.weights.toarray(), second.weights.toarray()])
    np.testing.assert_array_equal(fused.layers[-1].weights.toarray(), expected)
    np.testing.assert_array_equal(fused.layers[-1].bias, first.bias + second.bias)


@pytest.mark.parametrize("rest", [{"ymax": 2.0}, {"activation": "linear", "bias_rule": "nonzero"}])
def test_outputs_that_must_be_whole_are_added_by_a_layer_more(rest: dict[str, Any]) -> None:
    layers = [Layer(weight * np.eye(2), -1.0, **rest) for weight in (1, 3)]
    fused = fuse(layers, "sum")
    assert fused.shapes == ((2, 4), (4, 2))
    scores = predict(fused, Features.from_matrix([[1, 0], [0, 2]]), engine="scipy").scores
    np.testing.assert_array_equal(scores, [[2, 0], [0, 3 if "ymax" in rest else 6]])


def test_layers_side_by_side_are_a_part_of_a_longer_network() -> None:
    one, other, behind = Layer(np.eye(3)), Layer(2 * np.ones((3, 2))), Layer(np.ones((5, 1)))
    network = Network([*fuse([one, other]).layers, behind])
    features = Features.from_matrix([[1, 0, 3]])
    np.testing.assert_array_equal(predict(network, features, engine="scipy").scores, [[4 + 16]])


def identities(network: Network) -> list[int]:
    """Which layers pass something on: how many neurons each, by edges of weight 1 without bias."""
    return [
        int(np.count_nonzero((layer.weights.data == 1) & (layer.bias[layer.weights.indices] == 0)))
        for layer in network.layers
    ]


def chain(*layers: tuple[int, Rule], n_inputs: int = 3, name: str = "own") -> Network:
    """Layers of so many outputs with a rule each; no weight is 1, no bias is 0."""
    made = []
    for n_outputs, (ymax, activation, bias_rule) in layers:
        weights = np.full((n_inputs, n_outputs), 0.5)
        bias = np.full(n_outputs, 0.25)
        made.append(Layer(weights, bias, ymax, activation, bias_rule))
        n_inputs = n_outputs
    return Network(made, name)


RELU: Rule = (None, "relu", "always")
CAP_1: Rule = (1.0, "relu", "always")
CAP_2: Rule = (2.0, "relu", "always")
LINEAR: Rule = (None, "linear", "always")


@pytest.mark.parametrize(
    ("rules", "shallow", "expected"),
    [
        # Behind its first layer, its second, its first: where it is narrowest.
        ([RELU] * 4, [(2, RELU), (5, RELU), (6, RELU)], [0, 2, 0, 0]),
        ([RELU] * 4, [(5, RELU), (2, RELU), (6, RELU)], [0, 0, 2, 0]),
        ([RELU, RELU, RELU, LINEAR], [(4, RELU), (2, LINEAR)], [0, 4, 4, 0]),
        # Only through the layer with the greater cap.
        ([CAP_1, CAP_2, CAP_1], [(4, CAP_1), (2, CAP_1)], [0, 4, 0]),
        # Through a linear layer anything goes, the inputs, too.
        ([LINEAR, LINEAR, RELU], [(1, LINEAR), (2, RELU)], [0, 1, 0]),
        ([LINEAR, RELU], [(2, RELU)], [3, 0]),
        ([RELU, LINEAR], [(2, RELU)], [0, 2]),
    ],
)
def test_a_shallow_branch_is_passed_on_where_that_changes_nothing(
    rules: list[Rule], shallow: list[tuple[int, Rule]], expected: list[int]
) -> None:
    deep, own = chain(*((2, rule) for rule in rules)), chain(*shallow)
    fused = fuse([own, deep])
    assert identities(fused) == expected
    features = Features.from_matrix(np.random.default_rng(1).normal(size=(20, 3)))
    alone = np.hstack([outputs(each, features, "cpu") for each in (own, deep)])
    np.testing.assert_array_equal(outputs(fused, features, "cpu"), alone)


DEEP = chain((2, RELU), (2, CAP_2), (2, LINEAR), name="deep")


@pytest.mark.parametrize(
    ("branches", "options", "message"),
    [
        ([], {}, "at least one branch"),
        ([DEEP], {"join": "mean"}, "unknown join 'mean': concatenate or sum"),
        (
            [DEEP, chain((2, RELU), n_inputs=4)],
            {},
            r"^branch 2 \(own\), layer 1: 4 inputs, expected 3 as in branch 1 \(deep\)$",
        ),
        (
            [DEEP, chain((2, RELU), (2, CAP_2), (5, LINEAR))],
            {"join": "sum"},
            r"^branch 2 \(own\), layer 3: 5 outputs, expected 2 as in branch 1 \(deep\)$",
        ),
        (
            [DEEP, chain((2, RELU), (2, CAP_1), (2, LINEAR))],
            {},
            r"^branch 2 \(own\), layer 2: relu, cap 1, bias rule always; "
            r"expected relu, cap 2, bias rule always, as layer 2 of branch 1 \(deep\)$",
        ),
        (
            [Layer(np.eye(3), activation="linear", bias_rule="nonzero"), chain((3, LINEAR))],
            {},
            r"^branch 2 \(own\), layer 1: linear, bias rule always; "
            r"expected linear, bias rule nonzero, as layer 1 of branch 1$",
        ),
        # A relu layer without a cap cannot be passed on through one that has a cap.
        (
            [chain((2, RELU), (2, LINEAR)), DEEP],
            {},
            r"^branch 1 \(own\), layer 2: linear, bias rule always; "
            r"expected relu, cap 2, bias rule always, as layer 2 of branch 2 \(deep\), "
            r"or relu layers before it that can be passed on unchanged$",
        ),
        (
            [DEEP, chain((2, RELU))],
            {},
            r"^branch 2 \(own\), layer 1: relu, bias rule always, which cannot be passed on "
            r"unchanged; expected relu, cap 2, bias rule always, as layer 2 of branch 1 \(deep\)$",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(
    branches: list[Network | Layer], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        fuse(branches, **options)
