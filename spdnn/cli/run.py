"""``spdnn run``: read a network and features, run them, check the categories, say how fast."""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from spdnn import provenance
from spdnn.bench.records import as_facts, as_json
from spdnn.challenge import DEPTHS, FEATURES
from spdnn.cli.arguments import add_engine, add_tuning, factor, positive, refuse_tuning, writable
from spdnn.cli.progress import progress_bar
from spdnn.cli.sources import add_sources, as_rows, open_sources, source_rows
from spdnn.distributed import PARTITIONS, Stops, Team, join, prepare_together
from spdnn.engines import choose_mode, make_engine
from spdnn.errors import DataError, DeviceError
from spdnn.inference import with_reading
from spdnn.io.checkpoint import remove_checkpoint
from spdnn.io.files import whole_file
from spdnn.memory import peak_bytes
from spdnn.network import Network
from spdnn.result import Result, categories_text
from spdnn.sources import SourcedFeatures, SourcedNetwork, find_truth, read_truth
from spdnn.truth import Check, check_list, check_nothing, check_official

NONE = "none"
MERGE_NOTE = "the rate counts every edge for every feature, not the work that was left to do"


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a network, check its categories, say how fast",
        description=(
            "Run features through a network, check the categories, say how fast. What is not "
            "named is taken from the data folder, else made by the recipe."
        ),
    )
    add_sources(parser)
    parser.add_argument("--truth", metavar="PATH|none", help="the true categories, one a line")
    add_engine(parser)
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="keep the plan in FILE, and take it from there once it is kept",
    )
    add_tuning(parser)
    parser.add_argument(
        "--save-categories", type=Path, metavar="FILE", help="write the categories, one a line"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all facts as JSON")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="write progress there, and go on from what is there; removed when the run is complete",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=positive,
        metavar="LAYERS",
        help="layers from one checkpoint to the next (default: a tenth of the network)",
    )
    _add_ranks(parser)
    parser.set_defaults(command=run)


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add what matters under a parallel launcher only."""
    group = parser.add_argument_group(
        "many processes (mpirun -n N spdnn run ...)", "What is said of threads is for each rank."
    )
    group.add_argument(
        "--partition",
        default=PARTITIONS[0],
        choices=PARTITIONS,
        help="a rank takes features that lie together, or every N-th",
    )
    group.add_argument(
        "--rebalance",
        type=factor,
        metavar="FACTOR",
        help="move live features between ranks once one has more than FACTOR times the mean, "
        "where that is predicted to pay",
    )
    group.add_argument("--mpi", action="store_true", help="load MPI though no launcher is seen")
    group.add_argument(
        "--allow-singleton",
        action="store_true",
        help="run alone though the launcher has started several processes",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do it; returns 1 if the categories are not the true ones."""
    started = time.perf_counter()
    facts = provenance.gather()  # starts a process, which may not be done once MPI is there
    with join(asks_mpi=arguments.mpi, allows_singleton=arguments.allow_singleton) as team:
        status = _run(arguments, team, facts, started)
        return team.tell(status)


def _run(
    arguments: argparse.Namespace, team: Team, facts: dict[str, Any], started: float
) -> int | None:
    """Do it as one of a team; the exit status is known to rank 0."""
    team.on_first(lambda: _refuse_early(arguments, team.size))
    network, features = team.on_leaders(lambda: open_sources(arguments)) or (None, None)
    check = team.on_first(lambda: _make_check(arguments, network, features))
    read = time.perf_counter() - started
    with progress_bar("inference", is_shown=team.is_first) as progress:
        prepared = prepare_together(
            team,
            network.network if network else None,
            features.features if features else None,
            partition=arguments.partition,
            engine=arguments.engine,
            mode=arguments.mode,
            threads=arguments.threads,
            device=arguments.device,
            plan_file=arguments.plan,
            tuning_file=arguments.tuning,
            stops=Stops(arguments.checkpoint, arguments.checkpoint_every, arguments.rebalance),
        )
        result = prepared.run(progress=progress)

    def report() -> int:
        assert network is not None
        assert features is not None
        assert check is not None
        if arguments.save_categories is not None:
            with whole_file(arguments.save_categories) as file:
                file.write(categories_text(result.categories))
        whole = with_reading(result, read, time.perf_counter() - started)
        verdict = check(whole)
        if arguments.json is not None:
            record = as_facts(network, features, [whole], verdict)
            record["peak_memory"] = peak_bytes()
            record["provenance"] = facts | {"mpi": team.library}
            with whole_file(arguments.json) as file:
                file.write(as_json(record))
        print(as_text(network, features, whole))
        print(verdict.text)
        if arguments.checkpoint is not None:
            remove_checkpoint(arguments.checkpoint)
        return 1 if verdict.outcome == "failed" else 0

    return team.on_first(report)


