"""Threads that are started when they are first needed, and kept from then on."""

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from threading import RLock
from typing import Any, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


CALLS_AHEAD = 2
"""Calls of `SharedThreads.map` for each thread that are begun or wait."""


class KeptThreads(Executor):
    """An executor whose threads are started when work is first submitted.

    The threads are kept until `close` is called or the object is garbage-collected. Work that is
    submitted after `close`, or in a forked child process, starts new threads. Idle threads do
    not keep the interpreter from ending. All methods may be called from several threads at once.

    Parameters
    ----------
    n_threads : int
        Most threads that work at the same time.

    Examples
    --------
    >>> threads = KeptThreads(2)
    >>> list(threads.run_all(abs, [-1, -2, -3]))
    [1, 2, 3]
    >>> threads.close()
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._forget()
        _alive.add(self)

    def _forget(self) -> None:
        """Have no threads; in a forked child process there are none."""
        self._lock = RLock()
        self._pool: ThreadPoolExecutor | None = None

    def submit(
        self,
        fn: Callable[_Arguments, _Result],
        /,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> Future[_Result]:
        """Have a thread call a function; see `concurrent.futures.Executor.submit`."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.n_threads)
            return self._pool.submit(fn, *args, **kwargs)

    def submit_together(self, functions: Sequence[Callable[[], _Result]]) -> list[Future[_Result]]:
        """Have threads call functions that wait for each other, fewer than `n_threads`.

        The functions are queued side by side. Otherwise several callers could each get some of
        the threads, while none of them gets all that it waits for.

        Parameters
        ----------
        functions : sequence of callables
            They take no arguments.

        Raises
        ------
        RuntimeError
            If a thread cannot be started. Some of the functions may still be called then.
        """
        with self._lock:
            return [self.submit(function) for function in functions]

    def run_all(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[_Result]:
        """Call a function with each task, and yield the results in the order of the tasks.

        If a call fails, calls that have not begun are left out, and those that have begun are
        waited for, before the error is raised.

        Parameters
        ----------
        function : callable
            Called by the threads.
        tasks : sequence
            What it is called with. A single task is done by the caller's own thread.
        """
        if len(tasks) <= 1:
            yield from map(function, tasks)
            return
        futures = [self.submit(function, task) for task in tasks]
        try:
            for future in futures:
                yield future.result()
        finally:
            if not all(future.done() for future in futures):
                for future in futures:
                    future.cancel()
                wait(futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads once their work is done; see `concurrent.futures.Executor.shutdown`."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait, cancel_futures=cancel_futures)

    def close(self) -> None:
        """End the threads once their work is done. It may be called twice."""
        self.shutdown()


class SharedThreads(Executor):
    """Threads that have another user as well.

    `map` has only a few calls waiting at a time, so that those of the other user get their turn
    soon. No thread is idle while there is work.

    Parameters
    ----------
    threads : KeptThreads
        The threads. They are not ended by `shutdown`.

    Examples
    --------
    >>> threads = KeptThreads(2)
    >>> list(SharedThreads(threads).map(abs, [-1, -2, -3]))
    [1, 2, 3]
    >>> threads.close()
    """

    def __init__(self, threads: KeptThreads) -> None:
        self._threads = threads

    def submit(
        self,
        fn: Callable[_Arguments, _Result],
        /,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> Future[_Result]:
        """Have a thread call a function; see `concurrent.futures.Executor.submit`."""
        return self._threads.submit(fn, *args, **kwargs)

    def map(
        self,
        fn: Callable[..., _Result],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[_Result]:
        """Call a function with each item, and yield the results in their order.

        Calls are made while results are taken. If one fails, or no more results are taken, those
        that have begun are waited for.

        Parameters
        ----------
        fn : callable
            Called by the threads.
        *iterables : iterable
            Its arguments.
        timeout, chunksize, buffersize
            They have no effect.
        """
        waiting: deque[Future[_Result]] = deque()
        most = CALLS_AHEAD * self._threads.n_threads
        try:
            for arguments in zip(*iterables, strict=False):
                if len(waiting) == most:
                    yield waiting.popleft().result()
                waiting.append(self.submit(fn, *arguments))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            wait(waiting)


_alive: weakref.WeakSet[KeptThreads] = weakref.WeakSet()


def _forget_all() -> None:
    for threads in list(_alive):
        threads._forget()


os.register_at_fork(after_in_child=_forget_all)
