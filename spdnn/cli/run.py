"""``spdnn run``: run features through a network, check the categories, say how fast."""

import argparse
import time
from pathlib import Path
from typing import Any

from spdnn.bench.records import EMULATION, as_facts, as_json
from spdnn.challenge import FEATURES
from spdnn.checks.truth import Check
from spdnn.cli.arguments import (
    Commands,
    add_engine,
    add_tuning,
    positive,
    refuse_tuning,
    require_apart,
    writable,
)
from spdnn.cli.check import Judge, add_check, choose_judge, refuse_check
from spdnn.cli.errors import print_error, with_options
from spdnn.cli.keep import add_keep, keep_inputs, kept_plans, refuse_keep
from spdnn.cli.progress import progress_bar
from spdnn.cli.sources import (
    NamedFeatures,
    add_sources,
    as_rows,
    open_network_first,
    source_rows,
)
from spdnn.distributed import join
from spdnn.engines import choose_mode, make_engine
from spdnn.engines.base import CompilesAhead, Engine, Keepable, Resumable
from spdnn.errors import DataError, DeviceError
from spdnn.io import store
from spdnn.io.files import whole_file
from spdnn.machine import provenance
from spdnn.machine.memory import peak_bytes
from spdnn.network import Network
from spdnn.run.checkpoint import remove_checkpoint
from spdnn.run.options import PARTITIONS, Options
from spdnn.run.plan_files import KeptPlans
from spdnn.run.reading import Reading
from spdnn.run.result import Result, categories_text
from spdnn.run.session import Session
from spdnn.run.team import Team
from spdnn.sources.features import SourcedFeatures
from spdnn.sources.folder import DIGITS
from spdnn.sources.networks import SourcedNetwork

WORTH_KEEPING = 3.0
"""A phase gets a hint if it takes so many times as long as inference, and `WORTH_SECONDS`."""

WORTH_SECONDS = 1.0

LEAST_OVERLAP = 0.0005
"""Seconds of overlap that are told."""

MERGE_NOTE = "the rate counts every edge for every feature, not the work that was left to do"


