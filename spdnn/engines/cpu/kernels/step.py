"""One step of a tile: a layer, or sums that are taken first; all its blocks, for all lanes.

See `spdnn.engines.cpu.kernels.tile` for what a tile is. `evaluate_step` is the explicit-vector
kernel, or its plain twin where this CPU has no vectors worth it; both add the inputs of an output
in the plan's order.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.vectors import LANES, SHAPES, VECTOR_SHAPE, block_sums
from spdnn.machine.jit import jit
from spdnn.plan.cpu.blocks import (
    INDEX_START,
    IS_SHARED,
    MAX_ROWS,
    N_INPUTS,
    N_ROWS,
    POSITION,
    ROWS,
    WEIGHT_START,
)
from spdnn.plan.cpu.plan import PlanArrays
from spdnn.plan.steps import BIAS_START, FINITE, IS_RELU, N_OUTPUTS, NONZERO, TESTS

WORD = 64
"""Lanes whose liveness is kept in one number."""

NEAR_NUMBERS = 1 << 16
"""Activations (256 KiB) up to which a tile counts as small."""

MANY_INPUTS = 8
"""Inputs of the largest ELL block from which on they are read often enough to be kept near."""

OWN_LANES = 32
"""Lanes that ELL blocks take at a time in a large tile: 128 KiB of 1024 neurons."""

Tile = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint64]

_SHAPE = SHAPES[VECTOR_SHAPE]


@jit
def _set_bits(live: Bits, lane: int, bits: np.uint64) -> None:
    """Set the bits of the lanes from `lane` on, up to 64 of them."""
    word, shift = lane // WORD, np.uint64(lane % WORD)
    live[word] |= bits << shift
    if shift and bits >> (np.uint64(WORD) - shift):
        live[word + 1] |= bits >> (np.uint64(WORD) - shift)


def lanes_at_once(n_rows: int, is_shared: bool) -> int:
    """Features that a block of `n_rows` rows takes at a time, as long as so many are left."""
    sums = _SHAPE.shared_sums if is_shared else _SHAPE.own_sums
    lanes = sums // min(n_rows, _SHAPE.rows) * _SHAPE.width
    return max(LANES, min(WORD, lanes))


def _make_blocks(n_rows: int, is_shared: bool) -> Callable[..., int]:
    """Make the function that computes a run of blocks of one kind, specialised at compile time.

    A run is taken in one call: calls with so many arguments cost as much as a small block.
    """
    width = _SHAPE.width
    rows = min(n_rows, _SHAPE.rows)
    wide_lanes = lanes_at_once(n_rows, is_shared)
    wide, narrow = wide_lanes // width, LANES // width
    shared = int(is_shared)
    index_step, index_row = (1, 0) if is_shared else (n_rows, 1)

    @jit
    def blocks(
        plan: PlanArrays,
        step: int,
        number: int,
        end: int,
        source: Tile,
        target: Tile,
        stride: int,
        first_lane: int,
        end_lane: int,
        live: Bits,
    ) -> int:
        is_relu = plan.steps[step, IS_RELU]
        tests = plan.steps[step, TESTS]
        bias_start = plan.steps[step, BIAS_START]
        cap = plan.caps[step]
        while (
            number < end
            and plan.blocks[number, N_ROWS] == n_rows
            and plan.blocks[number, IS_SHARED] == shared
        ):
            n_inputs = plan.blocks[number, N_INPUTS]
            position = plan.blocks[number, POSITION]
            for row in range(0, n_rows, rows):
                weight = plan.blocks[number, WEIGHT_START] + row
                index = plan.blocks[number, INDEX_START] + row * index_row
                bias = bias_start + position + row
                lane = first_lane
                while lane + wide_lanes <= end_lane:
                    bits = block_sums(
                        rows, wide, width, shared, plan.weights, weight, n_rows,
                        plan.indices, index, index_step, n_inputs,
                        source, target, position + row, lane, stride,
                        plan.bias, bias, cap, is_relu, tests,
                    )  # fmt: skip
                    _set_bits(live, lane, bits)
                    lane += wide_lanes
                while lane < end_lane:
                    bits = block_sums(
                        rows, narrow, width, shared, plan.weights, weight, n_rows,
                        plan.indices, index, index_step, n_inputs,
                        source, target, position + row, lane, stride,
                        plan.bias, bias, cap, is_relu, tests,
                    )  # fmt: skip
                    _set_bits(live, lane, bits)
                    lane += LANES
            number += 1
        return number

    return blocks


@jit
def evaluate_plainly(
    plan: PlanArrays,
    step: int,
    first: int,
    end: int,
    source: Tile,
    target: Tile,
    stride: int,
    live: Bits,
) -> None:
    """Blocks of a step, all lanes, by plain loops: the same sums in the same order as vectors take.

    Parameters
    ----------
    plan : PlanArrays
    step : int
    first, end : int
        The step's blocks to take: all, or a thread's share of them.
    source, target : ndarray
        The tile, and where the next one goes.
    stride : int
        Lanes a neuron.
    live : ndarray, uint64
        The bits of lanes with an activation that is not zero are set.
    """
    cap = plan.caps[step]
    is_relu = plan.steps[step, IS_RELU]
    tests = plan.steps[step, TESTS]
    bias_start = plan.steps[step, BIAS_START]
    for block in range(first, end):
        n_rows = plan.blocks[block, N_ROWS]
        position = plan.blocks[block, POSITION]
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
                if tests & NONZERO and sums[f] == 0:
                    value = np.float32(0)
                if tests & FINITE:
                    value += value * np.float32(0)  # NaN where it is not finite
                # Comparisons, which let NaN be.
                if is_relu and value < 0:
                    value = np.float32(0)
                if value > cap:
                    value = cap
                sums[f] = value
                if value != 0:
                    live[f // WORD] |= np.uint64(1) << np.uint64(f % WORD)
            position += 1


if _SHAPE.width:
    _shared_8, _shared_4, _shared_1 = (_make_blocks(rows, True) for rows in ROWS)
    _own_8, _own_4, _own_1 = (_make_blocks(rows, False) for rows in ROWS)


@jit
def evaluate_with_vectors(
    plan: PlanArrays,
    step: int,
    first: int,
    end: int,
    source: Tile,
    target: Tile,
    stride: int,
    live: Bits,
) -> None:
    """Blocks of a step, all lanes; arguments as for `evaluate_plainly`.

    Shared blocks, which come first, take all lanes at once. The others read their inputs from
    all over the tile: in a large one they take some lanes at a time, all blocks of them, so that
    what they read, many times, stays in the nearer caches.
    """
    # The literal 0 would be a type of its own, for which all kernels are compiled once more.
    first_lane: Any = np.int64(0)
    block = first
    while block < end and plan.blocks[block, IS_SHARED]:
        n_rows = plan.blocks[block, N_ROWS]
        where = (plan, step, block, end, source, target, stride, first_lane, stride, live)
        if n_rows == 8:
            block = _shared_8(*where)
        elif n_rows == 4:
            block = _shared_4(*where)
        else:
            block = _shared_1(*where)
    first_own = block
    is_far = plan.steps[step, N_OUTPUTS] * stride > NEAR_NUMBERS
    is_far = is_far and first_own < end and plan.blocks[end - 1, N_INPUTS] >= MANY_INPUTS
    lanes = OWN_LANES if is_far else stride
    for first_lane in range(0, stride, lanes):
        end_lane = min(first_lane + lanes, stride)
        block = first_own
        while block < end:
            n_rows = plan.blocks[block, N_ROWS]
            where = (plan, step, block, end, source, target, stride, first_lane, end_lane, live)
            if n_rows == 8:
                block = _own_8(*where)
            elif n_rows == 4:
                block = _own_4(*where)
            else:
                block = _own_1(*where)


evaluate_step = evaluate_with_vectors if _SHAPE.width else evaluate_plainly

FULL_LANES = lanes_at_once(MAX_ROWS, True)
"""A tile of a multiple of so many features has no remainder in the blocks that matter most."""
