"""What an H200 could do at best by counts: ``python -m tools.gpu_bounds --neurons 4096``.

These are bounds, and no measurements of anything.

Kernels are counted on the emulated GPU, in small runs of each official size. What the engine
launches in a whole run is played back. Each launch then takes at least as long as the resource that
it uses most, and the host's time and waits are added. docs/gpu.md names all assumptions.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.challenge import EDGES_PER_NEURON, FEATURES, SIZES
from spdnn.engines.cuda.emulated.counts import Counted, Counts
from spdnn.engines.cuda.kernels.gpu import WARP
from spdnn.engines.cuda.sizes import CudaSizes, sizes_for
from spdnn.features import Features
from spdnn.plan.cuda.sizes import PlanSizes
from spdnn.recipes.radixnet import KRONECKER_WIDTH, layers_per_group
from tools.gpu_counts import CountedRun, counted_run, table
from tools.playback import Asked, Playback, played

FIRST_LIVE = (54687, 40498, 23042, 12010, 6537, 4087, 2774, 2128, 1939, 1874)
"""Live features after the first layers of 1024 neurons; other sizes are much the same."""


class Machine(NamedTuple):
    """What an H200 has (NVIDIA's data sheet), and what is assumed of it.

    Attributes
    ----------
    multiprocessors : int
    clock : float
        Clocks a second.
    schedulers : int
        Schedulers of a multiprocessor: each issues an instruction of a warp a clock. As many
        multiply-adds of warps can be done.
    l2, l2_of_one : float
        Bytes a second that L2 gives to all multiprocessors; bytes a clock to one (assumed).
    l2_bytes : float
        Size of L2: so much of the activations need not come from memory.
    memory : float
        Bytes a second.
    memory_bytes, shared_bytes : int
        Sizes of the memory, and of the shared memory that a thread block may have.
    """

    multiprocessors: int = 132
    clock: float = 1.98e9
    schedulers: int = 4
    l2: float = 5.5e12
    l2_of_one: float = 64
    l2_bytes: float = 50e6
    memory: float = 4.8e12
    memory_bytes: int = 141 * 10**9
    shared_bytes: int = 227 << 10


H200 = Machine()

LAUNCH_GAP = 1.5e-6
"""Seconds between two kernels of a stream on the GPU. Assumed: 1 to 2 microseconds are common."""

WAIT_SECONDS = 10e-6
"""Seconds from the end of a kernel to the host going on behind a copy of its result. Assumed."""

COPY_SECONDS = 5e-6
"""Seconds of the host for a copy or fill that does not wait. Assumed."""

COPY_RATE = 10e9
"""Bytes a second of copies from and to memory of the host that is not pinned. Assumed."""

HOST_SECONDS = {"grouped": 64e-6, "staged": 94e-6, "resident": 96e-6, "list": 66e-6}
"""Seconds of the host for a launch, by the beginning of the kernel's name: the arguments, measured
with the driver stubbed on a Xeon of 2.6 GHz. Any other kernel is taken to be as a list."""

PACKED_SECONDS = 3e-6
"""The same where a kernel's arguments are packed once."""

LISTED = (512, 2048, 12000, FEATURES)
"""Numbers of features with which lists and other kernels around the layers are counted."""

FEW_NEURONS = 64
"""Neurons of the network with which they are counted."""

FIRST_FEATURES = 512
"""Features with which the first layers are counted; they die as the official ones do."""

FIRST_LAYERS = 4
"""Layers that have enough of these features to be counted."""

STEADY_FEATURES = 256
"""Features with which later layers are counted, where all live on. A network for the resident
kernel has as many as in the end, so that thread blocks carry as many of them."""

STEADY_LAYERS = {True: 24, False: 3}
"""Layers of these runs, for the resident kernel and for launches a step. The resident kernel's
conflicts differ from layer to layer, and it takes several layers in a launch."""

LOADED_FEATURES = 64
"""Features with which the loading of inputs is counted."""

SAMPLE = 8
"""Thread blocks that are counted of each launch."""

RESOURCES = ("multiply-adds", "issue", "shared + L1", "L2", "memory")
"""What a launch is bound by."""


def live_after(neurons: int, n_layers: int) -> list[int]:
    """Live features after each layer of an official network."""
    live = [*FIRST_LIVE, *[SIZES[neurons].categories] * n_layers]
    return live[:n_layers]


def uniform_features(neurons: int, dies_after: npt.NDArray[np.int64], bias: float) -> Features:
    """Features whose activations are all equal, and that die after given layers.

    Their inputs make every output of the first layer 2 x + bias for a number x, and so on from
    layer to layer: numbers up to -bias fall below zero, sooner or later.

    Parameters
    ----------
    neurons : int
        Neurons of an official network, or one of its kind.
    dies_after : ndarray, int64
        The layer, from 1, after which each feature is dead; 0 for one that lives on.
    bias : float
        The network's bias.
    """
    per_feature = neurons // KRONECKER_WIDTH
    # Half-way between numbers that die one layer earlier, and those that die in this layer.
    starts = -bias * (1 - 0.75 * 0.5 ** (dies_after - 1.0))
    starts[dies_after == 0] = 1.0
    return Features(
        neurons,
        np.arange(dies_after.size + 1, dtype=np.int64) * per_feature,
        np.tile(np.arange(per_feature, dtype=np.int32), dies_after.size),
        np.repeat(KRONECKER_WIDTH * starts, per_feature).astype(np.float32),
    )


def lasting_features(neurons: int, count: int) -> Features:
    """Features that live on in an official network."""
    return uniform_features(neurons, np.zeros(count, np.int64), -1.0)


def dying_features(neurons: int) -> Features:
    """A few features that die as the official ones do, in any order."""
    n_live = np.array([FEATURES, *FIRST_LIVE[:FIRST_LAYERS]])
    died = np.repeat(
        [*range(1, FIRST_LAYERS + 1), 0],
        np.diff(np.round(FIRST_FEATURES * (1 - np.array([*n_live, 0]) / FEATURES)).astype(int)),
    )
    return uniform_features(
        neurons, np.random.default_rng(0).permutation(died), SIZES[neurons].bias
    )


def scattered_features(neurons: int) -> Features:
    """Features with as many inputs as the official ones have, in places drawn by chance."""
    n_inputs = SIZES[neurons].input_nonzeros // FEATURES
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.permutation(neurons)[:n_inputs]) for _ in range(LOADED_FEATURES)]
    indptr = np.arange(LOADED_FEATURES + 1, dtype=np.int64) * n_inputs
    return Features(neurons, indptr, np.concatenate(rows).astype(np.int32))


