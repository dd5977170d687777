"""A GPU: memory, streams and events of CuPy, launches of the kernels' compiler."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.cuda.device import (
    HINT,
    Device,
    DeviceArray,
    KernelTime,
    Launch,
    Pending,
    at_least_one,
    kinds_of,
    packed,
)
from spdnn.engines.cuda.kernels import gpu
from spdnn.engines.cuda.titles import title_of
from spdnn.errors import DeviceError
from spdnn.machine.gpus import local_rank, pick_gpu

LEAST_CAPABILITY = (7, 0)
"""Compute capability of the oldest GPUs that the kernels run on: warps of independent threads."""


def _require_capable(name: str, capability: tuple[int, int]) -> None:
    """Refuse a GPU that is too old for the kernels, or for the compiler that is installed."""
    least = gpu.least_capability() or LEAST_CAPABILITY
    if capability >= max(least, LEAST_CAPABILITY):
        return
    has, kernels, compiler = (
        ".".join(map(str, each)) for each in (capability, LEAST_CAPABILITY, least)
    )
    if capability < LEAST_CAPABILITY:
        raise DeviceError(f"{name} has compute capability {has}; the kernels need {kernels}")
    raise DeviceError(
        f"{name} has compute capability {has}; the compiler that is installed needs {compiler}: "
        "pip install 'spdnn[cuda12]' in a fresh environment"
    )


class _GpuDevice(Device):
    """A device of CUDA."""

    def __init__(self, number: int | None = None, times_kernels: bool = False) -> None:
        cupy = _import_cupy()
        self._cupy = cupy
        runtime = cupy.cuda.runtime
        try:
            number = pick_gpu(runtime.getDeviceCount(), local_rank(), number)
            self._device = cupy.cuda.Device(number)
            self._device.use()
            gpu.cuda.select_device(number)
            facts = runtime.getDeviceProperties(number)
        except (
            runtime.CUDARuntimeError,
            gpu.cuda.CudaSupportError,
            *gpu.launch_errors(),
        ) as error:
            raise DeviceError(f"no GPU can be used: {gpu.what_failed(error)}") from error
        self.number = number
        self.name = facts["name"].decode()
        self.capability = (int(facts["major"]), int(facts["minor"]))
        _require_capable(f"GPU {number} ({self.name})", self.capability)
        self.n_multiprocessors = int(facts["multiProcessorCount"])
        self.shared_bytes = int(facts["sharedMemPerBlockOptin"])
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._ahead = cupy.cuda.Stream(non_blocking=True)
        self._functions: dict[Any, Any] = {}
        self._sources: list[npt.NDArray[Any]] = []
        self._times_kernels = times_kernels
        self._timed: list[tuple[str, Any, Any]] = []

    def free_bytes(self) -> int:
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(free) + int(self._cupy.get_default_memory_pool().free_bytes())

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        with self._stream:
            return _on_device(self._cupy.empty(at_least_one(shape), dtype))

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

    def copy(self, target: DeviceArray, source: DeviceArray, first: int, count: int) -> None:
        taken = source.memory[first : first + count]
        target.memory.data.copy_from_device_async(taken.data, taken.nbytes, self._stream)

    def read(self, array: DeviceArray, count: int | None = None) -> npt.NDArray[Any]:
        taken: npt.NDArray[Any] = array.memory[:count].get(stream=self._stream)
        self._stream.synchronize()
        self._sources.clear()
        return taken

    def read_later(self, array: DeviceArray) -> Pending:
        host = self._pinned_like(array.memory)
        array.memory.get(stream=self._stream, out=host, blocking=False)
        # It must live until the copy is done, also where nobody waits for the numbers.
        self._sources.append(host)
        return Pending(host, self.record().synchronize)

    def view(self, array: DeviceArray, dtype: npt.DTypeLike) -> DeviceArray:
        return _on_device(array.memory.view(dtype))

    def pinned(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        copy = self._pinned_like(host)
        copy[...] = host
        return copy

    def _pinned_like(self, array: Any) -> npt.NDArray[Any]:
        memory = self._cupy.cuda.alloc_pinned_memory(max(1, array.nbytes))
        made: npt.NDArray[Any] = np.frombuffer(memory, array.dtype, array.size)
        return made.reshape(array.shape)

    def prepared(
        self, kernel: Any, n_threads: int, arguments: tuple[Any, ...], shared: int = 0
    ) -> Launch:
        key = kernel, kinds_of(arguments)
        if key not in self._functions:
            self._functions[key] = gpu.loaded(kernel, tuple(map(stand_in, arguments)))
        function = self._functions[key]
        if shared:
            gpu.let_share(function, shared)
        launch = gpu.PackedLaunch(function, n_threads, packed(arguments), shared, self._stream.ptr)
        return self._with_events(kernel, launch) if self._times_kernels else launch

    def _with_events(self, kernel: Any, launch: Launch) -> Launch:
        name = title_of(kernel)

        def timed(grid: tuple[int, ...]) -> None:
            began = self.record()
            launch(grid)
            self._timed.append((name, began, self.record()))

        return timed

    def wait(self) -> None:
        self._stream.synchronize()
        self._ahead.synchronize()
        self._sources.clear()

    def record(self, ahead: bool = False) -> Any:
        return (self._ahead if ahead else self._stream).record(self._cupy.cuda.Event())

    def await_event(self, event: Any, ahead: bool = False) -> None:
        (self._ahead if ahead else self._stream).wait_event(event)

    def seconds_between(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def kernel_times(self) -> dict[str, KernelTime]:
        times: dict[str, KernelTime] = {}
        for name, *events in self._timed:
            n_launches, seconds = times.get(name, (0, 0.0))
            times[name] = KernelTime(n_launches + 1, seconds + self.seconds_between(*events))
        self._timed.clear()
        return times

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
                f"GPU {self.number} ({self.name}) failed: {gpu.what_failed(error)}"
            ) from error


def _on_device(array: Any) -> DeviceArray:
    return DeviceArray(array, int(array.data.ptr))


def stand_in(argument: Any) -> Any:
    """An argument of a launch with small arrays of NumPy, of the same types.

    Parameters
    ----------
    argument : DeviceArray, number, or named tuple of them
    """
    if isinstance(argument, tuple):
        return type(argument)(*map(stand_in, argument))
    if isinstance(argument, DeviceArray):
        return np.empty((1,) * argument.memory.ndim, argument.memory.dtype)
    return argument


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


def open_gpu(number: int | None = None, *, times_kernels: bool = False) -> Device:
    """Open a GPU.

    Parameters
    ----------
    number : int, optional
        Which of the GPUs that the process sees; by default the one for its rank on the node.
    times_kernels : bool
        Whether each launch lies between two events, for `Device.kernel_times`. Launches then no
        longer follow each other closely: a whole run takes longer.

    Raises
    ------
    DeviceError
        If there is no driver, no such GPU, or none that the kernels can run on.
    """
    return _GpuDevice(number, times_kernels)
