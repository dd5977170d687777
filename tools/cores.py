"""One process and many cores: what each phase costs, and what more threads would bring.

    python -m tools.cores measure 1024 120 --threads 1,2 --json cores.json
    python -m tools.cores table cores.json --bandwidth 2:30,16:200,64:400

`measure` makes inputs, plans, loads and runs, with each number of threads, and writes what every
phase took: seconds of the clock, of all processors, and of the one thread that hands out the work.
`table` turns that into a model of each phase (`Terms`) and its seconds on more cores. A run on a
larger machine can refute it. The model of ranks is in `tools.scaling`.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from spdnn.engines import MODES
from spdnn.engines.base import Output
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.errors import DataError, DeviceError, SpdnnError
from spdnn.features import Features
from spdnn.io.files import whole_file
from spdnn.machine.thread_pool import KeptThreads, SharedThreads
from spdnn.network import Network
from spdnn.recipes.radixnet import official_network
from spdnn.sources.features import open_features
from spdnn.sources.folder import default_folder, find_images
from tools.scaling import Model

CORES = (2, 16, 64, 192)
"""Numbers of cores that are predicted."""

REPEATS = 3
"""The quickest of so many runs of inference counts: what disturbs a run only makes it longer."""

WARM_LAYERS = 4
"""Layers that are planned and run before, so that nothing is compiled while it is measured."""

WARM_FEATURES = 1000

INTERPRETER_PER_LAYER = {"edges": 0.17e-3, "merge": 0.26e-3}
"""Seconds that all threads together hold Python's interpreter for a layer while they plan: what a
layer of 64 neurons takes, where compiled functions have next to nothing to do."""

HANDING_OUT = 50e-6
"""Seconds for each thread that a run takes of the one that hands out the work. With 192 threads on
two cores it took 8 ms more at 1024 x 120, mode edges, and 20 ms more at 65536 x 120, mode merge."""

LEAST_WORK = 0.2e-3
"""Seconds of work from which a run gives it to one more thread (`CpuSizes.worth_waking`)."""

PLAN_BYTES_PER_EDGE = 16
"""Bytes of memory for an edge while a layer is planned: its index is written once and read three
times."""

FEATURES, BLOCK_MASK_BYTES = "inputs", 2
"""Name of the phase that makes features; bytes of the mask of 16 features of one neuron."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Spent:
    """What a phase took with a number of threads.

    Attributes
    ----------
    phase : str
        "inputs", "plan MODE", "load" (once for each mode) or "run MODE".
    threads : int
    seconds : float
        By the clock.
    processor : float
        Of all threads.
    caller : float
        Of the thread that hands out the work, alone; it waits for the others meanwhile.
    n_bytes : float
        Bytes that the phase reads from memory and writes to it, at least.
    vectors : list of (float, int)
        Of a run: shares of its work, and the vectors of features that each consists of. A vector
        is the work of one thread.
    """

    phase: str
    threads: int
    seconds: float
    processor: float
    caller: float
    n_bytes: float
    vectors: Sequence[Sequence[float]] = ()


@dataclass(frozen=True)
class Terms:
    """A model of one phase.

    Attributes
    ----------
    serial : float
        Seconds of the one thread that hands out the work.
    parallel : float
        Processor seconds of all others.
    interpreter : float
        Seconds that threads hold Python's interpreter, which one can hold at a time.
    n_bytes : float
        Bytes through memory.
    is_pipeline : bool
        Whether the one thread works while the others do. In the other phases they wait for it.
    handing_out : float
        Seconds of the one thread for each of the others.
    vectors : list of (float, int)
        As in `Spent`.
    """

    serial: float
    parallel: float
    interpreter: float
    n_bytes: float
    is_pipeline: bool
    handing_out: float = 0.0
    vectors: Sequence[Sequence[float]] = ()

    def divided(self, threads: float) -> float:
        """Seconds of the parallel part, where the last vectors of a layer leave threads idle."""
        if not self.vectors:
            return self.parallel / threads
        share = sum(part * math.ceil(n / threads) / n for part, n in self.vectors)
        return self.parallel * share

    def seconds(self, threads: int, bytes_per_second: float) -> float:
        """Seconds with so many threads, on a machine whose memory is so fast."""
        used: float = threads
        if self.handing_out:
            used = min(used, max(1.0, self.parallel / LEAST_WORK))
        shared = max(self.divided(used), self.interpreter, self.n_bytes / bytes_per_second)
        if self.is_pipeline:
            return max(self.serial, shared)
        return self.serial + self.handing_out * used + shared

    def over_ranks(self, ranks: int, threads: int, spread: float, gather: float) -> float:
        """Seconds of several ranks with so many threads each; see `tools.scaling.Model`."""
        fixed = self.serial + self.handing_out * threads
        work = ranks * self.divided(ranks * threads)
        return Model(work, fixed, spread, gather).inference(ranks)


