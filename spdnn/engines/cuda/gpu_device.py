"""A GPU: memory, streams and events of CuPy, launches of the kernels' compiler."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.cuda.device import HINT, Device, DeviceArray, at_least_one, view_of
from spdnn.engines.cuda.kernels import gpu
from spdnn.errors import DeviceError
from spdnn.machine.gpus import local_rank, pick_gpu

LEAST_CAPABILITY = (7, 0)
"""Compute capability of the oldest GPUs that the kernels run on: warps of independent threads."""


class _GpuDevice(Device):
    """A device of CUDA."""

    def __init__(self, number: int | None = None) -> None:
        cupy = _import_cupy()
        self._cupy = cupy
        runtime = cupy.cuda.runtime
        try:
            number = pick_gpu(runtime.getDeviceCount(), local_rank(), number)
            self._device = cupy.cuda.Device(number)
            self._device.use()
            gpu.cuda.select_device(number)
            facts = runtime.getDeviceProperties(number)
        except (runtime.CUDARuntimeError, gpu.cuda.CudaSupportError) as error:
            raise DeviceError(f"no GPU can be used: {_first_line(error)}") from error
        self.number = number
        self.name = facts["name"].decode()
        self.capability = (int(facts["major"]), int(facts["minor"]))
        if self.capability < LEAST_CAPABILITY:
            raise DeviceError(
                f"GPU {number} ({self.name}) has compute capability "
                f"{'.'.join(map(str, self.capability))}; the kernels need "
                f"{'.'.join(map(str, LEAST_CAPABILITY))}"
            )
        self.n_multiprocessors = int(facts["multiProcessorCount"])
        self.shared_bytes = int(facts["sharedMemPerBlockOptin"])
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._ahead = cupy.cuda.Stream(non_blocking=True)
        self._launches = gpu.cuda.external_stream(self._stream.ptr)
        self._shares: dict[Any, int] = {}
        self._sources: list[npt.NDArray[Any]] = []

    def free_bytes(self) -> int:
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(free) + int(self._cupy.get_default_memory_pool().free_bytes())

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        with self._stream:
            return self._wrapped(self._cupy.empty(at_least_one(shape), dtype))

    def _wrapped(self, array: Any) -> DeviceArray:
        # One stream orders all work. A launch need not wait for it, which a capture would forbid.
        return DeviceArray(array, gpu.cuda.as_cuda_array(array, sync=False))

    def fill_bytes(self, array: DeviceArray, byte: int) -> None:
        array.memory.data.memset_async(byte, array.n_bytes, self._stream)

    def write(self, array: DeviceArray, host: npt.NDArray[Any], ahead: bool = False) -> None:
        if not host.size:
            return
        array.memory[: len(host)].set(host, stream=self._ahead if ahead else self._stream)
        if not ahead:
            # What is being read must not be freed. CUDA's copies from memory that is not pinned
            # "might be synchronous" with the host (its API synchronization behavior), and CuPy
            # makes no copy (its issue 6785).
            self._sources.append(host)

    def read(self, array: DeviceArray, count: int | None = None) -> npt.NDArray[Any]:
        taken: npt.NDArray[Any] = array.memory[:count].get(stream=self._stream)
        self._stream.synchronize()
        self._sources.clear()
        return taken

    def view(self, array: DeviceArray, dtype: npt.DTypeLike) -> DeviceArray:
        return self._wrapped(array.memory.view(dtype))

    def pinned(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        memory = self._cupy.cuda.alloc_pinned_memory(max(1, host.nbytes))
        copy: npt.NDArray[Any] = np.frombuffer(memory, host.dtype, host.size).reshape(host.shape)
        copy[...] = host
        return copy

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        views = tuple(map(view_of, arguments))
        if shared > self._shares.get(kernel, 0):
            gpu.compile_for(kernel, views)
            gpu.let_share(kernel, shared)
            self._shares[kernel] = shared
        kernel[grid, n_threads, self._launches, shared](*views)

    def wait(self) -> None:
        self._stream.synchronize()
        self._ahead.synchronize()
        self._sources.clear()

    def await_ahead(self) -> None:
        self._stream.wait_event(self._ahead.record())

    def release(self) -> None:
        self._ahead.wait_event(self._stream.record())

    def record(self, ahead: bool = False) -> Any:
        return (self._ahead if ahead else self._stream).record(self._cupy.cuda.Event())

    def seconds_between(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        # CuPy captures in relaxed mode: a kernel may be compiled and loaded during the capture.
        self._stream.begin_capture()
        try:
            work()
        except BaseException:
            with suppress(self._cupy.cuda.runtime.CUDARuntimeError):
                self._stream.end_capture()  # fails, too; the first failure is raised
            raise
        graph = self._stream.end_capture()
        return lambda: graph.launch(stream=self._stream)

    @contextmanager
    def errors(self) -> Iterator[None]:
        cupy = self._cupy
        failures = (
            cupy.cuda.runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
            *gpu.launch_errors(),
        )
        try:
            yield
        except cupy.cuda.memory.OutOfMemoryError as error:
            free = self.free_bytes() / 2**30
            raise DeviceError(
                f"GPU {self.number} ({self.name}) has no memory left ({free:.1f} GiB free): {HINT}"
            ) from error
        except failures as error:
            raise DeviceError(
                f"GPU {self.number} ({self.name}) failed: {_first_line(error)}"
            ) from error


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            f"engine cuda needs CuPy ({_first_line(error)}): "
            "pip install 'spdnn[cuda13]' or 'spdnn[cuda12]'"
        ) from error
    return cupy


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def open_gpu(number: int | None = None) -> Device:
    """Open a GPU.

    Parameters
    ----------
    number : int, optional
        Which of the GPUs that the process sees; by default the one for its rank on the node.

    Raises
    ------
    DeviceError
        If there is no driver, no such GPU, or none that the kernels can run on.
    """
    return _GpuDevice(number)
