"""Dense scores: those of the reference, and the bits of a run, however the work is dealt out."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spdnn import Features, Layer, Network
from spdnn.engines.base import OverflowingError
from spdnn.engines.cpu import scores as scoring
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.engines.cpu.scores import Scorer
from spdnn.engines.reference import ReferenceEngine
from spdnn.plan.cpu.blocks import IS_SHARED, N_INPUTS, TYPICAL_COSTS
from spdnn.plan.cpu.dense import with_dense_outputs
from spdnn.plan.cpu.plan import CpuPlan, plan_edges
from spdnn.plan.cpu.slices import PART_INPUTS, VECTORS, slice_plan
from tests.makers import PATTERNS, edge_pattern
from tests.test_engines_agree import tiny_chunks


@st.composite
def cases(draw: st.DrawFn) -> tuple[Network, np.ndarray]:
    """A network with skewed, shared, dense or scattered layers, any rules; dense inputs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_layers = draw(st.integers(1, 4))
    widths = draw(st.lists(st.integers(1, 50), min_size=n_layers + 1, max_size=n_layers + 1))
    is_linear, has_negative = draw(st.booleans()), draw(st.booleans())
    layers = []
    for number, (n_inputs, n_outputs) in enumerate(pairwise(widths), start=1):
        kind = draw(st.sampled_from([*PATTERNS, "full", "skewed"]))
        if kind == "full":
            mask = np.ones((n_inputs, n_outputs))
        elif kind == "skewed":
            mask = rng.random((n_inputs, n_outputs)) < rng.random(n_outputs) ** 3
        else:
            mask = edge_pattern(rng, kind, n_inputs, n_outputs)
        weights = sp.csr_array(mask * rng.normal(size=mask.shape))
        bias = rng.normal(size=n_outputs) * 0.2
        rule = draw(st.sampled_from(["nonzero", "always"]))
        if is_linear and number == n_layers:
            layers.append(Layer(weights, bias, activation="linear", bias_rule=rule))
        else:
            layers.append(Layer(weights, bias, draw(st.sampled_from([None, 1.3])), bias_rule=rule))
    n_features = draw(st.sampled_from([0, 1, 1, 2, 3, 15, 16, 17, 33, 48, 70]))
    shape = n_features, widths[0]
    inputs = rng.random(shape) * (rng.random(shape) < 0.5)
    inputs[rng.random(n_features) < 0.2] = 0
    if has_negative:
        inputs -= rng.random(shape) * (rng.random(shape) < 0.3)
    return Network(layers), inputs.astype(np.float32)


@contextmanager
def made_equal(*, wakes: bool, width: int) -> Iterator[None]:
    """Have helpers woken for any work, or for none; tiles of a width."""
    with ExitStack() as stack:
        worth = 0 if wakes else 1 << 60
        stack.enter_context(
            mock.patch.multiple(scoring, WORTH_WAKING=worth, WORTH_WAKING_ONE=worth)
        )
        yield


def of_run(engine: CpuEngine, plan: CpuPlan, inputs: np.ndarray) -> np.ndarray:
    """The scores as `run` gives them: those of live features, zeros for the others."""
    features = Features.from_matrix(inputs)
    output = engine.run(plan, engine.load(plan, features), activations=True)
    scores = np.zeros((len(inputs), plan.output_position.size), np.float32)
    scores[output.live] = output.activations
    return scores


def of_reference(network: Network, inputs: np.ndarray) -> np.ndarray:
    engine = ReferenceEngine()
    features = Features.from_matrix(inputs)
    plan = engine.plan(network, engine.modes[-1])
    output = engine.run(plan, engine.load(plan, features), activations=True)
    scores = np.zeros((len(inputs), network.n_outputs))
    scores[output.live] = output.activations
    return scores


@given(
    cases(),
    st.sampled_from(["edges", "merge"]),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
    st.sampled_from([16, 32, 64]),
)
def test_scores_are_those_of_a_run_bit_for_bit(
    case: tuple[Network, np.ndarray], mode: str, threads: int, wakes: bool, width: int
) -> None:
    network, inputs = case
    engine = CpuEngine(threads)
    with tiny_chunks(), made_equal(wakes=wakes, width=width):
        plan = engine.plan(network, mode)
        found = engine.scores(plan, inputs)
        again = engine.scores(plan, inputs)
        engine.close()
    assert (found.dtype, found.shape) == (np.float32, (len(inputs), network.n_outputs))
    expected = of_run(engine, plan, inputs)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
    np.testing.assert_array_equal(again, found)


