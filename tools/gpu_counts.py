"""What kernels cost by counts: ``python -m tools.gpu_counts --neurons 1024``.

An official network is run on the emulated GPU, with a few of its features and layers. The table
says what each kernel cost, for a thread block that works and a step. No number is a time.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spdnn.challenge import SIZES
from spdnn.engines.cuda.emulated.counts import Counted, CountedDevice, Counts, HostCounts
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.sizes import sizes_for
from spdnn.features import Features
from spdnn.io.idx import read_images
from spdnn.network import Network
from spdnn.plan.cuda.sizes import PlanSizes
from spdnn.recipes.digits import digit_features
from spdnn.recipes.images import enlarge
from spdnn.recipes.mnist import image_side
from spdnn.recipes.radixnet import official_network
from spdnn.sources.folder import data_folder, find_images

COLUMNS: tuple[tuple[str, Callable[[Counts], float]], ...] = (
    ("instructions", lambda counts: counts.warp_instructions),
    ("multiply-adds", lambda counts: counts.warp_multiply_adds),
    ("shared loads", lambda counts: counts.shared_load_wavefronts),
    ("ideal", lambda counts: counts.shared_load_ideal),
    ("shared stores", lambda counts: counts.shared_store_wavefronts),
    ("ideal", lambda counts: counts.shared_store_ideal),
    ("L1", lambda counts: counts.global_wavefronts),
    ("sectors loaded", lambda counts: counts.global_load_sectors),
    ("new ones", lambda counts: counts.new_sectors),
    ("stored", lambda counts: counts.global_store_sectors),
    ("atomic", lambda counts: counts.atomic_sectors),
    ("barriers", lambda counts: counts.barriers),
)
"""Heads of the table, and what stands below them, for each block that works, and step."""

SHOWN = 40
"""Instructions that are shown, those with the most wavefronts."""


@dataclass(frozen=True)
class CountedRun:
    """What a run cost.

    Attributes
    ----------
    launches : list of Counted
        All launches in their order.
    host : HostCounts
        What else the host asked for.
    n_live : list of int
        Live features after each layer.
    """

    launches: list[Counted]
    host: HostCounts
    n_live: list[int]

    def of_kernel(self, name: str) -> list[Counted]:
        """The launches of a kernel, in their order."""
        return [launch for launch in self.launches if launch.kernel == name]


def some_features(neurons: int, count: int, images: Path | None) -> Features:
    """Inputs of the official recipe, made of the first images of a file, or of digits.

    Parameters
    ----------
    neurons, count : int
        Neurons of the network, and how many features are made.
    images : Path or None
        An IDX file; where not given, digits that need no file.
    """
    if images is None:
        return digit_features(neurons, count)
    return enlarge(read_images(images)[:count], image_side(neurons), count)


def counted_run(
    neurons: int,
    n_layers: int,
    features: Features,
    mode: str = "edges",
    sample: int | None = None,
    plan_sizes: PlanSizes | None = None,
    multiprocessors: int | None = None,
    bias: float | None = None,
    skipped: int = 0,
) -> CountedRun:
    """Run the first layers of an official network, and count.

    Parameters
    ----------
    neurons, n_layers : int
        The network.
    features : Features
        Its inputs.
    mode : {"edges", "merge"}
        How it is planned.
    sample : int, optional
        Blocks of each launch that are counted; all by default.
    plan_sizes : PlanSizes, optional
        What the plan is made for; by default what an H200 has.
    multiprocessors : int, optional
        Multiprocessors that the GPU is said to have: with few of them a block of the resident
        kernel carries as many features as with many features.
    bias : float, optional
        The bias of each neuron; that of the official network by default.
    skipped : int
        Layers that are left out before the first one.
    """
    device = CountedDevice(sample=sample)
    device.n_multiprocessors = multiprocessors or device.n_multiprocessors
    sizes = sizes_for(device.shared_bytes)
    if plan_sizes is not None:
        sizes = replace(sizes, plan=plan_sizes)
    engine = CudaEngine(device=device, sizes=sizes)
    whole = official_network(neurons, skipped + n_layers, bias)
    network = Network([whole.layers[place] for place in range(skipped, skipped + n_layers)])
    plan = engine.plan(network, mode)
    loaded = engine.load(plan, features)
    device.host = HostCounts()
    output = engine.run(plan, loaded)
    return CountedRun(device.launches, device.host, [int(n) for n in output.n_live])


def row_of(name: str, launches: Sequence[Counted]) -> list[str]:
    """A line of the table: what a block that works costs in a step."""
    total, block_steps = Counts.none(), 0.0
    for launch in launches:
        total = total.plus(launch.counts)
        block_steps += launch.counts.working * launch.n_steps
    n_steps = sum(launch.n_steps for launch in launches)
    head = [name, f"{len(launches):,}", f"{n_steps:,}"]
    head += [f"{total.working:,.0f}", f"{total.returned:,.0f}"]
    return [*head, *(f"{of(total) / max(block_steps, 1):,.1f}" for _, of in COLUMNS)]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines in columns, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def accesses_of(launches: Sequence[Counted]) -> list[list[str]]:
    """Lines for the instructions of each kernel that take the most wavefronts."""
    found: dict[tuple[str, int, str], list[int]] = {}
    for launch in launches:
        for access in launch.accesses:
            key = launch.kernel, access.place, access.text
            sums = found.setdefault(key, [0, 0, 0])
            for place, number in enumerate(access[2:]):
                sums[place] += number
    rows = [["instruction", "place", "kernel", "requests", "wavefronts", "at least"]]
    for (kernel, place, text), sums in sorted(found.items(), key=lambda item: -item[1][1])[:SHOWN]:
        rows.append([text, str(place), kernel, *(f"{number:,}" for number in sums)])
    return rows


def regions_of(launches: Sequence[Counted]) -> list[list[str]]:
    """Lines for the runs of instructions of each kernel that warps spend the most on."""
    times: dict[tuple[str, int], int] = {}
    of_place = {}
    for launch in launches:
        for region in launch.regions:
            key = launch.kernel, region.first
            times[key] = times.get(key, 0) + region.times
            of_place[key] = region
    ordered = sorted(times, key=lambda key: -times[key] * of_place[key].instructions)
    rows = [["first instruction", "place", "kernel", "instructions", "multiply-adds", "executed"]]
    for key in ordered[:SHOWN]:
        region = of_place[key]
        numbers = times[key] * region.instructions, times[key] * region.multiply_adds, times[key]
        rows.append([region.text, str(region.first), key[0], *(f"{n:,}" for n in numbers)])
    return rows


def printed(run: CountedRun, *, each: bool) -> str:
    """What is printed of a run: a line for each kernel, or for each launch."""
    rows = [["kernel", "launches", "steps", "blocks", "returned", *(head for head, _ in COLUMNS)]]
    if each:
        rows += [row_of(f"{launch.kernel} {launch.grid}", [launch]) for launch in run.launches]
    names = dict.fromkeys(launch.kernel for launch in run.launches)
    rows += [row_of(name, run.of_kernel(name)) for name in names]
    host = run.host
    return "\n".join(
        [
            table(rows),
            f"live features after each layer: {' '.join(map(str, run.n_live))}",
            f"host: {host.waits} waits, {host.reads} reads of {host.read_bytes:,} bytes, "
            f"{host.writes} writes of {host.written_bytes:,} bytes, {host.fills} fills",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, and print the table."""
    parser = argparse.ArgumentParser(description="Counts of the GPU kernels, by the emulated GPU")
    parser.add_argument("--neurons", type=int, choices=sorted(SIZES), default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--mode", choices=("edges", "merge"), default="edges")
    parser.add_argument("--sample", type=int, help="thread blocks of a launch that are counted")
    parser.add_argument(
        "--launch-a-step", action="store_true", help="do not plan for the resident kernel"
    )
    parser.add_argument("--launches", action="store_true", help="a line for each launch, too")
    parser.add_argument(
        "--instructions", action="store_true", help="which instructions take the most"
    )
    parser.add_argument(
        "--multiprocessors", type=int, default=1, help="which the GPU seems to have"
    )
    parser.add_argument("--data", type=Path, help="folder with MNIST's training images")
    options = parser.parse_args(arguments)
    images = find_images(data_folder(options.data))
    features = some_features(options.neurons, options.features, images)
    run = counted_run(
        options.neurons,
        options.layers,
        features,
        options.mode,
        options.sample,
        PlanSizes(shared_bytes=0) if options.launch_a_step else None,
        options.multiprocessors,
    )
    if options.instructions:
        sys.stdout.write(table(accesses_of(run.launches)) + "\n\n")
        sys.stdout.write(table(regions_of(run.launches)) + "\n\n")
    sys.stdout.write(printed(run, each=options.launches) + "\n")


if __name__ == "__main__":
    main()
