"""Features are read, or made, by a thread while their network is planned."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

from spdnn.machine.thread_pool import KeptThreads, SharedThreads
from spdnn.network import Layer, LayerSequence, Network

PATIENCE = 2.0
"""Seconds that the end of reading is waited for after planning has failed."""

_Read = TypeVar("_Read")
_Planned = TypeVar("_Planned")

Look = Callable[[], None]
"""Called by what reads, now and then; it raises where reading is to end early."""


class _UnwantedError(Exception):
    """Ends the thread that reads, because planning has failed."""


class Reading(Generic[_Read]):
    """Something to read while a network is planned.

    The threads of the engine do both. If one of the two fails, the other is stopped soon: reading
    when it next calls what it was given for this, planning when it next asks for a layer.

    Parameters
    ----------
    read : callable
        Reads. It takes an executor for its work, or None for threads of its own, and something to
        call now and then, which raises where reading is to end early.

    Attributes
    ----------
    result : object
        What was read, after `beside`.
    seconds : float
        Seconds from the beginning of reading to its end.
    overlap : float
        Seconds of both reading and planning.
    waited : float
        Seconds that planning waited for reading, before or after it.
    """

    result: _Read

    def __init__(self, read: Callable[[Executor | None, Look], _Read]) -> None:
        self._read = read
        self._error: BaseException | None = None
        self._is_unwanted = False
        self.seconds = self.overlap = self.waited = 0.0

    def beside(
        self,
        plan: Callable[[Network], _Planned],
        network: Network,
        threads: KeptThreads | None = None,
    ) -> _Planned:
        """Plan a network and read meanwhile; returns the plan.

        Parameters
        ----------
        plan : callable
            Plans the network that it is given.
        network : Network
            The network.
        threads : KeptThreads, optional
            The threads that plan. Without several threads, reading comes before planning.

        Raises
        ------
        BaseException
            What has failed first, reading or planning.
        """
        if threads is None or threads.n_threads == 1:
            self._do(None)
            if self._error is not None:
                raise self._error
            self.waited = self.seconds
            return plan(network)
        reader = threading.Thread(
            target=self._do, args=(SharedThreads(threads),), name="reading", daemon=True
        )
        began = time.perf_counter()
        reader.start()
        try:
            planned = plan(_watched(network, self._require_sound))
            ended = time.perf_counter()
            reader.join()
            self.waited = time.perf_counter() - ended
            self._require_sound()
        except BaseException:
            self._is_unwanted = True
            reader.join(PATIENCE)
            raise
        self.overlap = min(self.seconds, ended - began)
        return planned

    def _do(self, executor: Executor | None) -> None:
        """Read; an error is kept for the thread that plans."""
        began = time.perf_counter()
        try:
            self.result = self._read(executor, self._look)
        except BaseException as error:
            self._error = error
        self.seconds = time.perf_counter() - began

    def _look(self) -> None:
        """End reading that nobody waits for."""
        if self._is_unwanted:
            raise _UnwantedError

    def _require_sound(self) -> None:
        """Raise what reading has raised."""
        if self._error is not None:
            raise self._error


def _watched(network: Network, look: Callable[[], None]) -> Network:
    """The same network, whose layers are only given while a look finds nothing."""
    return Network(_WatchedLayers(network, look), network.name)


class _WatchedLayers(LayerSequence):
    """The layers of a network; `look` is called before each of them is given."""

    def __init__(self, network: Network, look: Callable[[], None]) -> None:
        self.shapes: Sequence[tuple[int, int]] = network.shapes
        self.edges: Sequence[int] = network.layer_edges
        self._network, self._look_first = network, look

    def fingerprint(self) -> str:
        return self._network.fingerprint

    def layer(self, index: int) -> Layer:
        self._look_first()
        return self._network.layers[index]
