"""What the tests of the GPU engine share: the device, small engines, and cases for them."""

import copy
import os
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from spdnn import Features, Network, infer
from spdnn.engines import DeviceChoice
from spdnn.engines.base import Output
from spdnn.engines.cuda.device import Device, open_device
from spdnn.engines.cuda.emulated.device import EmulatedDevice
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


def _where() -> Literal["simulator", "GPU", "emulated GPU"]:
    if gpu.SIMULATED:
        return "simulator"
    return "GPU" if "SPDNN_TEST_GPU" in os.environ else "emulated GPU"


WHERE = _where()
"""Where these tests run: tests/gpu/conftest.py says how it is chosen."""

DEVICE: DeviceChoice | None = "emulated" if WHERE == "emulated GPU" else None
"""The same device, as users ask for it."""


def examples(*, simulator: int, emulated: int, on_gpu: int) -> int:
    """How many examples hypothesis draws: many where they are cheap."""
    return {"simulator": simulator, "emulated GPU": emulated, "GPU": on_gpu}[WHERE]


@cache
def _opened() -> Device:
    """The device, opened once a process."""
    return EmulatedDevice() if WHERE == "emulated GPU" else open_device()


def device_with(n_bytes: int | None = None, seed: int | None = None) -> Device:
    """The device that these tests run on.

    With `n_bytes` it claims that so much memory is free. With `seed` an emulated one runs blocks
    and threads in a random order; a GPU has its own, and the simulator only one.
    """
    device = copy.copy(_opened())
    if seed is not None and WHERE == "emulated GPU":
        device = EmulatedDevice(seed=seed)
    if n_bytes is not None:
        device.free_bytes = lambda: n_bytes  # type: ignore[method-assign]
    return device


def run(
    network: Network,
    features: Features,
    mode: str,
    shared_bytes: int = NOT_IN_SHARED,
    *,
    sizes: CudaSizes = TINY,
    device: Device | None = None,
    **options: Any,
) -> Output:
    """Run with kernels of small sizes, on a device or the one that there is."""
    if device is None:
        device = device_with()
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
