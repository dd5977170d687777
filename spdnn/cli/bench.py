"""``spdnn bench``: measure networks, engines and other libraries, check and keep records."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from spdnn.bench.contestants import LeftOut
from spdnn.bench.records import Record
from spdnn.bench.rivals import RIVALS
from spdnn.bench.sweep import Sweep, run_sweep
from spdnn.bench.tables import TERA
from spdnn.challenge import DEPTHS
from spdnn.cli.arguments import (
    Commands,
    add_activation,
    add_data_folder,
    listed,
    positive,
    positive_number,
)
from spdnn.cli.errors import print_error, with_options
from spdnn.cli.progress import progress_bar
from spdnn.cli.run import MERGE_NOTE
from spdnn.distributed import join
from spdnn.engines import ENGINES, MODES
from spdnn.machine import provenance
from spdnn.machine.launcher import launched_rank

RUNS = 5
RIVAL_SECONDS = 10.0
QUIET = 0.2
"""Number of processors that other processes may keep busy before a note says so."""


def add_parser(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="measure networks, engines and other libraries, keep records",
        description=(
            "Measure all networks with all engines, modes, threads and numbers of features, and "
            "other libraries in the same rounds. Every result is checked. A case that has a record "
            "is not measured again, so a sweep that was interrupted can go on."
        ),
    )
    _add_cases(parser)
    add = parser.add_argument
    add("--runs", type=positive, default=RUNS, metavar="R", help=f"of each case ({RUNS})")
    add(
        "--rival-seconds",
        type=positive_number,
        default=RIVAL_SECONDS,
        metavar="S",
        help=f"a rival that usually takes longer gets a share of the features ({RIVAL_SECONDS:g})",
    )
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the records (default: results/bench-COMMIT)",
    )
    add_activation(parser)
    add_data_folder(parser)
    parser.set_defaults(command=bench)


def _add_cases(parser: argparse.ArgumentParser) -> None:
    """Add the options whose combinations are the cases."""
    add = parser.add_argument
    numbers, engines = listed(positive), listed(word(tuple(ENGINES)))
    add("--neurons", type=numbers, default=(1024,), metavar="N,...", help="default: 1024")
    add("--layers", type=numbers, default=DEPTHS, metavar="L,...", help="default: 120,480,1920")
    add("--engines", type=engines, default=("cpu",), metavar="NAME,...", help="default: cpu")
    add(
        "--modes", type=listed(word(MODES)), default=MODES, metavar="MODE,...", help="default: both"
    )
    add(
        "--rivals",
        type=rivals,
        default=(),
        metavar="NAME,...|all|none",
        help=f"other libraries: {', '.join(RIVALS)} (default: none)",
    )
    add(
        "--threads",
        type=numbers,
        default=(None,),
        metavar="T,...",
        help="of each rank (default: its share of the processors)",
    )
    add(
        "--features",
        type=numbers,
        default=(None,),
        metavar="COUNT,...",
        help="only the first COUNT features (default: all)",
    )


def word(words: tuple[str, ...]) -> Callable[[str], str]:
    """Make a parser of one of some words."""

    def parse(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse


def rivals(text: str) -> tuple[str, ...]:
    """Parse keys of rivals, "all" or "none"."""
    if text in ("all", "none"):
        return tuple(RIVALS) if text == "all" else ()
    return listed(word(tuple(RIVALS)))(text)


def bench(arguments: argparse.Namespace) -> int:
    """Measure; returns 1 if a check has failed, 2 if an engine could not be measured."""
    facts = provenance.gather()  # starts a process, which may not be done once MPI is there
    out = arguments.out
    if out is None:
        out = Path("results") / f"bench-{facts['git'] or facts['versions']['spdnn']}"
    sweep = Sweep(
        neurons=arguments.neurons,
        layers=arguments.layers,
        engines=arguments.engines,
        modes=arguments.modes,
        rivals=arguments.rivals,
        threads=arguments.threads,
        features=arguments.features,
        runs=arguments.runs,
        rival_seconds=arguments.rival_seconds,
        data=arguments.data,
        out=out,
        bias=arguments.bias,
        ymax=arguments.ymax,
    )
    start = partial(join, print_error=print_error)

    def show(outcomes: list[Record | LeftOut]) -> None:
        for outcome in outcomes:
            print(line(outcome), flush=True)

    with progress_bar("bench", is_shown=launched_rank() == 0) as progress:
        outcomes = run_sweep(sweep, start, facts, progress or (lambda fraction: None), show)
    if any(isinstance(outcome, Record) for outcome in outcomes):
        print(f"records in {out}")
        if "merge" in sweep.modes:
            print(f"mode merge: {MERGE_NOTE}")
    note_others(outcomes)
    return status(outcomes)


def note_others(outcomes: list[Record | LeftOut]) -> None:
    """Print a note if other processes were at work, because times suffer from it."""
    records = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    most = max((record.facts["load"]["others_busy"] or 0.0 for record in records), default=0.0)
    if most > QUIET:
        print(f"note: others kept up to {most:.1f} processors busy meanwhile; times suffer from it")


def status(outcomes: list[Record | LeftOut]) -> int:
    """The exit status of a sweep."""
    if any(isinstance(outcome, Record) and not outcome.passed for outcome in outcomes):
        return 1
    lacks = (out for out in outcomes if isinstance(out, LeftOut) and out.entry.library is None)
    return 2 if any(lacks) else 0


def line(outcome: Record | LeftOut) -> str:
    """The line of a case. It has a rate only if the categories are right."""
    case = outcome.entry.case if isinstance(outcome, LeftOut) else outcome.case
    rival = RIVALS.get(case.engine)
    name = rival.short if rival else f"spdnn {case.engine}, {case.mode}"
    head = f"{case.network:<13}{name:<19}"
    if isinstance(outcome, LeftOut):
        return f"{head}not measured: {with_options(outcome.reason)}"
    times, verdict = outcome.times, outcome.facts["check"].splitlines()[0]
    ranks = f"{case.ranks} ranks, " if case.ranks > 1 else ""
    where = f"{ranks}{case.threads} thread{'s' * (case.threads > 1)}"
    count = f"{case.features:,} features" if outcome.share == 1 else share(outcome)
    head += f"{where:<11}{count:<17}"
    if not outcome.passed:
        return f"{head} FAILED: {with_options(verdict)}"
    check = outcome.facts["categories"]["check"]
    seconds = f"{outcome.seconds:9.4f} s ({times[0]:.4f} to {times[-1]:.4f})"
    return f"{head}{seconds:<32}{outcome.rate / TERA:9.4f} TeraEdges/s  passed by {check}"


def share(record: Record) -> str:
    """The number of features that were run, and of all."""
    return f"{record.case.features:,} of {record.facts['features_there']:,}"
