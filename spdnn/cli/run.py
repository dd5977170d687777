"""``spdnn run``: read a network and features, run them, check the categories, say how fast."""

import argparse
import time
from pathlib import Path
from typing import Any

from spdnn.bench.records import EMULATION, as_facts, as_json
from spdnn.challenge import FEATURES
from spdnn.checks.truth import Check
from spdnn.cli.arguments import (
    add_engine,
    add_tuning,
    positive,
    refuse_tuning,
    require_apart,
    writable,
)
from spdnn.cli.check import Judge, add_check, choose_judge, refuse_check
from spdnn.cli.progress import progress_bar
from spdnn.cli.sources import add_sources, as_rows, open_sources, source_rows
from spdnn.distributed import join
from spdnn.engines import choose_mode, make_engine
from spdnn.engines.base import Engine, Resumable
from spdnn.errors import DataError, DeviceError
from spdnn.io import store
from spdnn.io.files import whole_file
from spdnn.machine import provenance
from spdnn.machine.memory import peak_bytes
from spdnn.network import Network
from spdnn.run.checkpoint import remove_checkpoint
from spdnn.run.options import PARTITIONS, Options
from spdnn.run.result import Result, categories_text
from spdnn.run.session import Session
from spdnn.run.team import Team
from spdnn.sources.sources import DIGITS, SourcedFeatures, SourcedNetwork

WORTH_KEEPING = 3.0
"""Times the inference: a phase that takes longer, and `WORTH_SECONDS`, is worth a hint."""

WORTH_SECONDS = 1.0

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
    add_check(parser)
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

    def choose() -> Judge:
        assert network is not None
        assert features is not None
        judge, truth = choose_judge(arguments, network, features)
        # Once more, with what was found in the data folder.
        _refuse_same(arguments, network.source, features.source, truth)
        return judge

    judge = team.on_first(choose)
    read = time.perf_counter() - started
    options = Options(
        engine=arguments.engine,
        mode=arguments.mode,
        threads=arguments.threads,
        device=arguments.device,
        plan=arguments.plan,
        tuning=arguments.tuning,
        partition=arguments.partition,
        checkpoint=arguments.checkpoint,
        checkpoint_every=arguments.checkpoint_every,
    )
    session = Session.of_team(team, network.network if network else None, options)
    with session, progress_bar("inference", is_shown=team.is_first) as progress:
        result = session.run(features.features if features else None, progress=progress)
    engine, plan = session.engine, session.plan

    def report() -> int:
        assert network is not None
        assert features is not None
        assert judge is not None
        total = time.perf_counter() - started
        whole = result.after(session.seconds, read=read, total=total)
        check = judge(whole, engine, plan)
        try:
            rows = run_rows(network, features, whole)
            print(as_rows([*rows, *_hint_rows(arguments, features, whole, engine)]))
            print(check.text)
        finally:  # what was asked for is written though nobody reads what is printed
            _write(arguments, network, features, whole, check, facts | {"mpi": team.library})
        if arguments.checkpoint is not None:
            remove_checkpoint(arguments.checkpoint)
        return 1 if check.outcome == "failed" else 0

    return team.on_first(report)


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
    """Find, before any work, what would fail after it: outputs, truth, engine and mode."""
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


def _refuse_same(
    arguments: argparse.Namespace, weights: str | None, inputs: str | None, truth: str | None
) -> None:
    """Refuse outputs that would replace one another, or what is read."""
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
    """What would save the user time, or get the true inputs, the next time."""
    seconds, neurons = result.seconds, features.features.n_neurons
    worth = max(WORTH_KEEPING * seconds.inference, WORTH_SECONDS)
    hints = []
    if features.source == DIGITS:
        hints.append("the official images: spdnn data fetch images")
    elif seconds.read > worth and Path(features.source).suffix != store.SUFFIX:
        if features.is_official and len(features.features) == FEATURES:
            hints.append(f"inputs kept as a store: spdnn data make inputs --neurons {neurons}")
        else:
            hints.append("inputs kept as a store: spdnn data convert --inputs ... FILE.spdnn")
    if seconds.plan > worth and arguments.plan is None and engine.plan_class is not None:
        hints.append("the plan kept: --plan FILE")
    return [("next time" if number == 0 else "", hint) for number, hint in enumerate(hints)]


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


def _rate_text(result: Result) -> str:
    if result.is_emulated:
        return "none: the GPU was emulated"
    return f"{result.edges_per_second / 1e12:10.4f} TeraEdges/s (edges x features / inference)"


def run_rows(
    network: SourcedNetwork, features: SourcedFeatures, result: Result
) -> list[tuple[str, str]]:
    """The block of facts at the end of a run, as rows."""
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