def add_parser(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="run a network, check its categories, say how fast",
        description=(
            "Run features through a network, check the categories, say how fast. Weights and "
            "inputs that are not named are taken from the data folder, or made by the recipe."
        ),
    )
    add_sources(parser)
    add_check(parser)
    add_engine(parser)
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="file of the plan: written if it is not there, else read",
    )
    add_keep(parser)
    add_tuning(parser)
    parser.add_argument(
        "--save-categories", type=Path, metavar="FILE", help="write the categories, one a line"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all facts as JSON")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="write progress there, and go on from what is there; removed when the run is done",
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
    """Add the options that matter only under a parallel launcher."""
    group = parser.add_argument_group(
        "many processes (mpirun -n N spdnn run ...)", "The number of threads is that of each rank."
    )
    group.add_argument(
        "--partition",
        default=PARTITIONS[0],
        choices=PARTITIONS,
        help="a rank takes features that follow each other, or every N-th",
    )
    group.add_argument("--mpi", action="store_true", help="load MPI even if no launcher is seen")
    group.add_argument(
        "--allow-singleton",
        action="store_true",
        help="run alone even if the launcher has started several processes",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run a network; returns 1 if the categories are not the true ones."""
    started = time.perf_counter()
    facts = provenance.gather()  # starts a process, which may not be done once MPI is there
    with join(
        asks_mpi=arguments.mpi,
        allows_singleton=arguments.allow_singleton,
        print_error=print_error,
    ) as team:
        status = _run(arguments, team, facts, started)
        return team.tell(status)


def _run(
    arguments: argparse.Namespace, team: Team, facts: dict[str, Any], started: float
) -> int | None:
    """Run it as one of a team; only rank 0 knows the exit status."""
    team.on_first(lambda: _refuse_early(arguments, team.size))
    kept = kept_plans(arguments, team)

    def open_first() -> tuple[SourcedNetwork, NamedFeatures]:
        refuse_keep(arguments)  # once more: the folder may be another one on each node
        network, inputs = open_network_first(arguments)
        # Once more, with what was found in the data folder.
        _refuse_same(arguments, network.source, inputs.source, arguments.truth)
        return network, inputs

    network, inputs = team.on_leaders(open_first) or (None, None)
    read = time.perf_counter() - started
    reading = None if inputs is None else Reading(inputs.open)

    def choose() -> Judge:
        assert network is not None
        assert features is not None
        judge, truth = choose_judge(arguments, network, features)
        _refuse_same(arguments, network.source, features.source, truth)
        return judge

    notes: list[str] = [] if kept is None else kept.notes
    with Session.of_team(
        team, network.network if network else None, _options(arguments, kept), reading
    ) as session:
        planned = time.perf_counter()
        features = None if reading is None else reading.result
        judge = team.on_first(choose)
        if features is not None:
            keep_inputs(arguments, features, notes)
        read += time.perf_counter() - planned + (0.0 if reading is None else reading.seconds)
        with progress_bar("inference", is_shown=team.is_first) as progress:
            result = session.run(features.features if features else None, progress=progress)

    def report() -> int:
        assert network is not None
        assert features is not None
        assert judge is not None
        total = time.perf_counter() - started
        whole = result.after(session.seconds, read=read, total=total)
        check = judge(whole, session.engine, session.plan)
        hints = _hint_rows(arguments, features, whole, session.engine)
        try:
            rows = [("kept" if note is notes[0] else "", note) for note in notes]
            print(as_rows([*run_rows(network, features, whole), *rows, *hints]))
            print(with_options(check.text))
        finally:  # files that were asked for are written even if nobody reads what is printed
            _write(arguments, network, features, whole, check, facts | {"mpi": team.library})
        if arguments.checkpoint is not None:
            remove_checkpoint(arguments.checkpoint)
        return 1 if check.outcome == "failed" else 0

    return team.on_first(report)


def _options(arguments: argparse.Namespace, kept: KeptPlans | None) -> Options:
    """The choices of a session that the command line makes."""
    return Options(
        engine=arguments.engine,
        mode=arguments.mode,
        threads=arguments.threads,
        device=arguments.device,
        plan=arguments.plan or kept,
        tuning=arguments.tuning,
        partition=arguments.partition,
        checkpoint=arguments.checkpoint,
        checkpoint_every=arguments.checkpoint_every,
    )


def _write(
    arguments: argparse.Namespace,
    network: SourcedNetwork,
    features: SourcedFeatures,
    result: Result,
    check: Check,
    facts: dict[str, Any],
) -> None:
    """Write the files that were asked for; `facts` are the provenance."""
    if arguments.save_categories is not None:
        with whole_file(arguments.save_categories) as file:
            file.write(categories_text(result.categories))
    if arguments.json is not None:
        record = as_facts(network, features, [result], check)
        record["peak_memory"] = peak_bytes()
        record["provenance"] = facts
        with whole_file(arguments.json) as file:
            file.write(as_json(record))


def _refuse_early(arguments: argparse.Namespace, ranks: int) -> None:
    """Find out before any work what would fail after it: outputs, truth, engine and mode.

    Then begin to compile.
    """
    refuse_keep(arguments)
    if arguments.plan is not None and not arguments.plan.exists():
        writable(arguments.plan)
    for path in (arguments.save_categories, arguments.json):
        if path is not None:
            writable(path)
    _refuse_same(arguments, arguments.weights, arguments.inputs, arguments.truth)
    refuse_check(arguments)
    if arguments.checkpoint_every is not None and arguments.checkpoint is None:
        raise DataError("--checkpoint-every has no use without --checkpoint DIR")
    engine = make_engine(arguments.engine, arguments.threads, arguments.device)
    choose_mode(engine, arguments.mode)
    if arguments.tuning is not None:
        refuse_tuning(arguments.tuning, engine, ranks)
    if arguments.checkpoint is not None and not isinstance(engine, Resumable):
        raise DeviceError(
            f"engine {engine.name} cannot stop between layers: leave out --checkpoint"
        )
    if isinstance(engine, CompilesAhead):
        engine.compile_ahead()


def _refuse_same(
    arguments: argparse.Namespace, weights: str | None, inputs: str | None, truth: str | None
) -> None:
    """Refuse outputs that would replace one another, or something that is read."""
    outputs = {
        "--save-categories": arguments.save_categories,
        "--json": arguments.json,
        "--plan": arguments.plan,
        "--tuning": arguments.tuning,
        "--checkpoint": arguments.checkpoint,
    }
    require_apart(outputs, {"--weights": weights, "--inputs": inputs, "--truth": truth})


def _hint_rows(
    arguments: argparse.Namespace, features: SourcedFeatures, result: Result, engine: Engine
) -> list[tuple[str, str]]:
    """Hints that save the user time the next time, or that lead to the official inputs."""
    seconds = result.seconds
    worth = max(WORTH_KEEPING * seconds.inference, WORTH_SECONDS)
    hints = []
    if features.source == DIGITS:
        hints.append("the official images: spdnn data fetch images")
    elif seconds.read > worth and Path(features.source).suffix != store.SUFFIX:
        is_whole = features.is_official and len(features.features) == FEATURES
        if not is_whole or arguments.inputs is not None:
            hints.append("inputs kept as a store: spdnn data convert --inputs ... FILE.spdnn")
        elif not arguments.keep:
            hints.append("the inputs kept: --keep")
    is_kept = arguments.keep or arguments.plan is not None
    if seconds.plan > worth and not is_kept and isinstance(engine, Keepable):
        hints.append("the plan kept: --keep")
    return [("next time" if number == 0 else "", hint) for number, hint in enumerate(hints)]


def _rank_rows(result: Result) -> list[tuple[str, str]]:
    """Rows of what the ranks did, if there are several."""
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
    """Rows of the work that a plan has left for a feature by merging neurons."""
    if result.work is None or result.mode != "merge":
        return []
    n_neurons, work = sum(n for _, n in network.shapes), result.work
    return [
        ("merged", f"neurons {n_neurons:,} -> {work.neurons:,}"),
        ("", f"operations {network.n_edges:,} -> {work.edges:,} edges + {work.additions:,} sums"),
    ]


def _device_rows(result: Result) -> list[tuple[str, str]]:
    """Rows of the time of inference by the clock of a device, if there is one."""
    if result.device is None:
        return []
    stream, copies = result.device
    parts = (("stream", stream), ("copies", copies), ("rest", result.seconds.inference - stream))
    return [(f"  {name}", f"{part:10.3f} s") for name, part in parts]


def _overlap_rows(result: Result) -> list[tuple[str, str]]:
    """A row of the time that both read and plan have, if it is worth telling."""
    overlap = result.seconds.overlap
    if overlap < LEAST_OVERLAP:
        return []
    return [("  overlap", f"{overlap:10.3f} s: inputs were read while the plan was made")]


def _rate_text(result: Result) -> str:
    if result.is_emulated:
        return "none: the GPU was emulated"
    return f"{result.edges_per_second / 1e12:10.4f} TeraEdges/s (edges x features / inference)"


def run_rows(
    network: SourcedNetwork, features: SourcedFeatures, result: Result
) -> list[tuple[str, str]]:
    """The rows of facts that are printed at the end of a run."""
    seconds = result.seconds
    plural = "" if result.threads == 1 else "s"
    return [
        *source_rows(network, features),
        ("engine", f"{result.engine}, mode {result.mode}, {result.threads} thread{plural}"),
        *((("", f"EMULATED: {EMULATION}"),) if result.is_emulated else ()),
        *_rank_rows(result),
        *((("", f"resumed after layer {result.resumed_after}"),) if result.resumed_after else ()),
        ("read", f"{seconds.read:10.3f} s"),
        ("compile", f"{seconds.compile:10.3f} s"),
        ("plan", f"{seconds.plan:10.3f} s"),
        *_overlap_rows(result),
        ("load", f"{seconds.load:10.3f} s"),
        ("tune", f"{seconds.tune:10.3f} s"),
        ("inference", f"{seconds.inference:10.3f} s"),
        *_device_rows(result),
        ("total", f"{seconds.total:10.3f} s"),
        ("memory", f"{peak_bytes() / 2**30:10.3f} GiB at most, this process"),
        ("rate", _rate_text(result)),
        *_merged_rows(network.network, result),
        ("evaluated", f"{result.edges_evaluated:,} edges, 1 in {result.factor_saved:,.1f}"),
        *((("", MERGE_NOTE),) if result.mode == "merge" and not result.is_emulated else ()),
        ("live", f"{result.live.size:,} of {result.n_features:,} features after the last layer"),
    ]
