"""``spdnn compare``: compare new records with old ones."""

import argparse
from pathlib import Path

from spdnn.bench.compare import Change, compare
from spdnn.bench.records import Record, read_all
from spdnn.bench.tables import rate
from spdnn.cli.arguments import Commands


def add_parser(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "compare",
        help="compare old records with new ones",
        description=(
            "Compare two folders of records, or two records, case by case: the new rate divided by "
            "the old one, and whether the ranges of all runs overlap. Exit status 1 if a case has "
            "become slower beyond its spread, or wrong."
        ),
    )
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare records; returns 1 if a new one is worse."""
    old, new = read_all(arguments.old), read_all(arguments.new)
    changes = compare(old, new)
    machines = sorted({record.machine for record in (*old, *new)})
    if len(machines) > 1:
        print(f"note: different machines: {'; '.join(machines)}")
    if not all(change.same_data for change in changes.both):
        print("note: different weights or inputs in OLD and NEW")
    if changes.both:
        print(f"{'case':<70}{'old':>10}{'new':>10}  TeraEdges/s{'ratio':>8}")
    for change in changes.both:
        print(line(change))
    for word, records in (("only in OLD", changes.only_old), ("only in NEW", changes.only_new)):
        for record in records:
            print(f"{_case(record):<70}{word}")
    if not changes.both:
        print("no case is in both")
    return 1 if changes.is_worse else 0


def line(change: Change) -> str:
    """The line of a case; a record that has not passed has no rate."""
    rates = [rate(r) if r.passed else "FAILED" for r in (change.old, change.new)]
    ratio = "" if change.ratio is None else f"{change.ratio:.3f}"
    verdict = "" if change.verdict == "FAILED" else change.verdict
    text = f"{_case(change.new):<70}{rates[0]:>10}{rates[1]:>10}{ratio:>21}  {verdict}"
    return text.rstrip()


def _case(record: Record) -> str:
    case = record.case
    ranks = f"{case.ranks} ranks, " if case.ranks > 1 else ""
    threads = f"{ranks}{case.threads} thread{'s' * (case.threads > 1)}"
    return f"{case.network:<12} {record.name}, {threads}, {case.features:,}"
