"""Planning: plans are those of slow references, for any threads, and whatever hashes collide."""

import hashlib

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spdnn import Layer, Network
from spdnn.errors import DeviceError
from spdnn.machine.thread_pool import KeptThreads
from spdnn.plan import ahead as ahead_module
from spdnn.plan import groups
from spdnn.plan import merge as merge_module
from spdnn.plan.ahead import Background, ahead
from spdnn.plan.cpu import plan as plan_module
from spdnn.plan.cpu.blocks import (
    INDEX_START,
    IS_SHARED,
    N_INPUTS,
    N_ROWS,
    POSITION,
    WEIGHT_START,
    cut_layer,
)
from spdnn.plan.cpu.long_array import LongArray
from spdnn.plan.cpu.plan import CpuPlan, plan_edges, plan_merge
from spdnn.plan.groups import NOTHING, bits_of, group_columns, group_outputs
from spdnn.plan.merge import merge_layer
from spdnn.recipes.radixnet import official_network, radix_network
from tests.makers import PATTERNS, dyadic_network, dyadic_weights

SEEDS = st.integers(0, 2**32 - 1)
KINDS = st.sampled_from(PATTERNS)
PLANNERS = (plan_edges, plan_merge)
NO_HASH, POOR_HASH = 0, 3
"""Bits of hashes with which all columns of a degree collide, or most of them."""


def digest(plan: CpuPlan) -> str:
    """Digest of all facts and arrays of a plan, dtypes included."""
    facts, arrays = plan.to_parts()
    result = hashlib.sha256(
        repr(sorted((name, str(fact)) for name, fact in facts.items())).encode()
    )
    for name, array in sorted(arrays.items()):
        result.update(f"{name} {array.dtype} {array.shape}".encode())
        result.update(np.ascontiguousarray(array).tobytes())
    return result.hexdigest()[:16]