def _refuse_early(arguments: argparse.Namespace, ranks: int) -> None:
    """Find, before any work, what would fail after it: outputs, truth, engine and mode."""
    if arguments.plan is not None and not arguments.plan.exists():
        writable(arguments.plan)
    outputs = [path for path in (arguments.save_categories, arguments.json) if path is not None]
    for path in outputs:
        writable(path)
    if len(outputs) == 2 and os.path.realpath(outputs[0]) == os.path.realpath(outputs[1]):
        raise DataError(f"--save-categories and --json would both write {outputs[0]}")
    if arguments.truth not in (None, NONE):
        read_truth(arguments.truth)
    engine = make_engine(arguments.engine, arguments.threads, arguments.device)
    choose_mode(engine, arguments.mode)
    if arguments.tuning is not None:
        refuse_tuning(arguments.tuning, engine, ranks)
    if not engine.stops and not (arguments.checkpoint is None and arguments.rebalance is None):
        raise DeviceError(
            f"engine {engine.name} cannot stop between layers: leave out --checkpoint, --rebalance"
        )


def _make_check(
    arguments: argparse.Namespace,
    network: SourcedNetwork | None,
    features: SourcedFeatures | None,
) -> Callable[[Result], Check]:
    """Choose what to judge the run by, before it starts: a list is read first of all."""
    assert network is not None
    assert features is not None
    neurons, layers = network.network.n_inputs, network.network.n_layers
    is_official = network.is_official and features.is_official
    source: str | None = arguments.truth
    if source is None and is_official:
        source = find_truth(arguments.data, neurons, layers)
    if source is not None and source != NONE:
        # Cut only where fewer features were asked for: inputs that end early are a failure.
        truth = read_truth(source, arguments.features)
        return partial(check_list, truth=truth, source=source, count=arguments.features)
    if source is None and is_official and layers in DEPTHS and len(features.features) == FEATURES:
        return partial(check_official, neurons=neurons, layers=layers)
    return check_nothing


def _rank_rows(result: Result) -> list[tuple[str, str]]:
    """What the ranks did, where there are several."""
    ranks = result.by_rank
    if not ranks:
        return []
    n_hosts = len({rank.host for rank in ranks})
    slowest = max(rank.seconds for rank in ranks)
    shares = [rank.live for rank in ranks]
    return [
        ("ranks", f"{len(ranks)} on {n_hosts} node{'s' if n_hosts > 1 else ''}"),
        ("", f"slowest {slowest:.3f} s, {result.imbalance:.2f} x the mean"),
        ("", f"live features a rank: {min(shares):,} to {max(shares):,}"),
    ]


def _merged_rows(network: Network, result: Result) -> list[tuple[str, str]]:
    """What merging of neurons has left to do for a feature, where a plan has merged them."""
    if result.work is None or result.mode != "merge":
        return []
    n_neurons, work = sum(n for _, n in network.shapes), result.work
    return [
        ("merged", f"neurons {n_neurons:,} -> {work.neurons:,}"),
        ("", f"operations {network.n_edges:,} -> {work.edges:,} edges + {work.additions:,} sums"),
    ]


def _device_rows(result: Result) -> list[tuple[str, str]]:
    """What of inference a device's own clock has seen, for engines that have one."""
    if result.device is None:
        return []
    kernels, copies = result.device
    parts = (("kernels", kernels), ("copies", copies), ("rest", result.seconds.inference - kernels))
    return [(f"  {name}", f"{part:10.3f} s") for name, part in parts]


def as_text(network: SourcedNetwork, features: SourcedFeatures, result: Result) -> str:
    """The block of facts at the end of a run."""
    seconds = result.seconds
    plural = "" if result.threads == 1 else "s"
    rows = [
        *source_rows(network, features),
        ("engine", f"{result.engine}, mode {result.mode}, {result.threads} thread{plural}"),
        *_rank_rows(result),
        *((("", f"resumed after layer {result.resumed_after}"),) if result.resumed_after else ()),
        ("read", f"{seconds.read:10.3f} s"),
        ("compile", f"{seconds.compile:10.3f} s"),
        ("plan", f"{seconds.plan:10.3f} s"),
        ("load", f"{seconds.load:10.3f} s"),
        ("tune", f"{seconds.tune:10.3f} s"),
        ("inference", f"{seconds.inference:10.3f} s"),
        *_device_rows(result),
        ("total", f"{seconds.total:10.3f} s"),
        ("memory", f"{peak_bytes() / 2**30:10.3f} GiB at most, this process"),
        (
            "rate",
            f"{result.edges_per_second / 1e12:10.4f} TeraEdges/s (edges x features / inference)",
        ),
        *_merged_rows(network.network, result),
        ("evaluated", f"{result.edges_evaluated:,} edges, 1 in {result.factor_saved:,.1f}"),
        *((("", MERGE_NOTE),) if result.mode == "merge" else ()),
        ("live", f"{result.live.size:,} of {result.n_features:,} features after the last layer"),
    ]
    return as_rows(rows)
