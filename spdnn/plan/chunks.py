"""Outputs of very many inputs, cut into chunks: what several lanes, or rows, take of one output.

`spdnn.plan.cpu.split` says what the CPU engine does with them. On a GPU a lane of the staged kernel
goes through the edges of its output one after the other, and a launch is done when its longest lane
is. Outputs with far more inputs than the others of their layer, *long* ones, are therefore cut
into chunks of equally many edges, in the order of their edges; the last one is what is left. A
chunk lies in the ELL like an output. The partial sums of an output's chunks are added up, in the
order of the chunks, by whichever lane comes last.

After Y. Zhao et al. (PACT 2022, "Panamera"), who let partial sums meet by atomic additions; here
only who comes last is found by an atomic, so that the order of addition is always the same.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

CHUNK, FIRST_CHUNK, END_CHUNK, OUTPUT = range(4)
"""Columns of the table of chunks."""


class Chunks(NamedTuple):
    """The chunks of a step's long outputs.

    Attributes
    ----------
    indptr : ndarray, shape (n_chunks + 1,), int64
        Where the edges of each begin, in the order of the outputs.
    order : ndarray, shape (n_chunks,), int32
        In which chunks lie in the ELL: by their middle inputs, so that neighbours, of
        whichever outputs, have many inputs in common.
    table : ndarray, shape (n_chunks, 4), int64
        In that order: the number of each in the order of the outputs, the first one and the end of
        its output's, and the output.
    """

    indptr: npt.NDArray[np.int64]
    order: npt.NDArray[np.int32]
    table: npt.NDArray[np.int64]


def most_whole(degree: npt.NDArray[np.int64], chunk: int, skew: int) -> float:
    """Inputs up to which an output of a layer stays whole.

    Parameters
    ----------
    degree : ndarray, shape (n_outputs,), int64
        Inputs of each output of the layer.
    chunk : int
        Edges of a chunk.
    skew : int
        How many times the mean is far above it.

    Notes
    -----
    *How far.* A full multiprocessor holds 32 warps of the staged kernel, and its shared memory
    gives one of them 16 numbers a lane in 16 clocks: each warp steps every 512. A warp by itself
    waits for two weights at a time, from L2 some 200 clocks and more: it steps about four times as
    fast. So an output of four times the mean ends within the time of one more wave of blocks.

    *How short.* An output of d edges takes `chunk` steps, then d / `chunk` to add up what they
    gave: fewest where `chunk` is the root of d. 64 is that of 4096; for 16384 it takes 320, not
    256. Shorter chunks also have their block stage less: 128 of 64 edges name 8192 inputs at
    most. A partial sum is written and read, 8 bytes for 64 edges. Two chunks are not worth it.

    Both are reckoned, not measured.
    """
    return max(2 * chunk, skew * degree.mean()) if degree.size else 0.0


def cut_chunks(long: sp.csc_array, chunk: int) -> Chunks:
    """Cut outputs into chunks of `chunk` edges.

    Parameters
    ----------
    long : csc_array, shape (n_inputs, n_long)
        The outputs.
    chunk : int
    """
    degree = np.diff(long.indptr)
    n_chunks = -(-degree // chunk)
    ends = np.cumsum(n_chunks)
    output = np.repeat(np.arange(degree.size), n_chunks)
    number = np.arange(output.size)
    first = (ends - n_chunks)[output]
    starts = long.indptr[output] + (number - first) * chunk
    indptr = np.append(starts, long.nnz).astype(np.int64)
    middle = long.indices[(indptr[:-1] + indptr[1:]) // 2]
    order = np.argsort(middle, kind="stable").astype(np.int32)
    table = np.stack([number, first, ends[output], output], axis=1).astype(np.int64)
    return Chunks(indptr, order, table[order])
