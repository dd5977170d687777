"""Warp-sliced transposed ELL with staged inputs: for outputs that share nothing.

A block is up to ``32 * warps`` outputs. A slice is 32 of them side by side, which a warp takes. The
distinct inputs of a block are cut into stages: a stage is what the buffer in shared memory holds at
a time. Inputs are in the order of rounds: the first input of each output, then the second of each,
and so on. A stage then has about equally many edges of every output. In a stage a slice is as wide
as its longest output; shorter outputs are padded with weight 0. Entry k of the outputs of a slice
lies in 32 neighbouring numbers (the slice is transposed), so that a warp reads them at once.
Indices name places in the buffer and have 16 bits.

After M. Hidayetoglu et al., HPEC 2020, section III.B.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.machine.jit import jit

SLICE = 32
"""Outputs of a slice: one for each thread of a warp."""

LARGEST_BUFFER = 1 << 16
"""Inputs that 16-bit indices can tell apart."""


class Ell(NamedTuple):
    """The ELL blocks of one step.

    Attributes
    ----------
    blocks : ndarray, shape (n_blocks, 4), int64
        First output, number of outputs, first stage and the end of the stages.
    stages : ndarray, shape (n_stages, 3), int64
        Where the stage's map begins, how many inputs it names, and the first of its `warps` slices.
    slices : ndarray, shape (n_slices, 2), int64
        Where a slice's entries begin, and how many entries each of its outputs has.
    maps : ndarray, int32
        The input at each place of the buffer, stage by stage.
    indices : ndarray, uint16
        Places in the buffer, ``[k, output of the slice]`` in each slice.
    weights : ndarray, float32
        In the order of `indices`.
    """

    blocks: npt.NDArray[np.int64]
    stages: npt.NDArray[np.int64]
    slices: npt.NDArray[np.int64]
    maps: npt.NDArray[np.int32]
    indices: npt.NDArray[np.uint16]
    weights: npt.NDArray[np.float32]


def cut_ell(
    indptr: npt.NDArray[Any],
    inputs: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    columns: npt.NDArray[np.int32],
    n_inputs: int,
    *,
    warps: int,
    buffer: int,
) -> Ell:
    """Cut outputs into blocks.

    Parameters
    ----------
    indptr, inputs, values : ndarray
        A CSC matrix; `inputs` are positions, in any order.
    columns : ndarray, int32
        The outputs to take of it, in this order.
    n_inputs : int
        Positions that there are.
    warps : int
        Slices of a block.
    buffer : int
        Inputs that the buffer holds; 0 where all inputs are in shared memory, so that indices are
        positions.

    Notes
    -----
    The sum of an output is taken stage by stage, and within a stage in the order of its edges.
    """
    places, sizes = _place_inputs(indptr, inputs, columns, n_inputs, warps * SLICE, buffer)
    tables = _cut_slices(indptr, columns, places, sizes, warps, buffer)
    blocks, stages, slices, n_maps, n_entries = tables
    maps = np.empty(n_maps, dtype=np.int32)
    indices = np.zeros(n_entries, dtype=np.uint16)
    weights = np.zeros(n_entries, dtype=np.float32)
    _fill(
        indptr, inputs, values, columns, places, blocks, stages, slices, buffer,
        maps, indices, weights,
    )  # fmt: skip
    return Ell(blocks, stages, slices, maps, indices, weights)


@jit
def _place_inputs(
    indptr: npt.NDArray[Any],
    inputs: npt.NDArray[np.int32],
    columns: npt.NDArray[np.int32],
    n_inputs: int,
    n_block: int,
    buffer: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Place of each edge's input among its block's inputs, and inputs of each block."""
    starts = np.zeros(columns.size + 1, dtype=np.int64)
    for number in range(columns.size):
        degree = indptr[columns[number] + 1] - indptr[columns[number]]
        starts[number + 1] = starts[number] + degree
    places = np.empty(starts[-1], dtype=np.int32)
    sizes = np.zeros((columns.size + n_block - 1) // n_block, dtype=np.int64)
    place_of = np.empty(n_inputs, dtype=np.int32)
    block_of = np.full(n_inputs, -1, dtype=np.int32)
    for block in range(sizes.size):
        first, end = block * n_block, min((block + 1) * n_block, columns.size)
        for k in range(np.diff(starts[first : end + 1]).max()):
            for number in range(first, end):
                if k >= starts[number + 1] - starts[number]:
                    continue
                source = inputs[indptr[columns[number]] + k]
                if buffer == 0:
                    places[starts[number] + k] = source
                    continue
                if block_of[source] != block:
                    block_of[source] = block
                    place_of[source] = sizes[block]
                    sizes[block] += 1
                places[starts[number] + k] = place_of[source]
    return places, sizes


@jit
def _cut_slices(
    indptr: npt.NDArray[Any],
    columns: npt.NDArray[np.int32],
    places: npt.NDArray[np.int32],
    sizes: npt.NDArray[np.int64],
    warps: int,
    buffer: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], int, int]:
    """Make the tables of blocks, stages and slices; give the lengths of maps and entries, too."""
    n_block = warps * SLICE
    n_stages = 0
    for size in sizes:
        n_stages += max(1, (size + buffer - 1) // buffer) if buffer else 1
    blocks = np.empty((sizes.size, 4), dtype=np.int64)
    stages = np.empty((n_stages, 3), dtype=np.int64)
    slices = np.zeros((n_stages * warps, 2), dtype=np.int64)
    n_maps = 0
    n_entries = 0
    stage = 0
    edge = 0
    for block in range(sizes.size):
        first = block * n_block
        end = min(first + n_block, columns.size)
        n_of_block = max(1, (sizes[block] + buffer - 1) // buffer) if buffer else 1
        blocks[block, 0], blocks[block, 1] = first, end - first
        blocks[block, 2], blocks[block, 3] = stage, stage + n_of_block
        counts = np.empty(n_of_block, dtype=np.int64)
        for number in range(first, end):
            counts[:] = 0
            for _ in range(indptr[columns[number]], indptr[columns[number] + 1]):
                counts[places[edge] // buffer if buffer else 0] += 1
                edge += 1
            for inner in range(n_of_block):
                slice_number = (stage + inner) * warps + (number - first) // SLICE
                slices[slice_number, 1] = max(slices[slice_number, 1], counts[inner])
        for inner in range(n_of_block):
            n_staged = min(buffer, sizes[block] - inner * buffer)
            stages[stage, 0], stages[stage, 1] = n_maps, n_staged
            stages[stage, 2] = stage * warps
            n_maps += n_staged
            for slice_number in range(stage * warps, (stage + 1) * warps):
                slices[slice_number, 0] = n_entries
                n_entries += SLICE * slices[slice_number, 1]
            stage += 1
    return blocks, stages, slices, n_maps, n_entries


@jit
def _fill(
    indptr: npt.NDArray[Any],
    inputs: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    columns: npt.NDArray[np.int32],
    places: npt.NDArray[np.int32],
    blocks: npt.NDArray[np.int64],
    stages: npt.NDArray[np.int64],
    slices: npt.NDArray[np.int64],
    buffer: int,
    maps: npt.NDArray[np.int32],
    indices: npt.NDArray[np.uint16],
    weights: npt.NDArray[np.float32],
) -> None:
    """Write maps and entries; what is not written is padding and stays 0."""
    edge = 0
    for block in range(blocks.shape[0]):
        first, first_stage = blocks[block, 0], blocks[block, 2]
        filled = np.empty(blocks[block, 3] - first_stage, dtype=np.int64)
        for number in range(first, first + blocks[block, 1]):
            filled[:] = 0
            warp, in_slice = (number - first) // SLICE, (number - first) % SLICE
            for k in range(indptr[columns[number]], indptr[columns[number] + 1]):
                inner = places[edge] // buffer if buffer else 0
                place = places[edge] - inner * buffer
                if buffer:
                    maps[stages[first_stage + inner, 0] + place] = inputs[k]
                slice_number = stages[first_stage + inner, 2] + warp
                entry = slices[slice_number, 0] + filled[inner] * SLICE + in_slice
                indices[entry] = place
                weights[entry] = values[k]
                filled[inner] += 1
                edge += 1
