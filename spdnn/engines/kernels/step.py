"""One step of a tile: a layer, or sums that are taken first; all its blocks, for all lanes.

See `spdnn.engines.kernels.tile` for what a tile is. `evaluate_step` is the explicit-vector kernel,
or its plain twin where this CPU has no vectors worth it; both add the inputs of an output
in the plan's order.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from spdnn.engines.kernels.vectors import LANES, SHAPES, VECTOR_SHAPE, block_sums
from spdnn.jit import jit
from spdnn.plan.blocks import INDEX_START, IS_SHARED, N_INPUTS, N_ROWS, WEIGHT_START
from spdnn.plan.cpu import (
    BIAS_START,
    END_BLOCK,
    FIRST_BLOCK,
    IS_RELU,
    TESTS_NONZERO,
    PlanArrays,
)

WORD = 64
"""Lanes whose liveness is kept in one number."""

Tile = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint64]

_WIDTH, _MAX_ROWS, _MAX_SUMS = SHAPES[VECTOR_SHAPE]


def _make_block(n_rows: int) -> Callable[..., None]:
    """Make the function that computes a block of `n_rows` rows, specialised at compile time."""
    width = _WIDTH
    rows = min(n_rows, _MAX_ROWS)
    wide = min(WORD // width, max(_MAX_SUMS // rows, LANES // width))
    wide_lanes = wide * width
    narrow = LANES // width

    @jit
    def block(
        plan: PlanArrays,
        step: int,
        number: int,
        position: int,
        source: Tile,
        target: Tile,
        stride: int,
        live: Bits,
    ) -> None:
        weight_start = plan.blocks[number, WEIGHT_START]
        index_start = plan.blocks[number, INDEX_START]
        n_inputs = plan.blocks[number, N_INPUTS]
        is_shared = plan.blocks[number, IS_SHARED]
        bias_start = plan.steps[step, BIAS_START] + position
        is_relu = plan.steps[step, IS_RELU]
        tests_nonzero = plan.steps[step, TESTS_NONZERO]
        cap = plan.caps[step]
        for row in range(0, n_rows, rows):
            lane = 0
            while lane < stride:
                if lane + wide_lanes <= stride:
                    if is_shared:
                        bits = block_sums(
                            rows, wide, width, 1,
                            plan.weights, weight_start + row, n_rows,
                            plan.indices, index_start, 1, n_inputs,
                            source, target, position + row, lane, stride,
                            plan.bias, bias_start + row, cap, is_relu, tests_nonzero,
                        )  # fmt: skip
                    else:
                        bits = block_sums(
                            rows, wide, width, 0,
                            plan.weights, weight_start + row, n_rows,
                            plan.indices, index_start + row, n_rows, n_inputs,
                            source, target, position + row, lane, stride,
                            plan.bias, bias_start + row, cap, is_relu, tests_nonzero,
                        )  # fmt: skip
                    live[lane // WORD] |= bits << np.uint64(lane % WORD)
                    lane += wide_lanes
                else:
                    if is_shared:
                        bits = block_sums(
                            rows, narrow, width, 1,
                            plan.weights, weight_start + row, n_rows,
                            plan.indices, index_start, 1, n_inputs,
                            source, target, position + row, lane, stride,
                            plan.bias, bias_start + row, cap, is_relu, tests_nonzero,
                        )  # fmt: skip
                    else:
                        bits = block_sums(
                            rows, narrow, width, 0,
                            plan.weights, weight_start + row, n_rows,
                            plan.indices, index_start + row, n_rows, n_inputs,
                            source, target, position + row, lane, stride,
                            plan.bias, bias_start + row, cap, is_relu, tests_nonzero,
                        )  # fmt: skip
                    live[lane // WORD] |= bits << np.uint64(lane % WORD)
                    lane += LANES

    return block


@jit
def evaluate_plainly(
    plan: PlanArrays, step: int, source: Tile, target: Tile, stride: int, live: Bits
) -> None:
    """One step of all lanes, by plain loops: no explicit vectors, the same sums in the same order.

    Parameters
    ----------
    plan : PlanArrays
    step : int
    source, target : ndarray
        The tile, and where the next one goes.
    stride : int
        Lanes a neuron.
    live : ndarray, uint64
        Gets a bit for each lane: whether an activation is not zero.
    """
    for word in range(live.size):
        live[word] = 0
    position = np.int64(0)
    cap = plan.caps[step]
    is_relu = plan.steps[step, IS_RELU]
    tests_nonzero = plan.steps[step, TESTS_NONZERO]
    bias_start = plan.steps[step, BIAS_START]
    for block in range(plan.steps[step, FIRST_BLOCK], plan.steps[step, END_BLOCK]):
        n_rows = plan.blocks[block, N_ROWS]
        n_inputs = plan.blocks[block, N_INPUTS]
        is_shared = plan.blocks[block, IS_SHARED]
        for row in range(n_rows):
            weight = plan.blocks[block, WEIGHT_START] + row
            index = plan.blocks[block, INDEX_START] + (0 if is_shared else row)
            sums = target[position * stride : (position + 1) * stride]
            sums[:] = 0
            for _ in range(n_inputs):
                w = plan.weights[weight]
                start = np.int64(plan.indices[index]) * stride
                inputs = source[start : start + stride]
                for f in range(stride):
                    sums[f] += w * inputs[f]
                weight += n_rows
                index += 1 if is_shared else n_rows
            bias = plan.bias[bias_start + position]
            for f in range(stride):
                value = sums[f] + bias
                if tests_nonzero and sums[f] == 0:
                    value = np.float32(0)
                if is_relu:
                    value = min(max(value, np.float32(0)), cap)
                sums[f] = value
                if value != 0:
                    live[f // WORD] |= np.uint64(1) << np.uint64(f % WORD)
            position += 1


if _WIDTH:
    _block_8, _block_4, _block_2, _block_1 = map(_make_block, (8, 4, 2, 1))


@jit
def evaluate_with_vectors(
    plan: PlanArrays, step: int, source: Tile, target: Tile, stride: int, live: Bits
) -> None:
    """One step of all lanes, block by block; arguments as for `evaluate_plainly`."""
    for word in range(live.size):
        live[word] = 0
    position = np.int64(0)
    for block in range(plan.steps[step, FIRST_BLOCK], plan.steps[step, END_BLOCK]):
        n_rows = plan.blocks[block, N_ROWS]
        if n_rows == 8:
            _block_8(plan, step, block, position, source, target, stride, live)
        elif n_rows == 4:
            _block_4(plan, step, block, position, source, target, stride, live)
        elif n_rows == 2:
            _block_2(plan, step, block, position, source, target, stride, live)
        else:
            _block_1(plan, step, block, position, source, target, stride, live)
        position += n_rows


evaluate_step = evaluate_with_vectors if _WIDTH else evaluate_plainly
