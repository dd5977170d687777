"""The grouped kernel: outputs that share their inputs, as small dense products.

One launch is one step. A thread block takes a *bundle* of groups, each of up to `rows` outputs with
the same inputs, and a tile of features. A warp takes a group, and a thread of it `features`
features that stand 32 apart. An input is loaded once, into a register, and used for all outputs of
the group, whose sums stay in registers. Weights are staged in shared memory for some inputs at a
time. From there the whole warp reads them, four at a time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from spdnn.engines.cuda.kernels.activation import activation
from spdnn.engines.cuda.kernels.gpu import (
    ALIGNED,
    QUAD,
    WARP,
    cuda,
    float32,
    in_global,
    in_shared,
    int32,
    int64,
    store4,
    uint32,
    uint64,
)
from spdnn.engines.cuda.kernels.records import Groups, StepTables, Tiles
from spdnn.plan.cuda.bundles import UNROLL
from spdnn.plan.cuda.plan import END_BUNDLE, FIRST_BUNDLE, GROUP_INPUTS, N_INPUTS
from spdnn.plan.steps import BIAS_START, IS_RELU, LAYER, N_OUTPUTS, NO_LAYER, TESTS

STAGED_INPUTS = 32
"""Inputs whose weights are staged at a time: with 8 groups of 16 outputs, 16 KiB."""

load_global, load4_global, place_global = in_global.load, in_global.load4, in_global.place
load_shared, load4_shared, place_shared = in_shared.load, in_shared.load4, in_shared.place


def make_grouped(bundle: int, rows: int, features: int) -> Callable[..., Any]:
    """Make the grouped kernel.

    Its thread blocks have ``32 * bundle`` threads. Its grid is (bundles, tiles of ``32 * features``
    features). Thread blocks beyond the step's bundles, or beyond the live features, return at once.

    Parameters
    ----------
    bundle : int
        Groups of a bundle.
    rows : int
        Outputs of a group.
    features : int
        Features of a thread.
    """
    threads = bundle * WARP
    quads = rows // QUAD
    weights_shape = STAGED_INPUTS * bundle * rows
    inputs_shape = STAGED_INPUTS * bundle
    sums_shape = (rows, features)
    ahead = UNROLL if features > 2 else UNROLL // 2
    loaded_shape = (ahead, features)
    zero, lowest = float32(0), float32(-np.inf)

    def grouped(tiles: Tiles, cursor: Any, plan: StepTables, in_groups: Groups) -> None:
        """``out <- activation(y W + b)`` for the groups of the step that `cursor` names."""
        y, out, live, n_live, flags = tiles
        steps, caps, bias, origins = plan
        bundles, groups, inputs, weights = in_groups
        shared_weights = cuda.shared.array(weights_shape, float32, ALIGNED)
        shared_inputs = cuda.shared.array(inputs_shape, int32)
        sums = cuda.local.array(sums_shape, float32)
        loaded = cuda.local.array(loaded_shape, float32)
        of_rows = cuda.local.array(QUAD, float32)
        starts = cuda.local.array(features, uint64)
        step = uint64(cursor[0])
        bundle_number = steps[step, FIRST_BUNDLE] + cuda.blockIdx.x
        n = int32(n_live[0])
        first = int32(cuda.blockIdx.y * (WARP * features))
        if bundle_number >= steps[step, END_BUNDLE] or first >= n:
            return
        thread = int32(cuda.threadIdx.x)
        group = uint32(thread) // WARP
        in_warp = int32(thread & (WARP - 1))
        n_before = steps[step, N_INPUTS]
        n_inputs = int32(bundles[uint64(bundle_number), 0])
        # A device has room for fewer than 2^32 of them: their weights alone would be 256 GiB.
        input_start = uint32(bundles[uint64(bundle_number), 1] - origins[GROUP_INPUTS])
        for v in range(features):
            # Threads beyond the last feature compute it once more and write nothing.
            source = live[uint32(min(int32(first + v * WARP + in_warp), int32(n - 1)))]
            start = int64(source // WARP) * n_before * WARP + source % WARP
            starts[v] = place_global(y, uint64(start))
            for row in range(rows):
                sums[row, v] = zero
        while n_inputs > 0:
            n_staged = int32(min(STAGED_INPUTS, n_inputs))
            cuda.syncthreads()
            # Weights keep their order, so that no place has to be computed for one of them.
            source_place = place_global(weights, uint64(input_start) * uint64(rows))
            e = int32(thread * QUAD)
            while e < n_staged * int32(bundle * rows):
                a, b, c, d = load4_global(weights, source_place, uint32(e))
                store4(shared_weights, uint32(e), a, b, c, d)
                e = int32(e + threads * QUAD)
            e = int32(thread)
            while e < n_staged * int32(bundle):
                shared_inputs[uint32(e)] = inputs[uint64(input_start) + uint64(e)]
                e = int32(e + threads)
            input_start = uint32(input_start + STAGED_INPUTS * bundle)
            cuda.syncthreads()
            k = int32(0)
            while k < n_staged:
                inputs_place = place_shared(shared_inputs, uint32(k * bundle) + group)
                weights_place = place_shared(
                    shared_weights, uint32(k * (bundle * rows)) + group * QUAD
                )
                k = int32(k + ahead)
                for u in range(ahead):
                    number = load_shared(shared_inputs, inputs_place, uint32(u * bundle))
                    further = uint64(uint32(number)) * WARP
                    for v in range(features):
                        loaded[u, v] = load_global(y, starts[v], further)
                for u in range(ahead):
                    for q in range(quads):
                        of_quad = (u * quads + q) * (bundle * QUAD)
                        of_rows[0], of_rows[1], of_rows[2], of_rows[3] = load4_shared(
                            shared_weights, weights_place, uint32(of_quad)
                        )
                        for r in range(QUAD):
                            for v in range(features):
                                sums[q * QUAD + r, v] += of_rows[r] * loaded[u, v]
            n_inputs = int32(n_inputs - STAGED_INPUTS)
        # These are read once more, rather than kept in registers while sums are taken.
        step = uint64(cursor[0])
        bundle_number = steps[step, FIRST_BUNDLE] + cuda.blockIdx.x
        n = n_live[0]
        first_output = groups[uint64(bundle_number * bundle + group), 0]
        n_rows = groups[uint64(bundle_number * bundle + group), 1]
        n_after = steps[step, N_OUTPUTS]
        bias_start = steps[step, BIAS_START] + first_output
        least = zero if steps[step, IS_RELU] != 0 else lowest
        tests_nonzero = steps[step, TESTS] != 0
        ends_layer = steps[step, LAYER] != NO_LAYER
        cap = caps[step]
        # Short loops follow one another: each is unrolled, so that sums stay in registers.
        for row in range(rows):
            # Beyond the rows of the group are biases of others, or padding.
            of_output = bias[uint64(bias_start + row)]
            for v in range(features):
                sums[row, v] = activation(sums[row, v], of_output, tests_nonzero, least, cap)
        for v in range(features):
            f = int32(first + v * WARP + in_warp)
            if f < n:
                target = int64(f // WARP) * n_after * WARP + f % WARP
                target += first_output * WARP
                is_live = False
                for row in range(rows):
                    if row < n_rows:
                        out[uint64(target + row * WARP)] = sums[row, v]
                        is_live = is_live or sums[row, v] != zero
                # Most threads find the flag set: they read it, where atomics would queue up.
                if is_live and ends_layer and flags[uint32(f)] == 0:
                    cuda.atomic.max(flags, f, 1)

    return grouped
