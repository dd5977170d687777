"""A run held against the float64 reference, on some of its features: what can be checked anywhere.

The reference is slow, so that it takes a sample, spread over all features. That the sample is right
does not prove that every category is; that it is wrong proves that the run is.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.checks.truth import N_SHOWN, Check
from spdnn.engines.base import Engine
from spdnn.engines.reference import next_features
from spdnn.features import Features
from spdnn.network import Network
from spdnn.run.result import Result

SHORT_SECONDS = 2.0
"""What a check that nobody has asked for may take."""

LONG_SECONDS = 10.0
"""What one without a number of features takes about."""

FIRST_SAMPLE = 16
"""Features that are tried first, to see how long the reference takes."""

PLANNED_SHARE = 0.7
"""Of the time that is left, for the sample that follows: the first is no exact measure."""

MOST_VALUES = 1 << 22
"""Activations of a sample after the last layer at most."""

TOLERANCE = 1e-3
"""By so much activations may differ, relative to the largest sum of magnitudes (bias and products
of inputs and weights) of any output of that feature. Float32 rounds an addition by 6e-8 at most.
Over the layers that adds up, but a wrong edge changes far more."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Some features, and what the reference makes of them.

    Attributes
    ----------
    numbers : ndarray, shape (n_sampled,), int64
        Which of all features they are, counted from 0.
    features : Features
    activations : ndarray, shape (n_sampled, n_outputs), float64
        After the last layer.
    magnitudes : ndarray, shape (n_sampled,), float64
        The largest sum of magnitudes that an output of the feature is the sum of.
    """

    numbers: npt.NDArray[np.int64]
    features: Features
    activations: npt.NDArray[np.float64]
    magnitudes: npt.NDArray[np.float64]


def take_sample(network: Network, features: Features, count: int) -> Sample:
    """Run the reference on `count` features (or fewer, where so many are not there)."""
    sample = _run(network, features, count, None)
    assert sample is not None
    return sample


def take_sample_within(network: Network, features: Features, seconds: float) -> Sample | None:
    """Run the reference on as many features as it takes about so many seconds for.

    Returns None if it takes longer for a few.
    """
    started = time.perf_counter()
    end = started + seconds
    first = _run(network, features, FIRST_SAMPLE, end)
    if first is None:
        return None
    took = time.perf_counter() - started
    times = PLANNED_SHARE * (end - started - took) / max(took, 1e-3)
    more = _run(network, features, int(times * FIRST_SAMPLE), end) if times >= 2 else None
    return more or first


def _run(network: Network, features: Features, count: int, end_time: float | None) -> Sample | None:
    """Run the reference; None if it is not done by `end_time`."""
    n_features = features.n_features
    count = max(1, min(count, n_features, MOST_VALUES // network.n_outputs))
    step = -(-n_features // count)
    part = features.every(0, n_features, step)
    y = part.to_csr(np.float64)
    for number, layer in enumerate(network.layers, start=1):
        if number == network.n_layers:
            sums = abs(y) @ abs(layer.weights.astype(np.float64))
            magnitudes = (sums.toarray() + np.abs(layer.bias)).max(axis=1)
        y = next_features(y, layer)
        if end_time is not None and time.perf_counter() > end_time and number < network.n_layers:
            return None
    return Sample(np.arange(0, n_features, step), part, y.toarray(), magnitudes)


def check_sample(result: Result, sample: Sample, engine: Engine, plan: Any) -> Check:
    """Compare a run with the reference: which features are live, and activations.

    A result has no activations, so the engine that made it takes the sample through its plan once
    more; each feature is computed by itself, so that this gives what the run has had.

    Parameters
    ----------
    result : Result
    sample : Sample
        Of the features that were run.
    engine : Engine
        That has made the result.
    plan : object
        The engine's, of the network in the result's mode.
    """
    output = engine.run(plan, engine.load(plan, sample.features), activations=True)
    n = sample.numbers.size
    found = np.zeros_like(sample.activations)
    found[output.live] = output.activations
    again = np.isin(np.arange(n), output.live)
    live = np.isin(sample.numbers, result.live)
    tolerance = TOLERANCE * sample.magnitudes
    differs = np.abs(found - sample.activations).max(axis=1) > tolerance
    # Near zero rounding decides whether a feature is live.
    is_decided = np.abs(sample.activations).max(axis=1) > tolerance
    should_live = (sample.activations != 0).any(axis=1)
    wrong = differs | (live != again) | (is_decided & (live != should_live))
    head = f"{result.live.size:,} categories"
    of_all = f"{n:,} of {result.n_features:,} features, spread over all"
    if not wrong.any():
        text = (
            f"PASSED: {head}; live features and activations agree with the float64 reference "
            f"on {of_all}"
        )
        return Check("sample", "passed", text)
    shown = ", ".join(map(str, sample.numbers[wrong][:N_SHOWN] + 1))
    more = ", ..." if np.count_nonzero(wrong) > N_SHOWN else ""
    text = (
        f"FAILED: {head}; of {of_all}, {np.count_nonzero(wrong):,} differ from the float64 "
        f"reference: {shown}{more}"
    )
    return Check("sample", "failed", text)
