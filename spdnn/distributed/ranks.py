"""The ranks of MPI's world communicator as a team.

The ranks agree on errors: if one of them fails in a step that all take, all raise an error, and
rank 0 prints it if the user can have caused it. A rank that fails while others are still at work
ends the run.
"""

import io
import os
import pickle
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from spdnn.engines.state import State, joined
from spdnn.errors import (
    INTERNAL_ERROR,
    AgreedError,
    DataError,
    DeviceError,
    ElsewhereError,
    user_text,
)
from spdnn.features import Features
from spdnn.io.mapping import array_at, place_of
from spdnn.machine.launcher import let_read, wait_turn
from spdnn.machine.threads import at_most_asked, default_threads, fair_share
from spdnn.network import Layer, LayerSequence, Network
from spdnn.run.options import Partition
from spdnn.run.team import Team, part_of, require_fit

PATIENCE = 2.0
"""Seconds that a rank which has failed waits for the others, before it ends the run."""

WAIT_SHARE = 0.01
"""Share of the time waited so far that a waiting rank sleeps before it looks again. So it takes no
processor from ranks that work, and adds little to their time."""

LONGEST_SLEEP = 0.01
"""Seconds."""

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""

SHARED_MEMORY = Path("/dev/shm")
"""Folder in which MPI libraries on Linux keep windows of shared memory."""

LARGEST_MESSAGE = 256 << 20
"""Bytes. Many MPI libraries cannot send more than 2 GiB at once."""

COPIED_AT_ONCE = 16 << 20
"""Bytes that a thread copies to shared memory at a time."""

_T = TypeVar("_T")
_FINE, _USERS, _OURS = range(3)
"""What ranks tell each other of a step: it went well, or whose fault its error is."""


def _aligned(n_bytes: int) -> int:
    """Round up to whole cache lines."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def _require_shared(n_bytes: int) -> None:
    """Check that there is so much shared memory. A process that uses more is ended."""
    if SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(SHARED_MEMORY).free
        if n_bytes > free:
            raise DeviceError(
                f"the ranks of a node share {n_bytes / 2**30:.1f} GiB, {SHARED_MEMORY} has "
                f"{free / 2**30:.1f} GiB free: make it larger (docker run --shm-size)"
            )


def _pieces(data: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
    """Views of parts that follow each other, of `COPIED_AT_ONCE` bytes but for the last."""
    return [data[start : start + COPIED_AT_ONCE] for start in range(0, data.size, COPIED_AT_ONCE)]


def _messages(*arrays: npt.NDArray[Any]) -> list[npt.NDArray[np.uint8]]:
    """The bytes of contiguous arrays, in pieces that MPI can take."""
    flat = [array.reshape(-1).view(np.uint8) for array in arrays]
    return [
        data[start : start + LARGEST_MESSAGE]
        for data in flat
        for start in range(0, data.size, LARGEST_MESSAGE)
    ]


class _Pickler(pickle.Pickler):
    """A pickler that keeps the place of an array in a mapped file, not its contents."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to make `value` again, if it is such an array."""
        place = place_of(value) if isinstance(value, np.ndarray) else None
        return NotImplemented if place is None else (array_at, (place,))


