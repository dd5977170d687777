"""What float32 cannot hold is said, wherever in a network it happens; tests/gpu has the GPU's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spdnn import DataError, Features, Layer, Network, infer
from spdnn.cli.main import main
from spdnn.engines import make_engine
from spdnn.engines.base import Output
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.io import store

LARGE = 1e30
ONE = Features.from_matrix([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


def network(*layers: Any, ymax: float | None = None, last: str = "relu") -> Network:
    """Layers of two inputs and outputs, given as four weights each."""
    made = [Layer(np.reshape(weights, (2, 2)), 0.0, ymax) for weights in layers[:-1]]
    weights = np.reshape(layers[-1], (2, 2))
    return Network([*made, Layer(weights, 0.0, ymax if last == "relu" else None, last)])


BIG = (LARGE, LARGE, LARGE, LARGE)
IDENTITY = (1, 0, 0, 1)
OVERFLOWING = {
    "in the last layer": network(BIG, BIG),
    "in a linear one": network(BIG, BIG, last="linear"),
    "and is infinite from then on": network(BIG, BIG, IDENTITY, IDENTITY),
    "and meets its negative": network(BIG, BIG, (2, 2, -1, -1), IDENTITY),
    "and becomes negative": network(BIG, BIG, (-1, -1, 0, 0), IDENTITY),
    "to the negative": network(BIG, (-LARGE, -LARGE, -LARGE, -LARGE), IDENTITY),
    "and meets a cap later": Network(
        [*network(BIG, BIG).layers, Layer(np.reshape((2, 2, -1, -1), (2, 2)), 0.0, 32.0)]
    ),
}


Run = Callable[[Network, Features], Output]


@pytest.fixture(params=["edges", "merge"])
def run(request: pytest.FixtureRequest) -> Run:
    engine = make_engine("cpu", 2)

    def run(network: Network, features: Features) -> Output:
        plan = engine.plan(network, request.param)
        return engine.run(plan, engine.load(plan, features), activations=True)

    return run


@pytest.mark.parametrize("where", OVERFLOWING)
def test_overflow_is_an_error_that_names_the_feature(where: str, run: Run) -> None:
    with pytest.raises(DataError, match=r"feature [23] has activations beyond .* cap \(ymax\)"):
        run(OVERFLOWING[where], ONE)


@pytest.mark.parametrize("where", OVERFLOWING)
def test_what_float64_holds_the_reference_computes(where: str) -> None:
    result = infer(OVERFLOWING[where], ONE, engine="scipy", activations=True)
    assert np.isfinite(result.activations).all()


@pytest.mark.parametrize("last", ["relu", "linear"])
def test_what_float64_cannot_hold_either_is_an_error_of_the_reference(last: str) -> None:
    deep = network(*[BIG] * 12, last=last)
    with pytest.raises(DataError, match="feature 2 has activations beyond"):
        infer(deep, ONE, engine="scipy")


def test_numbers_just_within_are_none(run: Run) -> None:
    output = run(network((1e19, 0, 0, 1e19), (1e19, 0, 0, 1e19)), ONE)
    assert output.live.tolist() == [1, 2]
    assert output.activations.max() == pytest.approx(1e38)


def test_a_cap_keeps_activations_finite(run: Run) -> None:
    output = run(network(BIG, IDENTITY, ymax=32.0), ONE)
    assert output.activations.tolist() == [[32.0, 32.0], [32.0, 32.0]]


def test_a_run_that_stops_between_layers_hides_nothing() -> None:
    engine = CpuEngine(1)
    plan = engine.plan(OVERFLOWING["and becomes negative"], "merge")
    state = engine.run_part(plan, engine.load(plan, ONE), until=3).state
    with pytest.raises(DataError, match="feature 2 has activations beyond"):
        engine.run_part(plan, state)


def test_many_features_and_neurons_hide_none(run: Run) -> None:
    weights = np.eye(40)
    weights[17, 17] = LARGE
    wide = Network([Layer(weights, 0.0, None)] * 2)
    inputs = np.ones((100, 40))
    inputs[:, 17] = 0
    assert run(wide, Features.from_matrix(inputs)).live.size == 100
    inputs[71, 17] = 1
    with pytest.raises(DataError, match="feature 72 has activations beyond"):
        run(wide, Features.from_matrix(inputs))


@pytest.mark.parametrize("command", ["run", "predict"])
def test_it_is_one_line_and_status_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    store.write_network(Path("n.spdnn"), OVERFLOWING["and meets its negative"])
    store.write_features(Path("f.spdnn"), ONE)
    assert main([command, "--weights", "n.spdnn", "--inputs", "f.spdnn", "--engine", "cpu"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "feature 2 has activations beyond" in printed.err
