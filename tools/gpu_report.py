"""Write what the GPU kernels' machine code says into docs/gpu.md: ``make gpu-report``.

The tables stand between marks in that page; what is around them is written by hand. The estimates
are upper bounds by a roofline (S. Williams, A. Waterman, D. Patterson, 2009) or by counts, not
measurements.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.challenge import DEPTHS, EDGES_PER_NEURON, FEATURES, SIZES
from spdnn.engines.cuda.emulated.counts import Counts
from spdnn.engines.cuda.sizes import CudaSizes
from spdnn.io.files import whole_file
from spdnn.network import Layer, Network
from spdnn.plan.chunks import END_CHUNK, FIRST_CHUNK
from spdnn.plan.cuda.plan import CudaPlan, plan_cuda
from spdnn.plan.cuda.sizes import PlanSizes, resident_choices, suits_resident
from spdnn.recipes.power_law import power_law_layer
from tools.gpu_bounds import (
    FIRST_LIVE,
    RESOURCES,
    Costs,
    costs_of,
    measured_host,
    packed_host,
    played_by_bounds,
)
from tools.machine_code import (
    ARCHITECTURES,
    Loop,
    Variant,
    assembled,
    loops,
    occupancy,
    variants,
)

SCHEDULERS = 4
"""Schedulers of a multiprocessor: each issues an instruction for 32 threads a clock."""

SKEWED = (16384, 32)
"""Neurons of the power-law layer, and the mean number of their inputs."""

SKEWED_FEATURES = (16, 1812, FEATURES)
"""Numbers of features for its estimate: a minibatch, those live in the end, all."""

STAGING = 3
"""Instructions that stage an input for 16 features, in 16 threads at least: map, load, store."""

ENTRY_BYTES = 6
"""Bytes of an ELL entry: weight and index."""

TRAFFIC = 3 * 4
"""Bytes a neuron and feature that a launch a step moves: read by two groups, written once."""

AROUND_NEURONS = ("grouped", "staged", "resident", "load", "look")
"""Kernels whose launches cost more with more neurons; those of all others do not."""

MARK = "<!-- {} -->"


class Gpu(NamedTuple):
    """What a GPU could do at best, from NVIDIA's data sheets; L2 as docs/gpu.md says.

    Attributes
    ----------
    name : str
    architecture : int
        Its place in `ARCHITECTURES`.
    multiply_adds : float
        Fused multiply-adds a second.
    memory, l2 : float
        Bytes a second from memory and from the L2 cache.
    shared_bytes : int
        Shared memory that a thread block may have.
    clock : float
        Clocks a second.
    """

    name: str
    architecture: int
    multiply_adds: float
    memory: float
    l2: float
    shared_bytes: int
    clock: float


GPUS = (
    Gpu("A100", 0, 9.75e12, 2.0e12, 7.2e12, 163 << 10, 1.41e9),
    Gpu("H200", 1, 33.5e12, 4.8e12, 5.5e12, 227 << 10, 1.98e9),
)

PUBLISHED = {
    (1024, 120): (16.74, 15.8),
    (4096, 120): (14.27, 24.16),
    (16384, 120): (11.6, 26.41),
    (65536, 120): (8.15, 26.98),
    (1024, 1920): (20.68, 26.37),
    (4096, 1920): (19.86, 48.35),
    (16384, 1920): (15.27, 55.2),
    (65536, 1920): (9.33, 55.58),
}
"""TeraEdges/s: Hidayetoglu et al. (HPEC 2020, table I, one A100), and XY (Xin et al., HPEC 2021) on
one RTX A6000 as run by SNICIT's authors (ICPP 2023, table 3)."""


