"""A check of a run against the float64 reference, on some of its features.

It needs no true categories. The reference is slow, so it takes a sample that is spread over all
features. A sample that agrees does not prove that every category is right. A sample that differs
proves that the run is wrong.
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
"""Longest time in seconds for a check that the user has not asked for."""

LONG_SECONDS = 10.0
"""Rough time in seconds for a check that the user has asked for without a number of features."""

FIRST_SAMPLE = 16
"""Features that are run first, to measure the time that the reference takes."""

PLANNED_SHARE = 0.7
"""Share of the remaining time that is planned for the next sample, since the first is small."""

MOST_VALUES = 1 << 22
"""Most activations of a sample after the last layer."""

TOLERANCE = 1e-3
"""Largest difference of activations, relative to the largest sum of magnitudes of an output of the
feature (of the bias and of the products of inputs and weights). Float32 rounds an addition by at
most 6e-8 of it. These errors add up over the layers, but a wrong edge changes far more."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Some features, and their results from the reference.

    Attributes
    ----------
    numbers : ndarray, shape (n_sampled,), int64
        Numbers of the features among all, counted from 0.
    features : Features
        The features.
    activations : ndarray, shape (n_sampled, n_outputs), float64
        Their activations after the last layer.
    magnitudes : ndarray, shape (n_sampled,), float64
        Largest sum of the magnitudes of the terms of an output of the last layer.
    """

    numbers: npt.NDArray[np.int64]
    features: Features
    activations: npt.NDArray[np.float64]
    magnitudes: npt.NDArray[np.float64]


def take_sample(network: Network, features: Features, count: int) -> Sample:
    """Run the reference on a number of features.

    Parameters
    ----------
    network : Network
        The network.
    features : Features
        All features of the run.
    count : int
        Number of features to run; fewer where there are not so many.

    Returns
    -------
    Sample
        Spread over all features.
    """
    sample = _run(network, features, count, None)
    assert sample is not None
    return sample


def take_sample_within(network: Network, features: Features, seconds: float) -> Sample | None:
    """Run the reference on as many features as it can run in a given time.

    Parameters
    ----------
    network : Network
        The network.
    features : Features
        All features of the run.
    seconds : float
        Rough time that it may take.

    Returns
    -------
    Sample or None
        None if the time is too short for a few features.
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
    """Run the reference; None if it has not finished by `end_time`."""
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
    """Compare the live features and the activations of a run with the reference.

    A result does not hold activations, so the engine runs the sample once more with the same plan.
    The result of a feature does not depend on the others, so these are the activations of the run.

    Parameters
    ----------
    result : Result
        The result of the run.
    sample : Sample
        Some of the features that were run.
    engine : Engine
        The engine that has made the result.
    plan : object
        The plan that the engine has used.

    Returns
    -------
    Check
        The judgement on the run.
    """
    output = engine.run(plan, engine.load(plan, sample.features), activations=True)
    n = sample.numbers.size
    found = np.zeros_like(sample.activations)
    found[output.live] = output.activations
    again = np.isin(np.arange(n), output.live)
    live = np.isin(sample.numbers, result.live)
    tolerance = TOLERANCE * sample.magnitudes
    differs = np.abs(found - sample.activations).max(axis=1) > tolerance
    # Where all activations are near zero, rounding decides whether a feature is live.
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
