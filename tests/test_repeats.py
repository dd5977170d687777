"""Blocks with equal weights share them: the plan is smaller, and results are the same bits."""

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spdnn.engines.cpu.engine import CpuEngine
from spdnn.features import Features
from spdnn.network import Layer, Network
from spdnn.plan.cpu import plan as plan_module
from spdnn.plan.cpu import repeats
from spdnn.plan.cpu.blocks import (
    N_INPUTS,
    N_ROWS,
    TYPICAL_COSTS,
    WEIGHT_START,
    Arrangement,
    arrange,
    fill_blocks,
)
from spdnn.plan.cpu.plan import PlanArrays, plan_edges
from spdnn.plan.groups import group_outputs
from spdnn.recipes.radixnet import official_network

N = 128
"""Neurons of a layer: with half of all edges it has enough weights."""


def weights_from(values: npt.ArrayLike, seed: int, is_tied: bool = False) -> sp.csr_array:
    """A layer whose weights are drawn from some values; tied ones are those of four equal parts."""
    random = np.random.default_rng(seed)
    numbers = np.asarray(values, np.float32)
    if is_tied:
        return sp.csr_array(sp.kron(sp.eye_array(4), random.choice(numbers, (N // 4, N // 4))))
    dense = random.choice(numbers, (N, N))
    dense[random.random((N, N)) < 0.4] = 0
    return sp.csr_array(dense)


def each_block(
    arrangement: Arrangement, weights: npt.NDArray[np.float32]
) -> list[npt.NDArray[np.uint32]]:
    """The bits of the weights of each block."""
    table = arrangement.table
    sizes = table[:, N_ROWS] * table[:, N_INPUTS]
    starts = table[:, WEIGHT_START]
    return [
        weights[start : start + size].view(np.uint32)
        for start, size in zip(starts, sizes, strict=True)
    ]


def check_blocks(weights: sp.csr_array | sp.csc_array) -> tuple[int, int | None]:
    """Compare each block with the weights it has without sharing; gives both numbers of weights."""
    own = arrange(group_outputs(weights), TYPICAL_COSTS)
    nothing = np.empty(0, dtype=np.int32)
    own_weights = np.empty(own.n_weights, dtype=np.float32)
    fill_blocks(weights, own, nothing, nothing, own_weights)
    shared, distinct = repeats.keep_distinct(weights, own)
    if distinct is None:
        assert shared is own
        return own.n_weights, None
    assert distinct.size == shared.n_weights
    for one, other in zip(each_block(own, own_weights), each_block(shared, distinct), strict=True):
        np.testing.assert_array_equal(one, other)
    return own.n_weights, shared.n_weights


@pytest.mark.parametrize("hash_bits", [repeats.HASH_BITS, 0])
@given(
    values=st.lists(st.sampled_from([0.5, -0.5, 1e-40, 3.0, 2.0**-126]), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    is_tied=st.booleans(),
    in_columns=st.booleans(),
)
def test_each_block_reads_its_own_weights(
    hash_bits: int, values: list[float], seed: int, is_tied: bool, in_columns: bool
) -> None:
    weights = weights_from(values, seed, is_tied)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "HASH_BITS", hash_bits)
        n_own, n_shared = check_blocks(weights.tocsc() if in_columns else weights)
    assert n_shared is not None
    if len(set(values)) == 1 or is_tied:
        assert n_shared <= n_own / 4


def test_weights_that_hardly_repeat_are_not_looked_at() -> None:
    weights = weights_from([1.0], 0)
    weights.data = np.random.default_rng(0).random(weights.nnz, dtype=np.float32)
    assert check_blocks(weights)[1] is None


def test_one_bit_makes_a_block_of_its_own() -> None:
    weights = sp.csr_array(np.full((N, 16), 0.5, dtype=np.float32))
    weights = sp.csr_array(sp.vstack([weights] * 3))
    weights.data[5] = np.nextafter(np.float32(0.5), np.float32(1))
    n_own, n_shared = check_blocks(weights)
    assert n_shared == n_own  # two blocks of eight outputs
    weights.data[5] = 0.5
    assert check_blocks(weights)[1] == n_own // 2


def test_zeros_of_both_signs_are_different_weights() -> None:
    weights = sp.csr_array(np.full((3 * N, 16), -1.0, dtype=np.float32))
    weights.data[weights.indices < 8] = 0.0
    weights.data[weights.indices >= 8] = -0.0
    n_own, n_shared = check_blocks(weights)
    assert n_shared == n_own


def test_official_plans_are_an_eighth_and_results_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = official_network(1024, 6)
    random = np.random.default_rng(1)
    inputs = sp.csr_array((random.random((40, 1024)) < 0.3).astype(np.float32))
    features = Features.from_matrix(inputs)
    engine = CpuEngine(2)
    plan = engine.plan(network, "edges")
    found = engine.run(plan, engine.load(plan, features), activations=True)
    monkeypatch.setattr(plan_module, "keep_distinct", lambda _, arrangement: (arrangement, None))
    whole = engine.plan(network, "edges")
    expected = engine.run(whole, engine.load(whole, features), activations=True)
    assert whole.arrays.weights.size == network.n_edges
    assert 8 * plan.n_bytes < whole.n_bytes
    np.testing.assert_array_equal(found.live, expected.live)
    assert found.activations is not None
    assert expected.activations is not None
    np.testing.assert_array_equal(found.activations, expected.activations)


def test_a_plan_that_fits_only_because_weights_repeat_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_module, "CHECKED_EDGES", 1 << 12)
    monkeypatch.setattr(plan_module, "available_bytes", lambda: 1 << 20)
    network = official_network(1024, 6)
    assert network.n_edges * plan_module.BYTES_PER_EDGE > 1 << 20
    arrays: PlanArrays = plan_edges(network).arrays
    assert arrays.weights.nbytes < 1 << 18


def test_scores_count_products_and_not_the_weights_that_are_kept() -> None:
    weights = sp.csr_array(np.full((N, N), 0.5, dtype=np.float32))
    network = Network([Layer(weights, np.zeros(N, np.float32))])
    engine = CpuEngine(2)
    plan = engine.plan(network, "edges")
    assert plan.arrays.weights.size < N * N
    inputs = np.random.default_rng(2).random((5, N), dtype=np.float32)
    scores = engine.scores(plan, inputs)
    np.testing.assert_allclose(scores, inputs @ weights.toarray(), rtol=1e-5)
