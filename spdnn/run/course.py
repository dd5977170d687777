"""The course of a run: from stop to stop between layers, and what ranks do there.

Without a reason to stop a run has none, and is the engine's own.
"""

import time
from dataclasses import dataclass, replace
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.base import (
    Calibrated,
    DeviceSeconds,
    Engine,
    Output,
    OverflowingError,
    Progress,
    Resumable,
)
from spdnn.engines.state import State
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.network import Network
from spdnn.run import checkpoint as io
from spdnn.run import exchange
from spdnn.run.digest import inputs_digest, plan_digest
from spdnn.run.result import RankCount
from spdnn.run.team import Team

CHECKPOINTS = 10
"""Written in a run, unless it is told how many layers apart."""

FIRST_REBALANCE = 8
"""Layer after which numbers are evened out for the first time; then after twice as many, and so
on. Most features die before; what was gained by then would be lost again."""

FIRST_MERGE = 128
"""Layer after which equal features are looked for across ranks for the first time, and so on. A
shallower network is through before a stop of all ranks could pay."""

EDGES, DISTINCT = 1, 2
"""Rows of counts."""


@dataclass(frozen=True)
class Stops:
    """What is to be done between layers.

    Attributes
    ----------
    checkpoint : Path or None
        Folder to write progress to, and to go on from if it has some.
    every : int or None
        Layers from one checkpoint to the next; a tenth of the network where not given.
    rebalance : float or None
        Move features between ranks once the one that carries most has more than so many times
        the mean, where that is predicted to pay.
    """

    checkpoint: Path | None = None
    every: int | None = None
    rebalance: float | None = None


NO_STOPS = Stops()


