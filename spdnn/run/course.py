"""The course of a run: from stop to stop between layers, and what ranks do there.

Without a reason to stop, a run has no stops: the engine runs all layers at once.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.base import (
    Calibrated,
    DeviceSeconds,
    Engine,
    Output,
    OverflowingError,
    Plan,
    Progress,
    Resumable,
)
from spdnn.engines.state import State
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.run import checkpoint as io
from spdnn.run import exchange
from spdnn.run.digest import inputs_digest, plan_digest
from spdnn.run.options import Options
from spdnn.run.result import RankCount
from spdnn.run.team import Team, part_of

CHECKPOINTS = 10
"""Checkpoints of a run that is not told how many layers they are apart."""

FIRST_MERGE = 128
"""Layer after which equal features are looked for across ranks for the first time; then after
twice as many, and so on. A shallower network is through before a stop of all ranks could pay."""


class Counts(NamedTuple):
    """Counts of every layer, each of shape (n_layers,), int64; see `LayerCount`."""

    live: npt.NDArray[np.int64]
    edges_evaluated: npt.NDArray[np.int64]
    distinct: npt.NDArray[np.int64]

    @classmethod
    def zeros(cls, n_layers: int) -> "Counts":
        """Nothing counted yet."""
        return cls(*np.zeros((len(cls._fields), n_layers), dtype=np.int64))

    def plus(self, others: "Counts") -> "Counts":
        """The sums of two counts."""
        return Counts(*map(np.add, self, others))


def find_checkpoint(
    team: Team, folder: Path | None, facts: Mapping[str, Any]
) -> io.Checkpoint | None:
    """Find the checkpoint that a run goes on from, and tell all ranks.

    Parameters
    ----------
    team : Team
        All of its ranks call this.
    folder : Path or None
        Where checkpoints are written, if they are.
    facts : mapping of str
        What is known of the run.

    Raises
    ------
    DataError
        If the checkpoint there is another run's; on all ranks.
    """

    def find() -> tuple[io.Checkpoint | None]:
        found = None if folder is None else io.read_checkpoint(folder)
        if folder is not None and found is not None:
            io.require_same(folder, found, facts)
        return (found,)

    return team.tell(team.on_first(find))[0]


class Course:
    """One rank's way through the layers, in step with the others' at every stop.

    Nothing is communicated before `begin`.

    Parameters
    ----------
    team : Team
        The ranks.
    engine : Engine
        What runs.
    plan : Plan
        The engine's plan.
    options : Options
        Partition and checkpoints are taken from it.
    facts : mapping of str
        What tells this run from others.

    Attributes
    ----------
    resumed_after : int
        Layers that an earlier run had passed.
    seconds_before : float
        Inference of the earlier run, up to its checkpoint.
    device_seconds : DeviceSeconds or None
        What this rank's device has spent, where its engine has one.
    """

    def __init__(
        self, team: Team, engine: Engine, plan: Plan, options: Options, facts: Mapping[str, Any]
    ) -> None:
        self.resumed_after, self.seconds_before = 0, 0.0
        self.device_seconds: DeviceSeconds | None = None
        self._team, self._engine, self._plan = team, engine, plan
        self._folder = options.checkpoint
        self._n_layers = plan.n_layers
        self._every = options.checkpoint_every or -(-plan.n_layers // CHECKPOINTS)
        self._merges = plan.mode == "merge" and team.size > 1 and isinstance(engine, Resumable)
        self._facts = dict(facts)
        self._numbers = part_of(facts["features"], team.rank, team.size, options.partition)
        self._counts = Counts.zeros(plan.n_layers)  # by this rank
        self._counts_before = Counts.zeros(plan.n_layers)  # by all ranks of the earlier run
        self._n_started = len(self._numbers)
        self._seconds = 0.0
        self._received = 0

    def begin(self, own: Features) -> State | None:
        """Agree with the other ranks on the plan, and on where to go on from.

        Parameters
        ----------
        own : Features
            The features of this rank.

        Returns
        -------
        State or None
            Where to go on, if there is a checkpoint; else the run begins with `own`.

        Raises
        ------
        DataError
            If nodes have different plans, or a checkpoint is another run's or damaged.
        """
        team, folder, plan = self._team, self._folder, self._plan
        if folder is None and team.nodes == 1:
            return None
        of_node = team.on_leaders(lambda: plan_digest(plan, self._engine.threads))
        of_nodes = team.everyones(of_node)
        digest = team.on_all(lambda: _the_only(of_nodes))
        if folder is None:
            return None
        of_ranks = team.everyones(inputs_digest(own, self._numbers))
        self._facts |= {"inputs": f"{sum(of_ranks) % 2**64:016x}", "plan": digest}
        found = find_checkpoint(team, folder, self._facts)
        return None if found is None else team.on_all(partial(self._resumed, folder, found))

    def _resumed(self, folder: Path, found: io.Checkpoint) -> State:
        """Read this rank's part of a checkpoint."""
        self.resumed_after, self.seconds_before = found.layer, found.seconds
        self._counts_before = Counts(*found.counts)
        state = io.read_state(folder, found, self._team.rank, self._team.size)
        self._n_started = state.ids.size
        return state

    def run(self, start: Any, activations: bool, progress: Progress | None) -> Output:
        """Run to the end.

        Parameters
        ----------
        start : object or State
            Features that the engine has loaded, or what `begin` gave.
        activations : bool
            Whether those after the last layer are wanted.
        progress : callable or None
            Called with the fraction that is done.

        Returns
        -------
        Output
            What the engine gave for the last layers, with this rank's live features numbered
            among those of all ranks.
        """
        self._begun = time.perf_counter()
        layer = self.resumed_after
        while True:
            until = self._next_stop(layer)
            output, seconds = self._team.on_all(
                partial(self._run_part, start, layer, until, activations, progress)
            )
            self._counts = self._counts.plus(
                Counts(output.n_live, output.edges_evaluated, output.n_distinct)
            )
            self._seconds += seconds
            if output.device_seconds is not None:
                before = self.device_seconds or DeviceSeconds(0.0, 0.0)
                self.device_seconds = DeviceSeconds(*map(add, before, output.device_seconds))
            ids = output.live
            if not isinstance(start, State):
                ids = self._numbers.start + self._numbers.step * ids
            if output.state is None:
                return replace(output, live=ids)
            start = self._stop(replace(output.state, ids=ids))
            layer = until

    def _run_part(
        self, start: Any, layer: int, until: int, activations: bool, progress: Progress | None
    ) -> tuple[Output, float]:
        """Run up to a stop, or to the end, and take the time."""
        started = time.perf_counter()

        def of_whole(fraction: float) -> None:
            assert progress is not None
            progress((layer + fraction * (until - layer)) / self._n_layers)

        report = progress and of_whole
        try:
            if until < self._n_layers or isinstance(start, State):
                assert isinstance(self._engine, Resumable)  # no other engine is asked to stop
                output = self._engine.run_part(
                    self._plan, start, until=until, activations=activations, progress=report
                )
            else:
                output = self._engine.run(
                    self._plan, start, activations=activations, progress=report
                )
        except OverflowingError as error:
            if isinstance(start, State):  # it says what its features are called
                raise
            number = self._numbers[error.feature]
            raise OverflowingError(number) from error
        return output, time.perf_counter() - started

    # Stops

    def _next_stop(self, layer: int) -> int:
        """The layer after which there is something to do, or the last."""
        return next(
            (
                after
                for after in range(layer + 1, self._n_layers)
                if self._merges_after(after) or self._writes_after(after)
            ),
            self._n_layers,
        )

    def _merges_after(self, layer: int) -> bool:
        return self._merges and layer >= FIRST_MERGE and layer & (layer - 1) == 0

    def _writes_after(self, layer: int) -> bool:
        return self._folder is not None and layer % self._every == 0

    def _stop(self, state: State) -> State:
        """Do what there is to do after the layers that a state has passed."""
        if self._merges_after(state.layer):
            n_before = state.ids.size
            state = self._merged(state)
            self._received += max(0, state.ids.size - n_before)
        if self._writes_after(state.layer):
            self._write(state)
        return state

    def _merged(self, state: State) -> State:
        """Let equal features of all ranks be carried by one, if few are left."""
        n_rows = self._team.everyones(state.n_carried)
        self._merges = sum(n_rows) > 1
        if not exchange.are_few(n_rows, _row_bytes(state)):
            return state
        codes = self._team.everyones(exchange.row_codes(state))
        merged = self._team.moved(state, exchange.owners(codes, self._team.rank)).merged()
        self._counts.distinct[state.layer - 1] += merged.n_carried - state.n_carried
        return merged

    def _write(self, state: State) -> None:
        """Write a checkpoint: all ranks their states, then the first what completes it."""
        team, folder = self._team, self._folder
        assert folder is not None
        team.on_all(lambda: io.write_state(folder, state, team.rank, team.size))
        checkpoint = io.Checkpoint(
            state.layer,
            self._facts,
            self._engine.costs if isinstance(self._engine, Calibrated) else None,
            self.seconds_before + time.perf_counter() - self._begun,
            np.stack(self.all_counts()),
            team.everyones(state.n_carried),
        )
        team.on_first(lambda: io.write_checkpoint(folder, checkpoint))

    def all_counts(self) -> Counts:
        """The counts of all ranks, and of the earlier run."""
        return Counts(*self._team.summed(np.stack(self._counts))).plus(self._counts_before)

    def layer_rows(self) -> Iterator[tuple[int, ...]]:
        """The counts of all ranks, layer by layer, in the order of `LayerCount`."""
        return zip(*(column.tolist() for column in self.all_counts()), strict=True)

    def rank_count(self, host: str, n_live: int) -> RankCount:
        """What this rank did; `n_live` of its features are live at the end."""
        return RankCount(
            host,
            self._engine.threads,
            self._n_started,
            n_live,
            int(self._counts.edges_evaluated.sum()),
            self._seconds,
            self._received,
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
