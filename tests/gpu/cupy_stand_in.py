"""A stand-in for CuPy, of NumPy, with CuPy 14.2's signatures.

Copies that the host does not wait for arrive when it waits for their stream, or an event of it.
"""

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.gpu.makers import IN_SHARED


class CudaError(RuntimeError):
    """An error of CUDA."""


class Event:
    """Comes when what its stream was given before is done."""

    def __init__(self) -> None:
        self.stream: Stream | None = None

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()


class Stream:
    """Remembers from what it copies, until somebody waits."""

    ptr = 1

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.sources: list[Callable[[], Any]] = []
        self.copies: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        assert all(source() is not None for source in self.sources), "freed while it was copied"
        self.sources.clear()
        for copy in self.copies:
            copy()
        self.copies.clear()

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.stream = self
        return event

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)


def memory_of(array: np.ndarray) -> Any:
    """What an array is a view of, in the end."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner.obj if isinstance(owner, memoryview) else owner


class Array:
    """cupy.ndarray."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.data, self.ptr = array, self, array.ctypes.data
        self.dtype, self.shape, self.strides = array.dtype, array.shape, array.strides
        self.ndim, self.size, self.itemsize = array.ndim, array.size, array.itemsize
        self.nbytes = array.nbytes

    def __getitem__(self, part: slice) -> "Array":
        return Array(self.array[part])

    def set(self, arr: np.ndarray, stream: Stream) -> None:
        assert (arr.dtype, arr.shape) == (self.array.dtype, self.array.shape)
        self.array[...] = arr
        while isinstance(arr.base, np.ndarray):
            arr = arr.base
        stream.sources.append(weakref.ref(arr))

    def get(
        self, stream: Stream, out: np.ndarray | None = None, blocking: bool = True
    ) -> np.ndarray:
        if out is None:
            assert blocking
            stream.synchronize()
            return self.array.copy()
        assert not blocking
        assert (out.dtype, out.shape) == (self.array.dtype, self.array.shape)
        assert isinstance(memory_of(out), bytearray), "not pinned"
        taken, later = self.array.copy(), weakref.ref(out)

        def arrive() -> None:
            target = later()
            assert target is not None, "freed while it was copied to"
            target[...] = taken

        stream.copies.append(arrive)
        return out

    def view(self, dtype: Any) -> "Array":
        return Array(self.array.view(dtype))

    def copy_from_device_async(self, src: "Array", size: int, stream: Stream) -> None:
        assert size <= min(self.nbytes, src.nbytes)
        self.array.view(np.uint8)[:size] = src.array.view(np.uint8)[:size]

    def memset_async(self, value: int, size: int, stream: Stream) -> None:
        assert size == self.nbytes
        self.array.view(np.uint8)[...] = value


FACTS = {
    "name": b"Stand-in", "major": 9, "minor": 0, "multiProcessorCount": 2,
    "sharedMemPerBlockOptin": IN_SHARED,
}  # fmt: skip


def stand_in_for_cupy() -> SimpleNamespace:
    """What `gpu_device` asks of the module."""
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
    return SimpleNamespace(
        cuda=of_cuda,
        empty=lambda shape, dtype: Array(np.full(shape, 77, dtype)),
        get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: 0),
    )
