"""Work on layers that does not depend on the layer before, done by threads, some layers ahead."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from spdnn.machine.thread_pool import KeptThreads

MOST_EDGES = 3 << 20
"""Edges for each thread of the layers that are worked on at the same time, unless one has more.

With weights and indices that is 24 MiB.
"""

LEAST_EDGES = 1 << 18
"""Edges from which it is worth a thread's time: layers with fewer are given to it together."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def worth_threads(threads: KeptThreads | None, layer_edges: Sequence[int]) -> KeptThreads | None:
    """Give threads back, or None where all layers are small.

    Threads would then wait for the interpreter more than they work.
    """
    return None if max(layer_edges) < LEAST_EDGES else threads


def ahead(
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
    n_edges: Callable[[_Item], int],
    threads: KeptThreads | None,
) -> Iterator[tuple[_Item, _Result]]:
    """Call a function with each item, and yield item and result in order.

    Parameters
    ----------
    function : callable
        Called by the threads.
    items : iterable
        They are made by the caller's thread, one after the other.
    n_edges : callable
        Gives the edges of an item.
    threads : KeptThreads or None
        None, or one thread: the caller's thread does it all.
    """
    if threads is None or threads.n_threads == 1:
        for item in items:
            yield item, function(item)
        return
    waiting: deque[tuple[list[_Item], int, Future[list[_Result]]]] = deque()
    n_waiting, most = 0, MOST_EDGES * threads.n_threads

    def call(batch: list[_Item]) -> list[_Result]:
        return list(map(function, batch))

    try:
        for batch, n_own in _batches(items, n_edges):
            is_last = n_own < LEAST_EDGES
            while waiting and (
                is_last or len(waiting) > threads.n_threads or n_waiting + n_own > most
            ):
                earlier, n_earlier, future = waiting.popleft()
                n_waiting -= n_earlier
                yield from zip(earlier, future.result(), strict=True)
            if is_last:
                yield from zip(batch, call(batch), strict=True)
            else:
                waiting.append((batch, n_own, threads.submit(call, batch)))
                n_waiting += n_own
        while waiting:
            earlier, _, future = waiting.popleft()
            yield from zip(earlier, future.result(), strict=True)
    finally:
        for *_, future in waiting:
            future.cancel()


def _batches(
    items: Iterable[_Item], n_edges: Callable[[_Item], int]
) -> Iterator[tuple[list[_Item], int]]:
    """Put items together until they have `LEAST_EDGES`; the last ones may have fewer."""
    batch: list[_Item] = []
    n_batch = 0
    for item in items:
        batch.append(item)
        n_batch += n_edges(item)
        if n_batch >= LEAST_EDGES:
            yield batch, n_batch
            batch, n_batch = [], 0
    if batch:
        yield batch, n_batch


class Background:
    """Calls that threads make while the caller goes on, in no order.

    Parameters
    ----------
    threads : KeptThreads or None
        None, or one thread: the caller's thread does it all.
    """

    def __init__(self, threads: KeptThreads | None) -> None:
        self._threads = None if threads is None or threads.n_threads == 1 else threads
        self._waiting: deque[tuple[int, Future[None]]] = deque()
        self._n_waiting = 0
        self._batch: list[Callable[[], None]] = []
        self._n_batch = 0

    def call(self, n_edges: int, function: Callable[[], None]) -> None:
        """Have a function called that works on so many edges; wait until there is room for it.

        Parameters
        ----------
        n_edges : int
            Edges that it works on.
        function : callable
            It takes no arguments.
        """
        if self._threads is None:
            function()
            return
        self._batch.append(function)
        self._n_batch += n_edges
        if self._n_batch < LEAST_EDGES:
            return
        n_threads = self._threads.n_threads
        most = MOST_EDGES * n_threads
        while self._waiting and (
            len(self._waiting) > n_threads or self._n_waiting + self._n_batch > most
        ):
            self._finish_one()
        future = self._threads.submit(_call_all, self._batch)
        self._waiting.append((self._n_batch, future))
        self._n_waiting += self._n_batch
        self._batch, self._n_batch = [], 0

    def finish(self) -> None:
        """Wait for all calls; raises what a call has raised."""
        _call_all(self._batch)
        self._batch, self._n_batch = [], 0
        while self._waiting:
            self._finish_one()

    def _finish_one(self) -> None:
        n_edges, future = self._waiting.popleft()
        self._n_waiting -= n_edges
        future.result()


def _call_all(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()
