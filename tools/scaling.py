"""Strong scaling: what ranks have measured, a model of it, and what more ranks would bring.

    python -m tools.scaling table results/scaling-1024-120-*.json
    python -m tools.scaling measure 1024 120 --ranks 1,8,64,768 --json parts.json

`table` reads records of ``spdnn run --json`` (jobs/scaling.sh writes them). `measure` runs the part
of every rank, one after the other on this machine: what hundreds of ranks would take for their
features, without having them.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from spdnn.engines import MODES, choose_mode, make_engine
from spdnn.engines.base import Engine
from spdnn.errors import DataError, SpdnnError
from spdnn.features import Features
from spdnn.io.files import whole_file
from spdnn.run.options import PARTITIONS, Partition
from spdnn.run.team import part_of
from spdnn.sources.sources import find_inputs, open_features, open_network

RANKS = (1, 2, 4, 8, 16, 32, 64, 96, 192, 384, 768)
"""Those of the paper's table I and smaller ones."""

SECONDS_PER_DOUBLING = 20e-6
"""Seconds of gathering for each doubling of the ranks, where no run of several ranks tells: some
microseconds of latency for each of three collective calls, which take log2 (ranks) messages in a
row."""

REPEATS = 3
"""The quickest counts: what disturbs a measurement only makes it longer."""


@dataclass(frozen=True)
class Point:
    """What was measured with a number of ranks.

    Attributes
    ----------
    ranks : int
    mean, slowest : float
        Seconds of the ranks' own inference.
    inference : float or None
        From barrier to the end of gathering; None where ranks were measured one by one.
    """

    ranks: int
    mean: float
    slowest: float
    inference: float | None


@dataclass(frozen=True)
class Model:
    """``slowest = fixed + work / ranks * (1 + spread * sqrt(2 ranks ln ranks))``, and gathering.

    Attributes
    ----------
    work : float
        Seconds that all features take.
    fixed : float
        Seconds that a rank takes however few features it has: it goes through all weights.
    spread : float
        How much features differ in the work they make, by the root of their number: the largest
        of R sums of N / R independent terms lies about sqrt(2 ln R) deviations above the mean.
    gather : float
        Seconds for each doubling of the ranks.
    """

    work: float
    fixed: float
    spread: float
    gather: float

    def mean(self, ranks: int) -> float:
        """Seconds of a rank."""
        return self.fixed + self.work / ranks

    def slowest(self, ranks: int) -> float:
        """Seconds of the slowest rank."""
        return self.mean(ranks) + self.spread * self.work / ranks * _excess(ranks)

    def inference(self, ranks: int) -> float:
        """Seconds from barrier to the end of gathering."""
        return self.slowest(ranks) + self.gather * math.log2(ranks)


def _excess(ranks: int) -> float:
    """By how many of ``1 / sqrt(N)`` the largest share of R ranks exceeds the mean."""
    return math.sqrt(2 * ranks * math.log(ranks))


def fit(points: Sequence[Point]) -> Model:
    """Fit a model to what was measured, all relative errors alike.

    Raises
    ------
    DataError
        If there are no two numbers of ranks.
    """
    if len({point.ranks for point in points}) < 2:
        raise DataError("a model of scaling needs records of two numbers of ranks at least")
    means = np.array([point.mean for point in points])
    rows = np.array([[1.0, 1 / point.ranks] for point in points]) / means[:, None]
    (fixed, work), _ = nnls(rows, np.ones(means.size))
    several = [point for point in points if point.ranks > 1]
    share = np.array([work / point.ranks * _excess(point.ranks) / point.mean for point in several])
    excess = np.array([point.slowest / point.mean - 1 for point in several])
    spread = float(share @ excess / (share @ share)) if share.any() else 0.0
    gathers = [
        (point.inference - point.slowest) / math.log2(point.ranks)
        for point in several
        if point.inference is not None
    ]
    gather = float(np.median(gathers)) if gathers else SECONDS_PER_DOUBLING
    return Model(float(work), float(fixed), spread, gather)