class Course:
    """One rank's way through the layers, in step with the others' at every stop.

    Parameters
    ----------
    team : Team
    engine : Engine
    mode : str
    network : Network
        Its shape is enough.
    numbers : range
        This rank's features among all.
    n_features : int
        Of all ranks.
    stops : Stops

    Attributes
    ----------
    counts : ndarray, shape (3, n_layers), int64
        Live features, edges evaluated and distinct features, by this rank.
    counts_before : ndarray, shape (3, n_layers), int64
        The same of the earlier run, by all of its ranks.
    resumed_after : int
        Layers that an earlier run had passed.
    seconds_before : float
        Inference of the earlier run, up to its checkpoint.
    device_seconds : DeviceSeconds or None
        Of this rank's device, where its engine has one.

    Raises
    ------
    DataError
        If the folder of checkpoints has one of another run; on all ranks.
    """

    def __init__(
        self,
        team: Team,
        engine: Engine,
        mode: str,
        network: Network,
        numbers: range,
        n_features: int,
        stops: Stops,
    ) -> None:
        self.team, self.engine, self.stops = team, engine, stops
        self.n_layers = network.n_layers
        self.numbers = numbers
        self.every = stops.every or -(-self.n_layers // CHECKPOINTS)
        self.merges = mode == "merge" and team.size > 1 and isinstance(engine, Resumable)
        self.counts = np.zeros((3, self.n_layers), dtype=np.int64)
        self.counts_before = np.zeros_like(self.counts)
        self.resumed_after, self.seconds_before = 0, 0.0
        self.seconds = 0.0
        self.device_seconds: DeviceSeconds | None = None
        self.received = 0
        self.run_facts = {
            "engine": engine.name,
            "mode": mode,
            "layers": self.n_layers,
            "features": n_features,
        }
        (self.found,) = team.tell(team.on_first(lambda: (self._find(),)))
        own = engine.costs if isinstance(engine, Calibrated) else None
        (self.costs,) = team.tell((self.found.tuning if self.found else own,))
        if isinstance(engine, Calibrated):
            self.engine = engine.with_costs(self.costs)

    def _find(self) -> io.Checkpoint | None:
        """The checkpoint to go on from."""
        folder = self.stops.checkpoint
        found = None if folder is None else io.read_checkpoint(folder)
        if folder is not None and found is not None:
            io.require_same(folder, found, self.run_facts)
        return found

    def prepare(self, plan: Any, own: Features) -> State | None:
        """Take the plan; make sure that all nodes, which have made their own, have equal ones.

        Returns
        -------
        State or None
            Where to go on, if there is a checkpoint; else from this rank's features, `own`.

        Raises
        ------
        DataError
            If nodes have different plans, or a checkpoint is of another run or damaged.
        """
        self.plan = plan
        folder = self.stops.checkpoint
        if folder is None and self.team.nodes == 1:
            return None
        of_node = self.team.on_leaders(lambda: plan_digest(plan, self.engine.threads))
        of_nodes = self.team.everyones(of_node)
        digest = self.team.on_all(lambda: _the_only(of_nodes))
        if folder is None:
            return None
        of_ranks = self.team.everyones(inputs_digest(own, self.numbers))
        self.run_facts |= {"inputs": f"{sum(of_ranks) % 2**64:016x}", "plan": digest}
        return self.team.on_all(lambda: self._resumed(folder))

    def _resumed(self, folder: Path) -> State | None:
        """Read the part of this rank of the checkpoint that was found, if there is one."""
        found = self.found
        if found is None:
            return None
        io.require_same(folder, found, self.run_facts)
        self.resumed_after, self.seconds_before = found.layer, found.seconds
        self.counts_before = found.counts
        return io.read_state(folder, found, self.team.rank, self.team.size)

    def run(self, start: Any, progress: Progress | None) -> npt.NDArray[np.int64]:
        """Run to the end, from features that the engine has loaded, or from a State.

        Returns the live features of this rank.
        """
        self.begun = time.perf_counter()
        self.n_started = start.ids.size if isinstance(start, State) else len(self.numbers)
        layer = self.resumed_after
        while True:
            until = self._next_stop(layer)
            output, seconds = self.team.on_all(
                partial(self._run_part, start, layer, until, progress)
            )
            self.counts += output.n_live, output.edges_evaluated, output.n_distinct
            self.seconds += seconds
            if output.device_seconds is not None:
                before = self.device_seconds or DeviceSeconds(0.0, 0.0)
                self.device_seconds = DeviceSeconds(*map(add, before, output.device_seconds))
            ids = output.live
            if not isinstance(start, State):
                ids = self._number_of(ids)
            if output.state is None:
                return ids
            start = self._stop(replace(output.state, ids=ids), output, seconds, layer)
            layer = until

    def _run_part(
        self, start: Any, layer: int, until: int, progress: Progress | None
    ) -> tuple[Output, float]:
        """Run up to a stop, or to the end, and take the time."""
        started = time.perf_counter()

        def of_whole(fraction: float) -> None:
            assert progress is not None
            progress((layer + fraction * (until - layer)) / self.n_layers)

        report = progress and of_whole
        try:
            if not isinstance(start, State) and until == self.n_layers:
                output = self.engine.run(self.plan, start, progress=report)
            else:
                assert isinstance(self.engine, Resumable)  # no other one is asked to stop
                output = self.engine.run_part(self.plan, start, until=until, progress=report)
        except OverflowingError as error:
            if isinstance(start, State):  # which says what its features are called
                raise
            raise OverflowingError(self._number_of(error.feature)) from error
        return output, time.perf_counter() - started

    def _number_of(self, features: Any) -> Any:
        """What features of this rank, by their numbers within it, are among all."""
        return self.numbers.start + self.numbers.step * features

    # Stops

    def _next_stop(self, layer: int) -> int:
        """The layer after which there is something to do, or the last."""
        return next(
            (
                after
                for after in range(layer + 1, self.n_layers)
                if self._merges_after(after)
                or self._rebalances_after(after)
                or self._writes_after(after)
            ),
            self.n_layers,
        )

    def _merges_after(self, layer: int) -> bool:
        return self.merges and layer >= FIRST_MERGE and layer & (layer - 1) == 0

    def _rebalances_after(self, layer: int) -> bool:
        is_asked = self.stops.rebalance is not None and self.team.size > 1
        return is_asked and layer >= FIRST_REBALANCE and layer & (layer - 1) == 0

    def _writes_after(self, layer: int) -> bool:
        return self.stops.checkpoint is not None and layer % self.every == 0

    def _stop(self, state: State, output: Output, seconds: float, layer: int) -> State:
        """Do what there is to do; `output` and `seconds` are of the layers from `layer` on."""
        n_before = state.ids.size
        if self._merges_after(state.layer):
            state = self._merged(state)
        if self._rebalances_after(state.layer):
            work = float(exchange.in_grains(output.n_distinct[layer : state.layer]).sum())
            state = self._rebalanced(state, seconds, work)
        self.received += max(0, state.ids.size - n_before)
        if self._writes_after(state.layer):
            self._write(state)
        return state

    def _merged(self, state: State) -> State:
        """Let equal features of all ranks be carried by one, if few are left."""
        n_rows = self.team.everyones(state.n_carried)
        self.merges = sum(n_rows) > 1
        if not exchange.are_few(n_rows, _row_bytes(state)):
            return state
        codes = self.team.everyones(exchange.row_codes(state))
        merged = self.team.moved(state, exchange.owners(codes, self.team.rank)).merged()
        self.counts[DISTINCT, state.layer - 1] += merged.n_carried - state.n_carried
        return merged

    def _rebalanced(self, state: State, seconds: float, work: float) -> State:
        """Even out what ranks carry, if it has drifted apart and that pays."""
        assert self.stops.rebalance is not None
        everyones = self.team.everyones((state.n_carried, seconds, work))
        n_rows = [n for n, _, _ in everyones]
        mean = sum(n_rows) / len(n_rows)
        rate = sum(s for _, s, _ in everyones) / max(sum(w for _, _, w in everyones), 1)
        n_left = self.n_layers - state.layer
        if max(n_rows) <= self.stops.rebalance * mean:
            return state
        if not exchange.pays(n_rows, _row_bytes(state), rate, n_left):
            return state
        return self.team.moved(state, exchange.even_targets(n_rows, self.team.rank))

    def _write(self, state: State) -> None:
        """Write a checkpoint: all ranks their states, then the first what completes it."""
        team, folder = self.team, self.stops.checkpoint
        assert folder is not None
        team.on_all(lambda: io.write_state(folder, state, team.rank, team.size))
        checkpoint = io.Checkpoint(
            state.layer,
            self.run_facts,
            self.costs,
            self.seconds_before + time.perf_counter() - self.begun,
            self.all_counts(),
            team.everyones(state.n_carried),
        )
        team.on_first(lambda: io.write_checkpoint(folder, checkpoint))

    def all_counts(self) -> npt.NDArray[np.int64]:
        """The counts of all ranks, and of the earlier run."""
        return self.team.summed(self.counts) + self.counts_before

    def rank_count(self, host: str, n_live: int) -> RankCount:
        """What this rank did; `n_live` of its features are live at the end."""
        return RankCount(
            host,
            self.engine.threads,
            self.n_started,
            n_live,
            int(self.counts[EDGES].sum()),
            self.seconds,
            self.received,
        )


def _the_only(digests: list[str | None]) -> str:
    """The digest of all leaders' plans; the other ranks have none."""
    different = {digest for digest in digests if digest is not None}
    if len(different) > 1:
        raise DataError("the nodes have read different networks: give all the same files")
    return different.pop()


def _row_bytes(state: State) -> int:
    """Bytes of a feature's activations."""
    return int(state.activations.shape[1] * state.activations.itemsize)