def numbered(keys: list[object]) -> list[int]:
    """Number distinct keys by their first."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def column_keys(columns: sp.csc_array, *, values: bool) -> list[object]:
    """What tells the columns of a matrix apart."""
    spans = [slice(*columns.indptr[j : j + 2]) for j in range(columns.shape[1])]
    bits = bits_of(columns.data)
    return [(tuple(columns.indices[span]), tuple(bits[span]) if values else None) for span in spans]


def slow_merge(
    layer: Layer, input_class: npt.NDArray[np.int32], n_classes: int
) -> tuple[sp.csc_array | None, sp.csc_array, npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """`merge_layer` with scipy and dictionaries."""
    rows = layer.weights.copy()
    rows.eliminate_zeros()
    bias = np.broadcast_to(layer.bias, layer.n_outputs)
    input_group = np.array(numbered(column_keys(rows.T.tocsc(), values=True)), dtype=int)
    _, first = np.unique(input_group, return_index=True)
    columns = rows[first].tocsc()

    def distinct(matrix: sp.csc_array, its_bias: npt.NDArray[np.float32]) -> tuple[list[int], list]:
        keys = zip(column_keys(matrix, values=True), bits_of(its_bias).tolist(), strict=True)
        group = numbered(list(keys))
        return group, np.unique(group, return_index=True)[1].tolist()

    group, first = distinct(columns, bias)
    columns, bias = columns[:, first], bias[first]
    n_groups = columns.shape[0]
    ones = np.ones(layer.n_inputs)
    sums = sp.coo_array((ones, (input_class, input_group)), shape=(n_classes, n_groups)).tocsc()
    direct = (sums @ columns.astype(np.float64)).tocsc()
    direct.eliminate_zeros()
    direct.sort_indices()
    direct = direct.astype(np.float32)
    direct_group, first = distinct(direct, bias)
    direct, columns, bias = direct[:, first], columns[:, first].tocsr(), bias[first]
    output_class = np.array(direct_group, dtype=np.int32)[np.array(group, dtype=int)]
    is_used = np.diff(columns.indptr) > 0
    sums, columns = sums[:, is_used], columns[is_used]
    if sums.nnz + sums.shape[1] + columns.nnz >= direct.nnz:
        return None, direct, bias, output_class
    return sums, columns.tocsc(), bias, output_class


def assert_same_matrix(got: sp.csc_array, expected: sp.csc_array) -> None:
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.indptr, expected.indptr)
    np.testing.assert_array_equal(got.indices, expected.indices)
    np.testing.assert_array_equal(got.data.astype(np.float32), expected.data.astype(np.float32))


def assert_merges_like_the_reference(
    weights: sp.csr_array, bias: npt.ArrayLike, input_class: npt.NDArray[np.int32]
) -> None:
    layer = Layer(weights, bias)
    n_classes = int(input_class.max(initial=-1)) + 1
    got = merge_layer(layer, input_class, n_classes)
    sums, expected, expected_bias, output_class = slow_merge(layer, input_class, n_classes)
    assert (got.sums is None) == (sums is None)
    if sums is not None:
        assert_same_matrix(got.sums, sums)
    assert_same_matrix(got.weights, expected)
    np.testing.assert_array_equal(got.bias, expected_bias)
    np.testing.assert_array_equal(got.output_class, output_class)


@given(SEEDS, KINDS, st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_a_layer_is_merged_as_by_scipy(
    seed: int, kind: str, n_inputs: int, n_outputs: int, n_classes: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = dyadic_weights(rng, kind, n_inputs, n_outputs)
    if rng.random() < 0.5:
        weights = weights[rng.integers(n_inputs, size=n_inputs)]  # equal rows
    if rng.random() < 0.5:
        weights.data[:] = 0.5
    bias = rng.choice([-0.5, 0.0, -0.0], size=n_outputs)
    input_class = np.array(numbered(rng.integers(n_classes, size=n_inputs).tolist()), np.int32)
    assert_merges_like_the_reference(sp.csr_array(weights), bias, input_class)


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_a_layer_of_stored_zeros_merges_to_one_output_without_edges(value: float) -> None:
    weights = sp.csr_array((np.full(4, value, np.float32), [0, 1, 0, 1], [0, 2, 4]), shape=(2, 2))
    result = merge_layer(Layer(weights), np.arange(2, dtype=np.int32), 2)
    assert result.weights.shape == (2, 1)
    assert result.weights.nnz == 0


def slow_groups(weights: sp.csr_array) -> list[int]:
    return numbered(column_keys(weights.tocsc(), values=False))


@given(SEEDS, KINDS, st.integers(1, 80), st.integers(1, 80))
def test_outputs_are_grouped_from_rows_as_from_columns(
    seed: int, kind: str, n_inputs: int, n_outputs: int
) -> None:
    weights = dyadic_weights(np.random.default_rng(seed), kind, n_inputs, n_outputs)
    expected = slow_groups(weights)
    for form in (weights, weights.tocsc()):
        found = group_outputs(form)
        assert found.group.tolist() == expected
        assert found.first.tolist() == np.unique(expected, return_index=True)[1].tolist()
        assert found.degree.tolist() == np.diff(weights.tocsc().indptr).tolist()


@pytest.mark.parametrize("bits", [NO_HASH, POOR_HASH])
@pytest.mark.parametrize("kind", PATTERNS)
def test_columns_with_equal_hashes_are_told_apart_by_value(
    bits: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    weights = dyadic_weights(rng, kind, 50, 70)
    columns = weights.tocsc()
    by_value = numbered(column_keys(columns, values=True))
    network = dyadic_network(7, [40] + [60] * 4, [kind] * 4)
    plans = [digest(plan(network)) for plan in PLANNERS]
    monkeypatch.setattr(groups, "HASH_BITS", bits)
    assert group_outputs(weights).group.tolist() == slow_groups(weights)
    found, n_groups = group_columns(columns.indptr, columns.indices, bits_of(columns.data), NOTHING)
    assert found.tolist() == by_value
    assert n_groups == len(set(by_value))
    assert [digest(plan(network)) for plan in PLANNERS] == plans


def test_two_columns_of_one_hash_need_their_values_only_where_these_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "HASH_BITS", NO_HASH)
    columns = sp.csc_array(np.array([[1, 2, 1], [3, 3, 3]], dtype=np.float32))
    of_patterns, _ = group_columns(columns.indptr, columns.indices, NOTHING, NOTHING)
    of_values, _ = group_columns(columns.indptr, columns.indices, bits_of(columns.data), NOTHING)
    labels = np.array([0, 0, 5], dtype=np.uint32)
    of_labels, _ = group_columns(columns.indptr, columns.indices, NOTHING, labels)
    assert of_patterns.tolist() == [0, 0, 0]
    assert of_values.tolist() == [0, 1, 0]
    assert of_labels.tolist() == [0, 0, 1]


@given(SEEDS, KINDS, st.integers(1, 60), st.integers(1, 60))
def test_blocks_hold_every_edge_in_the_order_of_inputs_from_rows_and_from_columns(
    seed: int, kind: str, n_inputs: int, n_outputs: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = dyadic_weights(rng, kind, n_inputs, n_outputs)
    position = rng.permutation(n_inputs).astype(np.int32)
    columns = weights.tocsc()
    cut = cut_layer(weights, position)
    for from_rows, from_columns in zip(cut, cut_layer(columns, position), strict=True):
        assert from_rows.dtype == from_columns.dtype
        np.testing.assert_array_equal(from_rows, from_columns)
    assert sorted(cut.order.tolist()) == list(range(n_outputs))
    n_seen = 0
    for block in cut.table:
        n_rows, n_block_inputs, is_shared = block[N_ROWS], block[N_INPUTS], block[IS_SHARED]
        n_lists = 1 if is_shared else n_rows
        indices = cut.indices[block[INDEX_START] :][: n_block_inputs * n_lists]
        indices = indices.reshape(n_block_inputs, n_lists)
        values = cut.weights[block[WEIGHT_START] :][: n_block_inputs * n_rows]
        for row in range(n_rows):
            span = slice(*columns.indptr[cut.order[block[POSITION] + row] :][:2])
            np.testing.assert_array_equal(
                indices[:, 0 if is_shared else row], position[columns.indices[span]]
            )
            own = values.reshape(n_block_inputs, n_rows)[:, row]
            np.testing.assert_array_equal(own, columns.data[span])
            n_seen += own.size
    assert n_seen == weights.nnz


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_plans_do_not_depend_on_threads(
    planner: object, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = [
        official_network(1024, 14),
        dyadic_network(3, [300, 1, 20, 700, 64, 300, 7], list(PATTERNS[:6])),
        Network([Layer(np.ones((300, 40))), Layer(np.eye(40)), Layer(np.ones((40, 1)))]),
    ]
    expected = [digest(planner(network)) for network in networks]
    threads = KeptThreads(n_threads)
    monkeypatch.setattr(ahead_module, "LEAST_EDGES", 0)
    for most in (1, ahead_module.MOST_EDGES):
        monkeypatch.setattr(ahead_module, "MOST_EDGES", most)
        assert [digest(planner(network, threads=threads)) for network in networks] == expected
    threads.close()


def test_layers_that_merge_further_with_their_inputs_are_merged_as_by_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outputs of the second layer that read equal inputs are equal, but not within the layer."""
    rng = np.random.default_rng(3)
    halves = rng.integers(1, 4, (8, 6)).astype(np.float32)
    doubled = Layer(np.repeat(halves, 2, axis=1))
    apart = Layer(np.eye(12))
    network = Network([doubled, apart, apart, Layer(rng.integers(0, 3, (12, 12))), apart])
    expected = digest(plan_merge(network))
    assert plan_merge(network).layer_neurons[:3] == (6, 6, 6)
    n_merged = []
    merge_inputs = merge_module.merge_inputs

    def counted(*given: object) -> object:
        n_merged.append(given)
        return merge_inputs(*given)

    monkeypatch.setattr(merge_module, "merge_inputs", counted)
    monkeypatch.setattr(ahead_module, "LEAST_EDGES", 0)
    threads = KeptThreads(2)
    assert digest(plan_merge(network, threads=threads)) == expected
    assert len(n_merged) > network.n_layers  # a guess was wrong
    threads.close()


