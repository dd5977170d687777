"""Dense inputs to dense scores, against dense ONNX Runtime with the same threads, in turn.

A line for each network, density and number of features: time of ONNX Runtime / time of the whole
call of `Session.scores`. These are medians of short series in turn. The least times are in
brackets; they say more if others use the machine, too.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from statistics import median
from time import perf_counter, sleep

import numpy as np
import pytest
import scipy.sparse as sp

from spdnn import Layer, Network, Session
from spdnn.bench.dense_onnx import Run, dense_onnx
from spdnn.machine.threads import default_threads

pytest.importorskip("onnxruntime")

NETWORKS = {
    "784-300-100-10": [784, 300, 100, 10],
    "784-1024x4-10": [784, *[1024] * 4, 10],
    "4096x4": [4096] * 5,
}
DENSITIES = (1, 0.5, 0.2, 0.1, 0.05, 0.02)
SMALL, LARGE = (1, 64, 1024, 16384), (1, 64, 1024, 4096)
TRAINED = "784-128-(18 x 128)-10"
ROUNDS = 5
SERIES_SECONDS, PAUSE_SECONDS = 0.02, 0.03
"""A series, and the pause after it: ONNX Runtime's threads spin for a while after a call."""


def layers_of(widths: list[int], densities: list[float], seed: int = 0) -> list[Layer]:
    """Random layers whose activations neither die nor grow; the last one is linear."""
    rng = np.random.default_rng(seed)
    layers = []
    for number, (shape, density) in enumerate(zip(pairwise(widths), densities, strict=True)):
        weights = rng.uniform(-1, 1, shape) * np.sqrt(6 / (shape[0] * density))
        weights *= rng.random(shape) < density
        activation = "linear" if number == len(densities) - 1 else "relu"
        bias = 0.05 * rng.random(shape[1])
        layers.append(Layer(sp.csr_array(weights), bias, None, activation, "always"))
    return layers


@lru_cache(1)
def both(name: str, density: float, threads: int) -> tuple[int, Run, Run]:
    """Inputs of a network, ONNX Runtime on it, and a session."""
    if name == TRAINED:
        layers = layers_of([784, *[128] * 19, 10], [0.1, *[0.6] * 18, 1])
    else:
        layers = layers_of(NETWORKS[name], [density] * (len(NETWORKS[name]) - 1))
    network = Network(layers)
    session = Session(network, engine="cpu", mode="edges", threads=threads)
    return network.n_inputs, dense_onnx(layers, threads), session.scores


def series(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call, the median of a short series and the least."""
    seconds = []
    end = perf_counter() + SERIES_SECONDS
    while not seconds or perf_counter() < end:
        start = perf_counter()
        run()
        seconds.append(perf_counter() - start)
    return median(seconds), min(seconds)


CASES = [
    (name, density, count)
    for name in NETWORKS
    for density in DENSITIES
    for count in (LARGE if name == "4096x4" else SMALL)
] + [(TRAINED, 0.6, 10000)]


@pytest.mark.parametrize(("name", "density", "count"), CASES)
@pytest.mark.parametrize("threads", sorted({1, default_threads()}), ids="{}threads".format)
def test_against_dense_onnx_runtime(name, density, count, threads, report):
    n_inputs, theirs, ours = both(name, density, threads)
    inputs = np.random.default_rng(1).random((count, n_inputs), np.float32)
    expected = theirs(inputs)
    assert np.allclose(ours(inputs), expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    times = {"theirs": [], "ours": []}
    for _ in range(ROUNDS):
        times["theirs"].append(series(lambda: theirs(inputs)))
        sleep(PAUSE_SECONDS)
        times["ours"].append(series(lambda: ours(inputs)))
    typical = {who: median(middle for middle, _ in found) for who, found in times.items()}
    least = {who: min(low for _, low in found) for who, found in times.items()}
    ratio, quickest = (t["theirs"] / t["ours"] for t in (typical, least))
    goal = "over 1" if density <= 0.1 else "0.9" if density == 0.2 else "0.8"
    if name == "784-300-100-10" and count == 1 and density <= 0.1:
        goal = "0.5"
    what = f"{name} at {density}, {count} features, {threads} threads"
    report(f"{what}: {typical['ours'] * 1e6:.0f} us", f"{ratio:.2f} ({quickest:.2f})", goal)
