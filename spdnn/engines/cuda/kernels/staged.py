"""The staged kernel: outputs with inputs of their own, in a warp-sliced transposed ELL.

One launch is one step. A thread block takes up to ``32 * warps`` outputs and a minibatch of
features. The distinct inputs of its outputs are gathered into shared memory, a buffer at a time. A
thread takes an output: its weights are read once, coalesced, kept in a register and applied to all
features of the minibatch, whose sums stay in registers.

A thread may also take a chunk of a long output (`spdnn.plan.chunks`). It leaves its partial sums in
global memory and counts itself in. The thread that comes last, of whichever block, adds up the sums
of all chunks in their order, whoever came when, and finishes the output.

After M. Hidayetoglu et al., "At-Scale Sparse Deep Neural Network Inference With Efficient GPU
Implementation" (HPEC 2020), section III.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from spdnn.engines.cuda.kernels.activation import activation
from spdnn.engines.cuda.kernels.gpu import (
    ALIGNED,
    WARP,
    cuda,
    float32,
    int32,
    int64,
    uint32,
    uint64,
)
from spdnn.engines.cuda.kernels.records import ChunkSums, EllBlocks, StepTables, Tiles
from spdnn.plan.chunks import CHUNK_NUMBER, END_CHUNK, FIRST_CHUNK, OUTPUT
from spdnn.plan.cuda.plan import ELL_INDICES, END_ELL, FIRST_ELL, FIRST_WHOLE, MAPS, N_INPUTS
from spdnn.plan.cuda.sizes import row_stride
from spdnn.plan.steps import BIAS_START, IS_RELU, LAYER, N_OUTPUTS, NO_LAYER, TESTS


def make_staged(warps: int, features: int, buffer: int, has_chunks: bool) -> Callable[..., Any]:
    """Make the staged kernel.

    Its thread blocks have ``32 * warps`` threads. Its grid is (ELL blocks, minibatches). Thread
    blocks beyond the step's ELL blocks, or beyond the live features, return at once.

    Parameters
    ----------
    warps : int
        Slices of an ELL block.
    features : int
        Features of a minibatch.
    buffer : int
        Inputs that are staged at a time.
    has_chunks : bool
        Whether steps may have long outputs. A kernel without costs nothing for their sake.
    """
    threads = warps * WARP
    n_rows = max(buffer, threads)
    rows_shape = (n_rows, row_stride(features))
    zero, lowest = float32(0), float32(-np.inf)

    def staged(
        tiles: Tiles, cursor: Any, plan: StepTables, ell: EllBlocks, of_chunks: ChunkSums
    ) -> None:
        """``out <- activation(y W + b)`` for the ELL blocks of the step that `cursor` names."""
        y, out, live, n_live, flags = tiles
        steps, caps, bias, origins = plan
        ell_blocks, stages, slices, maps, indices, weights = ell
        chunks, partial, arrived = of_chunks
        rows = cuda.shared.array(rows_shape, float32, ALIGNED)
        is_live = cuda.shared.array(features, int32)
        sums = cuda.local.array(features, float32)
        step = uint64(cursor[0])
        block = steps[step, FIRST_ELL] + cuda.blockIdx.x
        n = n_live[0]
        first = cuda.blockIdx.y * features
        if block >= steps[step, END_ELL] or first >= n:
            return
        block = uint64(block)
        thread = uint32(cuda.threadIdx.x)
        warp = thread // WARP
        in_warp = thread % WARP
        # While rows are copied, a thread takes one feature of the minibatch and every so many rows.
        feature = thread % features
        source = live[uint32(min(first + feature, n - 1))]
        source_start = int64(source // WARP) * steps[step, N_INPUTS] * WARP + source % WARP
        for v in range(features):
            sums[v] = zero
        if thread < features:
            is_live[uint32(thread)] = 0
        for stage in range(ell_blocks[block, 2], ell_blocks[block, 3]):
            map_start = stages[uint64(stage), 0] - origins[MAPS]
            n_staged = stages[uint64(stage), 1]
            cuda.syncthreads()
            for row in range(thread // features, n_staged, threads // features):
                place = int64(maps[uint64(map_start + row)]) * WARP
                rows[uint32(row), uint32(feature)] = y[uint64(source_start + place)]
            cuda.syncthreads()
            number = uint64(stages[uint64(stage), 2] + warp)
            # Indices and weights have the same origin.
            entry = slices[number, 0] - origins[ELL_INDICES] + in_warp
            for _ in range(slices[number, 1]):
                row = uint32(indices[uint64(entry)])
                weight = weights[uint64(entry)]
                for v in range(features):
                    sums[v] += weight * rows[row, v]
                entry += WARP
        output = ell_blocks[block, 0] + thread
        n_outputs = ell_blocks[block, 1]
        is_output = thread < n_outputs
        is_chunk = has_chunks and block < uint64(steps[step, FIRST_WHOLE])
        if is_chunk and is_output:
            of_chunk = uint64(output)
            minibatch = uint64(cuda.blockIdx.y)
            first_chunk, end_chunk = chunks[of_chunk, FIRST_CHUNK], chunks[of_chunk, END_CHUNK]
            for v in range(features):
                partial[minibatch, uint64(chunks[of_chunk, CHUNK_NUMBER]), v] = sums[v]
            # What a thread wrote is visible to all before it counts itself in.
            cuda.threadfence()
            n_before = cuda.atomic.add(arrived, (minibatch, uint64(first_chunk)), 1)
            is_output = n_before == end_chunk - first_chunk - 1
            if is_output:
                # What the others wrote is read only now, not from a cache.
                cuda.threadfence()
                arrived[minibatch, uint64(first_chunk)] = 0
                output = chunks[of_chunk, OUTPUT]
                for v in range(features):
                    sums[v] = zero
                for c in range(first_chunk, end_chunk):
                    for v in range(features):
                        sums[v] += partial[minibatch, uint64(c), v]
        least = zero if steps[step, IS_RELU] != 0 else lowest
        tests_nonzero = steps[step, TESTS] != 0
        ends_layer = steps[step, LAYER] != NO_LAYER
        cap = caps[step]
        n_after = steps[step, N_OUTPUTS]
        cuda.syncthreads()
        if is_output:
            of_output = bias[uint64(steps[step, BIAS_START] + output)]
            target = int64(first // WARP) * n_after * WARP + first % WARP + output * WARP
            for v in range(features):
                value = activation(sums[v], of_output, tests_nonzero, least, cap)
                if ends_layer and value != zero:
                    is_live[v] = 1
                if is_chunk:
                    # There are few such outputs, each of them anywhere: a thread writes its own.
                    if first + v < n:
                        out[uint64(target + v)] = value
                else:
                    rows[uint32(thread), v] = value
        cuda.syncthreads()
        f = first + feature
        if f < n:
            if not is_chunk:
                target = int64(f // WARP) * n_after * WARP + f % WARP
                target += ell_blocks[block, 0] * WARP
                for row in range(thread // features, n_outputs, threads // features):
                    out[uint64(target + row * WARP)] = rows[uint32(row), uint32(feature)]
            if thread < features and is_live[uint32(thread)] != 0:
                cuda.atomic.max(flags, f, 1)

    return staged