def fma_share(loop: Loop) -> float:
    """Share of the peak of multiply-adds that the loop's other instructions leave at best.

    Parameters
    ----------
    loop : Loop

    A scheduler issues one instruction a clock; shared memory and the L1 cache give a
    multiprocessor 32 numbers a clock.
    """
    clocks = max(loop.instructions / SCHEDULERS, loop.shared_words + loop.global_words)
    return loop.ffma / SCHEDULERS / clocks


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table in Markdown.

    Parameters
    ----------
    heads : tuple of str
    rows : sequence of tuple of str
    """
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def kernel_table(kernels: list[Variant]) -> str:
    """Registers, shared memory and occupancy of all kernels."""
    rows = []
    for variant in kernels:
        codes = [assembled(variant, architecture) for architecture in ARCHITECTURES]
        shares = [
            occupancy(variant, code, architecture)
            for code, architecture in zip(codes, ARCHITECTURES, strict=True)
        ]
        rows.append(
            (
                variant.name,
                str(variant.n_threads),
                " / ".join(str(code.registers) for code in codes),
                str(sum(code.spill_bytes + code.stack_bytes for code in codes)),
                f"{codes[0].shared_bytes:,} + {variant.dynamic_bytes:,}",
                " / ".join(f"{share:.0%}" for share in shares),
            )
        )
    names = " / ".join(architecture.name for architecture in ARCHITECTURES)
    heads = ("kernel", "threads", f"registers ({names})", "stack and spills, bytes")
    return table((*heads, "shared memory, static + dynamic", "occupancy"), rows)


def loop_table(kernels: list[Variant]) -> str:
    """What the inner loops of the kernels that multiply consist of."""
    rows = []
    for variant in kernels:
        for loop in loops(assembled(variant, ARCHITECTURES[1]).sass)[:1]:
            if not loop.ffma:
                continue
            rows.append(
                (
                    variant.name,
                    str(loop.ffma),
                    f"{loop.shared_loads} ({loop.shared_words})",
                    f"{loop.global_loads} ({loop.global_words})",
                    str(loop.others),
                    f"{loop.ffma / max(loop.shared_loads, 1):.1f}",
                    f"{loop.ffma / loop.instructions:.0%}",
                    f"{fma_share(loop):.0%}",
                )
            )
    heads = ("kernel", "FFMA", "shared loads (words)", "global loads (words)", "others")
    return table((*heads, "FFMA a shared load", "FFMA of all", "of peak at best"), rows)


def seconds_at_best(gpu: Gpu, neurons: int, layers: int, shares: dict[str, float]) -> float:
    """Seconds of inference in mode edges that the roofline allows.

    Parameters
    ----------
    gpu : Gpu
    neurons, layers : int
        An official network.
    shares : dict of str to float
        `fma_share` by the name of the kernel.
    """
    size = SIZES[neurons]
    entering = [FEATURES, *FIRST_LIVE][:layers]
    entering += [size.categories] * (layers - len(entering))
    sizes = PlanSizes(shared_bytes=gpu.shared_bytes)
    edges = neurons * EDGES_PER_NEURON
    is_resident = suits_resident([neurons] * (layers + 1), layers * edges, sizes)
    seconds = 0.0
    for n in entering:
        if is_resident:
            most = resident_choices(neurons, gpu.shared_bytes)[0]
            computing = n * edges / (gpu.multiply_adds * shares[f"resident {most}, groups"])
            moving = -(-n // most) * 4 * edges / gpu.l2
        else:
            computing = n * edges / (gpu.multiply_adds * shares["grouped 16 x 4"])
            moving = TRAFFIC * neurons * n / gpu.memory
        seconds += max(computing, moving)
    return seconds


def estimate_table(kernels: list[Variant]) -> str:
    """TeraEdges/s at best, beside published figures of others."""
    rows = []
    for (neurons, layers), published in PUBLISHED.items():
        cells = [f"{neurons} x {layers}"]
        for gpu in GPUS:
            architecture = ARCHITECTURES[gpu.architecture]
            shares = {
                variant.name: fma_share(loops(assembled(variant, architecture).sass)[0])
                for variant in kernels
                if "groups" in variant.name or variant.name.startswith("grouped")
            }
            seconds = seconds_at_best(gpu, neurons, layers, shares)
            edges = FEATURES * neurons * EDGES_PER_NEURON * layers
            cells.append(f"{edges / seconds / 1e12:.0f}")
        rows.append((*cells, *map(str, published)))
    heads = ("network", *(f"{gpu.name}, at most" for gpu in GPUS))
    return table((*heads, "HPEC 2020, A100, measured", "XY, RTX A6000, measured"), rows)


def work_of_blocks(
    plan: CudaPlan,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Inputs that each ELL block stages, and entries that its longest warp goes through."""
    arrays = plan.arrays
    first_stages = arrays.ell_blocks[:, 2]
    widths = arrays.slices[:, 1].reshape(-1, plan.sizes.warps)
    steps = np.add.reduceat(widths, first_stages).max(axis=1)
    return np.add.reduceat(arrays.stages[:, 1], first_stages), steps


