"""Chunks of long outputs: outputs with very many inputs are cut into parts of equal length.

The sum of an output is one chain of additions. Where an output has far more inputs than the others
of its layer, whoever computes it keeps all others waiting. Its edges are therefore cut into chunks
of equally many edges, in their order; the last chunk has the rest. Chunks are computed like outputs
of their own. Their partial sums are then added up in the order of the chunks, so that the result
does not depend on who computed what.

Each engine decides which outputs are long: `spdnn.plan.cpu.split`, `spdnn.plan.cuda.outputs`.

After Y. Zhao et al., "Panamera" (PACT 2022), which splits reductions across thread blocks of a GPU
and lets partial sums meet by atomic additions. Here the order of addition is always the same.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

CHUNK_NUMBER, FIRST_CHUNK, END_CHUNK, OUTPUT = range(4)
"""Columns of the table of chunks."""


class Chunks(NamedTuple):
    """The chunks of a step's long outputs.

    Attributes
    ----------
    indptr : ndarray, shape (n_chunks + 1,), int64
        Where the edges of each begin, in the order of the outputs.
    order : ndarray, shape (n_chunks,), int32
        The order in which chunks are laid out: by their middle inputs. Neighbours, of whichever
        outputs, then have many inputs in common.
    table : ndarray, shape (n_chunks, 4), int64
        A row a chunk, in that order: its number in the order of the outputs, the first chunk of
        its output and the end of them, and the output.
    """

    indptr: npt.NDArray[np.int64]
    order: npt.NDArray[np.int32]
    table: npt.NDArray[np.int64]


def cut_chunks(long: sp.csc_array, chunk: int) -> Chunks:
    """Cut outputs into chunks.

    Parameters
    ----------
    long : csc_array, shape (n_inputs, n_long)
        The weights of the outputs.
    chunk : int
        Edges of a chunk.
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
