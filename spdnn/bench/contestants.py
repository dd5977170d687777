"""The contestants of a benchmark: engines of this project and other libraries."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from spdnn.bench.machine import Watch
from spdnn.bench.optional import optional
from spdnn.bench.records import Case, case_of
from spdnn.bench.rivals import RIVALS, Rival
from spdnn.engines import make_engine
from spdnn.errors import SpdnnError
from spdnn.features import Features
from spdnn.network import Network
from spdnn.run.options import Options
from spdnn.run.result import LayerCount, Result, Seconds
from spdnn.run.session import Session
from spdnn.run.team import Team

SHARES = (1, 2, 5, 10, 20, 50, 100)
"""A rival runs on all features, or if it is slow on a half, a fifth, ... of them."""

RIVAL_MODE = "edges"
"""Rivals evaluate every edge of every live feature."""


class Entry(NamedTuple):
    """A case to be measured.

    Attributes
    ----------
    case : Case
        The case.
    threads : int
        Threads of each rank.
    """

    case: Case
    threads: int

    @property
    def library(self) -> str | None:
        """Name of the rival; None for an engine of this project."""
        return RIVALS[self.case.engine].name if self.case.engine in RIVALS else None

    @property
    def name(self) -> str:
        """Name of the engine or rival, as it is printed."""
        return self.library or f"spdnn {self.case.engine}, {self.case.mode}"


class LeftOut(NamedTuple):
    """An entry that could not be measured.

    Attributes
    ----------
    entry : Entry
        What was to be measured.
    reason : str
        Text of the error.
    """

    entry: Entry
    reason: str


@dataclass(eq=False)
class Contestant:
    """An entry that is ready to run, and the results of its runs.

    Attributes
    ----------
    entry : Entry
        The entry.
    network : Network
        The network to run.
    run : callable
        Runs it once. The result must be of the entry's case.
    limits : callable
        Makes a context in which libraries use no more threads than the entry has.
    warm_up : float
        Seconds of the run that `warm` does.
    layers : tuple of LayerCount
        Counts of that run; empty for rivals.
    results : list of Result
        What the measured runs gave.
    watch : Watch
        What the machine did during the measured runs.
    """

    entry: Entry
    network: Network
    run: Callable[[], Result]
    limits: Callable[[], AbstractContextManager[object]] = nullcontext
    warm_up: float = 0.0
    layers: tuple[LayerCount, ...] = ()
    results: list[Result] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)

    def warm(self) -> None:
        """Run once without measuring."""
        started = time.perf_counter()
        with self.limits():
            self.layers = self._run().layers
        self.warm_up = time.perf_counter() - started

    def measure(self) -> None:
        """Run once and keep the result."""
        with self.limits(), self.watch:
            self.results.append(self._run())

    def _run(self) -> Result:
        """Run once, and check that the case is that of the entry: a record is named by it."""
        result = self.run()
        ran = case_of(self.network, result)
        if ran != self.entry.case:
            raise RuntimeError(f"{self.entry.case} was to be measured, but {ran} was run")
        return result


def engine_entries(
    network: Network,
    engines: tuple[str, ...],
    modes: tuple[str, ...],
    threads: list[int],
    features: list[int],
    ranks: int,
) -> Iterator[Entry]:
    """List the cases of engines: each in its modes, with all threads and numbers of features.

    Parameters
    ----------
    network : Network
        The network to run.
    engines, modes : tuple of str
        Names. Pairs of an engine and a mode that it does not have are left out.
    threads : list of int
        Numbers of threads of each rank.
    features : list of int
        Numbers of features.
    ranks : int
        Ranks of the run.

    Yields
    ------
    Entry
        May be yielded more than once: some engines have one thread, whatever is asked for.
    """
    for name in engines:
        for n_threads in threads:
            engine = make_engine(name, n_threads)
            for mode in [mode for mode in modes if mode in engine.modes]:
                for count in features:
                    size = network.n_inputs, network.n_layers
                    case = Case(*size, engine.name, mode, ranks, engine.threads * ranks, count)
                    yield Entry(case, engine.threads)


def rival_entries(
    network: Network,
    rivals: tuple[str, ...],
    threads: list[int],
    features: int,
    edges_a_feature: float,
    seconds: float,
) -> Iterator[Entry]:
    """List the cases of rivals, each on as many features as it usually runs in some seconds.

    Parameters
    ----------
    network : Network
        The network to run.
    rivals : tuple of str
        Keys of `RIVALS`.
    threads : list of int
        Numbers of threads; rivals with one thread are listed once.
    features : int
        Number of all features.
    edges_a_feature : float
        Average number of edges that a feature takes part in while it is live.
    seconds : float
        Time that a run may take.

    Yields
    ------
    Entry
        By rival and number of threads.
    """
    for key in rivals:
        rival = RIVALS[key]
        affordable = seconds * rival.usual_rate / edges_a_feature
        counts = [-(-features // share) for share in SHARES]
        count = next((count for count in counts if count <= affordable), counts[-1])
        for n_threads in threads if rival.uses_threads else [1]:
            size = network.n_inputs, network.n_layers
            yield Entry(Case(*size, key, RIVAL_MODE, 1, n_threads, count), n_threads)


def edges_a_feature(network: Network, n_features: int, live: Sequence[int]) -> float:
    """Compute the average number of edges of the layers that a feature enters while it is live.

    Parameters
    ----------
    network : Network
        The network to run.
    n_features : int
        Features that enter the first layer.
    live : sequence of int
        Live features after each layer.
    """
    entering = [n_features, *live[:-1]]
    edges = [n * edges for n, edges in zip(entering, network.layer_edges, strict=True)]
    return sum(edges) / n_features


def prepare(
    entries: list[Entry],
    network: Network | None,
    features: Features | None,
    team: Team,
    closing: ExitStack,
) -> tuple[list[Contestant], list[LeftOut]]:
    """Make contestants, as far as libraries and memory allow, and run each once to warm up.

    Parameters
    ----------
    entries : list of Entry
        The same on all ranks.
    network : Network or None
        The network to run; None on ranks that lead no node.
    features : Features or None
        All inputs; None on ranks that lead no node.
    team : Team
        The ranks.
    closing : ExitStack
        Closes the sessions that are opened here.

    Returns
    -------
    list of Contestant
        Those that can run.
    list of LeftOut
        The others.

    Raises
    ------
    SpdnnError
        An error that not all ranks know of.
    """
    contestants: list[Contestant] = []
    left_out = []
    planned: dict[tuple[str, str], Session] = {}
    for entry in entries:
        try:
            if entry.library is None:
                contestant = _engine(entry, network, features, team, planned, closing)
            else:
                assert network is not None
                assert features is not None
                contestant = _rival(entry, network, features)
            contestant.warm()
            contestants.append(contestant)
        except SpdnnError as error:
            if not team.is_agreed(error):
                raise
            left_out.append(LeftOut(entry, str(error).removeprefix(f"{entry.name}: ")))
    return contestants, left_out


def _engine(
    entry: Entry,
    network: Network | None,
    features: Features | None,
    team: Team,
    planned: dict[tuple[str, str], Session],
    closing: ExitStack,
) -> Contestant:
    """Open a session, with the plan of an earlier one if this process is alone."""
    case = entry.case
    part = None if features is None else features.part(0, case.features)
    have = planned.get((case.engine, case.mode)) if team.size == 1 else None
    if have is None:
        options = Options(engine=case.engine, mode=case.mode, threads=entry.threads)
        session = Session.of_team(team, network, options)
        planned[case.engine, case.mode] = session
    else:
        session = have.with_threads(entry.threads)
    closing.enter_context(session)
    batch = session.load(part)
    return Contestant(
        entry, session.network, lambda: session.run_batch(batch).after(session.seconds)
    )


def _rival(entry: Entry, network: Network, features: Features) -> Contestant:
    """Convert weights and features to the form of the library."""
    started = time.perf_counter()
    rival = RIVALS[entry.case.engine](network, entry.threads)
    planned = time.perf_counter()
    part = features.part(0, entry.case.features)
    converted = rival.convert(part)
    loaded = time.perf_counter()
    spent = Seconds(plan=planned - started, load=loaded - planned, total=loaded - started)
    threadpool_limits = optional("threadpoolctl", "bench").threadpool_limits

    def run() -> Result:
        return _rival_result(rival, converted, network.n_edges, part.n_features, spent)

    return Contestant(entry, network, run, lambda: threadpool_limits(entry.threads))


def _rival_result(
    rival: Rival, converted: Any, n_edges: int, n_features: int, spent: Seconds
) -> Result:
    """Run a rival. Its result has no counts of layers."""
    started = time.perf_counter()
    live = rival.run(converted)
    inference = time.perf_counter() - started
    return Result(
        live=live,
        activations=None,
        layers=(),
        seconds=replace(spent, inference=inference, total=spent.total + inference),
        engine=rival.key,
        mode=RIVAL_MODE,
        threads=rival.threads,
        ranks=1,
        n_features=n_features,
        n_edges=n_edges,
    )
