"""The resident kernel: a thread block carries its features through many layers in one launch.

The activations of `features` features live in the block's shared memory, twice: before and after a
step. Between the first layer and the last only weights are read from global memory, and neither
launches nor lists are needed between layers.

Groups of outputs with the same inputs are small dense products. A thread takes eight outputs of a
group for eight features, 64 sums in registers: so it reads as few numbers for a multiply-add as it
can. While it multiplies, the weights and inputs that come next are on their way to registers, those
of the next step, too. Of the other outputs, in sliced ELL, a thread takes one, for four features.

What a step reads of the plan's tables is known one step ahead. A barrier between two steps is then
followed by one wait for memory at most, not by a chain of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spdnn.engines.cuda.kernels.activation import activation
from spdnn.engines.cuda.kernels.gpu import (
    ALIGNED,
    QUAD,
    WARP,
    cuda,
    float32,
    float_as_int,
    in_global,
    in_shared,
    inlined,
    int32,
    int64,
    store4,
    uint32,
    uint64,
)
from spdnn.engines.cuda.kernels.records import (
    EllBlocks,
    Groups,
    Span,
    StepFacts,
    StepTables,
    Tiles,
)
from spdnn.plan.cuda import sizes
from spdnn.plan.cuda.bundles import UNROLL
from spdnn.plan.cuda.plan import (
    ELL_INDICES,
    END_BUNDLE,
    END_ELL,
    FIRST_BUNDLE,
    FIRST_ELL,
    GROUP_INPUTS,
)
from spdnn.plan.steps import (
    BIAS_START,
    IS_RELU,
    LAYER,
    MAY_DROP,
    N_OUTPUTS,
    NO_LAYER,
    TESTS,
)

MOST_SUMS = 64
"""Sums of a thread in a group."""

MOST_FEATURES = 8
"""Features of a thread in a group at most: two loads of 16 bytes from shared memory."""

NO_SIGN = 0x7FFFFFFF
"""All bits of a float32 number but its sign."""

FLAG_ROWS = 3
"""Rows of flags. While one is read, threads that are ahead set those of the next layer. The third
row is cleared for the layer after it."""

row_of = inlined(sizes.row_of)
load4_global, place_shared, load4_shared = in_global.load4, in_shared.place, in_shared.load4
place_global = in_global.place


def facts_of(plan: StepTables, number: Any) -> StepFacts:
    """What the tables say of a step."""
    steps = plan.steps
    step = uint64(number)
    return StepFacts(
        int32(steps[step, FIRST_BUNDLE]),
        int32(steps[step, END_BUNDLE]),
        int32(steps[step, FIRST_ELL]),
        int32(steps[step, END_ELL]),
        int32(steps[step, BIAS_START]),
        int32(steps[step, LAYER]),
        int32(steps[step, IS_RELU]),
        int32(steps[step, TESTS]),
        int32(steps[step, MAY_DROP]),
        plan.caps[step],
    )


facts_of = inlined(facts_of)


class GroupThreads(NamedTuple):
    """How threads share the groups of a step.

    Attributes
    ----------
    rows : int
        Outputs of a thread.
    parts : int
        Threads that share the outputs of a group.
    features : int
        Features of a thread, 4 or 8.
    of_group : int
        Threads of a group.
    """

    rows: int
    parts: int
    features: int
    of_group: int


def group_threads(rows: int, features: int) -> GroupThreads:
    """How threads share groups of `rows` outputs, for `features` features of a thread block.

    Parameters
    ----------
    rows, features : int
        Multiples of 4.
    """
    of_thread = min(features, MOST_FEATURES)
    rows_of_thread = min(rows, MOST_SUMS // of_thread)
    parts = rows // rows_of_thread
    return GroupThreads(rows_of_thread, parts, of_thread, parts * (features // of_thread))


def make_groups(
    bundle: int, rows: int, features: int, threads: int
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Make the part of the kernel that takes groups.

    Parameters
    ----------
    bundle, rows : int
        Groups of a bundle, and outputs of a group.
    features : int
        Features of a thread block, a multiple of 4.
    threads : int
        Threads of a thread block.

    Returns
    -------
    find_bundle : callable
        Finds the bundle in which a thread begins a step.
    begin : callable
        Loads the first weights of a thread, and the rows of the inputs that belong to them.
    take_groups : callable
        Takes the groups of a step, and begins the next step.
    """
    own_rows, parts, own_features, of_group = group_threads(rows, features)
    n_quads = own_features // QUAD
    row_quads = own_rows // QUAD
    shares = of_group // parts
    # From the weights of an input to those of the next one, for a group.
    weights_step = rows * bundle
    sums_shape = (own_rows, own_features)
    loaded_shape = (UNROLL, own_features)
    zero = float32(0)

    def find_bundle(of_step: StepFacts, in_groups: Groups, item: Any) -> Any:
        """The inputs of the bundle of an item, and where they begin; 0 without such an item."""
        group = item // of_group
        of_bundle = of_step.first_bundle + group // bundle
        if of_bundle < of_step.end_bundle:
            row = uint64(of_bundle)
            return in_groups.bundles[row, 0], in_groups.bundles[row, 1]
        return 0, 0

    def load_weights(in_groups: Groups, place: Any, u: Any, weights: Any) -> None:
        """Load the weights of an input for the outputs of the thread."""
        for q in range(row_quads):
            further = uint64(u * weights_step + q * (bundle * QUAD))
            a, b, c, d = load4_global(in_groups.weights, place, further)
            weights[u, QUAD * q] = a
            weights[u, QUAD * q + 1] = b
            weights[u, QUAD * q + 2] = c
            weights[u, QUAD * q + 3] = d

    load_weights = inlined(load_weights)

    def load_inputs(memory: Any, bases: Any, row: Any, u: Any, loaded: Any) -> None:
        """Load an input for the features of the thread."""
        for q in range(n_quads):
            a, b, c, d = load4_shared(memory, bases[q], row)
            loaded[u, QUAD * q] = a
            loaded[u, QUAD * q + 1] = b
            loaded[u, QUAD * q + 2] = c
            loaded[u, QUAD * q + 3] = d

    load_inputs = inlined(load_inputs)

    def multiply(sums: Any, weights: Any, loaded: Any, u: Any) -> None:
        """Add what an input gives to all sums."""
        for r in range(own_rows):
            for v in range(own_features):
                sums[r, v] += weights[u, r] * loaded[u, v]

    multiply = inlined(multiply)

    def weights_at(item: Any, start: Any) -> Any:
        """Where the weights of an item begin."""
        inner = item // of_group % bundle
        part = item % parts
        return start * rows + (part * (row_quads * bundle) + inner) * QUAD

    weights_at = inlined(weights_at)

    def begin(
        in_groups: Groups, n_inputs: Any, start: Any, item: Any, weights: Any, rows_ahead: Any
    ) -> None:
        """Load the first weights of an item, and the rows of their inputs."""
        if n_inputs > 0:
            inner = item // of_group % bundle
            place = place_global(in_groups.weights, uint64(weights_at(item, start)))
            for u in range(UNROLL):
                rows_ahead[u] = in_groups.inputs[uint64(start + u * bundle + inner)]
                load_weights(in_groups, place, u, weights)

    begin = inlined(begin)
    find_bundle = inlined(find_bundle)

    def take_groups(
        plan: StepTables,
        of_step: StepFacts,
        of_next: StepFacts,
        in_groups: Groups,
        own_bundle: Any,
        memory: Any,
        before: Any,
        after: Any,
        is_live: Any,
        turn: Any,
        thread: Any,
        weights: Any,
        rows_ahead: Any,
    ) -> Any:
        """Take the groups of a step, from `before` to `after` in shared memory.

        `own_bundle` is what `find_bundle` says of the thread's first item, and `weights` and
        `rows_ahead` are what `begin` has loaded for it. At the end they are the next step's.
        """
        sums = cuda.local.array(sums_shape, float32)
        loaded = cuda.local.array(loaded_shape, float32)
        biases = cuda.local.array(own_rows, float32)
        alive = cuda.local.array(own_features, int32)
        bases = cuda.local.array(n_quads, uint64)
        origin = plan.origins[GROUP_INPUTS]
        n_items = (of_step.end_bundle - of_step.first_bundle) * (bundle * of_group)
        next_bundle = find_bundle(of_next, in_groups, thread)
        has_bundles = of_step.end_bundle > 0
        for item in range(thread, n_items, threads):
            part = item % parts
            share = item // parts % shares
            # Threads with other outputs of the group take the same features in another order: so
            # they read, and write, in other banks.
            quad = uint32((share * n_quads + part % n_quads) * QUAD)
            for q in range(n_quads):
                bases[q] = place_shared(memory, before + (quad ^ uint32(QUAD * q)))
            n_inputs = int32(own_bundle[0])
            start = own_bundle[1] - origin
            group = uint64(of_step.first_bundle * bundle + item // of_group)
            first_output = int32(in_groups.groups[group, 0]) + part * own_rows
            n_rows = int32(in_groups.groups[group, 1]) - part * own_rows
            for r in range(own_rows):
                # Beyond the rows of the group are biases of others, or padding.
                biases[r] = plan.bias[uint64(of_step.bias_start + first_output + r)]
            inner = item // of_group % bundle
            weight_at = weights_at(item, start)
            input_at = start + inner
            n_further = n_inputs - int32(UNROLL)
            if n_further > 0:
                input_at += UNROLL * bundle
            for u in range(UNROLL):
                load_inputs(memory, bases, uint32(rows_ahead[u]) * uint32(features), u, loaded)
                rows_ahead[u] = in_groups.inputs[uint64(input_at + u * bundle)]
            for r in range(own_rows):
                for v in range(own_features):
                    sums[r, v] = zero
            while n_further > 0:
                n_further = int32(n_further - int32(UNROLL))
                weight_at += UNROLL * weights_step
                place = place_global(in_groups.weights, uint64(weight_at))
                if n_further > 0:
                    input_at += UNROLL * bundle
                # What was multiplied makes room for what comes next, in two halves. The branch
                # between them is always taken, which the compiler does not know. Without it the
                # assembler moves all loads behind the last multiplication.
                for u in range(UNROLL // 2):
                    multiply(sums, weights, loaded, u)
                    load_weights(in_groups, place, u, weights)
                    load_inputs(memory, bases, uint32(rows_ahead[u]) * uint32(features), u, loaded)
                    rows_ahead[u] = in_groups.inputs[uint64(input_at + u * bundle)]
                if has_bundles:
                    for u in range(UNROLL // 2, UNROLL):
                        multiply(sums, weights, loaded, u)
                        load_weights(in_groups, place, u, weights)
                        row = uint32(rows_ahead[u]) * uint32(features)
                        load_inputs(memory, bases, row, u, loaded)
                        rows_ahead[u] = in_groups.inputs[uint64(input_at + u * bundle)]
            for u in range(UNROLL):
                multiply(sums, weights, loaded, u)
            following = item + threads
            if following < n_items:
                own_bundle = find_bundle(of_step, in_groups, following)
                begin(
                    in_groups, own_bundle[0], own_bundle[1] - origin, following, weights, rows_ahead
                )
            else:
                begin(
                    in_groups, next_bundle[0], next_bundle[1] - origin, thread, weights, rows_ahead
                )
            least = zero if of_step.is_relu != 0 else float32(-np.inf)
            for r in range(own_rows):
                for v in range(own_features):
                    sums[r, v] = activation(
                        sums[r, v], biases[r], of_step.tests != 0, least, of_step.cap
                    )
            for v in range(own_features):
                alive[v] = 0
            for r in range(own_rows):
                if r < n_rows:
                    place = after + uint32(row_of(first_output + r)) * uint32(features) + quad
                    for q in range(n_quads):
                        store4(
                            memory,
                            place ^ uint32(QUAD * q),
                            sums[r, QUAD * q],
                            sums[r, QUAD * q + 1],
                            sums[r, QUAD * q + 2],
                            sums[r, QUAD * q + 3],
                        )
                    for v in range(own_features):
                        alive[v] |= float_as_int(sums[r, v])
            if of_step.layer != NO_LAYER:
                for v in range(own_features):
                    # All bits but the sign's: 0 and -0 are no activation.
                    if alive[v] & NO_SIGN != 0:
                        feature = (quad ^ uint32(v // QUAD * QUAD)) + uint32(v % QUAD)
                        is_live[turn, feature] = 1
        if thread >= n_items:
            begin(in_groups, next_bundle[0], next_bundle[1] - origin, thread, weights, rows_ahead)
        return next_bundle

    return find_bundle, begin, inlined(take_groups)


def make_ell(warps: int, features: int, threads: int) -> Callable[..., Any]:
    """Make the part of the kernel that takes ELL blocks: a thread takes an output, four features.

    Parameters
    ----------
    warps : int
        Slices of an ELL block.
    features : int
        Features of a thread block, a multiple of 4.
    threads : int
        Threads of a thread block.
    """
    n_quads = features // QUAD
    zero = float32(0)

    def take_ell(
        plan: StepTables,
        of_step: StepFacts,
        ell: EllBlocks,
        memory: Any,
        before: Any,
        after: Any,
        is_live: Any,
        turn: Any,
        thread: Any,
    ) -> None:
        """Take the ELL blocks of a step, from `before` to `after` in shared memory."""
        origin = plan.origins[ELL_INDICES]  # of indices and of weights
        least = zero if of_step.is_relu != 0 else float32(-np.inf)
        tests_nonzero = of_step.tests != 0
        ends_layer = of_step.layer != NO_LAYER
        n_items = (of_step.end_ell - of_step.first_ell) * (warps * WARP * n_quads)
        for item in range(thread, n_items, threads):
            quad = uint32(item % n_quads * QUAD)
            base = place_shared(memory, before + quad)
            of_step_place = item // n_quads
            block = uint64(of_step.first_ell + of_step_place // (warps * WARP))
            in_block = of_step_place % (warps * WARP)
            # A block has one stage, all inputs: its slices have the numbers of its warps.
            of_slice = block * uint64(warps) + uint64(in_block // WARP)
            if in_block < ell.blocks[block, 1]:
                a = b = c = d = zero
                entry = ell.slices[of_slice, 0] - origin + in_block % WARP
                for _ in range(ell.slices[of_slice, 1]):
                    row = uint32(ell.indices[uint64(entry)])
                    weight = ell.weights[uint64(entry)]
                    e, f, g, h = load4_shared(memory, base, row * uint32(features))
                    a += weight * e
                    b += weight * f
                    c += weight * g
                    d += weight * h
                    entry += WARP
                output = int32(ell.blocks[block, 0]) + in_block
                of_output = plan.bias[uint64(of_step.bias_start + output)]
                a = activation(a, of_output, tests_nonzero, least, of_step.cap)
                b = activation(b, of_output, tests_nonzero, least, of_step.cap)
                c = activation(c, of_output, tests_nonzero, least, of_step.cap)
                d = activation(d, of_output, tests_nonzero, least, of_step.cap)
                place = after + uint32(row_of(output)) * uint32(features) + quad
                store4(memory, place, a, b, c, d)
                if ends_layer:
                    if a != zero:
                        is_live[turn, quad] = 1
                    if b != zero:
                        is_live[turn, quad + uint32(1)] = 1
                    if c != zero:
                        is_live[turn, quad + uint32(2)] = 1
                    if d != zero:
                        is_live[turn, quad + uint32(3)] = 1

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
    flags_shape = (FLAG_ROWS, features)
    weights_shape = (UNROLL, group_threads(rows, features).rows)
    zero = float32(0)
    find_bundle, begin, take_groups = make_groups(bundle, rows, features, threads)
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
        first_step, end_step, n_first, n_rows = span
        memory = cuda.shared.array(0, float32, ALIGNED)
        is_live = cuda.shared.array(flags_shape, int32, ALIGNED)
        weights = cuda.local.array(weights_shape, float32)
        rows_ahead = cuda.local.array(UNROLL, int32)
        n = n_live[0]
        first = cuda.blockIdx.x * features
        if first >= n:
            return
        thread = int32(cuda.threadIdx.x)
        of_step = facts_of(plan, first_step)
        of_next = facts_of(plan, min(first_step + 1, end_step - 1))
        if has_groups:
            own_bundle = find_bundle(of_step, in_groups, thread)
            start = own_bundle[1] - plan.origins[GROUP_INPUTS]
            begin(in_groups, own_bundle[0], start, thread, weights, rows_ahead)
        before = uint32(0)
        after = uint32(n_rows * features)
        feature = thread % features
        source = live[uint32(min(first + feature, n - 1))]
        source_start = int64(source // WARP) * n_first * WARP + source % WARP
        is_carried = first + feature < n
        stands = stands_for[uint32(min(first + feature, n - 1))]
        for p in range(thread // features, n_first, threads // features):
            value = y[uint64(source_start + p * WARP)] if is_carried else zero
            memory[before + uint32(row_of(p) * features + feature)] = value
        if thread < features:
            for row in range(FLAG_ROWS):
                is_live[row, uint32(thread)] = 0
        cuda.syncthreads()
        turn = uint32(0)
        for number in range(first_step, end_step):
            further = facts_of(plan, min(number + 2, end_step - 1))
            if has_groups:
                own_bundle = take_groups(
                    plan, of_step, of_next, in_groups, own_bundle, memory, before, after,
                    is_live, turn, thread, weights, rows_ahead,
                )  # fmt: skip
            take_ell(plan, of_step, ell, memory, before, after, is_live, turn, thread)
            cuda.syncthreads()
            before, after = after, before
            layer, may_drop = of_step.layer, of_step.may_drop != 0
            of_step, of_next = of_next, further
            if layer == NO_LAYER:
                continue
            if thread < features and is_carried:
                lives = is_live[turn, uint32(thread)]
                cuda.atomic.add(counts, (2, layer), 1)
                if lives != 0:
                    cuda.atomic.add(counts, (0, layer), stands)
                    cuda.atomic.add(counts, (1, layer), 1)
                elif may_drop:
                    is_carried = False
            if may_drop:
                n_left = 0
                for v in range(features):
                    n_left += is_live[turn, v]
                if n_left == 0:
                    return
            # Behind the barrier nobody reads the flags of the layer before any more.
            if thread < features:
                is_live[uint32(turn + 2) % FLAG_ROWS, uint32(thread)] = 0
            turn = uint32(turn + 1) % FLAG_ROWS
        n_last = plan.steps[uint64(end_step - 1), N_OUTPUTS]
        f = cuda.blockIdx.x * features + feature
        if f < n_live[0]:
            target = int64(f // WARP) * n_last * WARP + f % WARP
            for p in range(thread // features, n_last, threads // features):
                place = before + uint32(row_of(p) * features + feature)
                out[uint64(target + p * WARP)] = memory[place]
            if thread < features and is_carried:
                flags[uint32(f)] = 1

    return resident