class Costs:
    """What launches of a network's kernels cost, by counts.

    Parameters
    ----------
    neurons : int
        An official size.
    loading, first, steady : CountedRun
        Runs whose features have as many inputs as the official ones, die as these do, and live on.
    around : list of (int, list of Counted)
        Launches of the kernels around the layers, by the number of features.
    sizes : CudaSizes
    """

    def __init__(
        self,
        neurons: int,
        loading: CountedRun,
        first: CountedRun,
        steady: CountedRun,
        around: list[tuple[int, list[Counted]]],
        sizes: CudaSizes,
    ) -> None:
        self.neurons, self.sizes = neurons, sizes
        self.loading, self.first, self.steady, self.around = loading, first, steady, around

    def of_block(self, kernel: str, first: int, end: int) -> Counts:
        """What a working thread block costs, for the steps from `first` to `end` (excluded)."""
        begins = 0
        for launch in self.first.of_kernel(kernel):
            if (begins, begins + launch.n_steps) == (first, end):
                return a_block(launch.counts)
            begins += launch.n_steps
        n_steps, longest = self._longest(kernel)
        return longest.plus(self.of_step(kernel), end - first - n_steps)

    def of_step(self, kernel: str) -> Counts:
        """What a working thread block costs for each further step of a launch."""
        steady = self.steady.of_kernel(kernel)
        lengths = sorted({launch.n_steps for launch in steady})
        n_steps, longest = self._longest(kernel)
        if len(lengths) == 1:
            return longest.scaled(1 / n_steps)
        # The longest launches, and the next longest ones: each step costs what these have more.
        shorter = [a_block(each.counts) for each in steady if each.n_steps == lengths[-2]]
        return longest.plus(mean(shorter), -1).scaled(1 / (n_steps - lengths[-2]))

    def _longest(self, kernel: str) -> tuple[int, Counts]:
        """Steps of the longest launches, and what a working thread block of them costs."""
        steady = self.steady.of_kernel(kernel)
        if not steady:
            raise ValueError(f"kernel {kernel} is launched and has not been counted")
        n_steps = max(launch.n_steps for launch in steady)
        return n_steps, mean([a_block(each.counts) for each in steady if each.n_steps == n_steps])

    def names_around(self, beginning: str) -> list[str]:
        """Names of the kernels around the layers that begin so."""
        names = dict.fromkeys(each.kernel for _, launches in self.around for each in launches)
        return [name for name in names if name.startswith(beginning)]

    def of_launch(self, kernel: str, n: int) -> Counts:
        """What all blocks of a launch of a kernel around the layers cost, for `n` features.

        It is on a line between the numbers of features with which the kernel was counted.
        """
        points = []
        for count, launches in self.around:
            if several := [each.counts for each in launches if each.kernel == kernel]:
                points.append((count, mean(several)))
        if not points:
            raise ValueError(f"kernel {kernel} is launched and has not been counted")
        if len(points) == 1:
            return points[0][1].scaled(n / points[0][0])
        before = sum(count <= n for count, _ in points[1:-1])
        (less, small), (more, large) = points[before : before + 2]
        a_feature = large.plus(small, -1).scaled(1 / (more - less))
        return small.plus(a_feature, n - less)


