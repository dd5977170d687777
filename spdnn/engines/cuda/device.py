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
from functools import cache, cached_property
from struct import Struct
from typing import Any, NamedTuple

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
        The array, as the host's library has it; C-contiguous.
    address : int
        Where the device has it.
    """

    memory: Any
    address: int

    @property
    def n_bytes(self) -> int:
        """Size in bytes."""
        return int(self.memory.nbytes)

    @cached_property
    def kind(self) -> str:
        """Data type and number of axes: all that compiling a kernel depends on."""
        return f"{self.memory.dtype.str}{self.memory.ndim}"

    @cached_property
    def parameters(self) -> bytes:
        """The parameters that the array becomes in a launch, 8 bytes each; see `packed`."""
        memory = self.memory
        # Two pointers of numba's own, sizes, the memory itself.
        head = (0, 0, memory.size, memory.itemsize, self.address)
        return b"".join(map(_PARAMETER.pack, (*head, *memory.shape, *memory.strides)))


_PARAMETER = Struct("<q")
_FLOAT32_PARAMETER = Struct("<f4x")


@dataclass(frozen=True, eq=False)
class Pending:
    """Numbers on their way to the host.

    Attributes
    ----------
    host : ndarray
        Where they will be.
    wait : callable
        Waits until they are there.
    """

    host: npt.NDArray[Any]
    wait: Callable[[], None]

    def value(self) -> npt.NDArray[Any]:
        """The numbers, when they have come."""
        self.wait()
        return self.host


class KernelTime(NamedTuple):
    """What a kernel's launches took.

    Attributes
    ----------
    launches : int
    seconds : float
        From an event before each launch to one behind it, in sum.
    """

    launches: int
    seconds: float


Launch = Callable[[tuple[int, ...]], None]
"""A launch of which all but the grid is settled; called with the thread blocks along each axis."""


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
            Whether the copy goes to the stream for copies ahead.
        """

    @abstractmethod
    def copy(self, target: DeviceArray, source: DeviceArray, first: int, count: int) -> None:
        """Copy from an array of the device to the beginning of another one.

        Parameters
        ----------
        target, source : DeviceArray
            Of the same type, with one axis.
        first, count : int
            The first number of `source` to copy, and how many.
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
    def read_later(self, array: DeviceArray) -> Pending:
        """Copy a small array to the host when the work given so far is done; do not wait for it.

        Parameters
        ----------
        array : DeviceArray
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
    def prepared(
        self, kernel: Any, n_threads: int, arguments: tuple[Any, ...], shared: int = 0
    ) -> Launch:
        """Prepare launches of a kernel, which may be many: it is compiled, its parameters packed.

        Parameters
        ----------
        kernel : kernel
            As `spdnn.engines.cuda.kernels.gpu.kernel` gave it.
        n_threads : int
            Threads of a thread block.
        arguments : tuple
            DeviceArrays, numbers, and records of them (`spdnn.engines.cuda.kernels.records`).
        shared : int
            Dynamic shared memory of a thread block, in bytes.
        """

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Launch a kernel once.

        Parameters
        ----------
        kernel : kernel
            See `prepared`.
        grid : tuple of int
            Thread blocks along each axis.
        n_threads : int
            See `prepared`.
        arguments : tuple
            See `prepared`.
        shared : int
            See `prepared`.
        """
        self.prepared(kernel, n_threads, arguments, shared)(grid)

    @abstractmethod
    def wait(self) -> None:
        """Wait until all work is done, copies ahead included."""

    @abstractmethod
    def record(self, ahead: bool = False) -> Any:
        """An event that comes when the work given so far is done.

        Parameters
        ----------
        ahead : bool
            Whether the copies ahead are meant.
        """

    @abstractmethod
    def await_event(self, event: Any, ahead: bool = False) -> None:
        """Let work that is given from now on wait for an event; the host goes on.

        Parameters
        ----------
        event : event
            As `record` gave it.
        ahead : bool
            Whether copies ahead are to wait.
        """

    @abstractmethod
    def seconds_between(self, start: Any, end: Any) -> float:
        """Wait for the second of two events, and give the seconds between them.

        Parameters
        ----------
        start, end : event
            As `record` gave them.
        """

    def kernel_times(self) -> dict[str, KernelTime]:
        """Times of the launches since this was last called, by the kernels' names.

        Only a GPU that was opened for it takes them; see
        `spdnn.engines.cuda.gpu_device.open_gpu`. Without, there are none.
        """
        return {}

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what goes wrong on the device into a DeviceError."""
        yield


