"""The float64 reference on a sample of the features: what it takes, finds, and lets pass."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spdnn import Features, Layer, Network, Result, infer
from spdnn.checks.sample import check_sample, take_sample, take_sample_within
from spdnn.checks.truth import Check
from spdnn.engines import make_engine
from spdnn.engines.base import Output
from spdnn.engines.cpu.engine import CpuEngine
from tests.makers import dyadic_features, small_network

NETWORK = small_network(64, 3)
FEATURES = dyadic_features(3, 40, 64, "binary")


def ran(network: Network, features: Features, mode: str = "merge") -> Result:
    return infer(network, features, engine="cpu", mode=mode)


def checked(
    network: Network,
    features: Features,
    result: Result,
    count: int = 1000,
    engine: Any = None,
) -> Check:
    engine = engine or make_engine("cpu")
    plan = engine.plan(network, result.mode)
    return check_sample(result, take_sample(network, features, count), engine, plan)


@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.sampled_from(["edges", "merge"]))
def test_a_right_run_passes_whatever_the_weights(seed: int, count: int, mode: str) -> None:
    numbers = np.random.default_rng(seed)
    weights = numbers.normal(size=(20, 20)) * (numbers.random((20, 20)) < 0.3)
    layers = [Layer(weights, numbers.normal(size=20), None, "relu", "always") for _ in range(6)]
    layers.append(Layer(weights[:, :3], numbers.normal(size=3), None, "linear", "always"))
    features = Features.from_matrix(numbers.normal(size=(30, 20)))
    network = Network(layers)
    check = checked(network, features, ran(network, features, mode), count)
    assert (check.kind, check.outcome) == ("sample", "passed")


def test_a_sample_is_spread_over_all_features() -> None:
    sample = take_sample(NETWORK, FEATURES, 8)
    assert sample.numbers.tolist() == [0, 5, 10, 15, 20, 25, 30, 35]
    assert sample.activations.shape == (8, 64)
    everything = take_sample(NETWORK, FEATURES, 1000)
    assert everything.numbers.tolist() == list(range(40))
    full = infer(NETWORK, FEATURES, engine="scipy", activations=True)
    assert np.array_equal(everything.activations[full.live], full.activations)


def test_what_was_compared_is_said() -> None:
    text = checked(NETWORK, FEATURES, ran(NETWORK, FEATURES), 8).text
    assert text.endswith("reference on 8 of 40 features, spread over all")


@pytest.mark.parametrize("change", ["missing", "extra"])
def test_a_live_feature_that_is_missing_or_extra_fails(change: str) -> None:
    result = ran(NETWORK, FEATURES)
    dead = np.setdiff1d(np.arange(40), result.live)
    wrong = result.live[1:] if change == "missing" else np.sort([*result.live, dead[0]])
    number = result.live[0] if change == "missing" else dead[0]
    check = checked(NETWORK, FEATURES, replace(result, live=wrong))
    assert check.outcome == "failed"
    assert check.text.endswith(f"1 differ from the float64 reference: {number + 1}")


class _Slightly(CpuEngine):
    """An engine whose first live feature has one activation wrong by a hundredth."""

    def run(self, *given: Any, **named: Any) -> Output:
        output = super().run(*given, **named)
        activations: npt.NDArray[np.float32] | None = output.activations
        assert activations is not None
        activations[0, np.argmax(activations[0])] *= 1.01
        return output


def test_an_activation_that_is_wrong_fails_though_the_same_features_live() -> None:
    result = ran(NETWORK, FEATURES)
    check = checked(NETWORK, FEATURES, result, engine=_Slightly())
    assert check.outcome == "failed"
    assert check.text.endswith(f": {result.live[0] + 1}")


def test_a_wrong_weight_fails() -> None:
    weights = NETWORK.layers[1].weights.copy()
    weights.data[:] *= 1.05
    other = [NETWORK.layers[0], Layer(weights, -0.5, 32.0), NETWORK.layers[2]]
    result = ran(Network(other), FEATURES)
    plan = make_engine("cpu").plan(Network(other), "merge")
    sample = take_sample(NETWORK, FEATURES, 40)
    assert check_sample(result, sample, make_engine("cpu"), plan).outcome == "failed"


def test_the_time_bounds_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("spdnn.checks.sample.time.perf_counter", lambda: next(clock))
    # Three layers take three ticks of this clock.
    assert take_sample_within(NETWORK, FEATURES, 1.0) is None
    sample = take_sample_within(NETWORK, FEATURES, 4.0)
    assert sample is not None
    assert sample.numbers.size == 14  # each third of 40, the most that a first sample of 16 takes
    sample = take_sample_within(NETWORK, FEATURES, 100.0)
    assert sample is not None
    assert sample.numbers.size == 40
