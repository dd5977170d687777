"""Features at the cap need not be carried where, and only where, every further layer keeps them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spdnn import Features, Layer, Network, infer
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.plan.cpu.plan import plan_edges, plan_merge
from spdnn.recipes.radixnet import official_network
from tests.test_engines_agree import assert_modes_agree, assert_same, tiny_cpu_engine

CAP = 4.0


def filling(n: int, weight: float = 1.0, bias: float = -1.0, cap: float | None = CAP) -> Layer:
    """Each output takes two neighbours."""
    return Layer(weight * (np.eye(n) + np.roll(np.eye(n), 1, axis=1)), bias, cap)


@pytest.mark.parametrize(
    ("layers", "rests"),
    [
        ([filling(4)] * 3, [True, True, True]),
        ([filling(4), filling(4, weight=0.5), filling(4)], [False, True, True]),
        ([filling(4), filling(4, bias=-3.5), filling(4)], [True, True, True]),
        ([filling(4), filling(4, bias=-4.5), filling(4)], [False, True, True]),
        ([filling(4), filling(4), filling(4, cap=None)], [False, False, False]),
        ([filling(4), filling(4, cap=None), filling(4)], [False, False, True]),
        ([filling(4, cap=None), filling(4), filling(4)], [False, True, True]),
        ([filling(4), filling(4, cap=9.0), filling(4)], [False, True, True]),  # 8 - 1 < 9
        ([filling(4), Layer(np.eye(4)[:, [0, 1, 2, 2]], -1.0, CAP)], [False, True]),
        ([filling(4), Layer(np.zeros((4, 4)), 5.0, CAP, bias_rule="always")], [True, True]),
    ],
)
def test_layers_that_keep_the_cap_are_known(layers: list[Layer], rests: list[bool]) -> None:
    network = Network(layers)
    assert plan_merge(network).rests.tolist() == rests
    assert not plan_edges(network).rests.any()


def test_the_cap_must_be_passed_by_more_than_rounding() -> None:
    # 16 x 0.25 is 4 exactly, but a sum that rounds may be less.
    just = Layer(np.full((16, 16), 1 / 16), 0.0, CAP)
    assert plan_merge(Network([just, just])).rests.tolist() == [False, True]


@st.composite
def filling_cases(draw: st.DrawFn) -> tuple[Network, Features]:
    """Networks in which features reach the cap, stay there, and sometimes lose it again."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    widths = [int(n) for n in rng.integers(2, 20, size=draw(st.integers(3, 12)))]
    layers = []
    for n_inputs, n_outputs in pairwise(widths):
        weights = (rng.random((n_inputs, n_outputs)) < 0.7) * rng.choice([0.5, 1.0, 2.0])
        if rng.random() < 0.8:
            weights[0, :] += 2.0
        layers.append(Layer(weights, rng.choice([-1.0, -0.5, 0.5]), CAP))
    matrix = (rng.random((draw(st.integers(1, 40)), widths[0])) < 0.5).astype(np.float32)
    return Network(layers), Features.from_matrix(matrix * 2)


@given(filling_cases())
def test_resting_changes_nothing(case: tuple[Network, Features]) -> None:
    with tiny_cpu_engine():
        assert_modes_agree(*case)


def test_features_at_rest_are_not_evaluated_and_are_counted() -> None:
    network = Network([filling(4, bias=-0.5)] * 40)
    features = Features.from_matrix(np.ones((3, 4)) * [[1], [0], [2]])
    result = infer(network, features, engine="cpu", mode="merge", activations=True)
    assert_same(result, infer(network, features, engine="scipy", activations=True))
    assert [layer.live for layer in result.layers] == [2] * 40
    assert [layer.distinct for layer in result.layers[8:]] == [1] * 32
    assert [layer.edges_evaluated for layer in result.layers[12:]] == [0] * 28


def test_a_run_may_stop_while_features_rest() -> None:
    network = Network([filling(4, bias=-0.5)] * 40)
    features = Features.from_matrix(np.ones((3, 4)) * [[1], [0], [2]])
    engine = CpuEngine(1)
    plan = engine.plan(network, "merge")
    state = engine.run_part(plan, engine.load(plan, features), until=30).state
    assert state is not None
    assert (state.ids.tolist(), state.n_carried) == ([0, 2], 1)
    assert (state.activations == CAP).all()
    output = engine.run_part(plan, state, activations=True)
    assert output.activations is not None
    assert (output.activations == CAP).all()
    assert output.n_live[30:].tolist() == [2] * 10


def test_official_features_come_to_rest() -> None:
    rests = plan_merge(official_network(1024, 30)).rests
    assert rests.all()
