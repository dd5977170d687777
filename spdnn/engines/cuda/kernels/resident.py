"""The resident kernel: a thread block carries its features through many layers in one launch.

The activations of `features` features live in the block's shared memory, twice: before and after a
step. Between the first layer and the last only weights are read from global memory, and neither
launches nor lists are needed between layers. Groups of outputs with the same inputs are small dense
products: a thread takes a group and four features, 64 sums in registers. Of the other outputs, in
sliced ELL, a thread takes one, for all features of the block.
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
    inlined,
    int32,
    int64,
    int_as_float,
    uint32,
    uint64,
)
from spdnn.engines.cuda.kernels.records import EllBlocks, Groups, Span, StepTables, Tiles
from spdnn.plan.cuda.bundles import UNROLL
from spdnn.plan.cuda.plan import (
    ELL_INDICES,
    END_BUNDLE,
    END_ELL,
    FIRST_BUNDLE,
    FIRST_ELL,
    GROUP_INPUTS,
)
from spdnn.plan.cuda.sizes import row_stride
from spdnn.plan.steps import (
    BIAS_START,
    IS_RELU,
    LAYER,
    MAY_DROP,
    N_OUTPUTS,
    NO_LAYER,
    TESTS,
)

QUAD = 4
"""Features of a thread in a group: one 16-byte load from shared memory."""


def make_groups(bundle: int, rows: int, features: int, threads: int) -> Callable[..., Any]:
    """Make the part of the kernel that takes groups: a thread takes a group and four features.

    Parameters
    ----------
    bundle, rows : int
        Groups of a bundle, and outputs of a group.
    features : int
        Features of a thread block, a multiple of 4.
    threads : int
        Threads of a thread block.
    """
    quads = features // QUAD
    pairs = rows // 2
    stride = row_stride(features)
    sums_shape = (rows, QUAD)
    loaded_shape = (UNROLL, QUAD)
    zero, lowest = float32(0), float32(-np.inf)

    def take_groups(
        plan: StepTables,
        step: Any,
        in_groups: Groups,
        memory: Any,
        before: Any,
        after: Any,
        is_live: Any,
        turn: Any,
        thread: Any,
    ) -> None:
        """Compute the groups of a step, from `before` to `after` in shared memory."""
        steps, caps, bias, origins = plan
        bundles, groups, inputs, weights = in_groups
        sums = cuda.local.array(sums_shape, float32)
        loaded = cuda.local.array(loaded_shape, float32)
        least = zero if steps[step, IS_RELU] != 0 else lowest
        tests_nonzero = steps[step, TESTS] != 0
        cap = caps[step]
        bias_start = steps[step, BIAS_START]
        ends_layer = steps[step, LAYER] != NO_LAYER
        first_bundle = steps[step, FIRST_BUNDLE]
        n_items = (steps[step, END_BUNDLE] - first_bundle) * (bundle * quads)
        for item in range(thread, n_items, threads):
            quad = uint32(item % quads * QUAD)
            group = first_bundle * bundle + item // quads
            of_bundle = uint64(group // bundle)
            inner = group % bundle
            input_at = bundles[of_bundle, 1] - origins[GROUP_INPUTS] + inner
            # Weights are read as pairs: half as many numbers.
            pair_at = (bundles[of_bundle, 1] - origins[GROUP_INPUTS]) * pairs + inner
            for row in range(rows):
                for v in range(QUAD):
                    sums[row, v] = zero
            for _ in range(0, bundles[of_bundle, 0], UNROLL):
                for u in range(UNROLL):
                    place = uint32(inputs[uint64(input_at + u * bundle)])
                    place = before + place * uint32(stride) + quad
                    for v in range(QUAD):
                        loaded[u, v] = memory[place + uint32(v)]
                for u in range(UNROLL):
                    for pair in range(pairs):
                        bits = weights[uint64(pair_at + (u * pairs + pair) * bundle)]
                        low = int_as_float(np.int32(bits))
                        high = int_as_float(np.int32(bits >> 32))
                        for v in range(QUAD):
                            sums[2 * pair, v] += low * loaded[u, v]
                            sums[2 * pair + 1, v] += high * loaded[u, v]
                input_at += UNROLL * bundle
                pair_at += UNROLL * bundle * pairs
            first_output = groups[uint64(group), 0]
            n_rows = groups[uint64(group), 1]
            # Loops are short: each is unrolled, so that sums stay in registers.
            for row in range(rows):
                # Beyond the rows of the group are biases of others, or padding.
                of_output = bias[uint64(bias_start + first_output + row)]
                for v in range(QUAD):
                    sums[row, v] = activation(sums[row, v], of_output, tests_nonzero, least, cap)
            for row in range(rows):
                if row < n_rows:
                    place = after + uint32((first_output + row) * stride) + quad
                    for v in range(QUAD):
                        memory[place + uint32(v)] = sums[row, v]
                        if ends_layer and sums[row, v] != zero:
                            is_live[turn, quad + uint32(v)] = 1

    return inlined(take_groups)


def make_ell(warps: int, features: int, threads: int) -> Callable[..., Any]:
    """Make the part of the kernel that takes ELL blocks: a thread takes an output.

    Parameters
    ----------
    warps : int
        Slices of an ELL block.
    features : int
        Features of a thread block.
    threads : int
        Threads of a thread block.
    """
    stride = row_stride(features)
    zero, lowest = float32(0), float32(-np.inf)

    def take_ell(
        plan: StepTables,
        step: Any,
        ell: EllBlocks,
        memory: Any,
        before: Any,
        after: Any,
        is_live: Any,
        turn: Any,
        thread: Any,
    ) -> None:
        """Compute the ELL blocks of a step, from `before` to `after` in shared memory."""
        steps, caps, bias, origins = plan
        ell_blocks, stages, slices, _, indices, ell_weights = ell
        sums = cuda.local.array(features, float32)
        least = zero if steps[step, IS_RELU] != 0 else lowest
        tests_nonzero = steps[step, TESTS] != 0
        cap = caps[step]
        bias_start = steps[step, BIAS_START]
        ends_layer = steps[step, LAYER] != NO_LAYER
        first_ell = steps[step, FIRST_ELL]
        n_items = (steps[step, END_ELL] - first_ell) * (warps * WARP)
        for item in range(thread, n_items, threads):
            block = uint64(first_ell + item // (warps * WARP))
            place_in_block = item % (warps * WARP)
            if place_in_block < ell_blocks[block, 1]:
                of_slice = uint64(stages[uint64(ell_blocks[block, 2]), 2] + place_in_block // WARP)
                for v in range(features):
                    sums[v] = zero
                # Indices and weights have the same origin.
                entry = slices[of_slice, 0] - origins[ELL_INDICES] + item % WARP
                for _ in range(slices[of_slice, 1]):
                    place = uint32(indices[uint64(entry)])
                    place = before + place * uint32(stride)
                    weight = ell_weights[uint64(entry)]
                    for v in range(features):
                        sums[v] += weight * memory[place + uint32(v)]
                    entry += WARP
                output = ell_blocks[block, 0] + place_in_block
                of_output = bias[uint64(bias_start + output)]
                place = after + uint32(output * stride)
                for v in range(features):
                    value = activation(sums[v], of_output, tests_nonzero, least, cap)
                    memory[place + uint32(v)] = value
                    if ends_layer and value != zero:
                        is_live[turn, uint32(v)] = 1

    return inlined(take_ell)


def make_resident(
    bundle: int, rows: int, warps: int, features: int, threads: int, has_groups: bool
) -> Callable[..., Any]:
    """Make the resident kernel.

    Parameters
    ----------
    bundle, rows : int
        Groups of a bundle, and outputs of a group.
    warps : int
        Slices of an ELL block.
    features : int
        Features of a thread block, a multiple of 4.
    threads : int
        Threads of a thread block.
    has_groups : bool
        Whether the plan has any groups; without them a thread needs fewer registers.
    """
    stride = row_stride(features)
    flags_shape = (2, features)
    zero = float32(0)
    take_groups = make_groups(bundle, rows, features, threads)
    take_ell = make_ell(warps, features, threads)

    def resident(
        tiles: Tiles,
        span: Span,
        plan: StepTables,
        in_groups: Groups,
        ell: EllBlocks,
        stands_for: Any,
        counts: Any,
    ) -> None:
        """Take features through the steps of `span`.

        `out` and `flags` are those after the last step. ``stands_for[f]`` says how many features
        feature f stands for. Each layer adds to ``counts[:, layer]``: live features, distinct ones
        of them, features that entered.
        """
        y, out, live, n_live, flags = tiles
        first_step, end_step, n_first, width = span
        steps = plan.steps
        memory = cuda.shared.array(0, float32, ALIGNED)
        is_live = cuda.shared.array(flags_shape, int32)
        n = n_live[0]
        first = cuda.blockIdx.x * features
        if first >= n:
            return
        thread = uint32(cuda.threadIdx.x)
        before = uint32(0)
        after = uint32(width * stride)
        feature = thread % features
        source = live[uint32(min(first + feature, n - 1))]
        source_start = int64(source // WARP) * n_first * WARP + source % WARP
        is_carried = first + feature < n
        for p in range(thread // features, n_first, threads // features):
            value = y[uint64(source_start + p * WARP)] if is_carried else zero
            memory[before + uint32(p * stride + feature)] = value
        if thread < features:
            is_live[0, uint32(thread)] = 0
            is_live[1, uint32(thread)] = 0
        cuda.syncthreads()
        turn = uint32(0)
        for number in range(first_step, end_step):
            step = uint64(number)
            layer = steps[step, LAYER]
            ends_layer = layer != NO_LAYER
            if has_groups:
                take_groups(plan, step, in_groups, memory, before, after, is_live, turn, thread)
            take_ell(plan, step, ell, memory, before, after, is_live, turn, thread)
            cuda.syncthreads()
            before, after = after, before
            if not ends_layer:
                continue
            may_drop = steps[step, MAY_DROP] != 0
            n_left = 0
            for v in range(features):
                n_left += is_live[turn, v]
            if thread < features and is_carried:
                lives = is_live[turn, uint32(thread)]
                cuda.atomic.add(counts, (2, layer), 1)
                if lives != 0:
                    cuda.atomic.add(counts, (0, layer), stands_for[uint32(first + thread)])
                    cuda.atomic.add(counts, (1, layer), 1)
                elif may_drop:
                    is_carried = False
                # The other row is written in the next step, and nobody reads it any more.
                is_live[uint32(1) - turn, uint32(thread)] = 0
            turn = uint32(1) - turn
            if may_drop and n_left == 0:
                return
            cuda.syncthreads()
        n_last = steps[uint64(end_step - 1), N_OUTPUTS]
        f = cuda.blockIdx.x * features + feature
        if f < n_live[0]:
            target = int64(f // WARP) * n_last * WARP + f % WARP
            for p in range(thread // features, n_last, threads // features):
                out[uint64(target + p * WARP)] = memory[before + uint32(p * stride + feature)]
            if thread < features and is_carried:
                flags[uint32(f)] = 1

    return resident