def a_block(counts: Counts) -> Counts:
    """What a thread block costs that works."""
    return counts.scaled(1 / max(counts.working, 1))


def mean(several: Sequence[Counts]) -> Counts:
    """The mean of some counts."""
    total = Counts.none()
    for each in several:
        total = total.plus(each)
    return total.scaled(1 / max(len(several), 1))


@cache
def counted_around() -> tuple[tuple[int, tuple[Counted, ...]], ...]:
    """Count the kernels around the layers for few and for all features."""
    found = []
    for count in LISTED:
        launches: list[Counted] = []
        for sizes in (None, PlanSizes(shared_bytes=0)):
            features = lasting_features(FEW_NEURONS, count)
            launches += counted_run(
                FEW_NEURONS, 2, features, sample=SAMPLE, plan_sizes=sizes, bias=-0.3
            ).launches
        found.append((count, tuple(launches)))
    return tuple(found)


@cache
def costs_of(neurons: int) -> Costs:
    """Count the kernels of an official size."""
    loading = counted_run(neurons, 1, scattered_features(neurons), sample=SAMPLE)
    # With one multiprocessor, thread blocks of the resident kernel are as with many features.
    first = counted_run(
        neurons, FIRST_LAYERS, dying_features(neurons), sample=SAMPLE, multiprocessors=1
    )
    is_resident = any(each.kernel.startswith("resident") for each in first.launches)
    count = SIZES[neurons].categories if is_resident else STEADY_FEATURES
    # Inputs of the first group of layers are not permuted, which spares conflicts.
    steady = counted_run(
        neurons,
        STEADY_LAYERS[is_resident],
        lasting_features(neurons, count),
        sample=SAMPLE,
        skipped=layers_per_group(neurons),
    )
    around = [(count, list(launches)) for count, launches in counted_around()]
    return Costs(neurons, loading, first, steady, around, sizes_for(H200.shared_bytes))


class Bound(NamedTuple):
    """The least time of a launch.

    Attributes
    ----------
    kernel : str
    n_blocks : float
        Thread blocks that work.
    seconds : tuple of float
        Least seconds by each of `RESOURCES`.
    """

    kernel: str
    n_blocks: float
    seconds: tuple[float, ...]

    @property
    def least(self) -> float:
        """The longest of them."""
        return max(self.seconds)


def features_of(kernel: str) -> int:
    """Features of a thread block of the resident kernel, the first number in its name.

    Examples
    --------
    >>> features_of("resident 16, groups")
    16
    """
    found = re.search(r"\d+", kernel)
    assert found is not None
    return int(found[0])


