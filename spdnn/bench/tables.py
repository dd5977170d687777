"""Tables of records in the form of the challenge, and how they are written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spdnn.bench.published import published
from spdnn.bench.records import SAME_DATA, Record
from spdnn.bench.rivals import RIVALS

TERA = 1e12
NOTHING = "-"
MERGE_NOTE = (
    "Mode merge computes equal neurons and equal features once. Its rate counts all edges of all "
    "features, as the challenge does; it is not what the hardware has multiplied."
)
SHARE_NOTE = "* That library ran on a share of the features; its own table says which."
ENERGY_NOTE = "Energy: of whole packages and GPUs during a run, including what they take at rest."
NO_ENERGY_NOTE = "Energy could not be read on this machine."
COUNT_NOTE = (
    "Rate: stored weights of all layers times all input features, by seconds of inference. Seconds "
    "are the median run's; the range is that of all runs."
)


class Column(NamedTuple):
    """A column of a table.

    Attributes
    ----------
    heading : str
        Its heading.
    is_number : bool
        Whether it holds numbers, which are aligned at the right.
    """

    heading: str
    is_number: bool = True


@dataclass(frozen=True)
class Table:
    """A table as text.

    Attributes
    ----------
    title : str
        Heading of the table.
    columns : tuple of Column
        Its columns.
    rows : list of list of str
        The cells of each row.
    notes : tuple of str
        Sentences below it.
    """

    title: str
    columns: tuple[Column, ...]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()


def all_tables(records: Sequence[Record]) -> list[Table]:
    """Make all tables that have rows.

    Parameters
    ----------
    records : sequence of Record
        Records of one machine that have all passed.
    """
    tables = [engine_table(records), rival_table(records), phase_table(records)]
    return [table for table in [*tables, published_table(records)] if table.rows]


def engine_table(records: Sequence[Record]) -> Table:
    """The table of engines, and how many times as fast as each rival they are."""
    own = [record for record in records if record.library is None]
    keys = [key for key in RIVALS if any(record.case.engine == key for record in records)]
    has_energy = any(record.facts.get("joules") for record in own)
    rows, is_shared = [], False
    for record in own:
        found = [rival_of(record, key, records) for key in keys]
        is_shared |= any(rival is not None and rival.share < 1 for rival in found)
        row = [
            *_network(record),
            record.case.engine,
            record.case.mode,
            _processors(record),
            f"{record.case.features:,}",
            *_seconds(record),
            rate(record),
        ]
        row += [_joules(record)] if has_energy else []
        rows.append(row + [_times(record, rival) for rival in found])
    columns = (
        *_NETWORK,
        Column("engine", False),
        Column("mode", False),
        Column("threads"),
        Column("features"),
        *_SECONDS,
        *([Column("joules")] if has_energy else []),
        *(Column(f"x {RIVALS[key].short}") for key in keys),
    )
    notes = [COUNT_NOTE]
    notes += [MERGE_NOTE] if any(record.case.mode == "merge" for record in own) else []
    notes += [SHARE_NOTE] if is_shared else []
    notes += [ENERGY_NOTE if has_energy else NO_ENERGY_NOTE]
    return Table("Measured here", columns, rows, tuple(notes))


def rival_of(record: Record, key: str, records: Sequence[Record]) -> Record | None:
    """Find the record of a rival on the same network, inputs and threads; None if there is none.

    A rival that uses one thread is compared with any number of threads.

    Parameters
    ----------
    record : Record
        The record of an engine.
    key : str
        Key of the rival.
    records : sequence of Record
        All records.
    """
    for rival in records:
        same_threads = rival.case.threads == record.case.threads or not RIVALS[key].uses_threads
        same_data = all(
            rival.facts["data"].get(name) == record.facts["data"].get(name) for name in SAME_DATA
        )
        same_network = rival.case[:2] == record.case[:2]
        if rival.case.engine == key and same_network and same_data and same_threads:
            return rival
    return None


def rival_table(records: Sequence[Record]) -> Table:
    """The table of other libraries, measured in the same rounds."""
    theirs = [record for record in records if record.library is not None]
    theirs.sort(key=lambda record: (*record.case[:2], list(RIVALS).index(record.case.engine)))
    rows = [
        [
            *_network(record),
            record.name,
            _processors(record),
            f"{record.case.features:,}",
            "all" if record.share == 1 else f"1 of {1 / record.share:.3g}",
            *_seconds(record),
            rate(record),
        ]
        for record in theirs
    ]
    columns = (
        *_NETWORK,
        Column("library", False),
        Column("threads"),
        Column("features"),
        Column("share"),
        *_SECONDS,
    )
    missing: dict[str, str] = {}
    for record in records:
        for name, reason in record.facts.get("not_measured", {}).items():
            missing[name] = f"Not measured: {name}: {reason}."
    return Table("Other libraries, measured here", columns, rows, tuple(missing.values()))


def phase_table(records: Sequence[Record]) -> Table:
    """The table of seconds by phase, and of the edges that were really evaluated."""
    own = [record for record in records if record.library is None]
    phases = list(dict.fromkeys(name for record in own for name in record.facts["seconds"]))
    rows = [
        [
            record.case.network,
            record.case.engine,
            record.case.mode,
            _processors(record),
            *(_short(record.facts["seconds"].get(name)) for name in phases),
            _short(record.facts.get("warm_up")),
            f"{record.facts['edges_evaluated']:.4g}",
            f"{record.facts['factor_saved']:,.1f}",
            f"{record.facts['categories']['count']:,}",
        ]
        for record in own
    ]
    columns = (
        Column("network", False),
        Column("engine", False),
        Column("mode", False),
        Column("threads"),
        *(Column(f"{name} [s]") for name in phases),
        Column("warm-up run [s]"),
        Column("edges evaluated"),
        Column("counted per evaluated"),
        Column("categories"),
    )
    note = (
        "Seconds by phase of the median run. Reading, compiling and planning are not in the rate."
    )
    return Table("Phases", columns, rows, (note,))


def published_table(records: Sequence[Record]) -> Table:
    """The table of rates that others have published for the same networks."""
    networks = {record.case[:2] for record in records}
    rows = [
        [
            f"{row.neurons} x {row.layers}",
            row.source,
            row.hardware,
            row.devices,
            f"{row.teraedges_per_second:.4g}",
            row.note,
        ]
        for row in published()
        if (row.neurons, row.layers) in networks
    ]
    columns = (
        Column("network", False),
        Column("source", False),
        Column("hardware", False),
        Column("devices"),
        Column("TeraEdges/s"),
        Column("where", False),
    )
    note = "Published elsewhere, on other machines, not measured here."
    return Table("Published elsewhere", columns, rows, (note,))


_NETWORK = (Column("network", False), Column("edges"))
_SECONDS = (Column("seconds"), Column("range [s]"), Column("TeraEdges/s"))


def rate(record: Record) -> str:
    """The rate of a record in TeraEdges/s, with four digits."""
    return f"{record.rate / TERA:.4g}"


def _network(record: Record) -> list[str]:
    return [record.case.network, f"{record.facts['edges']:,}"]


def _processors(record: Record) -> str:
    ranks, threads = record.case.ranks, record.case.threads
    return str(threads) if ranks == 1 else f"{ranks} ranks x {threads // ranks}"


def _seconds(record: Record) -> list[str]:
    times = record.times
    return [_short(record.seconds), f"{_short(times[0])} to {_short(times[-1])}"]


def _short(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds:.4g}"


def _joules(record: Record) -> str:
    joules = record.facts.get("joules")
    return f"{sum(joules.values()):.4g}" if joules else NOTHING


def _times(record: Record, rival: Record | None) -> str:
    if rival is None:
        return NOTHING
    return f"{record.rate / rival.rate:,.1f}" + (" *" if rival.share < 1 else "")


def as_markdown(tables: Sequence[Table], heading: str) -> str:
    """Write tables in Markdown, with aligned columns.

    Parameters
    ----------
    tables : sequence of Table
        What to write.
    heading : str
        Heading above them.
    """
    blocks = [f"# {heading}"]
    for table in tables:
        rows = [[column.heading for column in table.columns], *table.rows]
        rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [_markdown_row(row, widths, table.columns) for row in rows]
        rule = [
            "-" * (width - 1) + ":" if column.is_number else "-" * width
            for width, column in zip(widths, table.columns, strict=True)
        ]
        lines.insert(1, "| " + " | ".join(rule) + " |")
        blocks += [f"## {table.title}", "\n".join(lines), *table.notes]
    return "\n\n".join(blocks) + "\n"


def _markdown_row(row: list[str], widths: list[int], columns: tuple[Column, ...]) -> str:
    cells = [
        cell.rjust(width) if column.is_number else cell.ljust(width)
        for cell, width, column in zip(row, widths, columns, strict=True)
    ]
    return "| " + " | ".join(cells) + " |"


_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    " x ": r" $\times$ ",
}


def as_latex(tables: Sequence[Table], heading: str) -> str:
    r"""Write tables in LaTeX, for ``\input``. They need no package.

    Parameters
    ----------
    tables : sequence of Table
        What to write.
    heading : str
        Comment above them.
    """
    blocks = [f"% {heading}"]
    for table in tables:
        places = "".join("r" if column.is_number else "l" for column in table.columns)
        lines = [r"\begin{table*}", rf"\caption{{{latex(table.title)}}}", r"\footnotesize"]
        lines += [rf"\begin{{tabular}}{{{places}}}", r"\hline"]
        lines.append(_latex_row([column.heading for column in table.columns]) + r" \hline")
        lines += [_latex_row(row) for row in table.rows]
        lines += [r"\hline", r"\end{tabular}"]
        lines += [rf"\par {latex(note)}" for note in table.notes]
        blocks.append("\n".join([*lines, r"\end{table*}"]))
    return "\n\n".join(blocks) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex, cells)) + r" \\"


def latex(text: str) -> str:
    r"""Escape the signs of LaTeX in a text.

    Examples
    --------
    >>> latex("1024 x 120, 3 % of R&D")
    '1024 $\\times$ 120, 3 \\% of R\\&D'
    """
    if text.startswith("x "):
        return r"$\times$ " + latex(text[2:])
    head, sign, tail = text.partition(" x ")
    escaped = "".join(_LATEX.get(letter, letter) for letter in head)
    return escaped + (_LATEX[sign] + latex(tail) if sign else "")
