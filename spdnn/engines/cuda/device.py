"""What the engine asks of a device; NumPy where kernels run in the simulator.

The engine sees a `Device` and its arrays; kernels see neither CuPy nor this module. All work goes
to one stream, except copies of weights ahead of time, which have a stream of their own.
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

HINT = "take fewer `features` or `layers`"


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array on a device.

    Attributes
    ----------
    memory : cupy.ndarray or numpy.ndarray
        The array, as the host's library has it.
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
    """What an engine needs of a device.

    Attributes
    ----------
    name : str
    n_multiprocessors : int
    shared_bytes : int
        Shared memory that a thread block may ask for.
    """

    name: str
    n_multiprocessors: int
    shared_bytes: int

    @abstractmethod
    def free_bytes(self) -> int:
        """Memory that can still be allocated, in bytes."""

    @abstractmethod
    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Allocate memory; what it holds is undefined.

        Parameters
        ----------
        shape : int or tuple of int
            An empty axis gets one element: kernels take no null pointers.
        dtype : data type
        """

    @abstractmethod
    def fill_bytes(self, array: DeviceArray, byte: int) -> None:
        """Set all bytes of an array, without a kernel that would have to be compiled.

        Parameters
        ----------
        array : DeviceArray
        byte : int
        """

    @abstractmethod
    def write(self, array: DeviceArray, host: npt.NDArray[Any], ahead: bool = False) -> None:
        """Copy from the host to the beginning of an array.

        Parameters
        ----------
        array : DeviceArray
        host : ndarray
            For a copy ahead, memory from `pinned`, which must live until the copy is done (`wait`).
        ahead : bool
            Whether the copy goes to the stream for copies ahead. It then begins when the work
            given before the last `release` is done.
        """

    @abstractmethod
    def read(self, array: DeviceArray, count: int | None = None) -> npt.NDArray[Any]:
        """Copy to the host, when all work is done.

        Parameters
        ----------
        array : DeviceArray
        count : int, optional
            Elements of axis 0 to copy, from the first; all where not given.
        """

    @abstractmethod
    def view(self, array: DeviceArray, dtype: npt.DTypeLike) -> DeviceArray:
        """The same memory as numbers of another type.

        Parameters
        ----------
        array : DeviceArray
        dtype : data type
            Of the same size, or a multiple of it.
        """

    @abstractmethod
    def pinned(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Copy numbers into memory from which copies to the device overlap with kernels.

        Parameters
        ----------
        host : ndarray
        """

    @abstractmethod
    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Launch a kernel.

        Parameters
        ----------
        kernel : kernel
            As `spdnn.engines.cuda.kernels.gpu.kernel` gave it.
        grid : tuple of int
            Thread blocks along each axis.
        n_threads : int
            Threads of a thread block.
        arguments : tuple
            DeviceArrays, numbers, and records of them (`spdnn.engines.cuda.kernels.records`).
        shared : int
            Dynamic shared memory of a thread block, in bytes.
        """

    @abstractmethod
    def wait(self) -> None:
        """Wait until all work is done, copies ahead included."""

    @abstractmethod
    def await_ahead(self) -> None:
        """Let work that is given from now on wait for the copies ahead."""

    @abstractmethod
    def release(self) -> None:
        """Let copies ahead that are given from now on wait for the work given so far."""

    @abstractmethod
    def record(self, ahead: bool = False) -> Any:
        """An event that comes when the work given so far is done.

        Parameters
        ----------
        ahead : bool
            Whether the copies ahead are meant.
        """

    @abstractmethod
    def seconds_between(self, start: Any, end: Any) -> float:
        """Wait for the second of two events, and give the seconds between them.

        Parameters
        ----------
        start, end : event
            As `record` gave them.
        """

    @abstractmethod
    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """Make a CUDA graph of launches.

        Parameters
        ----------
        work : callable
            Gives the launches.

        Returns
        -------
        callable
            Launches the graph.
        """

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what goes wrong on the device into a DeviceError."""
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
        # Nobody may rely upon what is in it: it must not be zero by chance.
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
            # Hashes are whole numbers that wrap around, of which NumPy warns.
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
    """The device to run on: a GPU, or the simulator where it is switched on. Opened once a process.

    Parameters
    ----------
    choice : int or {"emulated", "emulated-checked"}, optional
        Which of the GPUs that the process sees, or an emulated one; by default the GPU for the
        process's rank on its node.

    Raises
    ------
    DeviceError
        If there is none; the message says why.
    """
    if isinstance(choice, str):
        from spdnn.engines.cuda.emulated.device import open_emulated

        return open_emulated(choice)
    if gpu.SIMULATED:
        return SimulatedDevice()
    from spdnn.engines.cuda.gpu_device import open_gpu

    return open_gpu(choice)
