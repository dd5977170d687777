"""The device of a GPU with its real launches: the driver's call leads to the emulated device.

So packed parameters, and the pointers to them, are those of compiled kernels. CuPy has a stand-in.
"""

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spdnn import DeviceError, Layer, Network
from spdnn.engines.cuda import gpu_device
from spdnn.engines.cuda.emulated.device import EmulatedDevice
from spdnn.engines.cuda.emulated.launch import Order
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.gpu_device import open_gpu
from spdnn.engines.cuda.kernels import gpu
from tests.gpu.cupy_stand_in import Stream, stand_in_for_cupy
from tests.gpu.makers import (
    IN_SHARED,
    NOT_IN_SHARED,
    assert_as_reference,
    many_layers,
    sizes_with,
)
from tests.makers import dyadic_features

pytestmark = pytest.mark.skipif(not gpu.has_compiler(), reason="libNVVM is not installed")

cuda_driver = pytest.importorskip("cuda.bindings.driver")


class Driver:
    """Kernels by their handles, and how much shared memory each may ask for."""

    def __init__(self) -> None:
        self.device = EmulatedDevice(n_processors=1)
        self.programs: list[Any] = []
        self.shares: dict[int, int] = {}
        self.status = cuda_driver.CUresult.CUDA_SUCCESS

    def loaded(self, kernel: Any, stand_ins: tuple[Any, ...]) -> SimpleNamespace:
        self.programs.append(self.device._program(kernel, stand_ins))
        return SimpleNamespace(handle=len(self.programs))

    def let_share(self, function: SimpleNamespace, n_bytes: int) -> None:
        self.shares[function.handle] = n_bytes

    def launch(self, function: Any, *numbers: Any) -> tuple[Any]:
        """What cuLaunchKernel does."""
        n_x, n_y, n_z, n_threads, *others, shared, stream, parameters, extra = numbers
        assert (n_z, *others, extra) == (1, 1, 1, 0)
        assert int(stream) == Stream.ptr
        assert shared <= self.shares.get(int(function), 0)
        program = self.programs[int(function) - 1]
        pointers = ctypes.c_uint64 * len(program.kernel.parameters)
        words = [
            ctypes.c_uint64.from_address(pointer).value
            for pointer in pointers.from_address(parameters)
        ]
        order = Order(np.arange(n_threads), np.arange(n_x * n_y))
        program.launch((n_x, n_y), n_threads, words, shared, order)
        return (self.status,)


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver and CuPy, both replaced."""
    made, cupy = Driver(), stand_in_for_cupy()
    cupy.cuda.runtime.memGetInfo = lambda: (1 << 20, 1 << 20)
    monkeypatch.setattr(gpu_device, "_import_cupy", lambda: cupy)
    monkeypatch.setattr(gpu.cuda, "select_device", lambda number: None)
    monkeypatch.setattr(gpu, "loaded", made.loaded)
    monkeypatch.setattr(gpu, "let_share", made.let_share)
    monkeypatch.setattr(cuda_driver, "cuLaunchKernel", made.launch)
    return made


@pytest.mark.parametrize("mode", ["edges", "merge"])
@pytest.mark.parametrize("shared_bytes", [NOT_IN_SHARED, IN_SHARED])
def test_packed_parameters_are_those_of_the_kernels(mode: str, shared_bytes: int) -> None:
    network, features = many_layers(n_features=40)
    engine = CudaEngine(device=open_gpu(), sizes=sizes_with(shared_bytes))
    plan = engine.plan(network, mode)
    output = engine.run(plan, engine.load(plan, features), activations=True)
    assert_as_reference(output, network, features, mode)
    assert engine.device.kernel_times() == {}


def test_steps_do_not_pack_parameters_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []

    class Noted(gpu.PackedLaunch):
        def __init__(self, *given: Any) -> None:
            packed.append(given[1])
            super().__init__(*given)

    monkeypatch.setattr(gpu, "PackedLaunch", Noted)
    n_packed = []
    for n_layers in (30, 60):
        network = Network([Layer(np.eye(9))] * n_layers)
        engine = CudaEngine(device=open_gpu(), sizes=sizes_with(NOT_IN_SHARED))
        plan = engine.plan(network, "edges")
        packed.clear()
        engine.run(plan, engine.load(plan, dyadic_features(1, 5, 9)))
        n_packed.append(len(packed))
    assert n_packed[0] == n_packed[1]


def test_each_kernel_is_timed_where_that_is_asked_for() -> None:
    network, features = many_layers()
    device = open_gpu(times_kernels=True)
    engine = CudaEngine(device=device, sizes=sizes_with(NOT_IN_SHARED))
    plan = engine.plan(network, "merge")
    engine.run(plan, engine.load(plan, features))
    times = device.kernel_times()
    [loading] = [name for name in times if name.startswith("load ")]
    assert {
        "list carried",
        "hash features",
        "unite",
        "look for overflow",
    } < times.keys()
    assert times[loading].launches == 1
    assert times["list carried"].launches > plan.n_layers
    for launches, seconds in times.values():
        assert seconds == pytest.approx(launches * 1e-3)  # the stand-in's events are 1 ms apart
    assert device.kernel_times() == {}


def test_a_launch_that_the_driver_refuses_is_one_line(driver: Driver) -> None:
    network, features = many_layers()
    engine = CudaEngine(device=open_gpu(), sizes=sizes_with(IN_SHARED))
    plan = engine.plan(network, "edges")
    loaded = engine.load(plan, features)
    driver.status = cuda_driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(DeviceError) as raised:
        engine.run(plan, loaded)
    assert str(raised.value) == (
        "GPU 0 (Stand-in) failed: [701] cuLaunchKernel results in "
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    )
