"""`infer_together`: a network and features in, a Result out, by a team."""

import platform
import time
from typing import Any

from spdnn.distributed.course import NO_STOPS, Course, Stops
from spdnn.distributed.team import Partition, Team, part_of
from spdnn.engines import choose_mode, make_engine
from spdnn.engines.base import Progress
from spdnn.features import Features
from spdnn.inference import layer_counts
from spdnn.network import Network
from spdnn.result import Result, Seconds


def infer_together(
    team: Team,
    network: Network | None,
    features: Features | None,
    *,
    partition: Partition = "contiguous",
    engine: str = "auto",
    mode: str = "auto",
    threads: int | None = None,
    stops: Stops = NO_STOPS,
    progress: Progress | None = None,
) -> Result:
    """Run features through a network, every rank its part of them.

    Parameters
    ----------
    team : Team
        All of its ranks call this.
    network : Network, or None on ranks that lead no node
    features : Features, or None on ranks that lead no node
        All features of the run.
    partition : {"contiguous", "interleaved"}
        Rank r of R takes the r-th part of the features, or each R-th from the r-th.
    engine, mode, threads, progress
        As in `spdnn.infer`; by default the ranks of a node share its processors.
    stops : Stops
        What is to be done between layers.

    Returns
    -------
    Result
        Complete on rank 0; elsewhere the live features are missing. Inference lasts from
        one barrier to the end of gathering.

    Raises
    ------
    SpdnnError
        As `spdnn.infer`, on all ranks; and if a checkpoint cannot be written, or is of another run.
    """
    started = time.perf_counter()
    threads = team.default_threads() if threads is None else threads
    runner = team.on_all(lambda: make_engine(engine, threads))
    mode = choose_mode(runner, mode)
    shape = team.shape_of(network)
    own, n_features = team.own_features(shape, features, partition)
    shared = time.perf_counter()
    # One rank of a node compiles; the others then find the kernels in the cache.
    team.on_leaders(lambda: runner.compile(shape))
    team.on_others(lambda: runner.compile(shape))
    compiled = time.perf_counter()
    numbers = part_of(n_features, team.rank, team.size, partition)
    course = Course(team, runner, mode, shape, numbers, n_features, stops)
    plan = team.shared(lambda: runner.plan(network or shape, mode))
    start: Any = course.prepare(plan, own)
    planned = time.perf_counter()
    if start is None:
        start = team.on_all(lambda: runner.load(own))
    team.barrier()
    ready = time.perf_counter()
    own_live = course.run(start, progress)
    live = team.gathered(own_live)
    done = time.perf_counter()
    by_rank = team.everyones(course.rank_count(platform.node(), own_live.size))
    return Result(
        live=live,
        activations=None,
        layers=layer_counts(*course.all_counts()),
        seconds=Seconds(
            compile=compiled - shared,
            plan=planned - compiled,
            load=ready - planned,
            inference=course.seconds_before + done - ready,
            total=done - started,
        ),
        engine=runner.name,
        mode=mode,
        threads=sum(rank.threads for rank in by_rank),
        ranks=team.size,
        n_features=n_features,
        n_edges=shape.n_edges,
        by_rank=tuple(by_rank) if team.size > 1 else (),
        resumed_after=course.resumed_after,
    )