def test_plans_of_official_networks_are_as_they_always_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Digests of the plans that one thread and scipy's conversions made, with typical costs.

    Each block then had weights of its own.
    """
    monkeypatch.setattr(plan_module, "keep_distinct", lambda _, arrangement: (arrangement, None))
    network = official_network(1024, 120)
    assert digest(plan_edges(network)) == "38d91a410df8ebb0"
    assert digest(plan_merge(network)) == "961551ae131c2094"


@pytest.mark.parametrize("least", [0, 3, 100])
def test_results_of_work_ahead_are_in_order(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_module, "LEAST_EDGES", least)
    threads = KeptThreads(3)
    edges = [1, 9, 9, 9, 2, 9, 1, 1, 9, 9, 9, 9]
    results = ahead(lambda number: -number, range(12), edges.__getitem__, threads)
    assert list(results) == [(number, -number) for number in range(12)]
    threads.close()


def test_layers_of_a_recipe_may_be_made_by_several_threads_at_once() -> None:
    network = radix_network([[4, 8], [2, 16]], widths=[1, 2, 1, 3, 2])
    alone = [layer.weights for layer in network.layers] * 20
    threads = KeptThreads(4)
    together = threads.run_all(lambda number: network.layers[number % 4].weights, range(80))
    for got, expected in zip(together, alone, strict=True):
        assert_same_matrix(got, expected)
    threads.close()


def test_a_merged_plan_is_checked_against_memory_as_it_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory that is left is asked for before the first layer, and again after some edges."""
    network = Network([Layer(np.random.default_rng(n).random((40, 40))) for n in range(4)])
    left = iter([1 << 40, 1 << 40, 0])
    monkeypatch.setattr(plan_module, "CHECKED_EDGES", 1)
    monkeypatch.setattr("spdnn.machine.memory.available_bytes", lambda: next(left))
    with pytest.raises(DeviceError, match="the plan needs"):
        plan_merge(network)


