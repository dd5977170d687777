"""A team of threads. It does without MPI what ranks do, so that tests of many cases are quick."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import numpy as np

from spdnn import Features, Network, Result
from spdnn.engines.state import State, joined
from spdnn.errors import ElsewhereError
from spdnn.run.options import DEFAULTS, Options, Partition
from spdnn.run.session import Session
from spdnn.run.team import Team, part_of


class LocalTeam(Team):
    """One of several threads that exchange values through a common list, all on one node."""

    def __init__(self, rank: int, board: list[Any], barrier: Barrier) -> None:
        self.rank, self.size = rank, len(board)
        self._board, self._barrier = board, barrier

    def everyones(self, value: Any) -> list[Any]:
        self._board[self.rank] = value
        self._barrier.wait()
        values = list(self._board)
        self._barrier.wait()
        return values

    def _agreed(self, work: Callable[[], Any] | None) -> Any:
        value, error = None, None
        try:
            value = work() if work is not None else None
        except Exception as caught:
            error = caught
        errors = self.everyones(error)
        if any(errors):
            raise error or ElsewhereError("another rank")
        return value

    def on_first(self, work: Any) -> Any:
        return self._agreed(work if self.is_first else None)

    on_leaders = on_first

    def on_others(self, work: Any) -> Any:
        return self._agreed(None if self.is_first else work)

    def on_all(self, work: Any) -> Any:
        return self._agreed(work)

    def tell(self, value: Any) -> Any:
        return self.everyones(value)[0]

    def summed(self, counts: Any) -> Any:
        return sum(self.everyones(counts))

    def barrier(self) -> None:
        self._barrier.wait()

    def shared(self, work: Any) -> Any:
        done = self.on_leaders(work)
        return done if self.nodes > 1 else self.tell(done)

    def own_features(
        self, network: Network, features: Features | None, partition: Partition
    ) -> tuple[Features, int]:
        assert features is not None
        part = part_of(features.n_features, self.rank, self.size, partition)
        return features.every(part.start, part.stop, part.step), features.n_features

    def moved(self, state: State, targets: Any) -> State:
        parts = [state.take(np.flatnonzero(targets == rank)) for rank in range(self.size)]
        return joined([of_rank[self.rank] for of_rank in self.everyones(parts)])

    def gathered(self, live: Any) -> Any:
        return np.sort(np.concatenate(self.everyones(live)))


class LonelyTeam(LocalTeam):
    """A team whose threads are each on a node of its own: each leads it, reads and plans."""

    @property
    def nodes(self) -> int:
        return self.size

    def on_leaders(self, work: Any) -> Any:
        return self._agreed(work)

    def on_others(self, work: Any) -> Any:
        return self._agreed(None)


def infer_by_threads(
    size: int,
    network: Network | Sequence[Network],
    features: Features,
    options: Options = DEFAULTS,
    engines: Sequence[str] = ("cpu",),
) -> Result:
    """Run features by `size` threads; returns what rank 0 gets.

    Rank r runs engine r modulo the number of engines. If several networks are given, rank r has
    network r, and every rank is on a node of its own.
    """
    board: list[Any] = [None] * size
    barrier = Barrier(size, timeout=600)  # a first run compiles

    def run(rank: int) -> Result:
        engine = engines[rank % len(engines)]
        team, own = LocalTeam(rank, board, barrier), network
        if not isinstance(network, Network):
            team, own = LonelyTeam(rank, board, barrier), network[rank]
        with Session.of_team(team, own, replace(options, engine=engine, threads=1)) as session:
            return session.run(features).after(session.seconds)

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
        errors = [future.exception() for future in futures]
        own = [error for error in errors if error and not isinstance(error, ElsewhereError)]
        if own:
            raise own[0]
        return futures[0].result()
