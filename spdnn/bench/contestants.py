"""Who takes part in a benchmark: this project's engines and other libraries, behind one face."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
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
"""A slow rival runs on all features, or on a half, a fifth, ... of them."""

RIVAL_MODE = "edges"
"""Rivals evaluate every edge of every live feature."""


class Entry(NamedTuple):
    """A case to be measured, and the threads of each rank."""

    case: Case
    threads: int

    @property
    def library(self) -> str | None:
        """The rival's name; None for an engine of this project."""
        return RIVALS[self.case.engine].name if self.case.engine in RIVALS else None

    @property
    def name(self) -> str:
        """For people."""
        return self.library or f"spdnn {self.case.engine}, {self.case.mode}"


class LeftOut(NamedTuple):
    """An entry that could not be measured, and why."""

    entry: Entry
    reason: str


@dataclass(eq=False)
class Contestant:
    """An entry that is ready to run, and what its runs gave.

    Every run must say that it was of the entry's case, or a record would be of another one.
    """

    entry: Entry
    network: Network
    run: Callable[[], Result]
    limits: Callable[[], AbstractContextManager[Any]] = nullcontext
    warm_up: float = 0.0
    layers: tuple[LayerCount, ...] = ()
    results: list[Result] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)

    def warm(self) -> None:
        """Run once, apart from what is measured."""
        started = time.perf_counter()
        with self.limits():
            self.layers = self._run().layers
        self.warm_up = time.perf_counter() - started

    def measure(self) -> None:
        """Run once more."""
        with self.limits(), self.watch:
            self.results.append(self._run())

    def _run(self) -> Result:
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
    """All pairs of engines and modes that there are, with all threads and numbers of features."""
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
    """All rivals, each on as many features as it usually runs in some seconds.

    Parameters
    ----------
    network, rivals, threads
    features : int
        All that there are.
    edges_a_feature : float
        Edges that must be evaluated for one of them, on average, since it is live.
    seconds : float
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
    """Edges that a feature takes part in on average: those of the layers that it enters live.

    Parameters
    ----------
    network : Network
    n_features : int
        That enter the first layer.
    live : sequence of int
        Live features after each layer.
    """
    entering = [n_features, *live[:-1]]
    edges = [n * edges for n, edges in zip(entering, network.layer_edges, strict=True)]
    return sum(edges) / n_features


def prepare(
    entries: list[Entry], network: Network | None, features: Features | None, team: Team
) -> tuple[list[Contestant], list[LeftOut]]:
    """Make contestants, as far as libraries and memory allow; each is run once to warm up.

    Parameters
    ----------
    entries : list of Entry
        The same on all ranks.
    network, features
        None on ranks that lead no node.
    team : Team
    """
    contestants: list[Contestant] = []
    left_out = []
    planned: dict[tuple[str, str], Session] = {}
    for entry in entries:
        try:
            if entry.library is None:
                contestant = _engine(entry, network, features, team, planned)
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
) -> Contestant:
    """Plan, unless a process by itself has that plan already."""
    case = entry.case
    part = None if features is None else features.part(0, case.features)
    have = planned.get((case.engine, case.mode)) if team.size == 1 else None
    if have is None:
        options = Options(engine=case.engine, mode=case.mode, threads=entry.threads)
        session = Session.of_team(team, network, options)
        planned[case.engine, case.mode] = session
    else:
        session = have.with_threads(entry.threads)
    batch = session.load(part)
    return Contestant(
        entry, session.network, lambda: session.run_batch(batch).after(session.seconds)
    )


def _rival(entry: Entry, network: Network, features: Features) -> Contestant:
    """Convert weights and features to the library's own form."""
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
    """Run a rival; it tells nothing of its layers."""
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
