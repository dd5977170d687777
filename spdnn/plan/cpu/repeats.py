"""Blocks with the same weights: these are kept once.

Weights repeat where all of a network are one number, as the official ones are, or where they are
tied, as those of a convolution. The kernels still take every product. They read the weights of such
blocks from one place, which stays in the nearest cache.
"""

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.machine.jit import jit
from spdnn.plan.cpu.blocks import (
    N_INPUTS,
    N_ROWS,
    WEIGHT_START,
    Arrangement,
    fill_blocks,
)
from spdnn.plan.groups import HASH_BITS, are_all_equal, are_equal, edge_code, slot_of, table_size

LEAST_WEIGHTS = 1 << 12
"""Weights of a layer from which it is worth looking: they fill half of a core's nearest cache."""

SAMPLED_SHARE = 1 / 128
MOST_SAMPLED = 1024
"""Share of a layer's weights that are looked at first, and the most of them."""

_EMPTY = -1
"""A slot of the hash table that holds no block."""

_NO_INDICES = np.empty(0, dtype=np.int32)


def keep_distinct(
    weights: sp.csr_array | sp.csc_array, arrangement: Arrangement
) -> tuple[Arrangement, npt.NDArray[np.float32] | None]:
    """Find blocks of a layer whose weights are equal, bit for bit, and keep them once.

    Parameters
    ----------
    weights : csr_array or csc_array, shape (n_inputs, n_outputs), float32
        The layer.
    arrangement : Arrangement
        Its blocks, each with weights of its own.

    Returns
    -------
    arrangement : Arrangement
        The weights of equal blocks begin at the same place. Where all weights are one number, those
        of the largest block serve all.
    distinct : ndarray, shape (n_weights,), float32, or None
        The weights of the blocks; None where most weights of a sample differ. Each block then has
        weights of its own, which were not looked at.
    """
    bits = weights.data.view(np.uint32)
    if bits.size < LEAST_WEIGHTS:
        return arrangement, None
    if are_all_equal(bits):
        table = arrangement.table.copy()
        table[:, WEIGHT_START] = 0
        n_weights = int((table[:, N_ROWS] * table[:, N_INPUTS]).max())
        distinct = np.full(n_weights, weights.data[0])
        return arrangement._replace(table=table, n_weights=n_weights), distinct
    if not _may_repeat(bits):
        return arrangement, None
    all_weights = np.empty(arrangement.n_weights, dtype=np.float32)
    fill_blocks(weights, arrangement, _NO_INDICES, _NO_INDICES, all_weights)
    table = arrangement.table.copy()
    n_weights = int(_merge_blocks(table, all_weights.view(np.uint32), np.uint64(HASH_BITS)))
    distinct = all_weights[:n_weights]
    if 2 * n_weights < all_weights.size:
        distinct = distinct.copy()
    return arrangement._replace(table=table, n_weights=n_weights), distinct


def _may_repeat(bits: npt.NDArray[np.uint32]) -> bool:
    """Whether weights repeat in a sample: then those of whole blocks may."""
    n_sampled = min(MOST_SAMPLED, int(SAMPLED_SHARE * bits.size))
    sample = bits[:: -(-bits.size // n_sampled)]
    return 2 * np.unique(sample).size <= sample.size


@jit
def _merge_blocks(
    table: npt.NDArray[np.int64], weights: npt.NDArray[np.uint32], hash_bits: np.uint64
) -> int:
    """Move distinct blocks to the front of the weights; gives how many weights they have.

    Hashes only propose, as in `spdnn.plan.groups`: blocks are the same if all their bits are.
    """
    n_blocks = table.shape[0]
    size = table_size(n_blocks)
    slots = np.full(size, _EMPTY, dtype=np.int32)
    codes = np.empty(n_blocks, dtype=np.uint64)
    n_kept = np.uint64(0)
    for block in range(n_blocks):
        n = np.uint64(table[block, N_ROWS] * table[block, N_INPUTS])
        start = np.uint64(table[block, WEIGHT_START])
        code = n
        for k in range(n):
            code += edge_code(np.uint32(k), weights[start + k])
        code &= hash_bits
        codes[block] = code
        slot = slot_of(code, size)
        while True:
            other = slots[slot]
            if other == _EMPTY:
                slots[slot] = block
                table[block, WEIGHT_START] = n_kept
                for k in range(n):
                    weights[n_kept + k] = weights[start + k]
                n_kept += n
                break
            is_equal = codes[other] == code and table[other, N_ROWS] == table[block, N_ROWS]
            if is_equal and table[other, N_INPUTS] == table[block, N_INPUTS]:
                place = np.uint64(table[other, WEIGHT_START])
                if are_equal(weights, start, place, n):
                    table[block, WEIGHT_START] = place
                    break
            slot = (slot + 1) & (size - 1)
    return int(n_kept)