class _LayersElsewhere(LayerSequence):
    """The structure of a network whose weights the leader of the node holds.

    Parameters
    ----------
    shapes : sequence of tuple of int
        Inputs and outputs of each layer.
    edges : sequence of int
        Edges of each layer.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], edges: Sequence[int]) -> None:
        self.shapes, self.edges = shapes, edges

    def layer(self, index: int) -> Layer:
        """Refuse to give a layer (DataError)."""
        raise DataError(f"layer {index + 1} is held by another process")


def team_of(mpi: ModuleType, library: str, print_error: Callable[[str], None]) -> Team:
    """Make a team of the ranks of MPI's world communicator; all of them call this.

    Parameters
    ----------
    mpi : module
        mpi4py's ``MPI``, started.
    library : str
        Name and version of the MPI library.
    print_error : callable
        Prints the text of an error that ends all ranks.
    """
    return _Ranks(mpi, library, print_error)


class _Ranks(Team):
    """The ranks of MPI's world communicator; on each node one of them leads."""

    def __init__(self, mpi: ModuleType, library: str, print_error: Callable[[str], None]) -> None:
        self._mpi, self.library, self._print_error = mpi, library, print_error
        self._world = mpi.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size
        self._windows: list[Any] = []
        try:
            self._world = self._world.Dup()
            self._node = self._split_by_node()
            self.nodes = self._world.allreduce(int(self._node.rank == 0))
        except BaseException as error:
            self._end(error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free shared memory. An error that not all ranks know of ends all of them."""
        if error is not None and not self.is_agreed(error):
            self._end(error)
        try:
            for window in self._windows:
                window.Free()
        except BaseException as failed:
            self._end(failed)

    def is_agreed(self, error: BaseException) -> bool:
        return isinstance(error, AgreedError)

    def _split_by_node(self) -> Any:
        """A communicator of the ranks that share memory with this one."""
        return self._world.Split_type(self._mpi.COMM_TYPE_SHARED)

    def on_first(self, work: Callable[[], _T]) -> _T | None:
        return self._agreed(work if self.is_first else None)

    def on_leaders(self, work: Callable[[], _T]) -> _T | None:
        return self._agreed(work if self._node.rank == 0 else None)

    def tell(self, value: _T | None) -> _T:
        told: _T = self._world.bcast(value)
        return told

    def on_others(self, work: Callable[[], _T]) -> _T | None:
        return self._agreed(work if self._node.rank else None)

    def on_all(self, work: Callable[[], _T]) -> _T:
        done: Any = self._agreed(work)
        return done  # type: ignore[no-any-return]

    def everyones(self, value: _T) -> list[_T]:
        values: list[_T] = self._world.allgather(value)
        return values

    def summed(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        total = np.empty_like(counts)
        self._world.Allreduce(counts, total)
        return total

    def barrier(self) -> None:
        self._world.Barrier()

    def default_threads(self) -> int:
        masks = self._node.allgather(os.sched_getaffinity(0))
        return at_most_asked(fair_share(masks, self._node.rank))

    def structure_of(self, network: Network | None) -> Network:
        facts = None if network is None else (network.shapes, network.layer_edges)
        return Network(_LayersElsewhere(*self._node.bcast(facts)))

    def own_features(
        self, network: Network, features: Features | None, partition: Partition
    ) -> tuple[Features, int]:
        ranks = self._node.allgather(self.rank)

        def cut() -> tuple[list[Features], int]:
            assert features is not None
            require_fit(network, features.n_neurons)
            n_features = features.n_features
            parts = [part_of(n_features, rank, self.size, partition) for rank in ranks]
            return [features.every(part.start, part.stop, part.step) for part in parts], n_features

        parts, n_features = self.shared(cut)
        return parts[self._node.rank], n_features

    def shared(self, work: Callable[[], _T]) -> _T:
        buffers: list[npt.NDArray[np.uint8]] = []

        def packed() -> bytes:
            def keep(buffer: pickle.PickleBuffer) -> None:
                buffers.append(np.frombuffer(buffer.raw(), dtype=np.uint8))

            head = io.BytesIO()
            _Pickler(head, protocol=5, buffer_callback=keep).dump(work())
            _require_shared(sum(map(_aligned, (buffer.size for buffer in buffers))))
            return head.getvalue()

        head = self.on_leaders(packed)
        head, sizes = self._node.bcast((head, [buffer.size for buffer in buffers]))
        starts = np.concatenate([[0], np.cumsum([_aligned(size) for size in sizes])]).tolist()
        memory = self._window(starts[-1])
        views = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]

        def fill() -> None:
            # The other ranks wait. Each thread also touches its part first, on its own NUMA node.
            with ThreadPoolExecutor(default_threads()) as pool:
                for view in views:
                    pieces = _pieces(view), _pieces(buffers.pop(0))  # what is copied is let go
                    list(pool.map(np.copyto, *pieces))

        self.on_leaders(fill)
        self._windows[-1].Fence()
        shared: _T = pickle.loads(head, buffers=views)
        return shared

    def _window(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Allocate memory that all ranks of a node share."""
        own_bytes = max(n_bytes, 1) if self._node.rank == 0 else 0
        try:
            window = self._mpi.Win.Allocate_shared(own_bytes, 1, comm=self._node)
        except self._mpi.Exception as error:
            raise DeviceError(
                f"{n_bytes / 2**30:.1f} GiB cannot be shared by the ranks of a node: {error}"
            ) from error
        self._windows.append(window)
        memory, _ = window.Shared_query(0)
        return np.frombuffer(memory, dtype=np.uint8)

    def moved(self, state: State, targets: npt.NDArray[np.int64]) -> State:
        """Give each row of a state to the rank in `targets`, with the features that it carries.

        Rows are sent as bytes, in messages of at most `LARGEST_MESSAGE`. Only ranks that have
        something to exchange send messages.
        """
        others = [rank for rank in np.unique(targets) if rank != self.rank]
        parts = {rank: state.take(np.flatnonzero(targets == rank)) for rank in others}
        counts = np.zeros((self.size, 2), dtype=np.int64)
        for rank, part in parts.items():
            counts[rank] = part.n_carried, part.ids.size
        incoming = np.empty_like(counts)
        self._world.Alltoall(counts, incoming)
        requests = []
        received = []
        for rank in np.flatnonzero(incoming[:, 0]):
            n_rows, n_features = incoming[rank]
            features = np.empty((2, n_features), dtype=np.int64)
            rows = np.empty((n_rows, state.activations.shape[1]), state.activations.dtype)
            requests += [self._world.Irecv(message, rank) for message in _messages(features, rows)]
            received.append(State(state.layer, features[0], features[1], rows))
        for rank, part in parts.items():
            data = _messages(np.stack([part.ids, part.rows]), part.activations)
            requests += [self._world.Isend(message, rank) for message in data]
        self._mpi.Request.Waitall(requests)
        if not (others or received):
            return state
        return joined([state.take(np.flatnonzero(targets == self.rank)), *received])

    def gathered(self, live: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        counts = np.zeros(self.size, dtype=np.int64)
        self._world.Gather(np.array([live.size], dtype=np.int64), counts)
        everyones = np.empty(int(counts.sum()), dtype=np.int64)
        self._world.Gatherv(live, (everyones, counts) if self.is_first else None)
        return np.sort(everyones)

    def _agreed(self, work: Callable[[], _T] | None) -> _T | None:
        """Do `work`, if there is some for this rank, and agree on errors with all ranks."""
        value, error = None, None
        if work is not None:
            try:
                value = work()
            except Exception as caught:
                error = caught
        kind = _FINE if error is None else _OURS if user_text(error) is None else _USERS
        own, kinds = np.array([kind], dtype=np.int8), np.empty(self.size, dtype=np.int8)
        self._wait(self._world.Iallgather(own, kinds), error)
        failed = np.flatnonzero(kinds)
        if not failed.size:
            return value
        first = int(failed[0])
        is_speaker = self.rank == first
        text = self._world.bcast(user_text(error) if is_speaker and error else None, root=first)
        if text is None and is_speaker and error:
            raise error
        if text is None or not self.is_first:
            raise ElsewhereError(f"rank {first} has failed")
        raise AgreedError(text if first == 0 else f"rank {first}: {text}") from error

    def _wait(self, request: Any, error: Exception | None) -> None:
        """Wait for all ranks and leave them the processors; after an error wait `PATIENCE`."""
        started = time.perf_counter()
        while not request.Test():
            waited = time.perf_counter() - started
            if error is not None and waited > PATIENCE:
                self._end(error)
            time.sleep(min(WAIT_SHARE * waited, LONGEST_SLEEP))

    def _end(self, error: BaseException) -> NoReturn:
        """Print an error and end all ranks, even if printing fails."""
        text, status = _told(error)
        try:
            wait_turn(self.rank)
            self._print_error(f"rank {self.rank}: {text}")
            let_read()
        finally:
            self._world.Abort(status)
        raise SystemExit(status)


def _told(error: BaseException) -> tuple[str, int]:
    """The text of an error that ends all ranks, and their exit status, which is never 0."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) and error.code else 1
        return f"has ended in the middle of the run, with status {error.code or 0}", status
    text = user_text(error) if isinstance(error, Exception) else None
    if text is not None:
        return text, 2
    return "".join(traceback.format_exception(error)).rstrip(), INTERNAL_ERROR
