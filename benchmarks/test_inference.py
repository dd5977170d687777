"""Whole inference in mode edges, against other libraries: same features, same threads, checked."""

import os
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from spdnn.bench.rivals import GraphBlas, Mkl, ScipyCsr, ScipyDense
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.errors import DeviceError
from spdnn.machine.threads import default_threads
from spdnn.recipes.radixnet import official_network
from spdnn.sources.features import open_features
from spdnn.sources.folder import find_images, find_inputs

# A slow rival runs on fewer features, stated in its line: its rate hardly depends on how many.
SMALL = [
    (Mkl, 60000, 12),
    (ScipyDense, 60000, 20),
    (GraphBlas, 6000, 50),
    (ScipyCsr, 20000, 80),
]


@pytest.fixture(scope="module")
def inputs():
    """The official inputs: from a store in the data folder, else made once a size."""
    folder = Path(os.environ.get("SPDNN_DATA", "data"))
    if find_images(folder) is None:
        pytest.skip(f"MNIST's training images are not in {folder} (set SPDNN_DATA)")
    opened = {}

    def of(neurons, count):
        if neurons not in opened:
            opened[neurons] = open_features(find_inputs(folder, neurons), neurons).features
        return opened[neurons].part(0, count)

    return of


def compare(rival_class, neurons, layers, count, goal, inputs, pair, report):
    network = official_network(neurons, layers)
    what = f"{neurons} x {layers}, {count} features: times {rival_class.name}"
    try:
        rival = rival_class(network)
    except DeviceError as error:
        report(what, "missing", f"{goal} ({error})")
        pytest.skip(str(error))
    engine = CpuEngine()
    engine.compile(network)
    plan = engine.plan(network, "edges")
    part = inputs(neurons, count)
    loaded, converted = engine.load(plan, part), rival.convert(part)
    found = {}
    ours = lambda: found.update(ours=engine.run(plan, loaded).live)  # noqa: E731
    theirs = lambda: found.update(theirs=rival.run(converted))  # noqa: E731
    ours()
    pair.time(ours, theirs)
    assert np.array_equal(found["ours"], found["theirs"])
    report(what, f"{pair.speedup:.1f}", str(goal))


@pytest.mark.parametrize(("rival", "count", "goal"), SMALL)
def test_1024_neurons_120_layers(rival, count, goal, inputs, pair, report):
    compare(rival, 1024, 120, count, goal, inputs, pair, report)


def test_16384_neurons_120_layers(inputs, pair, report):
    compare(Mkl, 16384, 120, 6000, 6, inputs, pair, report)


@pytest.mark.skipif(default_threads() < 2, reason="one processor")
def test_two_threads_against_one(inputs, pair, report):
    network = official_network(1024, 120)
    engines = [CpuEngine(threads) for threads in (2, 1)]
    engines[0].compile(network)
    plan = engines[0].plan(network, "edges")
    loaded = engines[0].load(plan, inputs(1024, 60000))
    two, one = ((lambda engine=engine: engine.run(plan, loaded)) for engine in engines)
    two()
    pair.time(two, one)
    report("1024 x 120: two threads, times one", f"{pair.speedup:.2f}", "1.85")


def test_cost_of_a_live_feature_and_edge_by_size(inputs, pair, report):
    seconds = {}
    for neurons, count, goal in ((1024, 60000, 1.0), (16384, 6000, 1.5), (65536, 1500, 2.5)):
        network = official_network(neurons, 120)
        engine = CpuEngine()
        engine.compile(network)
        plan = engine.plan(network, "edges")
        loaded = engine.load(plan, inputs(neurons, count))
        times = []
        for _ in range(3):
            start = perf_counter()
            output = engine.run(plan, loaded)
            times.append(perf_counter() - start)
        seconds[neurons] = sorted(times)[1] / output.edges_evaluated.sum()
        ratio = seconds[neurons] / seconds[1024]
        what = f"{neurons} x 120, {count} features: seconds a live feature and edge"
        report(what, f"{ratio:.2f}", f"{goal} of 1024 neurons'")
    pair.benchmark.pedantic(lambda: None, rounds=1)
