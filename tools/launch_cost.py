"""What a launch costs the host before the GPU's driver is called; needs no GPU.

    python -m tools.launch_cost

The driver's call is replaced by a function that does nothing. What is left is the engine's own
work: preparing a launch (types, parameters), calling it with a grid, and going from step to step.
"""

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp

from spdnn.engines.cuda.device import Launch, kinds_of, packed
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.kernels import gpu
from spdnn.engines.cuda.sizes import CudaSizes
from spdnn.features import Features
from spdnn.network import Layer, Network
from spdnn.plan.cuda.sizes import PlanSizes
from tools.machine_code import Recorder

driver: Any = importlib.import_module("cuda.bindings.driver")

REPEATS = 20_000
"""Launches that are timed together."""

TRIES = 5
"""Of which the fastest counts."""

N_LAYERS = 960
"""Layers of the network with a launch for each step."""


class StubbedDevice(Recorder):
    """Prepares launches as a GPU does; they end before the driver."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, tuple[Any, ...]] = {}
        self._functions: dict[Any, Any] = {}

    def prepared(
        self, kernel: Any, n_threads: int, arguments: tuple[Any, ...], shared: int = 0
    ) -> Launch:
        """As the device of a GPU does it, without compiling or loading."""
        key = kernel, kinds_of(arguments)
        function = self._functions.setdefault(key, SimpleNamespace(handle=1))
        self.asked[kernel.py_func.__name__] = kernel, n_threads, arguments, shared
        return gpu.PackedLaunch(function, n_threads, packed(arguments), shared, 1)

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Prepare, and launch once."""
        self.prepared(kernel, n_threads, arguments, shared)(grid)


class Cost(NamedTuple):
    """Microseconds of the host."""

    prepare: float
    launch: float


@contextmanager
def without_driver() -> Iterator[None]:
    """Let launches succeed without a GPU."""
    success = (driver.CUresult.CUDA_SUCCESS,)
    with patch.object(driver, "cuLaunchKernel", lambda *given: success):
        yield


def microseconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Microseconds of a call, in the fastest of some tries."""
    seconds = []
    for _ in range(TRIES):
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        seconds.append(time.perf_counter() - began)
    return min(seconds) / repeats * 1e6


def network_with(n_layers: int) -> Network:
    """A network of groups, and of outputs with one input each."""
    weights = sp.eye_array(64, dtype=np.float32).tolil()
    weights[:4, :4] = np.arange(1, 17).reshape(4, 4)
    return Network([Layer(weights.tocsr(), -0.5)] * n_layers)


def costs() -> tuple[dict[str, Cost], float]:
    """The cost of each kernel's launch, by its name, and the host's microseconds for a step."""
    found: dict[str, Cost] = {}
    of_step = 0.0
    features = Features(64, np.arange(3), np.arange(2))
    for shared_bytes, n_layers in ((0, N_LAYERS), (Recorder.shared_bytes, 3)):
        device = StubbedDevice()
        engine = CudaEngine(device=device, sizes=CudaSizes(PlanSizes(shared_bytes=shared_bytes)))
        plan = engine.plan(network_with(n_layers), "edges")
        loaded = engine.load(plan, features)
        of_run = microseconds(lambda: engine.run(plan, loaded), 1)  # noqa: B023 - called at once
        if not shared_bytes:
            of_step = of_run / plan.n_steps
        for name, asked in device.asked.items():
            kernel, n_threads, arguments, shared = asked

            def prepare() -> Launch:
                return device.prepared(kernel, n_threads, arguments, shared)  # noqa: B023

            launch = prepare()
            found[name] = Cost(
                microseconds(prepare, REPEATS // 10),
                microseconds(lambda: launch((1, 1))),  # noqa: B023
            )
    return found, of_step


def main() -> None:
    """Print the table."""
    with without_driver():
        found, of_step = costs()
    print("| kernel | microseconds to prepare | microseconds a launch |\n|---|---|---|")
    for name in ("grouped", "staged", "list_carried", "resident"):
        print(f"| {name} | {found[name].prepare:.1f} | {found[name].launch:.2f} |")
    print(f"\nA step of {N_LAYERS} layers, three launches: {of_step:.1f} microseconds.")


if __name__ == "__main__":
    main()
