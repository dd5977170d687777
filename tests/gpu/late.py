"""A device that does nothing before somebody waits for it, as far as its streams allow."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.cuda.device import Device, DeviceArray, Launch, Pending, SimulatedDevice

STREAM, AHEAD = 0, 1


class Event:
    """Comes when its stream gets to it."""

    def __init__(self) -> None:
        self.has_come = False


class LateDevice(Device):
    """Two queues of work, done when the host waits, in an order that events allow.

    Parameters
    ----------
    inner : SimulatedDevice
        What does the work.
    copies_first : bool
        Whether copies ahead are done as early as events allow; otherwise as late.

    Attributes
    ----------
    n_copied : int
        Copies ahead that are done.
    windows : list of (int, int)
        For each kernel that has run: how many events its stream had been told to wait for when it
        was launched, and how many copies ahead were done when it ran.
    waits : list of (int, int)
        Each time that the host has waited for a number: launches given until then, and those
        among them that were still to be run when the number came.
    """

    def __init__(self, inner: SimulatedDevice, copies_first: bool = False) -> None:
        self.inner, self.name = inner, inner.name
        self.n_multiprocessors, self.shared_bytes = inner.n_multiprocessors, inner.shared_bytes
        self.order = (AHEAD, STREAM) if copies_first else (STREAM, AHEAD)
        self.n_copied = self.n_launched = self.n_awaited = 0
        self.windows: list[tuple[int, int]] = []
        self.waits: list[tuple[int, int]] = []
        self._queues: tuple[deque[Callable[[], bool]], ...] = (deque(), deque())

    def _give(self, work: Callable[[], object], ahead: bool = False) -> None:
        def done() -> bool:
            work()
            return True

        self._queues[ahead].append(done)

    def _advance(self) -> bool:
        """Do the next piece of work that can be done."""
        for stream in self.order:
            queue = self._queues[stream]
            if queue and queue[0]():
                queue.popleft()
                return True
        return False

    def _run_until(self, event: Event) -> None:
        while not event.has_come:
            assert self._advance(), "streams wait for each other"

    def free_bytes(self) -> int:
        return self.inner.free_bytes()

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        return self.inner.empty(shape, dtype)

    def fill_bytes(self, array: DeviceArray, byte: int) -> None:
        self._give(lambda: self.inner.fill_bytes(array, byte))

    def write(self, array: DeviceArray, host: npt.NDArray[Any], ahead: bool = False) -> None:
        def write() -> None:
            self.inner.write(array, host)
            self.n_copied += ahead

        self._give(write, ahead)

    def copy(self, target: DeviceArray, source: DeviceArray, first: int, count: int) -> None:
        self._give(lambda: self.inner.copy(target, source, first, count))

    def read(self, array: DeviceArray, count: int | None = None) -> npt.NDArray[Any]:
        self._run_until(self.record())
        return self.inner.read(array, count)

    def read_later(self, array: DeviceArray) -> Pending:
        host = np.empty_like(array.memory)
        self._give(lambda: np.copyto(host, array.memory))
        event = self.record()

        def wait() -> None:
            self._run_until(event)
            self.waits.append((self.n_launched, self.n_launched - len(self.windows)))

        return Pending(host, wait)

    def view(self, array: DeviceArray, dtype: npt.DTypeLike) -> DeviceArray:
        return self.inner.view(array, dtype)

    def pinned(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self.inner.pinned(host)

    def prepared(
        self, kernel: Any, n_threads: int, arguments: tuple[Any, ...], shared: int = 0
    ) -> Launch:
        launch = self.inner.prepared(kernel, n_threads, arguments, shared)

        def later(grid: tuple[int, ...]) -> None:
            window = self.n_awaited

            def run() -> None:
                self.windows.append((window, self.n_copied))
                launch(grid)

            self.n_launched += 1
            self._give(run)

        return later

    def wait(self) -> None:
        for event in (self.record(), self.record(ahead=True)):
            self._run_until(event)

    def record(self, ahead: bool = False) -> Event:
        event = Event()
        self._give(lambda: setattr(event, "has_come", True), ahead)
        return event

    def await_event(self, event: Event, ahead: bool = False) -> None:
        self.n_awaited += not ahead
        self._queues[ahead].append(lambda: event.has_come)

    def seconds_between(self, start: Event, end: Event) -> float:
        self._run_until(end)
        return 1.0
