"""Plots of records: rates, live features by layer, strong scaling, roofline.

The colours are those of Okabe and Ito ("Color Universal Design", 2008), which colour-blind people
can tell apart. Markers and line styles tell the same, for print. Filled marks were measured. Hollow
marks were published elsewhere and have a panel of their own.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spdnn.bench.optional import optional
from spdnn.bench.published import published
from spdnn.bench.records import Record
from spdnn.bench.rivals import RIVALS
from spdnn.bench.tables import TERA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HOLLOW = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
DASHES = ("-", "--", "-.", ":")
GREY = "#666666"
GRID = "#DDDDDD"

GIGA = 1e9
WEIGHT_BYTES = 8
"""Bytes of an edge in CSR form: its index and its value."""

ACTIVATION_BYTES = 4
DPI = 150
TOP_INCHES = 0.75
"""Room above a plot for its title and the line below the title."""

ROW_INCHES = 0.4
"""Height of a network's row in the plot of rates."""

LEGEND_INCHES = 0.19
"""Height of a line of a legend."""

STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "legend.frameon": False,
    "svg.hashsalt": "spdnn",  # the same records make the same file
    "figure.dpi": DPI,
}


class Plot(NamedTuple):
    """A plot in both formats.

    Attributes
    ----------
    name : str
        Name of its files.
    title : str
        Heading of the plot.
    caption : str
        What it shows, in words.
    png, svg : bytes
        Contents of its files.
    """

    name: str
    title: str
    caption: str
    png: bytes
    svg: bytes


class Drawing(NamedTuple):
    """A figure that is drawn, but not yet written.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    title, caption : str
        As those of `Plot`.
    """

    figure: "Figure"
    title: str
    caption: str


def all_plots(records: Sequence[Record]) -> list[Plot]:
    """Draw all plots that the records have facts for.

    Parameters
    ----------
    records : sequence of Record
        Records of one machine that have all passed.

    Raises
    ------
    DeviceError
        If matplotlib is not installed.
    """
    optional("matplotlib", "plot").use("Agg")
    pyplot = optional("matplotlib.pyplot", "plot")
    draws: dict[str, Callable[[ModuleType, Sequence[Record]], Drawing | None]] = {
        "rates": draw_rates,
        "layers": draw_layers,
        "scaling": draw_scaling,
        "roofline": draw_roofline,
    }
    plots = []
    for name, draw in draws.items():
        with pyplot.rc_context(STYLE):
            drawing = draw(pyplot, records)
            if drawing is not None:
                plots.append(_saved(name, drawing, subtitle(records)))
                pyplot.close(drawing.figure)
    return plots


def subtitle(records: Sequence[Record]) -> str:
    """The machine, version and commit of the records."""
    commits = sorted({str(record.facts["provenance"].get("git")) for record in records})
    versions = sorted({record.facts["provenance"]["versions"]["spdnn"] for record in records})
    return f"{records[0].machine} · spdnn {', '.join(versions)} ({', '.join(commits)})"


def _saved(name: str, drawing: Drawing, below: str) -> Plot:
    """Put the title above the figure and write it in both formats."""
    figure = drawing.figure
    height = figure.get_figheight()
    place: dict[str, Any] = {"x": 0.02, "ha": "left", "va": "top"}
    figure.text(y=1 - 0.12 / height, s=drawing.title, fontsize=13, fontweight="bold", **place)
    figure.text(y=1 - 0.40 / height, s=below, fontsize=8.5, color=GREY, **place)
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    figure.savefig(svg, format="svg", metadata={"Date": None})
    return Plot(name, drawing.title, drawing.caption, png.getvalue(), svg.getvalue())


