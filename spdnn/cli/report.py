"""``spdnn report``: make tables, plots and a page from the records in a folder."""

import argparse
from pathlib import Path

from spdnn.bench.records import read_all
from spdnn.bench.report import write_report
from spdnn.cli.arguments import Commands


def add_parser(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="make tables, plots and a page from records",
        description=(
            "Make a Markdown and a LaTeX table, plots (PNG and SVG) and one HTML page from the "
            "records of one machine. A record whose check has failed is left out."
        ),
    )
    parser.add_argument("records", type=Path, metavar="FOLDER", help="folder of records, or one")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: FOLDER)")
    parser.set_defaults(command=report)


def report(arguments: argparse.Namespace) -> int:
    """Make the report; returns 1 if a record was left out because its check has failed."""
    source: Path = arguments.records
    out = arguments.out or (source if source.is_dir() else source.parent)
    done = write_report(read_all(source), out)
    for path in done.written:
        print(path)
    for record in done.left_out:
        verdict = record.facts["categories"]["truth"]
        word = "FAILED" if verdict == "failed" else "not checked"
        if record.is_emulated and record.passed:
            word = "an emulated GPU: no rate"
        print(f"left out: {record.path} ({word})")
    return 1 if any(r.facts["categories"]["truth"] == "failed" for r in done.left_out) else 0