@given(cases(), st.sampled_from(["edges", "merge"]))
def test_scores_are_close_to_the_references(case: tuple[Network, np.ndarray], mode: str) -> None:
    network, inputs = case
    if any(layer.needs_nonzero_test for layer in network.layers):
        return  # a sum that rounding makes zero, or not, may differ by its bias
    engine = CpuEngine(1)
    found = engine.scores(engine.plan(network, mode), inputs)
    scale = np.abs(found).max(initial=1)
    np.testing.assert_allclose(found, of_reference(network, inputs), rtol=1e-4, atol=1e-4 * scale)


def test_one_feature_alone_has_the_scores_that_it_has_among_many() -> None:
    network, inputs = wide_network(), np.random.default_rng(1).random((40, 60), np.float32)
    engine = CpuEngine(2)
    plan = engine.plan(network, "edges")
    alone = [engine.scores(plan, inputs[f : f + 1]) for f in range(40)]
    np.testing.assert_array_equal(np.concatenate(alone), engine.scores(plan, inputs))


def wide_network(seed: int = 0) -> Network:
    rng = np.random.default_rng(seed)
    layers = [
        Layer(sp.random_array(shape, density=0.3, rng=rng), rng.normal(size=shape[1]) * 0.1)
        for shape in pairwise([60, 90, 300, 40])
    ]
    return Network(layers)


def test_slices_hold_every_weight_once_and_pad_with_what_adds_nothing() -> None:
    plan = CpuEngine(1).plan(wide_network(), "edges")
    slices = slice_plan(plan)
    assert slices is not None
    is_padding = (slices.weights == 0) & np.signbit(slices.weights)
    real = slices.weights[~is_padding]
    assert np.array_equal(np.sort(real), np.sort(plan.arrays.weights))
    assert (slices.parts[:, PART_INPUTS] > 0).all()
    for n_threads in (1, 2, 5):
        shares = slices.shares(n_threads)
        assert np.array_equal(shares[:, 0], slices.steps[:-1])
        assert np.array_equal(shares[:, -1], slices.steps[1:])
        assert (np.diff(shares, axis=1) >= 0).all()


def test_groups_become_panels() -> None:
    rng = np.random.default_rng(0)
    network = Network([Layer(rng.normal(size=(30, n))) for n in (300,)])
    slices = slice_plan(plan_edges(network))
    assert slices is not None
    assert slices.parts[:, VECTORS].tolist() == [8, 8, 2, 1]


@pytest.mark.parametrize("n_features", [1, 40])
def test_overflow_names_the_feature(n_features: int) -> None:
    network = Network([Layer(np.full((20, 20), 1e30)), Layer(np.full((20, 20), 1e30))])
    inputs = np.zeros((n_features, 20), np.float32)
    inputs[n_features - 1] = 1
    engine = CpuEngine(1)
    with pytest.raises(OverflowingError) as caught:
        engine.scores(engine.plan(network, "edges"), inputs)
    assert caught.value.feature == n_features - 1


def test_calls_from_many_threads_wait_for_each_other() -> None:
    network = wide_network()
    engine = CpuEngine(2)
    plan = engine.plan(network, "edges")
    rng = np.random.default_rng(2)
    batches = [rng.random((n, 60), np.float32) for n in (1, 40, 100, 1, 700, 16)]
    expected = [engine.scores(plan, batch) for batch in batches]
    differences = []

    def work(number: int) -> None:
        for _ in range(20):
            found = engine.scores(plan, batches[number])
            differences.append(not np.array_equal(found, expected[number]))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(batches))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert differences == [False] * 120


def helpers() -> int:
    return sum(thread.name.startswith("spdnn-") for thread in threading.enumerate())


