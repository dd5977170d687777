"""Coarse-grain parallelism changes nothing: a feature's activations are the same, bit for bit.

Whatever the number of threads, the width of tiles, the parts that features are dealt out in, as
ranks get them, and the order of features. Weights are any floats, so that a sum taken in another
order would be another number.
"""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spdnn import Features, Layer, Network, infer
from spdnn.engines.cpu.packed import is_worth_packing
from spdnn.run.options import PARTITIONS
from spdnn.run.team import part_of
from tests.makers import PATTERNS, edge_pattern
from tests.test_engines_agree import tiny_chunks, tiny_cpu_engine


@st.composite
def any_cases(draw: st.DrawFn) -> tuple[Network, Features]:
    """A network of any weights, biases of both rules, relu or linear at its end; features of 0
    and 1, which are packed, or of any numbers, which are not.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_layers = draw(st.integers(1, 6))
    widths = draw(st.lists(st.integers(1, 40), min_size=n_layers + 1, max_size=n_layers + 1))
    rules = draw(st.lists(st.sampled_from(["nonzero", "always"]), min_size=6, max_size=6))
    is_linear = draw(st.booleans())
    layers = []
    for number, (n_inputs, n_outputs) in enumerate(pairwise(widths), start=1):
        mask = edge_pattern(rng, draw(st.sampled_from(PATTERNS)), n_inputs, n_outputs)
        weights = sp.csr_array(mask * rng.normal(size=mask.shape))
        bias = rng.normal(size=n_outputs) * 0.2
        if is_linear and number == n_layers:
            layers.append(Layer(weights, bias, activation="linear", bias_rule=rules[number - 1]))
        else:
            ymax = draw(st.sampled_from([None, 1.3]))
            layers.append(Layer(weights, bias, ymax, bias_rule=rules[number - 1]))
    n_features = draw(st.sampled_from([1, 15, 17, 48, 70, 130]))
    dense = rng.random((n_features, widths[0])) * (rng.random((n_features, widths[0])) < 0.4)
    if draw(st.booleans()):
        dense = np.ceil(dense)
    return Network(layers), Features.from_matrix(dense)


def bits(network: Network, features: Features, threads: int) -> np.ndarray:
    """Activations of all features in mode edges as whole numbers, so that 0.0 is not -0.0."""
    result = infer(network, features, engine="cpu", mode="edges", threads=threads, activations=True)
    dense = np.zeros((features.n_features, network.n_outputs), np.float32)
    dense[result.live] = result.activations
    return dense.view(np.uint32)


tiles = st.sampled_from([16, 32, 64])
segment_ends = st.sampled_from([(1,), (1, 2, 4), (3, 100)])
pools = st.sampled_from([1, 2048, 1 << 20])


@given(
    any_cases(),
    st.sampled_from([1, 2, 3]),
    tiles,
    segment_ends,
    pools,
    st.sampled_from(PARTITIONS),
    st.sampled_from([1, 2, 3, 7]),
    st.integers(0, 2**32 - 1),
)
def test_threads_tiles_ranks_and_order_change_no_bit(
    case: tuple[Network, Features],
    threads: int,
    widest_tile: int,
    segment_ends: tuple[int, ...],
    waiting_bytes: int,
    partition: str,
    n_ranks: int,
    seed: int,
) -> None:
    network, features = case
    with tiny_chunks():  # part of the plan, as what blocks cost is
        expected = bits(network, features, threads=1)
    order = np.random.default_rng(seed).permutation(features.n_features)
    moved = Features.from_matrix(features.to_csr(np.float32)[order])
    found = np.empty_like(expected)
    with tiny_cpu_engine(segment_ends, waiting_bytes, widest_tile):
        for rank in range(n_ranks):
            numbers = part_of(features.n_features, rank, n_ranks, partition)
            own = moved.every(numbers.start, numbers.stop, numbers.step)
            found[order[numbers]] = bits(network, own, threads)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("is_binary", [True, False])
def test_a_feature_alone_has_the_bits_that_it_has_among_many(is_binary: bool) -> None:
    rng = np.random.default_rng(3)
    layers = [
        Layer(sp.random_array((96, 96), density=0.2, rng=rng), rng.normal(size=96), bias_rule=rule)
        for rule in ("always", "nonzero", "always")
    ]
    dense = rng.random((40, 96)) * (rng.random((40, 96)) < 0.3)
    features = Features.from_matrix(np.ceil(dense) if is_binary else dense)
    assert is_worth_packing(features) == is_binary
    together = bits(Network(layers), features, threads=3)
    alone = [bits(Network(layers), features.part(f, f + 1), threads=1) for f in range(40)]
    np.testing.assert_array_equal(np.concatenate(alone), together)
    assert np.count_nonzero(together) > together.size / 4  # or this would show little


def test_another_order_of_addition_would_be_seen() -> None:
    """The check of the check: these sums do depend on their order."""
    rng = np.random.default_rng(4)
    weights, features = rng.normal(size=(96, 8)), rng.random((16, 96))
    turned = Network([Layer(weights[::-1])]), Features.from_matrix(features[:, ::-1])
    straight = bits(Network([Layer(weights)]), Features.from_matrix(features), threads=1)
    assert (bits(*turned, threads=1) != straight).any()