class _Styles:
    """Colours and markers of one plot: a name always gets the same ones."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[str, str]] = {}

    def of(self, name: str) -> tuple[str, str]:
        """Colour and marker of a name. Pairs are used again only after 64 names."""
        number = len(self._given)
        marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
        return self._given.setdefault(name, (COLOURS[number % len(COLOURS)], marker))


def best_of_each(records: Sequence[Record]) -> dict[str, dict[str, Record]]:
    """Find the fastest record of each engine and rival for each network.

    Parameters
    ----------
    records : sequence of Record
        The records to choose from.

    Returns
    -------
    dict of str to dict of str to Record
        By name, then by network; engines of this project first.
    """
    keys = [*dict.fromkeys(r.case.engine for r in records if r.library is None), *RIVALS]
    ordered = sorted(records, key=lambda record: (keys.index(record.case.engine), record.case))
    best: dict[str, dict[str, Record]] = {}
    for record in ordered:
        row = best.setdefault(record.name, {})
        old = row.get(record.case.network)
        if old is None or record.rate > old.rate:
            row[record.case.network] = record
    return best


def _networks(records: Sequence[Record]) -> list[str]:
    """All networks, in the order of their cases."""
    return list(dict.fromkeys(r.case.network for r in sorted(records, key=lambda r: r.case)))


def draw_rates(pyplot: ModuleType, records: Sequence[Record]) -> Drawing:
    """Draw the rates by network and engine, and beside them those that others have published."""
    networks = _networks(records)
    rows = {network: -number for number, network in enumerate(networks)}
    best, others = best_of_each(records), _published_points(rows)
    below = 0.55 + LEGEND_INCHES * max(len(best), len(others))
    height = TOP_INCHES + 0.3 + max(1.2, ROW_INCHES * len(networks)) + below
    figure, (here, elsewhere) = pyplot.subplots(
        1, 2, figsize=(11, height), sharex=True, sharey=True
    )
    figure.subplots_adjust(0.12, below / height, 0.98, 1 - (TOP_INCHES + 0.3) / height, 0.04)
    styles = _Styles()
    for name, found in best.items():
        colour, marker = styles.of(name)
        points = [(record.rate / TERA, rows[network]) for network, record in found.items()]
        label = name + (" *" if any(record.share < 1 for record in found.values()) else "")
        here.plot(*zip(*points, strict=True), marker, color=colour, ms=7, label=label)
    hollow = {"mfc": "none", "mec": GREY, "ms": 7, "ls": "none"}
    for (label, points), marker in zip(others.items(), cycle(HOLLOW), strict=False):
        elsewhere.plot(*zip(*points, strict=True), marker=marker, label=label, **hollow)
    here.set(xscale="log", xlabel="TeraEdges/s", ylabel="neurons x layers")
    here.set_title("measured here", loc="left")
    elsewhere.set(xlabel="TeraEdges/s")
    elsewhere.set_title("published elsewhere, on other machines", loc="left")
    _plain(here.xaxis)
    here.set_yticks(list(rows.values()), networks)
    here.set_ylim(-len(networks) + 0.5, 0.5)
    for axes, left in ((here, 0.11), (elsewhere, 0.55)):
        handles, labels = axes.get_legend_handles_labels()
        where = {"loc": "upper left", "bbox_to_anchor": (left, (below - 0.45) / height)}
        figure.legend(handles, labels, fontsize=8, **where)
    caption = (
        "Edges of all layers times all input features, divided by seconds of inference: the median "
        "run with the fastest number of threads (*: at least in part on a share of the features). "
        "Filled: measured on this machine. Hollow: published elsewhere for other machines. In mode "
        "merge the rate counts work that merging has saved."
    )
    return Drawing(figure, "Rate by network and engine", caption)


def _published_points(rows: dict[str, int]) -> dict[str, list[tuple[float, int]]]:
    """By label, the rates that were published for these networks, and their rows."""
    points: dict[str, list[tuple[float, int]]] = {}
    for row in published():
        network = f"{row.neurons} x {row.layers}"
        if network in rows:
            many = "many " if row.devices.isdigit() and row.devices != "1" else ""
            label = f"{row.source}: {many}{row.hardware}"
            points.setdefault(label, []).append((row.teraedges_per_second, rows[network]))
    return points


def draw_layers(pyplot: ModuleType, records: Sequence[Record]) -> Drawing | None:
    """Draw live and distinct features by layer, for the deepest network of each size."""
    deepest: dict[int, Record] = {}
    for record in records:
        if record.facts["layers_log"] and record.case.mode == "merge" and record.share == 1:
            neurons = record.case.neurons
            if neurons not in deepest or record.case.layers > deepest[neurons].case.layers:
                deepest[neurons] = record
    if not deepest:
        return None
    figure, axes = _single(pyplot)
    styles = _Styles()
    for neurons, record in sorted(deepest.items()):
        colour, marker = styles.of(str(neurons))
        log = record.facts["layers_log"]
        layers = np.arange(1, len(log["live"]) + 1)
        marked = _log_spaced(len(layers))
        for word, line, size in (("live", "-", 7), ("distinct", "--", 4)):
            counts = np.array(log[word], dtype=float)
            counts[counts == 0] = np.nan
            style: dict[str, Any] = {"marker": marker, "markevery": marked, "ms": size}
            label = f"{neurons} neurons, {word}"
            axes.plot(layers, counts, line, color=colour, label=label, **style)
    axes.set(xscale="log", yscale="log", xlabel="layer", ylabel="features")
    _plain(axes.xaxis, axes.yaxis)
    _legend(axes)
    caption = (
        "Features with at least one activation after each layer (live), and those among them that "
        "mode merge carries on, each for all that have become equal to it (distinct)."
    )
    return Drawing(figure, "Live and distinct features by layer", caption)


def _log_spaced(n: int) -> list[int]:
    """Positions of markers that are evenly spaced on a logarithmic axis."""
    return sorted({round(x) - 1 for x in np.geomspace(1, n, 16)})


def _single(pyplot: ModuleType) -> "tuple[Figure, Axes]":
    """A figure of one plot, with room for a title above it and a legend at its right."""
    width, height = 10.4, 5.2
    figure, axes = pyplot.subplots(figsize=(width, height))
    figure.subplots_adjust(0.85 / width, 0.55 / height, 7.6 / width, 1 - TOP_INCHES / height)
    return figure, axes


def _legend(axes: "Axes") -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def _plain(*axes: "Axis") -> None:
    """Label axes with plain numbers, and only at the powers."""
    for axis in axes:
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axis.set_minor_formatter(lambda value, _: "")


def scaling_groups(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    """Group records of engines that differ only in their number of processors.

    Parameters
    ----------
    records : sequence of Record
        The records to choose from.

    Yields
    ------
    str
        Network, engine and mode.
    list of Record
        Records with at least two numbers of processors, ascending.
    """
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        if record.library is None:
            case = record.case
            key = (case.neurons, case.layers, case.engine, case.mode, case.features)
            groups.setdefault(key, []).append(record)
    for found in groups.values():
        found.sort(key=lambda record: (record.case.threads, record.case.ranks))
        if len({record.case.threads for record in found}) > 1:
            yield f"{found[0].case.network}, {_kind(found[0])}", found


def _kind(record: Record) -> str:
    return f"{record.case.engine}, {record.case.mode}"


def draw_scaling(pyplot: ModuleType, records: Sequence[Record]) -> Drawing | None:
    """Draw the speed-up by number of processors, and the ideal one."""
    groups = list(scaling_groups(records))
    if not groups:
        return None
    figure, axes = _single(pyplot)
    networks, kinds = _Styles(), list(dict.fromkeys(_kind(found[0]) for _, found in groups))
    most = max(record.case.threads for _, found in groups for record in found)
    axes.plot([1, most], [1, most], color=GREY, lw=1, label="ideal")
    for name, found in groups:
        colour, marker = networks.of(found[0].case.network)
        dashes = DASHES[kinds.index(_kind(found[0])) % len(DASHES)]
        one = found[0].seconds * found[0].case.threads
        points = [(record.case.threads, one / record.seconds) for record in found]
        axes.plot(*zip(*points, strict=True), dashes, marker=marker, color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="processors (ranks x threads)", ylabel="times as fast as one")
    _plain(axes.xaxis, axes.yaxis)
    _legend(axes)
    caption = (
        "The same network and features on more processors. The fewest measured count as ideal: "
        "above one processor the line starts on the ideal by definition."
    )
    return Drawing(figure, "Strong scaling", caption)


class RoofPoint(NamedTuple):
    """A run in the roofline plot.

    Attributes
    ----------
    intensity : float
        Multiply-adds for each byte that passes between layers.
    rate : float
        Multiply-adds a second.
    """

    intensity: float
    rate: float


def roof_point(record: Record) -> RoofPoint:
    """Compute where a run in mode edges stands in the roofline plot.

    The bytes are those of layers that are evaluated one after the other: every weight and its index
    once, and the activations of live features before and after each layer. An engine that keeps
    activations in cache through several layers moves fewer bytes, and may stand above the slope.

    Parameters
    ----------
    record : Record
        A record with counts by layer.
    """
    facts = record.facts
    live = np.array(facts["layers_log"]["live"])
    entering = np.concatenate([[facts["features"]], live[:-1]])
    activations = facts["neurons"] * int((entering + live).sum())
    n_bytes = WEIGHT_BYTES * facts["edges"] + ACTIVATION_BYTES * activations
    evaluated = facts["edges_evaluated"]
    return RoofPoint(evaluated / n_bytes, evaluated / record.seconds)


def draw_roofline(pyplot: ModuleType, records: Sequence[Record]) -> Drawing | None:
    """Draw runs in mode edges below the peaks of the machine."""
    chosen = [
        record
        for record in records
        if record.case.mode == "edges"
        and record.facts["layers_log"]
        and record.facts.get("machine_peak")
    ]
    if not chosen:
        return None
    most = max(record.case.threads for record in chosen)
    chosen = [record for record in chosen if record.case.threads == most]
    peaks = [record.facts["machine_peak"] for record in chosen]
    sgemm = float(np.median([peak["sgemm_per_second"] for peak in peaks])) / GIGA
    copy = float(np.median([peak["copied_bytes_per_second"] for peak in peaks])) / GIGA
    figure, axes = _single(pyplot)
    x = np.geomspace(0.25, max(64.0, 4 * sgemm / copy), 200)
    axes.plot(x, np.minimum(sgemm, copy * x), color="black", lw=2)
    axes.text(x[-1], sgemm * 1.06, f"NumPy sgemm: {sgemm:.0f} G/s", ha="right", va="bottom")
    slope = f"copy through memory:\n{copy:.0f} GB/s"
    axes.annotate(slope, (x[40], copy * x[40]), (12, 0), textcoords="offset points", va="top")
    styles = _Styles()
    for record in chosen:
        name = f"{record.case.network}, {record.case.engine}"
        colour, marker = styles.of(name)
        point = roof_point(record)
        label = f"{name}: {point.rate / GIGA:.0f} G/s"
        axes.plot(point.intensity, point.rate / GIGA, marker, color=colour, ms=8, label=label)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="multiply-adds a byte passed between layers",
        ylabel="10⁹ multiply-adds a second (G/s)",
        ylim=(min(copy * x[0], 1.0), 4 * sgemm),
    )
    _plain(axes.xaxis, axes.yaxis)
    _legend(axes)
    caption = (
        f"Mode edges on {most} thread{'s' * (most > 1)}: edges really evaluated a second, under "
        "the peaks measured in the same run. Bytes are those of layers evaluated one after the "
        "other; an engine that keeps activations in cache may stand above the slope."
    )
    return Drawing(figure, "Roofline", caption)