def test_helpers_end_when_closed_and_when_forgotten() -> None:
    gc.collect()
    before = helpers()
    plan = CpuEngine(1).plan(wide_network(), "edges")
    inputs = np.ones((4, 60), np.float32)
    scorer = Scorer(plan, 3, 32)
    scores = scorer(inputs)
    assert helpers() == before + 2
    scorer.close()
    scorer.close()
    assert helpers() == before
    np.testing.assert_array_equal(scorer(inputs), scores)
    assert helpers() == before + 2
    del scorer
    gc.collect()
    assert helpers() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_helpers_of_its_own() -> None:
    plan = CpuEngine(1).plan(wide_network(), "edges")
    inputs = np.random.default_rng(3).random((200, 60), np.float32)
    scorer = Scorer(plan, 2, 16)
    expected = scorer(inputs)
    child = os.fork()
    if child == 0:
        is_equal = np.array_equal(scorer(inputs), expected)
        scorer.close()
        os._exit(0 if is_equal else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(scorer(inputs), expected)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.2, 0.5, 0.9]))
def test_dense_enough_outputs_are_completed_with_zeros(seed: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(40, 30)) * (rng.random((40, 30)) < density)
    columns = sp.csc_array(weights.astype(np.float32))
    completed = with_dense_outputs(columns, TYPICAL_COSTS)
    np.testing.assert_array_equal(completed.toarray(), columns.toarray())
    degree = np.diff(completed.indptr)
    is_changed = degree != np.diff(columns.indptr)
    assert np.unique(degree[is_changed]).size <= 1
    if density != 0.5:  # there it depends on the weights
        assert is_changed.any() == (density > 0.5)
    network = Network([Layer(weights)])
    plan = CpuEngine(1).plan(network, "edges")
    assert plan.layer_edges == network.layer_edges


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.sampled_from([0.1, 1.0, 10.0]), min_size=4, max_size=4),
    st.sampled_from(["edges", "merge"]),
)
def test_scores_are_the_bits_of_a_run_whatever_blocks_cost(
    seed: int, factors: list[float], mode: str
) -> None:
    rng = np.random.default_rng(seed)
    layers = []
    for n_inputs, n_outputs in pairwise(rng.integers(1, 100, size=rng.integers(2, 5))):
        weights = rng.normal(size=(n_inputs, n_outputs)) / np.sqrt(n_inputs)
        weights *= rng.random(weights.shape) < rng.choice([0, 0.1, 0.5, 1], size=(1, n_outputs))
        weights[:, : rng.integers(n_outputs + 1)] *= weights[:, :1] != 0  # a group
        layers.append(Layer(weights, 0.3 * rng.normal(size=n_outputs), bias_rule="always"))
    costs = zip(TYPICAL_COSTS, np.reshape(factors, (2, 2, 1)), strict=True)
    engine = CpuEngine(2).with_costs([(part * scale).tolist() for part, scale in costs])
    plan = engine.plan(Network(layers), mode)
    inputs = rng.normal(size=(18, layers[0].n_inputs)).astype(np.float32)
    loaded = engine.load(plan, Features.from_matrix(inputs))
    output = engine.run(plan, loaded, activations=True)
    expected = np.zeros((len(inputs), layers[-1].n_outputs), dtype=np.float32)
    expected[output.live] = output.activations
    for count in (1, 2, 3, len(inputs)):
        np.testing.assert_array_equal(engine.scores(plan, inputs[:count]), expected[:count])
    engine.close()


def test_a_group_without_inputs_may_come_before_one_that_has_some() -> None:
    mask = np.zeros((40, 64))
    mask[:30, 24:] = np.random.default_rng(0).normal(size=(30, 40))
    network = Network([Layer(mask, 0.5, bias_rule="always")])
    shared_is_cheap = [(part * [[10], [1]]).tolist() for part in TYPICAL_COSTS]
    engine = CpuEngine(1).with_costs(shared_is_cheap)
    inputs = np.random.default_rng(1).random((3, 40), dtype=np.float32)
    plan = engine.plan(network, "edges")
    blocks = plan.arrays.blocks
    assert set(blocks[blocks[:, IS_SHARED] == 1, N_INPUTS]) == {0, 30}  # both are groups
    found = engine.scores(plan, inputs[:1])
    np.testing.assert_array_equal(found, engine.scores(plan, inputs)[:1])
    expected = np.maximum(inputs[:1] @ mask + 0.5, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_groups_that_share_few_inputs_are_not_completed() -> None:
    mask = np.zeros((64, 64))
    for first in range(0, 64, 32):
        mask[first : first + 32, first : first + 32] = 1
    columns = sp.csc_array(mask, dtype=np.float32)
    assert with_dense_outputs(columns, TYPICAL_COSTS) is columns
