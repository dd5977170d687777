"""What the tests of the GPU engine share: small engines, and cases small enough to simulate."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from spdnn import Features, Network, infer
from spdnn.engines.base import Output
from spdnn.engines.cuda.device import Device, SimulatedDevice, open_device
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.kernels import gpu
from spdnn.engines.cuda.sizes import CudaSizes
from spdnn.plan.cuda.sizes import PlanSizes
from tests.makers import FEATURE_KINDS, PATTERNS, dyadic_features, dyadic_network

IN_SHARED = 48 << 10
NOT_IN_SHARED = 0

TINY = CudaSizes(
    PlanSizes(bundle=1, rows=4, warps=1, buffer=8, shared_bytes=NOT_IN_SHARED),
    thread_features=1,
    minibatch=4,
    resident_threads=(32, 32),
    threads=32,
    list_threads=8,
)
"""One warp a block: the simulator makes a thread of each."""

TWO_WARPS = CudaSizes(
    PlanSizes(bundle=2, rows=4, warps=2, buffer=8, shared_bytes=NOT_IN_SHARED),
    thread_features=2,
    minibatch=16,
    resident_threads=(64, 64),
    threads=64,
    list_threads=64,
)


IN_CHUNKS = replace(TINY, plan=replace(TINY.plan, chunk=3, skew=2))
"""Outputs of seven inputs may be long."""


def sizes_with(shared_bytes: int, sizes: CudaSizes = TINY) -> CudaSizes:
    """CudaSizes with so much shared memory: for the resident kernel, or against it."""
    return replace(sizes, plan=replace(sizes.plan, shared_bytes=shared_bytes))


def device_with(n_bytes: int | None) -> Device:
    """A simulated device that claims so much memory, or the one that there is."""
    return SimulatedDevice(n_bytes) if n_bytes and gpu.SIMULATED else open_device()


def run(
    network: Network,
    features: Features,
    mode: str,
    shared_bytes: int = NOT_IN_SHARED,
    *,
    sizes: CudaSizes = TINY,
    n_bytes: int | None = None,
    device: Device | None = None,
    **options: Any,
) -> Output:
    """Run with kernels of small sizes, on a device or the one that there is."""
    if device is None:
        device = device_with(n_bytes)
    engine = CudaEngine(device=device, sizes=sizes_with(shared_bytes, sizes))
    plan = engine.plan(network, mode)
    return engine.run(plan, engine.load(plan, features), activations=True, **options)


def assert_as_reference(output: Output, network: Network, features: Features, mode: str) -> None:
    """Live features, counters and activations are those of the reference, bit by bit."""
    expected = infer(network, features, engine="scipy", activations=True)
    np.testing.assert_array_equal(output.live, expected.live)
    np.testing.assert_array_equal(output.n_live, [layer.live for layer in expected.layers])
    assert output.activations.shape == expected.activations.shape
    np.testing.assert_array_equal(output.activations, expected.activations)
    if mode == "edges":
        evaluated = [layer.edges_evaluated for layer in expected.layers]
        np.testing.assert_array_equal(output.edges_evaluated, evaluated)
        np.testing.assert_array_equal(output.n_distinct, output.n_live)
    assert (output.n_distinct <= output.n_live).all()


def assert_modes_agree(network: Network, features: Features, **options: Any) -> None:
    """Both modes, with a launch a step and resident, give the reference's result."""
    for mode in ("edges", "merge"):
        for shared_bytes in (NOT_IN_SHARED, IN_SHARED):
            output = run(network, features, mode, shared_bytes, **options)
            assert_as_reference(output, network, features, mode)


def many_layers(n_features: int = 6, n_layers: int = 9) -> tuple[Network, Features]:
    """A network in which some features die early and others become equal."""
    network = dyadic_network(
        7, [9] * (n_layers + 1), ["shared", "random", "full"] * (n_layers // 3)
    )
    return network, dyadic_features(7, n_features, 9)


@st.composite
def tiny_cases(draw: st.DrawFn) -> tuple[Network, Features]:
    """A dyadic network of few neurons, and features for it."""
    n_layers = draw(st.integers(1, 3))
    widths = draw(st.lists(st.integers(1, 14), min_size=n_layers + 1, max_size=n_layers + 1))
    kinds = draw(st.lists(st.sampled_from(PATTERNS), min_size=n_layers, max_size=n_layers))
    seed = draw(st.integers(0, 2**32 - 1))
    network = dyadic_network(seed, widths, kinds, always=True, linear_end=draw(st.booleans()))
    n_features = draw(st.sampled_from([0, 1, 5, 34]))
    return network, dyadic_features(
        seed, n_features, widths[0], draw(st.sampled_from(FEATURE_KINDS))
    )