def bound_of(asked: Asked, n: int, costs: Costs, machine: Machine = H200) -> Bound:
    """The least time of a launch.

    Thread blocks are shared out evenly: the multiprocessor with the most of them bounds what each
    multiprocessor has of its own.

    Parameters
    ----------
    asked : Asked
    n : int
        Features that enter the launch.
    costs : Costs
    machine : Machine
    """
    sizes, neurons = costs.sizes, costs.neurons
    activations = 4.0 * neurons * n
    moved = 0.0
    if asked.kernel.startswith(("grouped", "staged", "resident")):
        block = costs.of_block(asked.kernel, asked.first, asked.end)
        # The grid is for as many features as the host knows of; blocks beyond `n` return at once.
        if asked.kernel.startswith("resident"):
            n_blocks = float(-(-n // features_of(asked.kernel)))
        else:
            is_grouped = asked.kernel.startswith("grouped")
            width = WARP * sizes.thread_features if is_grouped else sizes.minibatch
            n_blocks = float(asked.grid[0] * -(-n // width))
        weights = 4.0 * EDGES_PER_NEURON * neurons * (asked.end - asked.first)
        moved = weights + max(0.0, 2 * activations - machine.l2_bytes)
    elif asked.kernel.startswith("load"):
        block = a_block(costs.loading.of_kernel(asked.kernel)[0].counts)
        n_blocks = float(np.prod(asked.grid))
        inputs = 4.0 * SIZES[neurons].input_nonzeros * n / FEATURES
        moved = inputs + max(0.0, activations - machine.l2_bytes)
    elif asked.kernel.startswith("look"):
        of_all = costs.steady.of_kernel(asked.kernel)[0].counts
        n_blocks = float(np.prod(asked.grid))
        block = of_all.scaled(n / costs.steady.n_live[-1] / n_blocks)
    else:
        n_blocks = float(np.prod(asked.grid))
        block = costs.of_launch(asked.kernel, n).scaled(1 / n_blocks)
    most = -(-n_blocks // machine.multiprocessors)
    clocks = (
        block.warp_multiply_adds / machine.schedulers,
        block.warp_instructions / machine.schedulers,
        block.shared_wavefronts + block.global_wavefronts,
    )
    sector_bytes = 32 * block.least_sectors
    l2 = max(
        n_blocks * sector_bytes / machine.l2,
        most * sector_bytes / machine.l2_of_one / machine.clock,
    )
    of_one = tuple(most * each / machine.clock for each in clocks)
    return Bound(asked.kernel, n_blocks, (*of_one, l2, moved / machine.memory))


@dataclass(frozen=True)
class Played:
    """A run of an official network, by bounds.

    Attributes
    ----------
    neurons, n_layers : int
    bounds : list of Bound
        All launches.
    n_waits : int
        Times that the host waits for the GPU.
    seconds : float
        Least seconds of it all: kernels, the gaps between them, the host and its waits.
    kernels : float
        Least seconds of the kernels alone.
    host : float
        Seconds of the host for what it asks for, without waits.
    """

    neurons: int
    n_layers: int
    bounds: list[Bound]
    n_waits: int
    seconds: float
    kernels: float
    host: float

    def rate(self, seconds: float) -> float:
        """TeraEdges/s of the network in so many seconds."""
        edges = FEATURES * self.neurons * EDGES_PER_NEURON * self.n_layers
        return edges / seconds / 1e12

    def shares(self) -> dict[str, float]:
        """Shares of the time that launches are bound by each resource, and what comes on top."""
        shares = dict.fromkeys(RESOURCES, 0.0)
        for bound in self.bounds:
            shares[RESOURCES[int(np.argmax(bound.seconds))]] += bound.least / self.seconds
        shares["gaps"] = LAUNCH_GAP * len(self.bounds) / self.seconds
        shares["host and waits"] = max(0.0, 1 - sum(shares.values()))
        return shares

    def of_resource(self, place: int) -> float:
        """Seconds that all launches take at least by one of `RESOURCES`."""
        return sum(bound.seconds[place] for bound in self.bounds)


def measured_host(kernel: str) -> float:
    """Seconds of the host for a launch, as measured."""
    for name, seconds in HOST_SECONDS.items():
        if kernel.startswith(name):
            return seconds
    return HOST_SECONDS["list"]


def packed_host(kernel: str) -> float:
    """Seconds of the host for a launch whose arguments are packed once."""
    return PACKED_SECONDS


@cache
def asked_for(neurons: int, n_layers: int) -> tuple[Asked, ...]:
    """What the engine asks for in a run of an official network, in mode ``edges``."""
    machine, live = H200, live_after(neurons, n_layers)
    device = Playback(live, machine.multiprocessors, machine.shared_bytes, machine.memory_bytes)
    sizes = sizes_for(machine.shared_bytes)
    return tuple(played(neurons, n_layers, FEATURES, live, device, sizes))


def played_by_bounds(
    neurons: int, n_layers: int, costs: Costs, host_seconds: Callable[[str], float]
) -> Played:
    """Go through a run: the host asks, the GPU does, and the host waits where it reads.

    Parameters
    ----------
    neurons, n_layers : int
        An official network.
    costs : Costs
    host_seconds : callable
        Seconds of the host for a launch, by the kernel's name.
    """
    entering = [FEATURES, *live_after(neurons, n_layers)]
    bounds: list[Bound] = []
    of: dict[tuple[str, tuple[int, ...], int, int, int], Bound] = {}
    host = gpu = waited = kernels = 0.0
    n_waits = 0
    comes: dict[int, float] = {}
    for asked in asked_for(neurons, n_layers):
        if asked.kind == "launch":
            # What follows a step sees as many features as it.
            is_step = asked.end > asked.first
            n = entering[asked.first if is_step else max(0, asked.first - 1)]
            n = entering[-1] if asked.kernel.startswith("look") else n
            key = (
                asked.kernel,
                asked.grid,
                min(asked.first, FIRST_LAYERS),
                asked.end - asked.first,
                n,
            )
            if key not in of:
                of[key] = bound_of(asked, n, costs)
            bounds.append(of[key])
            host += host_seconds(asked.kernel)
            gpu = max(gpu, host) + LAUNCH_GAP + of[key].least
            kernels += of[key].least
        elif asked.kind == "read later":
            host += COPY_SECONDS
            gpu = max(gpu, host)
            comes[asked.number] = gpu
        elif asked.kind == "wait":
            n_waits += 1
            waited += max(0.0, comes[asked.number] - host) + WAIT_SECONDS
            host = max(host, comes[asked.number]) + WAIT_SECONDS
        elif asked.kind == "write":
            host += COPY_SECONDS + asked.n_bytes / COPY_RATE
        elif asked.kind == "fill":
            host += COPY_SECONDS
            gpu = max(gpu, host) + LAUNCH_GAP + asked.n_bytes / H200.memory
        else:
            n_waits += 1
            waited += max(0.0, gpu - host) + WAIT_SECONDS
            host = max(host, gpu) + WAIT_SECONDS + asked.n_bytes / COPY_RATE
    return Played(neurons, n_layers, bounds, n_waits, max(host, gpu), kernels, host - waited)


def printed(run: Played) -> str:
    """What each kernel takes at least in a run, in milliseconds, and all of it."""
    rows = [["kernel", "launches", "ms at least", *RESOURCES]]
    for name in dict.fromkeys(bound.kernel for bound in run.bounds):
        bounds = [bound for bound in run.bounds if bound.kernel == name]
        sums = np.sum([bound.seconds for bound in bounds], axis=0)
        times = [sum(bound.least for bound in bounds), *sums]
        rows.append([name, f"{len(bounds):,}", *(f"{1e3 * each:,.3f}" for each in times)])
    shares = (f"{name} {share:.0%}" for name, share in run.shares().items() if share >= 0.005)
    return "\n".join(
        [
            table(rows),
            f"in all {1e3 * run.seconds:.3f} ms at least, {run.rate(run.seconds):.0f} TeraEdges/s "
            f"at most: {', '.join(shares)}",
            f"kernels alone {1e3 * run.kernels:.3f} ms, {run.rate(run.kernels):.0f} TeraEdges/s; "
            f"host {1e3 * run.host:.3f} ms and {run.n_waits} waits",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the bounds of a run."""
    parser = argparse.ArgumentParser(description="Bounds of a run on an H200, by counts")
    parser.add_argument("--neurons", type=int, choices=sorted(SIZES), default=1024)
    parser.add_argument("--layers", type=int, default=120)
    parser.add_argument(
        "--host-us", type=float, help="microseconds of the host for a launch; 64 to 96 by default"
    )
    options = parser.parse_args(arguments)

    def host(kernel: str) -> float:
        given = options.host_us
        return measured_host(kernel) if given is None else 1e-6 * given

    costs = costs_of(options.neurons)
    run = played_by_bounds(options.neurons, options.layers, costs, host)
    sys.stdout.write(printed(run) + "\n")


if __name__ == "__main__":
    main()