def most_partial_sums(plan: CudaPlan) -> int:
    """Chunks of the output with the most of them."""
    chunks = plan.arrays.chunks
    return int((chunks[:, END_CHUNK] - chunks[:, FIRST_CHUNK]).max(initial=0))


def seconds_of_staged(gpu: Gpu, plan: CudaPlan, loop: Loop, n_features: int) -> float:
    """Seconds that one launch of the staged kernel takes at least.

    A warp issues an instruction a clock at most. The staging of its thread block, the entries of
    the block's longest warp, and then the partial sums follow one another. All blocks together
    multiply, padding included, and read inputs, weights and partial sums from L2.

    Parameters
    ----------
    gpu : Gpu
    plan : CudaPlan
        A plan of one step.
    loop : Loop
        The kernel's inner loop.
    n_features : int
    """
    sizes = CudaSizes(plan.sizes)
    minibatch = sizes.minibatch
    n_minibatches = -(-n_features // minibatch)
    staged, steps = work_of_blocks(plan)
    threads = plan.sizes.warps * 32
    clocks = STAGING * staged * minibatch / threads
    clocks += steps * loop.instructions * minibatch / loop.ffma
    longest = float(clocks.max()) + most_partial_sums(plan) * minibatch
    n_entries = plan.arrays.ell_weights.size
    multiplying = n_minibatches * minibatch * n_entries / (gpu.multiply_adds * fma_share(loop))
    moved = 4 * minibatch * (int(staged.sum()) + 2 * plan.max_chunks) + ENTRY_BYTES * n_entries
    return max(longest / gpu.clock, multiplying, n_minibatches * moved / gpu.l2)


def skew_table(kernels: list[Variant]) -> str:
    """A power-law layer, its outputs whole and in chunks: the longest work, and least times."""
    neurons, mean = SKEWED
    network = Network([Layer(power_law_layer(neurons, neurons, mean))])
    of_name = {variant.name: variant for variant in kernels}
    rows = []
    for name, skew, kernel in (
        ("whole", neurons, "staged without chunks"),
        ("in chunks", PlanSizes().skew, "staged with chunks"),
    ):
        plan = plan_cuda(network, "edges", PlanSizes(shared_bytes=0, skew=skew))
        staged, steps = work_of_blocks(plan)
        cells = [name, f"{steps.max():,}", str(most_partial_sums(plan)), f"{staged.max():,}"]
        cells.append(f"{plan.arrays.ell_weights.size / network.n_edges:.1f}")
        for n_features in SKEWED_FEATURES:
            seconds = (
                seconds_of_staged(
                    gpu,
                    plan,
                    loops(assembled(of_name[kernel], ARCHITECTURES[gpu.architecture]).sass)[0],
                    n_features,
                )
                for gpu in GPUS
            )
            cells.append(" / ".join(f"{1e3 * each:.3g}" for each in seconds))
        rows.append(tuple(cells))
    names = " / ".join(gpu.name for gpu in GPUS)
    heads = ("outputs", "entries of the longest thread", "partial sums", "inputs a block stages")
    times = tuple(f"{n:,} features: {names}, ms at least" for n in SKEWED_FEATURES)
    return table((*heads, "entries an edge", *times), rows)


def counts_row(name: str, counts: Counts) -> tuple[str, ...]:
    """A line of the table of counts."""
    numbers = (
        counts.warp_instructions,
        counts.warp_multiply_adds,
        counts.shared_load_wavefronts,
        counts.shared_load_ideal,
        counts.shared_store_wavefronts,
        counts.shared_store_ideal,
        counts.global_wavefronts,
        counts.sectors,
        counts.least_sectors,
        counts.barriers,
    )
    return (name, *(f"{number:,.0f}" for number in numbers))


def counts_table(costs: dict[int, Costs]) -> str:
    """What kernels cost by counts: a thread block in a step, or a whole launch."""
    found: dict[str, tuple[str, Counts]] = {}
    for neurons, of_size in costs.items():
        for launch in of_size.steady.launches:
            name = launch.kernel
            if name.startswith(("resident", "grouped", "staged")):
                counts = of_size.of_step(name)
                found.setdefault(name, (f"a block and step, {neurons:,} neurons", counts))
        for launch in of_size.loading.launches:
            if launch.kernel.startswith("load"):
                a_block = launch.counts.scaled(1 / launch.counts.working)
                found.setdefault(launch.kernel, (f"a block, {neurons:,} neurons", a_block))
    around = costs[min(costs)]
    rows = [counts_row(f"{name}: {what}", counts) for name, (what, counts) in found.items()]
    for n_features, launches in around.around:
        for name in dict.fromkeys(launch.kernel for launch in launches):
            if not name.startswith(AROUND_NEURONS):
                counts = around.of_launch(name, n_features)
                rows.append(counts_row(f"{name}: a launch, {n_features:,} features", counts))
    heads = (
        *("kernel", "instructions", "multiply-adds", "shared loads", "at least"),
        *("shared stores", "at least", "L1", "sectors", "distinct ones", "barriers"),
    )
    return table(heads, rows)


def bounds_table(costs: dict[int, Costs]) -> str:
    """TeraEdges/s at most by counts, of each resource and of all, in mode edges."""
    rows = []
    for neurons in costs:
        for n_layers in DEPTHS:
            now, packed = (
                played_by_bounds(neurons, n_layers, costs[neurons], host)
                for host in (measured_host, packed_host)
            )
            times = [now.of_resource(place) for place in range(len(RESOURCES))]
            times += [now.kernels, now.seconds, packed.seconds]
            most, share = max(packed.shares().items(), key=lambda item: item[1])
            rows.append(
                (
                    f"{neurons} x {n_layers}",
                    *(f"{now.rate(seconds):,.0f}" for seconds in times),
                    f"{most}, {share:.0%}",
                )
            )
    heads = ("network", *RESOURCES, "kernels", "all, 64 to 96 µs", "all, 3 µs", "binds")
    return table(heads, rows)


def with_tables(page: str, tables: dict[str, str]) -> str:
    """The page with its tables replaced.

    Parameters
    ----------
    page : str
    tables : dict of str to str
        Tables by the names of their marks.

    Raises
    ------
    ValueError
        If the page lacks a mark.
    """
    for name, text in tables.items():
        start, end = MARK.format(name), MARK.format(f"end of {name}")
        before, _, rest = page.partition(start)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"the page has no {start} ... {end}")
        page = f"{before}{start}\n\n{text}\n\n{end}{after}"
    return page


def main(page: Path) -> None:
    """Write the tables into the page."""
    kernels = variants()
    tables = {
        "kernels": kernel_table(kernels),
        "loops": loop_table(kernels),
        "estimates": estimate_table(kernels),
        "skew": skew_table(kernels),
    }
    costs = {neurons: costs_of(neurons) for neurons in SIZES}
    tables |= {"counts": counts_table(costs), "bounds": bounds_table(costs)}
    text = with_tables(page.read_text(), tables)
    with whole_file(page) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
