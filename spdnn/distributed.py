"""The same engines under MPI: weights shared by a node, features partitioned among ranks.

A run is a `Team`: a process by itself, or the ranks of a communicator. On each node one rank, its
leader, reads, makes and plans; arrays then lie in a window of shared memory that all ranks of
the node map, so that neither weights nor features are held twice. Nothing is exchanged during
inference; the live features are gathered after it.

What a user may have done wrong is agreed upon: all ranks hear of it and rank 0 tells it. A rank
that fails while others are still at work ends the run.
"""

import os
import pickle
import platform
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from spdnn.engines import choose_mode, make_engine
from spdnn.engines.base import Output, Progress
from spdnn.errors import DataError, DeviceError, ElsewhereError, SpdnnError, user_text
from spdnn.features import Features
from spdnn.inference import Prepared, layer_counts, prepare, require_fit
from spdnn.launcher import launched_rank, launched_size
from spdnn.network import Layer, LayerSequence, Network
from spdnn.result import RankCount, Result, Seconds
from spdnn.threads import at_most_asked, default_threads, fair_share

Partition = Literal["contiguous", "interleaved"]
PARTITIONS: tuple[Partition, ...] = ("contiguous", "interleaved")

PATIENCE = 2.0
"""Seconds that a rank which has failed waits for the others, before it ends the run."""

FIRST_SPEAKS = 0.25
"""Seconds a rank: of several that end the run, the first does it before the others speak."""

LONGEST_SILENCE = 2.0
"""Seconds a rank keeps its message back at most, for a lower one to speak."""

WAIT_SHARE = 0.01
"""Of the time waited so far: how long a waiting rank sleeps, so that it takes no processor from
those that work and yet adds little to the time they took."""

LONGEST_SLEEP = 0.01
ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""

SHARED_MEMORY = Path("/dev/shm")
"""Where MPI libraries on Linux keep windows of shared memory."""

_T = TypeVar("_T")
_FINE, _USERS, _OURS = range(3)