class SimulatedDevice(Device):
    """NumPy, and kernels in Python: for tests.

    A kernel runs to its end when it is launched, so that a launch needs no preparation.

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
        return in_memory(array)

    def fill_bytes(self, array: DeviceArray, byte: int) -> None:
        """Set all bytes."""
        array.memory.view(np.uint8).fill(byte)

    def write(self, array: DeviceArray, host: npt.NDArray[Any], ahead: bool = False) -> None:
        """Copy to the beginning."""
        array.memory[: len(host)] = host

    def copy(self, target: DeviceArray, source: DeviceArray, first: int, count: int) -> None:
        """Copy to the beginning."""
        target.memory[:count] = source.memory[first : first + count]

    def read(self, array: DeviceArray, count: int | None = None) -> npt.NDArray[Any]:
        """A copy of the first elements."""
        taken: npt.NDArray[Any] = array.memory[:count].copy()
        return taken

    def read_later(self, array: DeviceArray) -> Pending:
        """A copy, which is there at once."""
        return Pending(array.memory.copy(), lambda: None)

    def view(self, array: DeviceArray, dtype: npt.DTypeLike) -> DeviceArray:
        """The same memory as another type."""
        return in_memory(array.memory.view(dtype))

    def pinned(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The same numbers."""
        return host

    def prepared(
        self, kernel: Any, n_threads: int, arguments: tuple[Any, ...], shared: int = 0
    ) -> Launch:
        """A call of `launch`."""
        return lambda grid: self.launch(kernel, grid, n_threads, arguments, shared)

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

    def record(self, ahead: bool = False) -> float:
        """The time."""
        return time.perf_counter()

    def await_event(self, event: float, ahead: bool = False) -> None:
        """All events have come."""

    def seconds_between(self, start: float, end: float) -> float:
        """Their difference."""
        return end - start


def in_memory(array: npt.NDArray[Any]) -> DeviceArray:
    """An array of a device whose memory is the host's.

    Parameters
    ----------
    array : ndarray
    """
    return DeviceArray(array, array.ctypes.data)


def view_of(argument: Any) -> Any:
    """An argument of a launch with arrays as the host's library has them.

    Parameters
    ----------
    argument : DeviceArray, number, or named tuple of them
    """
    if isinstance(argument, tuple):
        return type(argument)(*map(view_of, argument))
    return argument.memory if isinstance(argument, DeviceArray) else argument


def packed(argument: Any) -> bytes:
    """The parameters that arguments become, as numba-cuda's kernels take them.

    Each has 8 bytes; a kernel reads as many of them as its parameter has.

    Parameters
    ----------
    argument : DeviceArray, number, or tuple of them

    Examples
    --------
    >>> np.frombuffer(packed((3, (-1, np.float32(1)))), np.int64)
    array([         3,         -1, 1065353216])
    """
    if isinstance(argument, DeviceArray):
        return argument.parameters
    if isinstance(argument, tuple):
        return b"".join(map(packed, argument))
    if isinstance(argument, np.float32):
        return _FLOAT32_PARAMETER.pack(argument)
    return _PARAMETER.pack(argument)


def kinds_of(argument: Any) -> Any:
    """What compiling a kernel depends on, of its arguments; quickly compared.

    Parameters
    ----------
    argument : DeviceArray, number, or tuple of them
    """
    if isinstance(argument, DeviceArray):
        return argument.kind
    if isinstance(argument, tuple):
        return (type(argument), *map(kinds_of, argument))
    return type(argument)


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
