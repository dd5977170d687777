"""A run cut between layers: the same bits, wherever it is cut and joined."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spdnn import Features, Network, PlanError
from spdnn.engines import make_engine
from spdnn.engines.base import Output
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.engines.state import State, joined
from tests.makers import dyadic_cases, dyadic_features, dyadic_network
from tests.test_engines_agree import tiny_cpu_engine

ENGINES = [("scipy", "edges"), ("cpu", "edges"), ("cpu", "merge")]


def run_cut(
    engine: Any, plan: Any, features: Features, cuts: list[int], parts: int = 1
) -> tuple[Output, np.ndarray]:
    """Run up to each cut, and from there on in `parts` by themselves, joined at the next one.

    Returns the last output and the sums of all counts.
    """
    counts = np.zeros((3, plan.n_layers), dtype=np.int64)
    starts: list[Any] = [engine.load(plan, features)]
    for until in [*cuts, None]:
        outputs = [engine.run_part(plan, start, until=until, activations=True) for start in starts]
        for output in outputs:
            counts += output.n_live, output.n_distinct, output.edges_evaluated
        if until is not None:
            state = joined([output.state for output in outputs])
            starts = [state.take(np.arange(part, state.n_carried, parts)) for part in range(parts)]
    if parts == 1:
        return outputs[0], counts
    live = np.concatenate([output.live for output in outputs])
    order = np.argsort(live)
    activations = np.concatenate([output.activations for output in outputs])[order]
    return Output(live[order], *counts, activations), counts


def assert_equal(found: tuple[Output, np.ndarray], whole: Output, *, merges: bool) -> None:
    output, counts = found
    np.testing.assert_array_equal(output.live, whole.live)
    assert output.activations is not None
    assert output.activations.tobytes() == whole.activations.tobytes()
    np.testing.assert_array_equal(counts[0], whole.n_live)
    if not merges:  # where features are merged depends on where one looks
        np.testing.assert_array_equal(counts[1:], [whole.n_distinct, whole.edges_evaluated])


@pytest.mark.parametrize(("name", "mode"), ENGINES)
@settings(max_examples=20)
@given(dyadic_cases(always=True, max_layers=9), st.data())
def test_any_cuts_give_the_same_bits(
    name: str, mode: str, case: tuple[Network, Features], data: st.DataObject
) -> None:
    network, features = case
    cuts = data.draw(st.sets(st.integers(1, max(1, network.n_layers - 1))))
    cuts &= set(range(1, network.n_layers))
    parts = data.draw(st.sampled_from([1, 2, 3]))
    with tiny_cpu_engine():
        engine = make_engine(name, 2)
        plan = engine.plan(network, mode)
        whole = engine.run(plan, engine.load(plan, features), activations=True)
        found = run_cut(engine, plan, features, sorted(cuts), parts)
    assert_equal(found, whole, merges=mode == "merge")


@pytest.mark.parametrize("mode", ["edges", "merge"])
def test_a_state_holds_what_goes_on(mode: str) -> None:
    network = dyadic_network(1, [30] * 5, ["shared"] * 4)
    some = dyadic_features(2, 7, 30).to_csr(np.float32)
    features = Features.from_matrix(some[np.arange(40) % 7])
    engine = CpuEngine(1)
    output = engine.run_part(engine.plan(network, mode), features, until=2)
    state = output.state
    assert state is not None
    assert output.activations is None
    assert (state.layer, state.n_carried) == (2, output.n_distinct[1])
    np.testing.assert_array_equal(state.ids, output.live)
    assert state.ids.size == output.n_live[1] > 7
    assert state.n_carried == (state.ids.size if mode == "edges" else len(set(state.rows)))
    assert (mode == "merge") == (state.n_carried <= 7)
    assert not output.n_live[2:].any()


def test_progress_of_a_part_ends_at_one() -> None:
    network = dyadic_network(1, [30] * 5, ["shared"] * 4)
    engine = CpuEngine(1)
    plan = engine.plan(network, "merge")
    state = engine.run_part(plan, dyadic_features(2, 40, 30), until=2).state
    assert state is not None
    seen: list[float] = []
    engine.run_part(plan, state, until=3, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1)


def test_the_costs_of_another_process_make_its_plan() -> None:
    network = dyadic_network(1, [30] * 3, ["shared"] * 2)
    other = CpuEngine(1).with_costs([[[9.0, 1, 1], [1, 9, 1]], [[0.0, 1, 2], [2, 0, 1]]])
    engine = CpuEngine(1).with_costs(json.loads(json.dumps(other.costs)))
    assert engine.costs == other.costs != CpuEngine(1).costs
    one, two = engine.plan(network, "edges").arrays, other.plan(network, "edges").arrays
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("costs", [None, 1.0, [[1.0]], "much", [[[None] * 3] * 2] * 2])
def test_what_are_no_costs_is_refused(costs: Any) -> None:
    with pytest.raises(PlanError, match="no costs of blocks: expected 2 x 2 x 3 numbers"):
        CpuEngine(1).with_costs(costs)


# States by themselves


def random_state(rng: np.random.Generator, n_features: int, n_rows: int) -> State:
    n_features = n_features if n_rows else 0
    more = rng.integers(max(n_rows, 1), size=n_features - n_rows)
    rows = np.concatenate([np.arange(n_rows), more])
    ids = np.sort(rng.choice(1000, size=n_features, replace=False))
    values = rng.integers(0, 2, size=(n_rows, 3)).astype(np.float32)
    return State(4, ids, rng.permutation(rows), values)


def dense(state: State) -> dict[int, list[float]]:
    """The activations of each feature."""
    return {
        int(i): state.activations[row].tolist()
        for i, row in zip(state.ids, state.rows, strict=True)
    }


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(0, 9))
def test_states_can_be_taken_apart_joined_and_merged(seed: int, n_rows: int, more: int) -> None:
    rng = np.random.default_rng(seed)
    state = random_state(rng, n_rows + more, n_rows)
    part_of_row = rng.integers(3, size=n_rows)
    parts = [state.take(np.flatnonzero(part_of_row == part)) for part in range(3)]
    assert sum(part.n_carried for part in parts) == n_rows
    whole = joined(parts)
    assert dense(whole) == dense(state)
    assert whole.stands_for().sum() == state.ids.size
    merged = whole.merged()
    assert dense(merged) == dense(state)
    assert merged.n_carried == len(np.unique(state.activations, axis=0))


def test_zeros_of_either_sign_merge() -> None:
    state = State(1, np.arange(2), np.arange(2), np.array([[0.0, 1.0], [-0.0, 1.0]]))
    assert state.merged().n_carried == 1