def read_record(record: dict[str, Any]) -> Point:
    """Return what a record of ``spdnn run --json``, or of `measure`, says of scaling.

    Raises
    ------
    DataError
        If it is no such record.
    """
    try:
        inference = float(record["seconds"]["inference"])
        ranks = int(record["ranks"])
        log = record.get("ranks_log", [{"seconds": inference}])
        seconds = [float(rank["seconds"]) for rank in log]
        is_whole = not record.get("parts_alone", False)
        return Point(
            ranks, sum(seconds) / len(seconds), max(seconds), inference if is_whole else None
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError("not a record of a run") from error


def table(points: Sequence[Point], edges: float, ranks: Iterable[int] = RANKS) -> str:
    """A Markdown table of what was measured, of the model, and of what it predicts.

    Parameters
    ----------
    points : sequence of Point
        What was measured.
    edges : float
        Edges of all layers, times the input features: what the rate counts.
    ranks : iterable of int
        Numbers of ranks that get a row, beside those that were measured.
    """
    model = fit(points)
    of = {point.ranks: point for point in points}
    one = model.inference(1)
    lines = [
        f"work {model.work:.4g} s, fixed {model.fixed:.3g} s a rank, spread {model.spread:.3g}, "
        f"gather {model.gather:.2g} s a doubling",
        "",
        "| ranks | mean s | slowest s | inference s | model s | TeraEdges/s | efficiency |",
        "|---|---|---|---|---|---|---|",
    ]
    for n in sorted({*of, *ranks}):
        seconds, point = model.inference(n), of.get(n)
        measured = ["", "", ""]
        if point is not None:
            inference = "" if point.inference is None else f"{point.inference:.4f}"
            measured = [f"{point.mean:.4f}", f"{point.slowest:.4f}", inference]
        facts = [f"{seconds:.4f}", f"{edges / seconds / 1e12:.2f}", f"{one / seconds / n:.0%}"]
        lines.append("| " + " | ".join([str(n), *measured, *facts]) + " |")
    return "\n".join(lines)


def measure_parts(
    engine: Engine, plan: Any, features: Features, ranks: int, partition: Partition
) -> list[float]:
    """Processor seconds that each rank takes for its features, by itself.

    What else the machine does meanwhile does not count.

    Parameters
    ----------
    engine : Engine
        An engine of one thread.
    plan : Plan
    features : Features
        The features of all ranks.
    ranks : int
    partition : str
        How features are dealt out; see `spdnn.distributed`.
    """
    seconds = []
    for rank in range(ranks):
        part = part_of(features.n_features, rank, ranks, partition)
        loaded = engine.load(plan, features.every(part.start, part.stop, part.step))
        times = []
        for _ in range(REPEATS):
            started = time.process_time()
            engine.run(plan, loaded)
            times.append(time.process_time() - started)
        seconds.append(min(times))
    return seconds


def _measure(arguments: argparse.Namespace) -> str:
    """Run the parts of all numbers of ranks; write a list of records, give the table."""
    neurons, layers = arguments.neurons, arguments.layers
    network = open_network("recipe", neurons, layers).network
    inputs = find_inputs(arguments.data, neurons)
    features = open_features(inputs, neurons, arguments.features, folder=arguments.data).features
    engine = make_engine("cpu", threads=1)
    mode = choose_mode(engine, arguments.mode)
    engine.compile(network)
    plan = engine.plan(network, mode)
    records = []
    for ranks in arguments.ranks:
        seconds = measure_parts(engine, plan, features, ranks, arguments.partition)
        records.append(
            {
                "parts_alone": True,
                "neurons": neurons,
                "layers": layers,
                "features": features.n_features,
                "edges": network.n_edges,
                "engine": engine.name,
                "mode": mode,
                "ranks": ranks,
                "threads": ranks,
                "seconds": {"inference": max(seconds)},
                "ranks_log": [{"seconds": each} for each in seconds],
            }
        )
    with whole_file(arguments.json) as file:
        file.write(json.dumps(records).encode())
    return _table_of(records)


def _table(arguments: argparse.Namespace) -> str:
    """The table of the records in some files."""
    records: list[Any] = []
    for path in arguments.records:
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: {error}") from error
        records += content if isinstance(content, list) else [content]
    return _table_of(records)


def _table_of(records: list[dict[str, Any]]) -> str:
    points = [read_record(record) for record in records]
    kinds = {
        tuple(record.get(name) for name in ("neurons", "layers", "mode", "engine", "features"))
        for record in records
    }
    if len(kinds) != 1:
        raise DataError("give records of one network, mode and engine, and of the same features")
    return table(points, records[0]["edges"] * records[0]["features"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; a mistake is one line and status 2."""
    parser = argparse.ArgumentParser(prog="python -m tools.scaling", description=__doc__)
    commands = parser.add_subparsers(required=True)
    tabled = commands.add_parser("table", help="a table and a model of records")
    tabled.add_argument("records", nargs="+", type=Path)
    tabled.set_defaults(command=_table)
    measured = commands.add_parser("measure", help="run every rank's part on this machine")
    measured.add_argument("neurons", type=int)
    measured.add_argument("layers", type=int)
    measured.add_argument("--ranks", type=_numbers, default=RANKS, metavar="R,R,...")
    measured.add_argument("--json", type=Path, required=True, metavar="FILE")
    measured.add_argument("--mode", default="auto", choices=("auto", *MODES))
    measured.add_argument("--features", type=int)
    measured.add_argument("--partition", default=PARTITIONS[0], choices=PARTITIONS)
    measured.add_argument("--data", type=Path)
    measured.set_defaults(command=_measure)
    parsed = parser.parse_args(arguments)
    try:
        print(parsed.command(parsed))
    except SpdnnError as error:
        print(f"scaling: error: {error}", file=sys.stderr)
        return 2
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from 1, with commas between."""
    numbers = tuple(map(int, text.split(",")))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("numbers of ranks begin at 1")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
