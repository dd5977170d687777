"""`prepare_together`: a network and features, ready to be run by a team."""

import platform
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from spdnn.engines import choose_mode, make_engine
from spdnn.engines.base import Engine, Progress
from spdnn.features import Features
from spdnn.network import Network
from spdnn.run.course import NO_STOPS, Course, Stops
from spdnn.run.inference import Prepared, layer_counts
from spdnn.run.plan_files import plan_for
from spdnn.run.result import DeviceTime, Result, Seconds
from spdnn.run.team import Partition, Team, part_of
from spdnn.run.tuning_files import require_tunable, tune


@dataclass(frozen=True, eq=False)
class PreparedTogether(Prepared):
    """What one of a team runs: its part of all features.

    Attributes
    ----------
    team : Team
    shape : Network
        Its shape is enough.
    own : Features
        This rank's part.
    partition : {"contiguous", "interleaved"}
    stops : Stops
    """

    team: Team
    shape: Network
    own: Features
    partition: Partition
    stops: Stops

    def new_course(self) -> Course:
        """Make this rank's course of a run, from what is to be run now."""
        return new_course(
            self.team,
            self.engine,
            self.mode,
            self.shape,
            self.n_features,
            self.partition,
            self.stops,
        )

    def planned_for(self, engine: Engine, features: Features) -> "PreparedTogether":
        """The same plan for another such engine, with other threads, and other features.

        Only for a process by itself: `features` are all that are run.
        """
        started = time.perf_counter()
        loaded = engine.load(self.plan, features)
        seconds = replace(self.seconds, load=time.perf_counter() - started)
        return replace(
            self,
            engine=engine,
            loaded=loaded,
            own=features,
            n_features=features.n_features,
            seconds=seconds,
        )

    def run(self, *, activations: bool = False, progress: Progress | None = None) -> Result:
        """Run it together with the other ranks; activations are not gathered.

        Returns
        -------
        Result
            Complete on rank 0; elsewhere the live features are missing. Inference lasts from
            one barrier to the end of gathering.

        Raises
        ------
        SpdnnError
            As `spdnn.infer`, on all ranks; and if a checkpoint cannot be written, or is of
            another run.
        """
        team = self.team
        course = self.new_course()
        start = course.prepare(self.plan, self.own) or self.loaded
        team.barrier()
        started = time.perf_counter()
        own_live = course.run(start, progress)
        live = team.gathered(own_live)
        # Ranks leave a barrier at different times: what the first of them saw counts.
        seconds = max(team.everyones(time.perf_counter() - started))
        inference = course.seconds_before + seconds
        by_rank = team.everyones(course.rank_count(platform.node(), own_live.size))
        devices = team.everyones(course.device_seconds)
        slowest = devices[max(range(team.size), key=lambda rank: by_rank[rank].seconds)]
        return Result(
            live=live,
            activations=None,
            layers=layer_counts(*course.all_counts()),
            seconds=replace(
                self.seconds, inference=inference, total=self.seconds.total + inference
            ),
            engine=self.engine.name,
            mode=self.mode,
            threads=sum(rank.threads for rank in by_rank),
            ranks=team.size,
            n_features=self.n_features,
            n_edges=self.n_edges,
            work=self.work,
            device=None if slowest is None else DeviceTime(*slowest),
            by_rank=tuple(by_rank) if team.size > 1 else (),
            resumed_after=course.resumed_after,
        )


def new_course(
    team: Team,
    engine: Engine,
    mode: str,
    shape: Network,
    n_features: int,
    partition: Partition,
    stops: Stops,
) -> Course:
    """Make a rank's course through the layers, for its part of all features."""
    numbers = part_of(n_features, team.rank, team.size, partition)
    return Course(team, engine, mode, shape, numbers, n_features, stops)


def prepare_together(
    team: Team,
    network: Network | None,
    features: Features | None,
    *,
    partition: Partition = "contiguous",
    engine: str = "auto",
    mode: str = "auto",
    threads: int | None = None,
    device: int | None = None,
    plan_file: Path | None = None,
    tuning_file: Path | None = None,
    stops: Stops = NO_STOPS,
) -> PreparedTogether:
    """Do all that comes before inference, every rank for its part; it may then be run often.

    Parameters
    ----------
    team : Team
        All of its ranks call this.
    network : Network, or None on ranks that lead no node
    features : Features, or None on ranks that lead no node
        All features of the run.
    partition : {"contiguous", "interleaved"}
        Rank r of R takes the r-th part of the features, or each R-th from the r-th.
    engine, mode, threads, device, plan_file, tuning_file
        As in `spdnn.infer`; by default the ranks of a node share its processors. One process by
        itself can be tuned, several cannot.
    stops : Stops
        What is to be done between layers.

    Raises
    ------
    SpdnnError
        As `spdnn.infer`, on all ranks; and if a checkpoint is of another run.
    """
    started = time.perf_counter()
    threads = team.default_threads() if threads is None else threads

    def chosen() -> tuple[Engine, str]:
        runner = make_engine(engine, threads, device)
        return runner, choose_mode(runner, mode)

    runner, run_mode = team.on_all(chosen)
    if tuning_file is not None:
        team.on_all(partial(require_tunable, runner, tuning_file, team.size))
    shape = team.shape_of(network)
    own, n_features = team.own_features(shape, features, partition)
    shared = time.perf_counter()
    # One rank of a node compiles; the others then find the kernels in the cache.
    team.on_leaders(lambda: runner.compile(shape))
    team.on_others(lambda: runner.compile(shape))
    compiled = time.perf_counter()
    # The ranks agree on the costs of blocks, or take them from a checkpoint.
    runner = new_course(team, runner, run_mode, shape, n_features, partition, stops).engine
    plan = team.shared(lambda: plan_for(runner, network or shape, run_mode, plan_file))
    planned = time.perf_counter()
    loaded = team.on_all(lambda: runner.load(plan, own))
    fed = time.perf_counter()
    if tuning_file is not None:
        runner = tune(runner, shape, run_mode, plan, own, tuning_file)
    ready = time.perf_counter()
    return PreparedTogether(
        runner,
        run_mode,
        plan,
        loaded,
        n_features,
        shape.n_edges,
        Seconds(
            compile=compiled - shared,
            plan=planned - compiled,
            load=fed - planned,
            tune=0.0 if tuning_file is None else ready - fed,
            total=ready - started,
        ),
        team,
        shape,
        own,
        partition,
        stops,
    )
