"""Measuring what the CPU kernels take for a block of each kind, on this machine."""

from functools import cache
from time import perf_counter

import numpy as np

from spdnn.engines.cpu.kernels.step import WORD, evaluate_step
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.plan.cpu.blocks import ROWS, BlockCosts
from spdnn.plan.cpu.plan import END_BLOCK, N_COLUMNS, PART, WHOLE, PlanArrays
from spdnn.plan.steps import IS_RELU, MAY_DROP, N_OUTPUTS

NEURONS = 512
STRIDE = 4 * LANES
DEGREES = (4, 32)
"""Inputs of a block, few and many: a line through both times gives the two costs."""

REPEATS = 5
"""The quickest of them counts: what disturbs a measurement only makes it longer."""


@cache
def measured_costs() -> BlockCosts:
    """Measure all kinds of blocks, once a process, in a few milliseconds; costs in seconds."""
    seconds = np.empty((len(DEGREES), 2, len(ROWS)))
    tiles = np.zeros((2, NEURONS * STRIDE + LANES), dtype=np.float32)
    tile, spare = (row[-row.ctypes.data % 64 // 4 :] for row in tiles)
    live = np.zeros(-(-STRIDE // WORD), dtype=np.uint64)
    for number, degree in enumerate(DEGREES):
        for is_shared in (0, 1):
            for kind, rows in enumerate(ROWS):
                arrays = _layer_of(rows, degree, bool(is_shared))
                times = []
                for _ in range(REPEATS):
                    start = perf_counter()
                    evaluate_step(arrays, 0, 0, len(arrays.blocks), tile, spare, STRIDE, live)
                    times.append(perf_counter() - start)
                seconds[number, is_shared, kind] = min(times) * rows / NEURONS
    per_input = np.maximum((seconds[1] - seconds[0]) / (DEGREES[1] - DEGREES[0]), 0)
    return BlockCosts(np.maximum(seconds[0] - DEGREES[0] * per_input, 0), per_input)


def _layer_of(rows: int, degree: int, is_shared: bool) -> PlanArrays:
    """A layer whose blocks are all of one kind, with scattered inputs."""
    n_blocks = NEURONS // rows
    n_indices = degree * (1 if is_shared else rows)
    blocks = np.arange(n_blocks)
    table = np.stack(
        [
            np.full(n_blocks, rows),
            np.full(n_blocks, degree),
            blocks * n_indices,
            blocks * degree * rows,
            np.full(n_blocks, is_shared),
            blocks * rows,
        ],
        axis=1,
    ).astype(np.int64)
    scattered = np.random.default_rng(0).integers(NEURONS, size=n_blocks * n_indices)
    steps = np.zeros((1, N_COLUMNS), dtype=np.int64)
    columns = [END_BLOCK, N_OUTPUTS, IS_RELU, MAY_DROP, PART]
    steps[0, columns] = n_blocks, NEURONS, True, True, WHOLE
    return PlanArrays(
        steps=steps,
        caps=np.ones(1, dtype=np.float32),
        blocks=table,
        indices=scattered.astype(np.uint16),
        weights=np.ones(NEURONS * degree, dtype=np.float32),
        bias=np.zeros(NEURONS, dtype=np.float32),
    )
