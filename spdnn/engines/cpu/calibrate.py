"""Measuring how long the CPU kernels take for a block of each kind on this machine."""

from collections.abc import Mapping
from functools import cache
from time import perf_counter

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.step import WORD, evaluate_step
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.plan.cpu.blocks import (
    INDEX_START,
    IS_SHARED,
    N_INPUTS,
    N_ROWS,
    POSITION,
    ROWS,
    WEIGHT_START,
    BlockCosts,
)
from spdnn.plan.cpu.plan import END_BLOCK, FIRST_BLOCK, PART, WHOLE, PlanArrays
from spdnn.plan.steps import BIAS_START, IS_RELU, LAYER, MAY_DROP, N_OUTPUTS, TESTS

NEURONS = 512
"""Inputs and outputs of the layers that are timed."""

STRIDE = 4 * LANES
"""Features of the tile that is timed."""

DEGREES = (4, 32)
"""Inputs of a block, few and many. A line through both times gives the two costs."""

REPEATS = 5
"""Repeats of each measurement. The quickest counts, since disturbances only add time."""


@cache
def measured_costs() -> BlockCosts:
    """Measure all kinds of blocks, once in a process, in a few milliseconds; costs in seconds."""
    seconds = np.empty((len(DEGREES), 2, len(ROWS)))
    tiles = np.zeros((2, NEURONS * STRIDE + LANES), dtype=np.float32)
    tile, spare = (row[-row.ctypes.data % 64 // 4 :] for row in tiles)
    live = np.zeros(-(-STRIDE // WORD), dtype=np.uint64)
    for number, degree in enumerate(DEGREES):
        for is_shared in (0, 1):
            for kind, rows in enumerate(ROWS):
                arrays = layer_of(rows, degree, bool(is_shared))
                times = []
                for _ in range(REPEATS):
                    start = perf_counter()
                    evaluate_step(arrays, 0, 0, len(arrays.blocks), tile, spare, STRIDE, live)
                    times.append(perf_counter() - start)
                seconds[number, is_shared, kind] = min(times) * rows / NEURONS
    per_input = np.maximum((seconds[1] - seconds[0]) / (DEGREES[1] - DEGREES[0]), 0)
    return BlockCosts(np.maximum(seconds[0] - DEGREES[0] * per_input, 0), per_input)


def layer_of(rows: int, degree: int, is_shared: bool) -> PlanArrays:
    """A layer whose blocks are all of one kind, with scattered inputs."""
    n_blocks = NEURONS // rows
    n_indices = degree * (1 if is_shared else rows)
    blocks = np.arange(n_blocks)
    table = _table(
        {
            N_ROWS: rows,
            N_INPUTS: degree,
            INDEX_START: blocks * n_indices,
            WEIGHT_START: blocks * degree * rows,
            IS_SHARED: is_shared,
            POSITION: blocks * rows,
        },
        n_blocks,
    )
    step = {
        FIRST_BLOCK: 0,
        END_BLOCK: n_blocks,
        N_OUTPUTS: NEURONS,
        BIAS_START: 0,
        IS_RELU: True,
        TESTS: 0,
        MAY_DROP: True,
        LAYER: 0,
        PART: WHOLE,
    }
    scattered = np.random.default_rng(0).integers(NEURONS, size=n_blocks * n_indices)
    return PlanArrays(
        steps=_table(step, 1),
        caps=np.ones(1, dtype=np.float32),
        blocks=table,
        indices=scattered.astype(np.uint16),
        weights=np.ones(NEURONS * degree, dtype=np.float32),
        bias=np.zeros(NEURONS, dtype=np.float32),
    )


def _table(
    columns: Mapping[int, int | npt.NDArray[np.int64]], n_rows: int
) -> npt.NDArray[np.int64]:
    """A table of a plan from its columns, by their numbers."""
    table = np.zeros((n_rows, len(columns)), dtype=np.int64)
    for column, values in columns.items():
        table[:, column] = values
    return table
