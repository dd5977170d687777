"""One step of a tile: a layer, or sums that are taken before a layer.

See `spdnn.engines.cpu.kernels.tile` for what a tile is. `evaluate_step` is the explicit-vector
kernel, or the kernel of plain loops if this CPU has no vectors that are worth it. Both add the
inputs of an output in the plan's order.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.vectors import (
    LANES,
    REGISTER_TILE,
    REGISTER_TILES,
    Rows,
    Rules,
    block_sums,
)
from spdnn.machine.jit import jit, jit_part
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
from spdnn.plan.rules import FINITE, NONZERO
from spdnn.plan.steps import BIAS_START, IS_RELU, N_OUTPUTS, TESTS

WORD = 64
"""Lanes whose bits, one for each live lane, are in one number."""

NEAR_NUMBERS = 1 << 16
"""Most activations (256 KiB) of a tile that stays in a near cache as a whole."""

MANY_INPUTS = 8
"""Inputs of the largest ELL block from which a tile is read often enough to be taken in parts."""

OWN_LANES = 32
"""Lanes that ELL blocks of a large tile take at a time: 128 KiB with 1024 neurons."""

Tile = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint64]

_REGISTERS = REGISTER_TILES[REGISTER_TILE]


@jit_part
def _set_bits(live: Bits, lane: int, bits: np.uint64) -> None:
    """Set the bits of up to `WORD` lanes, from `lane` on."""
    word, shift = lane // WORD, np.uint64(lane % WORD)
    live[word] |= bits << shift
    if shift and bits >> (np.uint64(WORD) - shift):
        live[word + 1] |= bits >> (np.uint64(WORD) - shift)


def lanes_at_once(n_rows: int, is_shared: bool) -> int:
    """Features that a block of `n_rows` rows takes at a time, while as many are left."""
    sums = _REGISTERS.shared_sums if is_shared else _REGISTERS.own_sums
    lanes = sums // min(n_rows, _REGISTERS.rows) * _REGISTERS.width
    return max(LANES, min(WORD, lanes))


def _make_blocks(n_rows: int, is_shared: bool) -> Callable[..., int]:
    """Make the function that computes consecutive blocks of one kind; sizes are constants in it.

    One call computes all of them, since a call of so many arguments costs as much as a small
    block.
    """
    width = _REGISTERS.width
    rows = min(n_rows, _REGISTERS.rows)
    wide_lanes = lanes_at_once(n_rows, is_shared)
    wide, narrow = wide_lanes // width, LANES // width
    # Of three vectors there may be two left, which two passes of one would take longer for.
    middle_lanes = 2 * LANES
    middle, has_middle = middle_lanes // width, wide_lanes > middle_lanes
    shared = int(is_shared)
    index_step, index_row = (1, 0) if is_shared else (n_rows, 1)

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
        rules = Rules(plan.caps[step], plan.steps[step, IS_RELU], plan.steps[step, TESTS])
        bias_start = plan.steps[step, BIAS_START]
        is_far = plan.steps[step, N_OUTPUTS] * stride > NEAR_NUMBERS
        while (
            number < end
            and plan.blocks[number, N_ROWS] == n_rows
            and plan.blocks[number, IS_SHARED] == shared
        ):
            # The inputs of the next block, if it has others, come from a far cache.
            ahead: Any = np.int64(0)
            following = number + 1
            if (
                is_shared
                and is_far
                and following < end
                and plan.blocks[following, IS_SHARED]
                and plan.blocks[following, N_INPUTS] == plan.blocks[number, N_INPUTS]
            ):
                ahead = plan.blocks[following, INDEX_START] - plan.blocks[number, INDEX_START]
            for row in range(0, n_rows, rows):
                position = plan.blocks[number, POSITION] + row
                where = Rows(
                    plan.blocks[number, WEIGHT_START] + row,
                    n_rows,
                    plan.blocks[number, INDEX_START] + row * index_row,
                    index_step,
                    ahead,
                    plan.blocks[number, N_INPUTS],
                    position,
                    bias_start + position,
                )
                lane = first_lane
                while lane + wide_lanes <= end_lane:
                    constants = (rows, wide, width, shared)
                    bits = block_sums(constants, plan, where, rules, source, target, lane, stride)
                    _set_bits(live, lane, bits)
                    lane += wide_lanes
                if has_middle and lane + middle_lanes <= end_lane:
                    constants = (rows, middle, width, shared)
                    bits = block_sums(constants, plan, where, rules, source, target, lane, stride)
                    _set_bits(live, lane, bits)
                    lane += middle_lanes
                while lane < end_lane:
                    constants = (rows, narrow, width, shared)
                    bits = block_sums(constants, plan, where, rules, source, target, lane, stride)
                    _set_bits(live, lane, bits)
                    lane += LANES
            number += 1
        return number

    # numba tells functions apart by their names. Equal names of different functions would get mixed
    # up where one process uses machine code that another one has kept on disk.
    blocks.__qualname__ = f"blocks_{'shared' if is_shared else 'own'}_{n_rows}"
    return jit_part(blocks)


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
    """Compute blocks of a step for all lanes by plain loops.

    The sums are the same, in the same order, as those of the explicit-vector kernel.

    Parameters
    ----------
    plan : PlanArrays
        The whole plan.
    step : int
        The step.
    first, end : int
        The step's blocks to compute: all of them, or a thread's share.
    source, target : ndarray, float32
        The tiles that are read and written.
    stride : int
        Lanes of a neuron.
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
                    value += value * np.float32(0)  # NaN if it is not finite
                # Comparisons with NaN are false, so that NaN stays.
                if is_relu and value < 0:
                    value = np.float32(0)
                if value > cap:
                    value = cap
                sums[f] = value
                if value != 0:
                    live[f // WORD] |= np.uint64(1) << np.uint64(f % WORD)
            position += 1


if _REGISTERS.width:
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
    """Compute blocks of a step for all lanes with vectors; parameters as of `evaluate_plainly`.

    Shared blocks come first and take all lanes at once. The other blocks read inputs from all over
    the tile, many times. With a large tile all these blocks are computed for some lanes, then for
    the next lanes, so that the inputs stay in the nearer caches.
    """
    # A literal 0 has a type of its own, for which all kernels would be compiled once more.
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


evaluate_step = evaluate_with_vectors if _REGISTERS.width else evaluate_plainly

FULL_LANES = lanes_at_once(MAX_ROWS, True)
"""In tiles of a multiple of so many features, full shared blocks leave no remainder."""
