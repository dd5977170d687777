"""The staged kernel: outputs with inputs of their own, in a warp-sliced transposed ELL.

After M. Hidayetoglu et al., "At-Scale Sparse Deep Neural Network Inference With Efficient GPU
Implementation" (HPEC 2020), section III. One launch is one step. A block takes up to ``32 * warps``
outputs and a minibatch of features. The distinct inputs of its outputs, a buffer at a time, are
gathered into shared memory. A lane is an output: its weights are read once, coalesced, kept in a
register and applied to all features of the minibatch, whose sums stay in registers.

A lane may also be a chunk of a long output (`spdnn.plan.chunks`). It leaves its partial sums in
global memory and counts itself in; the lane that comes last, of whichever block, adds up those of
all chunks in their order, whoever came when, and finishes the output.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from spdnn.engines.cuda.kernels.gpu import (
    ALIGNED,
    LANES,
    cuda,
    float32,
    int32,
    int64,
    uint32,
    uint64,
)
from spdnn.plan.chunks import CHUNK, END_CHUNK, FIRST_CHUNK, OUTPUT
from spdnn.plan.cuda.plan import (
    BIAS_START,
    END_ELL,
    FIRST_ELL,
    FIRST_WHOLE,
    IS_RELU,
    LAYER,
    N_INPUTS,
    N_OUTPUTS,
    NO_LAYER,
    TESTS_NONZERO,
    row_stride,
)


def make_staged(warps: int, features: int, buffer: int, has_chunks: bool) -> Callable[..., Any]:
    """Make the kernel for `warps` slices a block, minibatches, and buffers of `buffer` inputs.

    The kernel's block has ``32 * warps`` threads, its grid is (blocks, minibatches); what is beyond
    the step's blocks or the live features leaves. Without `has_chunks` it is for steps
    without long outputs, and costs nothing for their sake.
    """
    threads = warps * LANES
    n_rows = max(buffer, threads)
    rows_shape = (n_rows, row_stride(features))
    zero, lowest = float32(0), float32(-np.inf)

    def staged(
        y: Any,
        out: Any,
        live: Any,
        n_live: Any,
        cursor: Any,
        steps: Any,
        caps: Any,
        ell_blocks: Any,
        stages: Any,
        slices: Any,
        maps: Any,
        indices: Any,
        weights: Any,
        bias: Any,
        origins: Any,
        flags: Any,
        chunks: Any,
        partial: Any,
        arrived: Any,
    ) -> None:
        """``out <- activation(y W + b)`` for the ELL blocks of the step that `cursor` names.

        Activations and flags as in the grouped kernel. ``partial[m, c]`` has room for the sums
        of a step's chunk c and minibatch m, and ``arrived[m, c]`` counts, where c is the first of
        an output, how many of its chunks are done: zero before a launch and after it.
        """
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
        warp = thread // LANES
        lane = thread % LANES
        # While rows are copied a thread is a feature of the minibatch and every so many rows.
        feature = thread % features
        source = live[uint32(min(first + feature, n - 1))]
        source_start = int64(source // LANES) * steps[step, N_INPUTS] * LANES + source % LANES
        for v in range(features):
            sums[v] = zero
        if thread < features:
            is_live[uint32(thread)] = 0
        for stage in range(ell_blocks[block, 2], ell_blocks[block, 3]):
            map_start = stages[uint64(stage), 0] - origins[2]
            n_staged = stages[uint64(stage), 1]
            cuda.syncthreads()
            for row in range(thread // features, n_staged, threads // features):
                place = int64(maps[uint64(map_start + row)]) * LANES
                rows[uint32(row), uint32(feature)] = y[uint64(source_start + place)]
            cuda.syncthreads()
            number = uint64(stages[uint64(stage), 2] + warp)
            # Indices and weights have the same origin.
            entry = slices[number, 0] - origins[3] + lane
            for _ in range(slices[number, 1]):
                row = uint32(indices[uint64(entry)])
                weight = weights[uint64(entry)]
                for v in range(features):
                    sums[v] += weight * rows[row, v]
                entry += LANES
        output = ell_blocks[block, 0] + thread
        n_outputs = ell_blocks[block, 1]
        is_output = thread < n_outputs
        is_chunk = has_chunks and block < uint64(steps[step, FIRST_WHOLE])
        if is_chunk and is_output:
            of_chunk = uint64(output)
            minibatch = uint64(cuda.blockIdx.y)
            first_chunk, end_chunk = chunks[of_chunk, FIRST_CHUNK], chunks[of_chunk, END_CHUNK]
            for v in range(features):
                partial[minibatch, uint64(chunks[of_chunk, CHUNK]), v] = sums[v]
            # What a lane wrote is there for all before it counts itself in.
            cuda.threadfence()
            n_before = cuda.atomic.add(arrived, (minibatch, uint64(first_chunk)), 1)
            is_output = n_before == end_chunk - first_chunk - 1
            if is_output:
                # And what the others wrote is read only now, not from a cache.
                cuda.threadfence()
                arrived[minibatch, uint64(first_chunk)] = 0
                output = chunks[of_chunk, OUTPUT]
                for v in range(features):
                    sums[v] = zero
                for c in range(first_chunk, end_chunk):
                    for v in range(features):
                        sums[v] += partial[minibatch, uint64(c), v]
        least = zero if steps[step, IS_RELU] != 0 else lowest
        tests_nonzero = steps[step, TESTS_NONZERO] != 0
        ends_layer = steps[step, LAYER] != NO_LAYER
        cap = caps[step]
        n_after = steps[step, N_OUTPUTS]
        cuda.syncthreads()
        if is_output:
            of_output = bias[uint64(steps[step, BIAS_START] + output)]
            target = int64(first // LANES) * n_after * LANES + first % LANES + output * LANES
            for v in range(features):
                value = sums[v]
                if value != zero or not tests_nonzero:
                    value += of_output
                # NaN where the sum is not finite; see make_look in carried.py.
                value = min(max(value, least), cap) + value * zero
                if ends_layer and value != zero:
                    is_live[v] = 1
                if is_chunk:
                    # Few outputs, each of them anywhere: a lane writes its own.
                    if first + v < n:
                        out[uint64(target + v)] = value
                else:
                    rows[uint32(thread), v] = value
        cuda.syncthreads()
        f = first + feature
        if f < n:
            if not is_chunk:
                target = int64(f // LANES) * n_after * LANES + f % LANES
                target += ell_blocks[block, 0] * LANES
                for row in range(thread // features, n_outputs, threads // features):
                    out[uint64(target + row * LANES)] = rows[uint32(row), uint32(feature)]
            if thread < features and is_live[uint32(thread)] != 0:
                cuda.atomic.max(flags, f, 1)

    return staged
