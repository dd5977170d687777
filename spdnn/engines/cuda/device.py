"""What the engine asks of a device; NumPy where kernels run in the simulator.

The engine sees a `Device` and arrays of it; kernels see neither CuPy nor this module. All work goes
to one stream, but for copies of weights ahead of time, which have one of their own.
"""

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines import DeviceChoice
from spdnn.engines.cuda.kernels import gpu

HINT = "take fewer --features or --layers"


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array on a device.

    Attributes
    ----------
    memory : cupy.ndarray or numpy.ndarray
    view : object
        The same memory, as kernels take it.
    """

    memory: Any
    view: Any

    @property
    def n_bytes(self) -> int:
        """Size in bytes."""
        return int(self.memory.nbytes)


class Device(ABC):
    """What an engine needs of a device."""

    name: str
    n_multiprocessors: int
    shared_bytes: int
    """Shared memory that a block may ask for."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Memory that can still be had."""

    @abstractmethod
    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """New memory with anything in it; at least one element, for kernels take no null."""

    @abstractmethod
    def fill_bytes(self, array: DeviceArray, byte: int) -> None:
        """Set all bytes: what a device does by itself, without a kernel to compile."""

    @abstractmethod
    def write(self, array: DeviceArray, host: npt.NDArray[Any], ahead: bool = False) -> None:
        """Copy to the beginning of `array`, at once or on the stream for copies ahead.

        A copy ahead begins when the work that was given before `array` was last let go
        (`release`) is done, and needs memory from `pinned`, which must outlive it (`wait`).
        """

    @abstractmethod
    def read(self, array: DeviceArray, count: int | None = None) -> npt.NDArray[Any]:
        """Copy the first `count` elements of axis 0 to the host, when all work is done."""

    @abstractmethod
    def view(self, array: DeviceArray, dtype: npt.DTypeLike) -> DeviceArray:
        """The same memory as another type of the same or a multiple of the size."""

    @abstractmethod
    def pinned(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The same numbers in memory from which copies overlap with kernels."""

    @abstractmethod
    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Launch a kernel; DeviceArrays and numbers are its arguments."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until all work is done, copies ahead included."""

    @abstractmethod
    def await_ahead(self) -> None:
        """Have work given from now on wait for the copies ahead."""

    @abstractmethod
    def release(self) -> None:
        """Let copies ahead that are given from now on wait for the work given so far."""

    @abstractmethod
    def record(self, ahead: bool = False) -> Any:
        """An event behind the work given so far."""

    @abstractmethod
    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds between two events, when the second has come."""

    @abstractmethod
    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """Make of launches one thing that can be launched again and again."""

    @contextmanager
    def errors(self) -> Iterator[None]:
        """What goes wrong inside, on the device, is a DeviceError."""
        yield


class SimulatedDevice(Device):
    """NumPy, and kernels in Python: for tests.

    Parameters
    ----------
    n_bytes : int
        Memory that it claims to have.
    """

    name = "simulator"
    n_multiprocessors = 2
    shared_bytes = 48 << 10

    def __init__(self, n_bytes: int = 1 << 30) -> None:
        self.n_bytes = n_bytes

    def free_bytes(self) -> int:
        """What it claims to have."""
        return self.n_bytes

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """An array, filled with what shows if it is used."""
        array: npt.NDArray[Any] = np.empty(at_least_one(shape), dtype)
        # What nobody may rely upon is not zero by chance.
        array.fill(np.nan if array.dtype.kind == "f" else 77)
        return DeviceArray(array, array)

    def fill_bytes(self, array: DeviceArray, byte: int) -> None:
        """Set all bytes."""
        array.memory.view(np.uint8).fill(byte)

    def write(self, array: DeviceArray, host: npt.NDArray[Any], ahead: bool = False) -> None:
        """Copy to the beginning."""
        array.memory[: len(host)] = host

    def read(self, array: DeviceArray, count: int | None = None) -> npt.NDArray[Any]:
        """A copy of the first elements."""
        taken: npt.NDArray[Any] = array.memory[:count].copy()
        return taken

    def view(self, array: DeviceArray, dtype: npt.DTypeLike) -> DeviceArray:
        """The same memory as another type."""
        other = array.memory.view(dtype)
        return DeviceArray(other, other)

    def pinned(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The same numbers."""
        return host

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Run a kernel to its end."""
        with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
            # Whole numbers that wrap around, as hashes do.
            kernel[grid, n_threads, 0, shared](*map(view_of, arguments))

    def wait(self) -> None:
        """All work is done at once."""

    def await_ahead(self) -> None:
        """Copies are never ahead."""

    def release(self) -> None:
        """Copies are never ahead."""

    def record(self, ahead: bool = False) -> float:
        """The time."""
        return time.perf_counter()

    def seconds_between(self, start: float, end: float) -> float:
        """Their difference."""
        return end - start

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """The launches themselves."""
        return work


def view_of(argument: Any) -> Any:
    """An argument of a launch as the kernel takes it.

    Parameters
    ----------
    argument : DeviceArray, number, or named tuple of them
    """
    if isinstance(argument, tuple):
        return type(argument)(*map(view_of, argument))
    return argument.view if isinstance(argument, DeviceArray) else argument


def at_least_one(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """A shape without empty axes."""
    sizes = shape if isinstance(shape, tuple) else (shape,)
    return tuple(max(1, size) for size in sizes)


@cache
def open_device(choice: DeviceChoice | None = None) -> Device:
    """The device to run on, opened once a process: a GPU, or the simulator where it is switched on.

    Raises
    ------
    DeviceError
        If there is none; says why.
    """
    if isinstance(choice, str):
        from spdnn.engines.cuda.emulated.device import open_emulated

        return open_emulated(choice)
    if gpu.SIMULATED:
        return SimulatedDevice()
    from spdnn.engines.cuda.gpu_device import open_gpu

    return open_gpu(choice)
