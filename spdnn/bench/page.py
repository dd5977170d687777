"""The page of a report: tables and plots in one HTML file that loads nothing else."""

import base64
from collections.abc import Sequence
from importlib.resources import files

from spdnn.bench.optional import optional
from spdnn.bench.plots import Plot, best_of_each, subtitle
from spdnn.bench.records import Record
from spdnn.bench.tables import Table, rate


def make_page(
    records: Sequence[Record], tables: Sequence[Table], plots: Sequence[Plot], heading: str
) -> str:
    """Make the page.

    Parameters
    ----------
    records : sequence of Record
        Records of one machine that have all passed.
    tables : sequence of Table
        Their tables.
    plots : sequence of Plot
        Their plots.
    heading : str
        Title of the page.

    Returns
    -------
    str
        HTML.

    Raises
    ------
    DeviceError
        If jinja2 is not installed.
    """
    jinja2 = optional("jinja2", "plot")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode()
    template = environment.from_string((files("spdnn.bench") / "page.html").read_text())
    text: str = template.render(
        heading=heading,
        machine=subtitle(records),
        best=best(records),
        tables=tables,
        plots=plots,
        origin=origin(records),
        commands=list(dict.fromkeys(r.facts["provenance"].get("command", "") for r in records)),
    )
    return text


def best(records: Sequence[Record]) -> list[dict[str, str]]:
    """Rows of the highest rate of each engine and mode of this project."""
    rows = []
    for name, found in best_of_each(records).items():
        fastest = max(found.values(), key=lambda record: record.rate)
        if fastest.library is None:
            row = {"name": name, "network": fastest.case.network, "rate": rate(fastest)}
            rows.append(row)
    return rows


def origin(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Rows of machine, software, data and dates of all records."""
    facts = [record.facts["provenance"] for record in records]
    first = facts[0]
    versions = {name: v for each in facts for name, v in each["versions"].items()}
    dates = sorted(each["date"] for each in facts)
    busy = [(record.facts.get("load") or {}).get("others_busy") for record in records]
    others = [number for number in busy if number is not None]
    official = all(record.facts["data"].get("official") for record in records)
    checks = sorted({record.facts["categories"]["check"] for record in records})
    rows: list[tuple[str, object]] = [
        ("machine", records[0].machine),
        ("memory", f"{first.get('memory', 0) / 2**30:.1f} GiB"),
        ("driver", first.get("driver")),
        ("system", first.get("platform")),
        ("MPI", ", ".join(sorted({each["mpi"] for each in facts if each.get("mpi")}))),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("measured", f"{dates[0]} to {dates[-1]}"),
        ("data", "official" if official else "not the official networks or inputs"),
        ("categories", f"all checked, by: {', '.join(checks)}"),
        (
            "others at work",
            f"{min(others):.2f} to {max(others):.2f} processors on average" if others else None,
        ),
        ("records", len(records)),
    ]
    return [(name, str(value)) for name, value in rows if value]
