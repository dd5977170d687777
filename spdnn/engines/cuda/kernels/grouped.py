"""The grouped kernel: outputs that share their inputs, as small dense products.

One launch is one step. A block takes a *bundle* of groups, each of up to `rows` outputs with
the same inputs, and a tile of features. A warp is a group, a lane is `features` features 32
apart: an input is loaded once, into a register, and used for all outputs of the group, whose sums
stay in registers. Weights are staged in shared memory, a chunk of inputs at a time, from where
they are read four at a time by the whole warp.
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
from spdnn.plan.cuda.bundles import UNROLL
from spdnn.plan.cuda.plan import (
    BIAS_START,
    END_BUNDLE,
    FIRST_BUNDLE,
    IS_RELU,
    LAYER,
    N_INPUTS,
    N_OUTPUTS,
    NO_LAYER,
    TESTS_NONZERO,
)

CHUNK = 16
"""Inputs whose weights are staged at a time: with 8 groups of 16 outputs, 8 KiB."""


def make_grouped(bundle: int, rows: int, features: int) -> Callable[..., Any]:
    """Make the kernel for bundles of `bundle` groups, groups of `rows`, `features` a lane.

    The kernel's block has ``32 * bundle`` threads; its grid is (bundles, tiles of
    ``32 * features`` features), and what is beyond the step's bundles or the live features leaves.
    """
    threads = bundle * LANES
    pairs = rows // 2
    weights_shape = (CHUNK * bundle, rows)
    inputs_shape = CHUNK * bundle
    sums_shape = (rows, features)
    ahead = UNROLL if features > 2 else UNROLL // 2
    loaded_shape = (ahead, features)
    zero, lowest = float32(0), float32(-np.inf)

    def grouped(
        y: Any,
        out: Any,
        live: Any,
        n_live: Any,
        cursor: Any,
        steps: Any,
        caps: Any,
        bundles: Any,
        groups: Any,
        inputs: Any,
        weights: Any,
        bias: Any,
        origins: Any,
        flags: Any,
    ) -> None:
        """``out <- activation(y W + b)`` for the groups of the step that `cursor` names.

        `y` and `out` are activations in tiles: 32 features of a neuron lie together, the
        neurons of a tile after each other. The f-th feature is number ``live[f]`` of `y` and
        number f of `out`. `flags` is 1 where a feature has an activation that is not zero.
        """
        shared_weights = cuda.shared.array(weights_shape, float32, ALIGNED)
        shared_inputs = cuda.shared.array(inputs_shape, int32)
        sums = cuda.local.array(sums_shape, float32)
        loaded = cuda.local.array(loaded_shape, float32)
        starts = cuda.local.array(features, int64)
        step = uint64(cursor[0])
        bundle_number = steps[step, FIRST_BUNDLE] + cuda.blockIdx.x
        n = int32(n_live[0])
        first = int32(cuda.blockIdx.y * (LANES * features))
        if bundle_number >= steps[step, END_BUNDLE] or first >= n:
            return
        thread = uint32(cuda.threadIdx.x)
        group = thread // LANES
        lane = thread % LANES
        n_before = steps[step, N_INPUTS]
        n_inputs = int32(bundles[uint64(bundle_number), 0])
        input_start = bundles[uint64(bundle_number), 1] - origins[0]
        for v in range(features):
            # Lanes beyond the last feature compute it once more and write nothing.
            source = live[uint32(min(first + v * LANES + lane, n - 1))]
            starts[v] = int64(source // LANES) * n_before * LANES + source % LANES
            for row in range(rows):
                sums[row, v] = zero
        while n_inputs > 0:
            n_staged = min(CHUNK, n_inputs)
            cuda.syncthreads()
            for e in range(thread, n_staged * bundle * rows, threads):
                k = e // (rows * bundle)
                pair = e // (2 * bundle) % pairs
                place = uint32(k * bundle + e // 2 % bundle)
                shared_weights[place, uint32(pair * 2 + e % 2)] = weights[
                    uint64(input_start * rows + e)
                ]
            if thread < n_staged * bundle:
                shared_inputs[uint32(thread)] = inputs[uint64(input_start + thread)]
            input_start += CHUNK * bundle
            cuda.syncthreads()
            for k in range(0, n_staged, ahead):
                for u in range(ahead):
                    source_place = int64(shared_inputs[uint32((k + u) * bundle + group)]) * LANES
                    for v in range(features):
                        loaded[u, v] = y[uint64(starts[v] + source_place)]
                for u in range(ahead):
                    for row in range(rows):
                        weight = shared_weights[uint32((k + u) * bundle + group), row]
                        for v in range(features):
                            sums[row, v] += weight * loaded[u, v]
            n_inputs = int32(n_inputs - CHUNK)
        # Read once more, rather than kept in registers through the sums.
        step = uint64(cursor[0])
        bundle_number = steps[step, FIRST_BUNDLE] + cuda.blockIdx.x
        n = n_live[0]
        first_output = groups[uint64(bundle_number * bundle + group), 0]
        n_rows = groups[uint64(bundle_number * bundle + group), 1]
        n_after = steps[step, N_OUTPUTS]
        bias_start = steps[step, BIAS_START] + first_output
        least = zero if steps[step, IS_RELU] != 0 else lowest
        tests_nonzero = steps[step, TESTS_NONZERO] != 0
        ends_layer = steps[step, LAYER] != NO_LAYER
        cap = caps[step]
        # Short loops one after the other: each is unrolled, so that sums stay in registers.
        for row in range(rows):
            # Beyond the group's rows there are others' biases, or padding.
            of_output = bias[uint64(bias_start + row)]
            for v in range(features):
                value = sums[row, v]
                if value != zero or not tests_nonzero:
                    value += of_output
                # NaN where the sum is not finite; see make_look in carried.py.
                sums[row, v] = min(max(value, least), cap) + value * zero
        for v in range(features):
            f = first + v * LANES + lane
            if f < n:
                target = int64(f // LANES) * n_after * LANES + f % LANES
                target += first_output * LANES
                is_live = False
                for row in range(rows):
                    if row < n_rows:
                        out[uint64(target + row * LANES)] = sums[row, v]
                        is_live = is_live or sums[row, v] != zero
                # Most find it set, which is a read where an atomic would be a queue.
                if is_live and ends_layer and flags[uint32(f)] == 0:
                    cuda.atomic.max(flags, f, 1)

    return grouped
