"""Time to answer: from the command to the verdict, phase by phase, beside an older commit.

    python -m tools.answer_times measure --before CHECKOUT --images FILE --json times.json
    python -m tools.answer_times table times.json

`measure` runs ``spdnn run`` with weights and inputs from the recipes: each official network with
the older commit and with this one, in turn. `table` prints the medians, and the least that each
phase can take by the rates of the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spdnn.bench.machine import peaks
from spdnn.challenge import DEPTHS, FEATURES, SIZES, edges
from spdnn.engines import MODES
from spdnn.errors import DataError, SpdnnError
from spdnn.io.files import read_bytes, telling_damage, whole_file
from spdnn.machine.threads import default_threads

PHASES = ("read", "plan", "load", "inference", "total")

RUNS = 3
"""Of each network with each commit; the medians count."""

LARGEST = 65536, 1920
"""It is run once."""

PIXELS = 28
"""Rows and columns of an image."""

NEAR, FAR = 3, 16
"""A row is interpolated from its image, the two neighbours, and 16 numbers of all others."""

BYTES_OF_INDEX = 4
READINGS = 3
"""Times that the indices of weights are read: to check them, to take hashes, and to confirm equal
rows."""

LANES = 16
"""Features of a vector."""

VECTOR_NS = 1.0
"""Nanoseconds of a core for one vector of 16 outputs with two inputs each: two lines read from L2
and one written, a line in a cycle at best, 3 cycles in a nanosecond."""

MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """One run of the command.

    Attributes
    ----------
    neurons, layers : int
        The network.
    mode : str
        "edges" or "merge".
    commit : str
        "before" or "after".
    seconds : dict of str to float
        By phase, as the run tells them. "total" is measured around the process.
    processor : float
        Processor seconds of the process.
    peak : int
        Its largest memory, in bytes.
    evaluated : int
        Edges that were evaluated, summed over all features.
    """

    neurons: int
    layers: int
    mode: str
    commit: str
    seconds: dict[str, float]
    processor: float
    peak: int
    evaluated: int


class Rates(NamedTuple):
    """What this machine does in a second, on all threads.

    Attributes
    ----------
    threads : int
    multiply_adds : float
        Of NumPy's float32 matrix product.
    copied : float
        Bytes read and bytes written by a copy through memory.
    transformed : float
        Numbers of real transforms of 60000 numbers, forth and back, in float64.
    """

    threads: int
    multiply_adds: float
    copied: float
    transformed: float


def rates(threads: int) -> Rates:
    """Measure the machine.

    Raises
    ------
    DeviceError
        If threadpoolctl is not installed.
    """
    peak = peaks(threads)
    rows = np.random.default_rng(0).random((2 * PIXELS, FEATURES))
    seconds = []
    for _ in range(RUNS):
        started = time.perf_counter()
        np.fft.irfft(np.fft.rfft(rows), FEATURES)
        seconds.append(time.perf_counter() - started)
    transformed = threads * rows.size / min(seconds)
    return Rates(threads, peak["sgemm_per_second"], peak["copied_bytes_per_second"], transformed)


def floors(run: Run, rate: Rates) -> dict[str, float]:
    """The least seconds of the phases that the work of a run takes, by the rates of the machine.

    Reading is making the inputs: transforms, multiply-adds along and across the sheet, and a copy
    of the indices. Planning is making the weights' indices and reading them three times. Inference
    is one multiply-add for each edge that is evaluated; in mode merge, where nearly all outputs
    have two inputs, two lines read from L2 and one written for 16 outputs, and the inputs' masks.
    """
    side = round(run.neurons**0.5)
    products = FEATURES * (side * PIXELS * (NEAR * PIXELS + FAR) + side**2 * PIXELS)
    copied = 2 * BYTES_OF_INDEX * SIZES[run.neurons].input_nonzeros
    read = (
        FEATURES * PIXELS**2 / rate.transformed
        + products / rate.multiply_adds
        + copied / rate.copied
    )
    plan = edges(run.neurons, run.layers) * BYTES_OF_INDEX * (1 + READINGS) / rate.copied
    if run.mode == "edges":
        inference = run.evaluated / rate.multiply_adds
    else:
        vectors = run.evaluated / 2 / LANES
        masks = FEATURES * run.neurons / 8
        inference = vectors * VECTOR_NS * 1e-9 / rate.threads + masks / rate.copied
    return {"read": read, "plan": plan, "inference": inference}


def run_once(
    checkout: Path, commit: str, network: tuple[int, int], mode: str, images: Path, features: int
) -> Run:
    """Run the command line of a checkout in a process of its own.

    Raises
    ------
    DataError
        If it fails, with its last line.
    """
    neurons, layers = network
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        words = f"run --neurons {neurons} --layers {layers} --mode {mode} --weights recipe".split()
        more = ["--inputs", str(images), "--features", str(features), "--json", str(record)]
        started, used = time.perf_counter(), os.times()
        process = subprocess.run(
            [sys.executable, "-m", "spdnn", *words, *more],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            capture_output=True,
            text=True,
        )
        total, now = time.perf_counter() - started, os.times()
        if process.returncode != 0:
            lines = (process.stderr or process.stdout).strip().splitlines() or ["no output"]
            raise DataError(f"{commit}, {neurons} x {layers}, mode {mode}: {lines[-1]}")
        facts: dict[str, Any] = json.loads(record.read_bytes())
    processor = now.children_user + now.children_system - used.children_user - used.children_system
    return Run(
        neurons,
        layers,
        mode,
        commit,
        {**facts["seconds"], "total": total},
        processor,
        facts["peak_memory"],
        facts["edges_evaluated"],
    )


def table(runs: Iterable[Run], rate: Rates) -> str:
    """A table in Markdown of medians: before, after, and the least."""
    cases: dict[tuple[str, int, int], list[Run]] = {}
    for run in runs:
        cases.setdefault((run.mode, run.neurons, run.layers), []).append(run)
    heads = ("network", "mode", "commit", *(f"{phase} s" for phase in PHASES), "CPU s", "MiB")
    lines = [_row(heads), _row(["---"] * len(heads))]
    for (mode, neurons, layers), of_case in cases.items():
        name = f"{neurons} x {layers}"
        for commit in ("before", "after"):
            chosen = [run for run in of_case if run.commit == commit]
            if chosen:
                lines.append(_row((name, mode, commit, *_medians(chosen))))
        least = floors(of_case[-1], rate)
        cells = (f"{least[phase]:.3g}" if phase in least else "" for phase in PHASES)
        lines.append(_row((name, mode, "at least", *cells, "", "")))
    return "\n".join(lines)


def _medians(runs: Sequence[Run]) -> list[str]:
    """The cells of some runs of one case and commit."""
    middle = statistics.median
    return [
        *(f"{middle(run.seconds[phase] for run in runs):.3g}" for phase in PHASES),
        f"{middle(run.processor for run in runs):.3g}",
        f"{middle(run.peak for run in runs) / MIB:.0f}",
    ]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _measure(arguments: argparse.Namespace) -> str:
    """Run all cases, and write what they took."""
    checkouts = {"after": Path(__file__).resolve().parents[1]}
    if arguments.before is not None:
        checkouts = {"before": arguments.before.resolve(), **checkouts}
    networks = [(n, layers) for n in arguments.neurons for layers in arguments.layers]
    images = arguments.images.resolve()
    runs: list[Run] = []
    rate = rates(default_threads())
    for mode in arguments.modes:
        for commit, checkout in checkouts.items():  # kernels are compiled
            run_once(checkout, commit, networks[0], mode, images, FEATURES)
        for network in networks:
            for _ in range(1 if network == LARGEST else RUNS):
                for commit, checkout in checkouts.items():
                    run = run_once(checkout, commit, network, mode, images, FEATURES)
                    print(json.dumps(asdict(run)), file=sys.stderr, flush=True)
                    runs.append(run)
    facts = {"rates": rate._asdict(), "runs": [asdict(run) for run in runs]}
    with whole_file(arguments.json) as stream:
        stream.write(json.dumps(facts, indent=1).encode() + b"\n")
    return table(runs, rate)


def _table(arguments: argparse.Namespace) -> str:
    """The table of a file that `measure` has written."""
    runs: list[Run] = []
    for path in arguments.files:
        data = read_bytes(path)
        with telling_damage(path, "times"):
            facts = json.loads(data)
            rate = Rates(**facts["rates"])
            runs += [Run(**run) for run in facts["runs"]]
    return table(runs, rate)


def _whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    return tuple(map(int, text.split(",")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; a mistake is one line and status 2."""
    parser = argparse.ArgumentParser(prog="python -m tools.answer_times", description=__doc__)
    commands = parser.add_subparsers(required=True)
    measured = commands.add_parser("measure", help="run the networks on this machine")
    measured.add_argument("--before", type=Path, metavar="CHECKOUT")
    measured.add_argument("--images", type=Path, required=True, metavar="FILE")
    measured.add_argument("--json", type=Path, required=True, metavar="FILE")
    measured.add_argument("--neurons", type=_whole_numbers, default=tuple(SIZES), metavar="N,...")
    measured.add_argument("--layers", type=_whole_numbers, default=DEPTHS, metavar="L,...")
    measured.add_argument("--modes", nargs="+", choices=MODES, default=("merge",))
    measured.set_defaults(command=_measure)
    tabled = commands.add_parser("table", help="the table of files that were written")
    tabled.add_argument("files", nargs="+", type=Path)
    tabled.set_defaults(command=_table)
    parsed = parser.parse_args(arguments)
    try:
        print(parsed.command(parsed))
    except SpdnnError as error:
        print(f"answer_times: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