def test_an_error_in_work_ahead_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_module, "LEAST_EDGES", 0)

    def fail_at_two(number: int) -> int:
        if number == 2:
            raise ValueError("two")
        return -number

    threads = KeptThreads(2)
    results = ahead(fail_at_two, range(9), lambda _: 1, threads)
    assert [next(results), next(results)] == [(0, 0), (1, -1)]
    with pytest.raises(ValueError, match="two"):
        next(results)
    threads.close()


def test_an_error_in_the_background_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_module, "LEAST_EDGES", 0)

    def fail() -> None:
        raise ValueError("late")

    threads = KeptThreads(2)
    background = Background(threads)
    background.call(1, fail)
    with pytest.raises(ValueError, match="late"):
        background.finish()
    threads.close()


def test_a_long_array_keeps_its_numbers_as_it_grows_and_changes_type() -> None:
    array = LongArray(np.uint16, 3)
    array.extend(2, np.uint16)[:] = [1, 65535]
    assert not array.must_move(1, np.uint16)
    assert array.must_move(2, np.uint16)
    assert array.must_move(1, np.int32)
    array.extend(1, np.int32)[:] = 70000
    array.extend(100, np.int32)[:] = 5
    result = array.finished()
    assert result.dtype == np.int32
    assert result.tolist() == [1, 65535, 70000] + [5] * 100
