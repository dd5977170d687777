"""What `gpu_device` asks of CuPy, against a stand-in of NumPy with CuPy 14.2's signatures.

It cannot tell that CuPy does what its documentation says; it can tell that the calls fit together,
and that what a copy reads from stays where it is until its stream has been waited for.
"""

import ctypes
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spdnn import DeviceError
from spdnn.engines.cuda import gpu_device
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.gpu_device import open_gpu
from spdnn.engines.cuda.kernels import gpu
from tests.gpu.cupy_stand_in import FACTS, CudaError, Stream, stand_in_for_cupy
from tests.gpu.makers import (
    IN_SHARED,
    NOT_IN_SHARED,
    assert_as_reference,
    many_layers,
    sizes_with,
)

pytestmark = [
    pytest.mark.simulator,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # hashes wrap around
]


class PackedLaunch:
    """A launch in the simulator, of nothing but the parameters that a GPU would be given."""

    def __init__(
        self, function: Any, n_threads: int, parameters: bytes, shared: int, stream: int
    ) -> None:
        self.kernel, stand_ins = function
        self.n_threads, self.shared = n_threads, shared
        numbers = iter(np.frombuffer(parameters, np.int64).tolist())
        self.arguments = [arguments_from(numbers, stand_in) for stand_in in stand_ins]
        assert next(numbers, None) is None
        assert stream == Stream.ptr

    def __call__(self, grid: tuple[int, ...]) -> None:
        self.kernel[grid, self.n_threads, 0, self.shared](*self.arguments)


def arguments_from(numbers: Iterator[int], stand_in: Any) -> Any:
    """Arguments of the types of others, from the parameters that they have become."""
    if isinstance(stand_in, tuple):
        return type(stand_in)(*(arguments_from(numbers, each) for each in stand_in))
    if not isinstance(stand_in, np.ndarray):
        return next(numbers)
    meminfo, parent, size, itemsize, address = islice(numbers, 5)
    shape, strides = (tuple(islice(numbers, stand_in.ndim)) for _ in range(2))
    assert (meminfo, parent, itemsize) == (0, 0, stand_in.itemsize)
    assert size == np.prod(shape)
    memory = (ctypes.c_byte * (size * itemsize)).from_address(address)
    return np.ndarray(shape, stand_in.dtype, memory, strides=strides)


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The stand-in, which `open_gpu` takes for CuPy."""
    made = stand_in_for_cupy()
    compiler = SimpleNamespace(
        select_device=lambda number: None,
        CudaSupportError=CudaError,
    )
    door = SimpleNamespace(
        cuda=compiler,
        loaded=lambda kernel, stand_ins: (kernel, stand_ins),
        let_share=lambda function, n_bytes: None,
        PackedLaunch=PackedLaunch,
        launch_errors=lambda: (CudaError,),
        least_capability=gpu.least_capability,
        what_failed=gpu.what_failed,
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
    engine.device.prepared = fails  # type: ignore[method-assign]
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