class Team:
    """A process by itself: what each rank, the leaders or the first are to do, it does."""

    rank = 0
    size = 1
    library: str | None = None
    """MPI's library and version, where there is one."""

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def __enter__(self) -> "Team":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to leave behind."""

    def on_first(self, work: Callable[[], _T]) -> _T | None:
        """Have rank 0 do `work`; gives what it gives there and None elsewhere.

        Raises
        ------
        SpdnnError
            On all ranks, if one has failed; `ElsewhereError` on those that do not tell it.
        """
        return work()

    def on_leaders(self, work: Callable[[], _T]) -> _T | None:
        """Have one rank of each node do `work`; otherwise like `on_first`."""
        return work()

    def default_threads(self) -> int:
        """Threads of a rank where none are asked for."""
        return default_threads()

    def tell(self, value: _T | None) -> _T:
        """Give all ranks the value that rank 0 has."""
        assert value is not None
        return value

    def infer(
        self,
        network: Network | None,
        features: Features | None,
        *,
        partition: Partition = "contiguous",
        engine: str = "auto",
        mode: str = "auto",
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Run features through a network, every rank its part of them.

        Parameters
        ----------
        network : Network, or None on ranks that lead no node
        features : Features, or None on ranks that lead no node
            All features of the run.
        partition : {"contiguous", "interleaved"}
            Rank r of R takes the r-th part of the features, or each R-th from the r-th.
        engine, mode, threads, progress
            As in `spdnn.infer`; by default the ranks of a node share its processors.

        Returns
        -------
        Result
            Complete on rank 0; elsewhere the live features are missing. Inference lasts from
            one barrier to the end of gathering.

        Raises
        ------
        SpdnnError
            As `spdnn.infer`, on all ranks.
        """
        prepared = self.prepare(
            network, features, partition=partition, engine=engine, mode=mode, threads=threads
        )
        return prepared.run(progress=progress)

    def prepare(
        self,
        network: Network | None,
        features: Features | None,
        *,
        partition: Partition = "contiguous",
        engine: str = "auto",
        mode: str = "auto",
        threads: int | None = None,
    ) -> Prepared:
        """Do all of `infer` that comes before inference, which may then be run several times."""
        assert network is not None
        assert features is not None
        return prepare(network, features, engine=engine, mode=mode, threads=threads)


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
    """
    n_launched = launched_size()
    if n_launched == 1 and not asks_mpi:
        return Team()
    try:
        with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
            # mpi4py warns of other launchers' variables; what follows from them is found below.
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        if allows_singleton:
            return Team()
        reason = str(error).strip().splitlines()[0]
        _refuse(f"mpi4py cannot be used ({reason}): pip install 'spdnn[mpi]' for this MPI")
    if MPI.COMM_WORLD.size == 1 and n_launched > 1 and not allows_singleton:
        _refuse(
            f"the launcher has started {n_launched} processes, but each is alone in its MPI "
            f"({_library(MPI)}): use that MPI's own launcher, or build mpi4py for this one "
            "(--allow-singleton runs every process by itself)"
        )
    return _Ranks(MPI) if MPI.COMM_WORLD.size > 1 else Team()


def _library(mpi: Any) -> str:
    """The first line of what an MPI library says of itself."""
    return " ".join(mpi.Get_library_version().split("\n")[0].strip("\0").split())


def _refuse(text: str) -> NoReturn:
    """Raise what is true of all processes alike, for the first to tell."""
    raise DeviceError(text) if launched_rank() == 0 else ElsewhereError(text)


def part_of(n_features: int, rank: int, size: int, partition: Partition) -> range:
    """Return the features of a rank.

    Examples
    --------
    >>> [list(part_of(5, rank, 2, "contiguous")) for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    >>> [list(part_of(5, rank, 2, "interleaved")) for rank in range(2)]
    [[0, 2, 4], [1, 3]]
    """
    if partition == "interleaved":
        return range(rank, n_features, size)
    return range(rank * n_features // size, (rank + 1) * n_features // size)


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


class _LayersElsewhere(LayerSequence):
    """The shapes of layers that the leader of the node holds."""

    def __init__(self, shapes: Sequence[tuple[int, int]], edges: Sequence[int]) -> None:
        self.shapes, self.edges = shapes, edges

    def layer(self, index: int) -> Layer:
        """There is none here."""
        raise DataError(f"layer {index + 1} is held by another process")


@dataclass(frozen=True, eq=False)
class _PreparedRank(Prepared):
    """What one of several ranks runs: its part of all features."""

    team: "_Ranks"
    n_features: int
    part: range

    def run(self, *, activations: bool = False, progress: Progress | None = None) -> Result:
        """Run it together with the other ranks; activations are not gathered."""
        return self.team.run(self, progress)


class _Ranks(Team):
    """The ranks of MPI's world communicator; on each node one of them leads."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._world = mpi.COMM_WORLD.Dup()
        self.rank, self.size = self._world.rank, self._world.size
        self.library = _library(mpi)
        self._node = self._world.Split_type(mpi.COMM_TYPE_SHARED)
        self._windows: list[Any] = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free what is shared; an error that was not agreed upon ends all ranks."""
        if isinstance(error, KeyboardInterrupt):
            self._world.Abort(130)
        if error is not None and not isinstance(error, SpdnnError):
            self._end(error)
        for window in self._windows:
            window.Free()

    def on_first(self, work: Callable[[], _T]) -> _T | None:
        return self._agreed(work if self.is_first else None)

    def on_leaders(self, work: Callable[[], _T]) -> _T | None:
        return self._agreed(work if self._node.rank == 0 else None)

    def tell(self, value: _T | None) -> _T:
        told: _T = self._world.bcast(value)
        return told

    def prepare(
        self,
        network: Network | None,
        features: Features | None,
        *,
        partition: Partition = "contiguous",
        engine: str = "auto",
        mode: str = "auto",
        threads: int | None = None,
    ) -> Prepared:
        started = time.perf_counter()
        threads = self.default_threads() if threads is None else threads
        runner = self._agreed(lambda: make_engine(engine, threads))
        assert runner is not None
        mode = choose_mode(runner, mode)
        shape = self._network_shape(network)
        own, n_features = self._own_features(shape, features, partition)
        shared = time.perf_counter()
        # One rank of a node compiles; the others then find the kernels in the cache.
        self.on_leaders(lambda: runner.compile(shape))
        self._agreed((lambda: runner.compile(shape)) if self._node.rank else None)
        compiled = time.perf_counter()
        plan = self._shared(lambda: runner.plan(network or shape, mode))
        planned = time.perf_counter()
        seconds = Seconds(
            compile=compiled - shared, plan=planned - compiled, total=planned - started
        )
        part = part_of(n_features, self.rank, self.size, partition)
        return _PreparedRank(
            runner, mode, plan, own, shape.n_edges, seconds, self, n_features, part
        )

    def run(self, prepared: "_PreparedRank", progress: Progress | None) -> Result:
        """Run this rank's features and gather what is live, timed from a barrier."""
        self._world.Barrier()
        started = time.perf_counter()

        def work() -> tuple[Output, float]:
            output = prepared.engine.run(prepared.plan, prepared.features, progress=progress)
            return output, time.perf_counter() - started

        ran = self._agreed(work)
        assert ran is not None
        output, seconds = ran
        part = prepared.part
        live = self._gathered(part.start + part.step * output.live)
        inference = time.perf_counter() - started
        by_rank = self._world.allgather(
            RankCount(
                platform.node(),
                prepared.engine.threads,
                prepared.features.n_features,
                int(output.live.size),
                int(output.edges_evaluated.sum()),
                seconds,
            )
        )
        counts = (output.n_live, output.edges_evaluated, output.n_distinct)
        spent = prepared.seconds
        return Result(
            live=live,
            activations=None,
            layers=layer_counts(*map(self._summed, counts)),
            seconds=replace(spent, inference=inference, total=spent.total + inference),
            engine=prepared.engine.name,
            mode=prepared.mode,
            threads=sum(rank.threads for rank in by_rank),
            ranks=self.size,
            n_features=prepared.n_features,
            n_edges=prepared.n_edges,
            by_rank=tuple(by_rank),
        )

    def default_threads(self) -> int:
        masks = self._node.allgather(os.sched_getaffinity(0))
        return at_most_asked(fair_share(masks, self._node.rank))

    def _network_shape(self, network: Network | None) -> Network:
        """Tell the ranks of a node the shape of the network that its leader has."""
        facts = None if network is None else (network.shapes, network.layer_edges)
        return Network(_LayersElsewhere(*self._node.bcast(facts)))

    def _own_features(
        self, network: Network, features: Features | None, partition: Partition
    ) -> tuple[Features, int]:
        """Give each rank its part of the features that its leader has, and their number."""
        ranks = self._node.allgather(self.rank)

        def cut() -> tuple[list[Features], int]:
            assert features is not None
            require_fit(network, features)
            n_features = features.n_features
            parts = [part_of(n_features, rank, self.size, partition) for rank in ranks]
            return [features.every(part.start, part.stop, part.step) for part in parts], n_features

        parts, n_features = self._shared(cut)
        return parts[self._node.rank], n_features

    def _shared(self, work: Callable[[], _T]) -> _T:
        """Have each leader do `work`; all ranks of its node get the result.

        Its arrays lie in one window of shared memory a node.
        """
        buffers: list[npt.NDArray[np.uint8]] = []

        def packed() -> bytes:
            def keep(buffer: pickle.PickleBuffer) -> None:
                buffers.append(np.frombuffer(buffer.raw(), dtype=np.uint8))

            head = pickle.dumps(work(), protocol=5, buffer_callback=keep)
            _require_shared(sum(map(_aligned, (buffer.size for buffer in buffers))))
            return head

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

    def _gathered(self, live: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The live features of all ranks, ascending, on rank 0; none elsewhere."""
        counts = np.zeros(self.size, dtype=np.int64)
        self._world.Gather(np.array([live.size], dtype=np.int64), counts)
        everyones = np.empty(int(counts.sum()), dtype=np.int64)
        self._world.Gatherv(live, (everyones, counts) if self.is_first else None)
        return np.sort(everyones)

    def _summed(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        total = np.empty_like(counts)
        self._world.Allreduce(counts, total)
        return total

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
        raise SpdnnError(text if first == 0 else f"rank {first}: {text}")

    def _wait(self, request: Any, error: Exception | None) -> None:
        """Wait for all ranks without taking a processor from them; not long after an error."""
        started = time.perf_counter()
        while not request.Test():
            waited = time.perf_counter() - started
            if error is not None and waited > PATIENCE:
                self._end(error)
            time.sleep(min(WAIT_SHARE * waited, LONGEST_SLEEP))

    def _end(self, error: BaseException) -> NoReturn:
        """Tell an error and end all ranks."""
        time.sleep(min(self.rank * FIRST_SPEAKS, LONGEST_SILENCE))
        text = user_text(error) if isinstance(error, Exception) else None
        status = 2 if text else 1
        text = text or "".join(traceback.format_exception(error)).rstrip()
        print(f"spdnn: error: rank {self.rank}: {text}", file=sys.stderr, flush=True)
        self._world.Abort(status)
        raise SystemExit(status)