def terms_of(spent: Sequence[Spent], layers: int) -> Terms:
    """The model of one phase, by what it took with some numbers of threads.

    Parameters
    ----------
    spent : sequence of Spent
        Of one phase. What one thread took counts only where no other number was measured: the
        thread that hands out the work then does it, too.
    layers : int
        Layers of the network.

    Raises
    ------
    DataError
        If nothing was measured.
    """
    several = [each for each in spent if each.threads > 1] or list(spent)
    if not several:
        raise DataError("a model of cores needs what a phase took")
    fewest = min(each.threads for each in several)
    best = min(
        (each for each in several if each.threads == fewest), key=lambda each: each.processor
    )
    kind, _, mode = best.phase.partition(" ")
    is_plan = kind == "plan"
    serial = best.caller if fewest > 1 else 0.0
    parallel = max(0.0, best.processor - serial)
    interpreter = INTERPRETER_PER_LAYER[mode] * layers if is_plan else 0.0
    handing_out = HANDING_OUT if kind == "run" else 0.0
    serial = max(0.0, serial - handing_out * fewest)
    return Terms(serial, parallel, interpreter, best.n_bytes, is_plan, handing_out, best.vectors)


class _Clock:
    """Takes what calls spend."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.spent: list[Spent] = []

    def take(
        self, phase: str, work: Callable[[], _T], n_bytes: Callable[[_T], float], repeats: int = 1
    ) -> _T:
        """Call some work and keep what it spent, the least of some repeats."""
        found = []
        for _ in range(repeats):
            before = time.perf_counter(), time.process_time(), time.thread_time()
            result = work()
            after = time.perf_counter(), time.process_time(), time.thread_time()
            found.append(tuple(end - start for start, end in zip(before, after, strict=True)))
        seconds, processor, caller = min(found)
        self.spent.append(Spent(phase, self.threads, seconds, processor, caller, n_bytes(result)))
        return result


def measure(
    network: Network,
    read: Callable[[KeptThreads], Features],
    threads: int,
    modes: Iterable[str] = MODES,
) -> list[Spent]:
    """Take what all phases spend with a number of threads.

    Parameters
    ----------
    network : Network
        A mode whose plan does not fit into memory is left out.
    read : callable
        Makes the features, with threads.
    threads : int
    modes : iterable of str
    """
    clock, engine = _Clock(threads), CpuEngine(threads)
    try:
        engine.compile(network)
        features = clock.take(FEATURES, lambda: read(engine.kept_threads), _index_bytes)
        for mode in modes:
            _measure_mode(clock, engine, network, features, mode)
    finally:
        engine.close()
    return clock.spent


def _measure_mode(
    clock: _Clock, engine: CpuEngine, network: Network, features: Features, mode: str
) -> None:
    """Take what planning, loading and running spend, after all of it was done on a small scale."""
    warm = engine.plan(Network(network.layers[: min(WARM_LAYERS, network.n_layers)]), mode)
    engine.run(warm, engine.load(warm, features.part(0, min(features.n_features, WARM_FEATURES))))
    bytes_of_edges = PLAN_BYTES_PER_EDGE * network.n_edges
    mask_bytes = BLOCK_MASK_BYTES * features.n_features * features.n_neurons / LANES
    try:
        plan = clock.take(
            f"plan {mode}",
            lambda: engine.plan(network, mode),
            lambda plan: bytes_of_edges + plan.n_bytes,
        )
    except DeviceError:
        return  # it does not fit into memory
    loaded = clock.take(
        "load", lambda: engine.load(plan, features), lambda _: features.indices.nbytes + mask_bytes
    )
    after_first = 2 * 4 * plan.layer_neurons[0]
    output = clock.take(
        f"run {mode}",
        lambda: engine.run(plan, loaded),
        lambda output: mask_bytes + after_first * float(output.n_live[0]),
        REPEATS,
    )
    clock.spent[-1] = replace(clock.spent[-1], vectors=_vectors(features.n_features, output))


def _vectors(n_features: int, output: Output) -> list[tuple[float, int]]:
    """Shares of a run's work by the vectors that enter a layer."""
    entering = np.append(n_features, output.n_distinct[:-1])
    vectors = np.maximum(1, -(-entering // LANES))
    total = max(1, int(output.edges_evaluated.sum()))
    return [
        (float(output.edges_evaluated[vectors == n].sum()) / total, int(n))
        for n in np.unique(vectors)
    ]


def _index_bytes(features: Features) -> float:
    """Bytes of making features: their indices are written, and copied where they are joined."""
    return 3.0 * features.indices.nbytes


def table(
    spent: Sequence[Spent], layers: int, bandwidth: Mapping[int, float], cores: Iterable[int] = ()
) -> str:
    """A Markdown table of the terms of all phases, what was measured, and what is predicted.

    Parameters
    ----------
    spent : sequence of Spent
        What was measured.
    layers : int
        Layers of the network.
    bandwidth : mapping of int to float
        Bytes a second that memory gives to a number of threads.
    cores : iterable of int
        Numbers of threads that get a column, beside those of `bandwidth`.
    """
    numbers = sorted({*bandwidth, *cores})
    lines = [
        "| phase | serial s | parallel s | interpreter s | GB | measured s |"
        + "".join(f" {n} |" for n in numbers),
        "|---" * (6 + len(numbers)) + "|",
    ]
    for phase in dict.fromkeys(each.phase for each in spent):
        own = [each for each in spent if each.phase == phase]
        terms = terms_of(own, layers)
        took = ", ".join(f"{each.threads}: {each.seconds:.3g}" for each in own)
        cells = [
            phase,
            *(f"{number:.3g}" for number in (terms.serial, terms.parallel, terms.interpreter)),
            f"{terms.n_bytes / 1e9:.3g}",
            took,
            *(f"{terms.seconds(n, bandwidth_at(bandwidth, n)):.3g}" for n in numbers),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bandwidth_at(bandwidth: Mapping[int, float], threads: int) -> float:
    """Bytes a second for a number of threads: between two that were measured, in proportion.

    Examples
    --------
    >>> [bandwidth_at({2: 10.0, 4: 30.0}, n) for n in (1, 2, 3, 4, 9)]
    [10.0, 10.0, 20.0, 30.0, 30.0]
    """
    known = sorted(bandwidth.items())
    if not known:
        return float("inf")
    before = [each for each in known if each[0] <= threads]
    after = [each for each in known if each[0] >= threads]
    if not before or not after:
        return (before[-1] if before else after[0])[1]
    (low, slow), (high, fast) = before[-1], after[0]
    return slow if low == high else slow + (fast - slow) * (threads - low) / (high - low)


def read_spent(record: Mapping[str, Any]) -> list[Spent]:
    """What `measure` has written.

    Raises
    ------
    DataError
        If it is something else.
    """
    try:
        return [Spent(**each) for each in record["spent"]]
    except (KeyError, TypeError) as error:
        raise DataError("not what `tools.cores measure` writes") from error


def _measure(arguments: argparse.Namespace) -> str:
    neurons, layers = arguments.neurons, arguments.layers
    network = official_network(neurons, layers)
    source = arguments.inputs or str(find_images(arguments.data or default_folder()) or "digits")

    def read(threads: KeptThreads) -> Features:
        count = arguments.features
        pool = SharedThreads(threads)
        return open_features(source, neurons, count, folder=arguments.data, pool=pool).features

    spent: list[Spent] = []
    for threads in arguments.threads:
        spent += measure(network, read, threads, arguments.modes)
    record = {
        "neurons": neurons,
        "layers": layers,
        "edges": network.n_edges,
        "spent": [asdict(each) for each in spent],
    }
    with whole_file(arguments.json) as file:
        file.write(json.dumps(record, indent=1).encode())
    return table(spent, layers, {}, arguments.threads)


def _table(arguments: argparse.Namespace) -> str:
    try:
        record = json.loads(arguments.record.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{arguments.record}: {error}") from error
    return table(read_spent(record), record["layers"], arguments.bandwidth, CORES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; a mistake is one line and status 2."""
    parser = argparse.ArgumentParser(prog="python -m tools.cores", description=__doc__)
    commands = parser.add_subparsers(required=True)
    measured = commands.add_parser("measure", help="run all phases with some numbers of threads")
    measured.add_argument("neurons", type=int)
    measured.add_argument("layers", type=int)
    measured.add_argument("--threads", type=_numbers, default=(1, 2), metavar="N,N,...")
    measured.add_argument("--json", type=Path, required=True, metavar="FILE")
    measured.add_argument("--modes", type=_modes, default=MODES, metavar="MODE,...")
    measured.add_argument("--features", type=int)
    measured.add_argument("--inputs", help="as for spdnn run; MNIST's images, else the digits")
    measured.add_argument("--data", type=Path)
    measured.set_defaults(command=_measure)
    tabled = commands.add_parser("table", help="a table and a model of what was measured")
    tabled.add_argument("record", type=Path)
    tabled.add_argument("--bandwidth", type=_bandwidth, default={}, metavar="N:GB/s,...")
    tabled.set_defaults(command=_table)
    parsed = parser.parse_args(arguments)
    try:
        print(parsed.command(parsed))
    except SpdnnError as error:
        print(f"cores: error: {error}", file=sys.stderr)
        return 2
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from 1, with commas between."""
    numbers = tuple(map(int, text.split(",")))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("numbers of threads begin at 1")
    return numbers


def _modes(text: str) -> tuple[str, ...]:
    """Modes, with commas between."""
    modes = tuple(text.split(","))
    if not set(modes) <= set(MODES):
        raise argparse.ArgumentTypeError(f"modes are {', '.join(MODES)}")
    return modes


def _bandwidth(text: str) -> dict[int, float]:
    """Bytes a second by threads, from a text such as ``2:30,16:200``."""
    pairs = (pair.split(":") for pair in text.split(","))
    return {int(threads): 1e9 * float(gigabytes) for threads, gigabytes in pairs}


if __name__ == "__main__":
    sys.exit(main())
