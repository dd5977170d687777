"""The report of a folder of records: tables, plots and a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spdnn.bench import page, plots, tables
from spdnn.bench.records import Record, only_passed
from spdnn.errors import DataError
from spdnn.io.files import whole_file

HEADING = "spdnn: measured rates"


class Report(NamedTuple):
    """What was written.

    Attributes
    ----------
    written : list of Path
        The files.
    left_out : list of Record
        Records that are not shown, because nothing proves them right.
    """

    written: list[Path]
    left_out: list[Record]


def write_report(records: Sequence[Record], out: Path) -> Report:
    """Write ``table.md``, ``table.tex``, every plot as PNG and SVG, and ``report.html``.

    Parameters
    ----------
    records : sequence of Record
        Records of one machine. Those whose check has not passed are left out.
    out : Path
        A folder; it is made if it is not there.

    Raises
    ------
    DataError
        If no record has passed, or they are of several machines.
    DeviceError
        If matplotlib or jinja2 is not installed.
    """
    passed = only_passed(records)
    left_out = [record for record in records if record not in passed]
    if not passed:
        raise DataError("no record whose categories were proved right: nothing to report")
    require_one_machine(passed)
    made_tables, made_plots = tables.all_tables(passed), plots.all_plots(passed)
    texts = {
        "table.md": tables.as_markdown(made_tables, HEADING),
        "table.tex": tables.as_latex(made_tables, HEADING),
        "report.html": page.make_page(passed, made_tables, made_plots, HEADING),
    }
    # Bytes of paths that are not UTF-8 are written as codes.
    contents = {name: text.encode(errors="backslashreplace") for name, text in texts.items()}
    for plot in made_plots:
        contents |= {f"{plot.name}.png": plot.png, f"{plot.name}.svg": plot.svg}
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in contents.items():
        with whole_file(out / name) as file:
            file.write(content)
        written.append(out / name)
    return Report(written, left_out)


def require_one_machine(records: Sequence[Record]) -> None:
    """Refuse records of several machines (DataError)."""
    first = records[0]
    for record in records:
        if record.machine != first.machine:
            raise DataError(
                f"records of two machines: {first.path} ({first.machine}) and {record.path} "
                f"({record.machine}); keep them in two folders"
            )
