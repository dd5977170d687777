"""A CPU plan laid out for one feature: lanes across outputs, where tiles have lanes of features.

A step becomes parts, in the order of its outputs. A *slice* is 16 outputs, each with inputs of its
own: number k of each lies side by side, and outputs with fewer inputs than the longest are padded.
A *panel* is up to 128 outputs of a group that shares its inputs: a small dense matrix, an input a
row. Each output adds its inputs in the order in which the plan's blocks have them.

What pads a slice is the weight -0.0 of a neuron that is always 0.0: adding their product changes no
bit of any sum.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.machine.jit import jit, jit_part
from spdnn.plan.cpu.blocks import (
    INDEX_START,
    IS_SHARED,
    N_INPUTS,
    N_ROWS,
    POSITION,
    WEIGHT_START,
)
from spdnn.plan.cpu.plan import END_BLOCK, FIRST_BLOCK, CpuPlan

SLICE = 16
"""Outputs of a slice: the lanes of a vector."""

PANEL_VECTORS = (8, 4, 2, 1)
"""Vectors of 16 outputs that a panel may have: each costs a kernel."""

FEWEST_SHARED = 8
"""Outputs from which a group that shares its inputs becomes panels; smaller ones go into slices."""

MOST_NEURONS = (1 << 16) - 1
"""Of a tile: positions, and that of the neuron that is always zero, are uint16."""

VECTORS, PART_POSITION, PART_OUTPUTS, PART_INPUTS, PART_INDEX, PART_WEIGHT = range(6)
"""Columns of the table of parts; VECTORS is 0 for a slice."""

SLICE_COST, PANEL_COST, PART_COST = 8, 1, 40
"""What an entry of a slice or a panel takes, and a part besides, in tenths of a cycle, roughly."""


class Slices(NamedTuple):
    """A plan for one feature.

    Attributes
    ----------
    steps : ndarray, shape (n_steps + 1,), int64
        The first part of each step, and the end of all.
    parts : ndarray, shape (n_parts, 6), int64
        How many vectors a panel has, 0 for a slice; the position of the first output, and the
        number of them; inputs of each, with the padding; where indices and weights begin.
    indices : ndarray, uint16
        Positions of inputs: ``[k, output]`` in a slice, ``[k]`` in a panel.
    weights : ndarray, float32
        ``[k, output]``, outputs up to whole vectors.
    """

    steps: npt.NDArray[np.int64]
    parts: npt.NDArray[np.int64]
    indices: npt.NDArray[np.uint16]
    weights: npt.NDArray[np.float32]

    def shares(self, n_threads: int) -> npt.NDArray[np.int64]:
        """Deal the parts of each step out to threads, about evenly.

        Returns
        -------
        ndarray, shape (n_steps, n_threads + 1), int64
            The first part of each thread, and the end of the last one's.
        """
        vectors = self.parts[:, VECTORS]
        entries = self.parts[:, PART_INPUTS] * SLICE
        cost = np.where(vectors == 0, entries * SLICE_COST, entries * vectors * PANEL_COST)
        total = np.append(0, np.cumsum(cost + 10 * PART_COST))
        first, end = self.steps[:-1, None], self.steps[1:, None]
        wanted = total[first] + (total[end] - total[first]) * np.arange(n_threads + 1) // n_threads
        shares = np.searchsorted(total, wanted)
        result: npt.NDArray[np.int64] = np.clip(shares, first, end).astype(np.int64)
        return result


def slice_plan(plan: CpuPlan) -> Slices | None:
    """Lay a plan out for one feature; None where its positions are too many for 16 bits."""
    if plan.max_width > MOST_NEURONS:
        return None
    arrays = plan.arrays
    nothing = np.empty((0, 6), dtype=np.int64)
    n_parts, n_indices, n_weights = _cut(arrays.steps, arrays.blocks, nothing)[1:]
    parts = np.empty((n_parts, 6), dtype=np.int64)
    steps = _cut(arrays.steps, arrays.blocks, parts)[0]
    indices = np.full(n_indices, plan.max_width, dtype=np.uint16)
    weights = np.full(n_weights, -0.0, dtype=np.float32)
    _fill(
        arrays.steps, arrays.blocks, arrays.indices, arrays.weights, steps, parts, indices, weights
    )
    return Slices(steps, parts, indices, weights)


@jit_part
def _group_end(blocks: npt.NDArray[np.int64], block: int, end: int) -> tuple[int, int]:
    """The end of the blocks that share their inputs with `block`, and how many outputs they are."""
    n_outputs = blocks[block, N_ROWS]
    after = block + 1
    while (
        after < end
        and blocks[block, IS_SHARED]
        and blocks[after, IS_SHARED]
        and blocks[after, INDEX_START] == blocks[block, INDEX_START]
        and blocks[after, N_INPUTS] == blocks[block, N_INPUTS]
    ):
        n_outputs += blocks[after, N_ROWS]
        after += 1
    return after, n_outputs


@jit
def _cut(
    steps: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64], parts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], int, int, int]:
    """Cut steps into parts, and write those that there is room for.

    Returns the first part of each step, and how many parts, indices and weights there are.
    """
    first_part = np.empty(steps.shape[0] + 1, dtype=np.int64)
    n_parts, n_indices, n_weights = 0, 0, 0
    for step in range(steps.shape[0]):
        first_part[step] = n_parts
        block, end = steps[step, FIRST_BLOCK], steps[step, END_BLOCK]
        while block < end:
            after, n_outputs = _group_end(blocks, block, end)
            position, n_inputs = blocks[block, POSITION], blocks[block, N_INPUTS]
            if blocks[block, IS_SHARED] and n_outputs >= FEWEST_SHARED:
                left = n_outputs
                while left > 0:
                    n_vectors = 1
                    for vectors in PANEL_VECTORS:
                        if n_vectors < vectors and vectors * SLICE < left + SLICE:
                            n_vectors = vectors
                    if n_parts < parts.shape[0]:
                        parts[n_parts, VECTORS] = n_vectors
                        parts[n_parts, PART_POSITION] = position
                        parts[n_parts, PART_OUTPUTS] = min(left, n_vectors * SLICE)
                        parts[n_parts, PART_INPUTS] = n_inputs
                        parts[n_parts, PART_INDEX] = n_indices
                        parts[n_parts, PART_WEIGHT] = n_weights
                    n_parts += 1
                    n_weights += n_inputs * n_vectors * SLICE
                    position += n_vectors * SLICE
                    left -= n_vectors * SLICE
                n_indices += n_inputs
                block = after
                continue
            # A run of rows up to the next group, 16 at a time.
            n_rows, longest = 0, 0
            while block < end:
                after, n_outputs = _group_end(blocks, block, end)
                if blocks[block, IS_SHARED] and n_outputs >= FEWEST_SHARED:
                    break
                for _ in range(blocks[block, N_ROWS]):
                    longest = max(longest, blocks[block, N_INPUTS])
                    n_rows += 1
                    if n_rows == SLICE:
                        n_parts = _add_slice(
                            parts, n_parts, position, n_rows, longest, n_indices, n_weights
                        )
                        n_indices += longest * SLICE
                        n_weights += longest * SLICE
                        position += SLICE
                        n_rows, longest = 0, 0
                block += 1
            if n_rows:
                n_parts = _add_slice(
                    parts, n_parts, position, n_rows, longest, n_indices, n_weights
                )
                n_indices += longest * SLICE
                n_weights += longest * SLICE
    first_part[steps.shape[0]] = n_parts
    return first_part, n_parts, n_indices, n_weights


@jit_part
def _add_slice(
    parts: npt.NDArray[np.int64],
    number: int,
    position: int,
    n_rows: int,
    n_inputs: int,
    index: int,
    weight: int,
) -> int:
    """Write a slice, if there is room for it; returns the number of the next part."""
    if number < parts.shape[0]:
        parts[number, VECTORS] = 0
        parts[number, PART_POSITION] = position
        parts[number, PART_OUTPUTS] = n_rows
        parts[number, PART_INPUTS] = n_inputs
        parts[number, PART_INDEX] = index
        parts[number, PART_WEIGHT] = weight
    return number + 1


@jit
def _fill(
    steps: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    block_indices: npt.NDArray[Any],
    block_weights: npt.NDArray[np.float32],
    first_part: npt.NDArray[np.int64],
    parts: npt.NDArray[np.int64],
    indices: npt.NDArray[np.uint16],
    weights: npt.NDArray[np.float32],
) -> None:
    """Copy the indices and weights of all blocks to the parts that have their outputs."""
    for step in range(steps.shape[0]):
        part = first_part[step]
        for block in range(steps[step, FIRST_BLOCK], steps[step, END_BLOCK]):
            n_rows, n_inputs = blocks[block, N_ROWS], blocks[block, N_INPUTS]
            is_shared = blocks[block, IS_SHARED]
            for row in range(n_rows):
                position = blocks[block, POSITION] + row
                while position >= parts[part, PART_POSITION] + parts[part, PART_OUTPUTS]:
                    part += 1
                output = position - parts[part, PART_POSITION]
                n_vectors = parts[part, VECTORS]
                n_lanes = max(n_vectors, 1) * SLICE
                index_start, weight_start = parts[part, PART_INDEX], parts[part, PART_WEIGHT]
                for k in range(n_inputs):
                    entry = blocks[block, INDEX_START] + (k if is_shared else k * n_rows + row)
                    place = index_start + (k if n_vectors else k * SLICE + output)
                    indices[place] = block_indices[entry]
                    weights[weight_start + k * n_lanes + output] = block_weights[
                        blocks[block, WEIGHT_START] + k * n_rows + row
                    ]
