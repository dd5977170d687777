"""What `gpu_device` asks of CuPy, against a stand-in of NumPy with CuPy 14.2's signatures.

It cannot tell that CuPy does what its documentation says; it can tell that the calls fit together,
and that what a copy reads from stays where it is until its stream has been waited for.
"""

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spdnn import DeviceError
from spdnn.engines.cuda import gpu_device
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.gpu_device import open_gpu
from spdnn.engines.cuda.kernels import gpu
from tests.gpu.makers import (
    IN_SHARED,
    NOT_IN_SHARED,
    assert_as_reference,
    many_layers,
    sizes_with,
)

pytestmark = [
    pytest.mark.skipif(not gpu.SIMULATED, reason="kernels take the stand-in's arrays"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # hashes wrap around
]


class CudaError(RuntimeError):
    """An error of CUDA."""


class Event:
    def synchronize(self) -> None:
        pass


class Stream:
    """Remembers from what it copies, until somebody waits."""

    ptr = 1

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.sources: list[Callable[[], Any]] = []
        self.is_capturing = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        assert all(source() is not None for source in self.sources), "freed while it was copied"
        self.sources.clear()

    def record(self, event: Event | None = None) -> Event:
        return event or Event()

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)

    def begin_capture(self, mode: int | None = None) -> None:
        self.is_capturing = True

    def end_capture(self) -> Any:
        self.is_capturing = False
        return SimpleNamespace(launch=lambda stream: stream)


class Array:
    """cupy.ndarray; the simulator's kernels take the `array` in it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.nbytes, self.data = array, array.nbytes, self

    def __getitem__(self, part: slice) -> "Array":
        return Array(self.array[part])

    def set(self, arr: np.ndarray, stream: Stream) -> None:
        assert (arr.dtype, arr.shape) == (self.array.dtype, self.array.shape)
        self.array[...] = arr
        while isinstance(arr.base, np.ndarray):
            arr = arr.base
        stream.sources.append(weakref.ref(arr))

    def get(self, stream: Stream) -> np.ndarray:
        stream.synchronize()
        return self.array.copy()

    def view(self, dtype: Any) -> "Array":
        return Array(self.array.view(dtype))

    def memset_async(self, value: int, size: int, stream: Stream) -> None:
        assert size == self.nbytes
        self.array.view(np.uint8)[...] = value


FACTS = {
    "name": b"Stand-in", "major": 9, "minor": 0, "multiProcessorCount": 2,
    "sharedMemPerBlockOptin": IN_SHARED,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The stand-in, which `open_gpu` takes for CuPy."""
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda number: FACTS,
        memGetInfo=lambda: (9000, 9000),
        CUDARuntimeError=CudaError,
    )
    of_cuda = SimpleNamespace(
        runtime=runtime,
        driver=SimpleNamespace(CUDADriverError=CudaError),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        Device=lambda number: SimpleNamespace(use=lambda: None),
        Stream=Stream,
        Event=Event,
        get_elapsed_time=lambda start, end: 1.0,
        alloc_pinned_memory=bytearray,
    )
    made = SimpleNamespace(
        cuda=of_cuda,
        empty=lambda shape, dtype: Array(np.full(shape, 77, dtype)),
        get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: 0),
    )
    compiler = SimpleNamespace(
        select_device=lambda number: None,
        external_stream=lambda ptr: 0,
        as_cuda_array=lambda array, sync: array.array,
        CudaSupportError=CudaError,
    )
    door = SimpleNamespace(
        cuda=compiler,
        compile_for=gpu.compile_for,
        let_share=gpu.let_share,
        launch_errors=lambda: (CudaError,),
    )
    monkeypatch.setattr(gpu_device, "_import_cupy", lambda: made)
    monkeypatch.setattr(gpu_device, "gpu", door)
    return made


@pytest.mark.parametrize(("mode", "shared_bytes"), [("edges", NOT_IN_SHARED), ("merge", IN_SHARED)])
def test_a_run_fits_together_in_core_and_streamed(
    mode: str, shared_bytes: int, cupy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, features = many_layers(n_layers=6)
    engine = CudaEngine(device=open_gpu(), sizes=sizes_with(shared_bytes))
    plan = engine.plan(network, mode)
    for is_streamed in (True, False):
        monkeypatch.setattr("spdnn.engines.cuda.placing.IN_CORE_SHARE", 0.0 if is_streamed else 1e9)
        monkeypatch.setattr("spdnn.engines.cuda.placing.WINDOW_SHARE", 0.25)
        engine = CudaEngine(device=engine.device, sizes=engine.sizes)
        loaded = engine.load(plan, features)
        assert loaded.weights.is_streamed == is_streamed
        output = engine.run(plan, loaded, activations=True)
        assert_as_reference(output, network, features, mode)


def test_a_capture_that_fails_says_what_went_wrong_first() -> None:
    device: Any = open_gpu()
    assert device.captured(lambda: None)() is device._stream

    def fail() -> None:
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        device.captured(fail)
    assert not device._stream.is_capturing


def fails(*given: Any) -> Any:
    raise CudaError("CUDA error: what the driver says\nand more of it")


def test_a_driver_that_cannot_be_used_is_one_line(cupy: SimpleNamespace) -> None:
    cupy.cuda.runtime.getDeviceCount = fails
    with pytest.raises(DeviceError) as raised:
        open_gpu()
    assert str(raised.value) == "no GPU can be used: CUDA error: what the driver says"


def test_a_gpu_that_is_too_old_is_named(cupy: SimpleNamespace) -> None:
    cupy.cuda.runtime.getDeviceProperties = lambda number: FACTS | {"major": 6, "minor": 1}
    with pytest.raises(DeviceError, match=r"GPU 0 \(Stand-in\) .* 6\.1; the kernels need 7\.0"):
        open_gpu()


def test_a_launch_that_fails_is_one_line(cupy: SimpleNamespace) -> None:
    cupy.cuda.runtime.memGetInfo = lambda: (1 << 30, 1 << 30)
    network, features = many_layers(n_layers=6)
    engine = CudaEngine(device=open_gpu(), sizes=sizes_with(IN_SHARED))
    plan = engine.plan(network, "edges")
    loaded = engine.load(plan, features)
    engine.device.launch = fails  # type: ignore[method-assign]
    with pytest.raises(DeviceError) as raised:
        engine.run(plan, loaded)
    message = "GPU 0 (Stand-in) failed: CUDA error: what the driver says"
    assert str(raised.value) == message


def test_memory_that_runs_out_says_what_would_fit(cupy: SimpleNamespace) -> None:
    network, features = many_layers(n_layers=6)
    engine = CudaEngine(device=open_gpu(), sizes=sizes_with(IN_SHARED))
    plan = engine.plan(network, "edges")

    def none_left(shape: Any, dtype: Any) -> Any:
        raise MemoryError

    cupy.empty = none_left
    with pytest.raises(DeviceError, match=r"GPU 0 \(Stand-in\) has no memory left .*`features`"):
        engine.load(plan, features)
