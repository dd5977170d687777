"""Kernels around the layers: loading inputs, listing live features, finding equal ones."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spdnn.engines.cuda.kernels.gpu import LANES, cuda, float32, int32, int64, uint64
from spdnn.plan.cuda.plan import LAYER, MAY_DROP, NO_LAYER

EMPTY = 0
"""A slot of the hash table that holds nothing; no hash is 0."""


def make_load(threads: int, has_values: bool) -> Callable[..., Any]:
    """Make the kernel that turns features in index form into tiles, a block a tile."""
    warps = threads // LANES

    def load(
        indptr: Any,
        indices: Any,
        values: Any,
        position: Any,
        n_loaded: Any,
        first: Any,
        n: Any,
        origin: Any,
        y: Any,
    ) -> None:
        """Add each input at its position in the tile, for `n` features from number `first`.

        ``indices[indptr[f] - origin]`` is the first input of feature f. A position of
        `n_loaded` is none. A warp takes a feature at a time, so that a block's writes
        stay within a tile, which the L2 cache holds.
        """
        tile = int64(cuda.blockIdx.x) * n_loaded * LANES
        for place in range(cuda.threadIdx.x, n_loaded * LANES, threads):
            y[uint64(tile + place)] = float32(0)
        cuda.syncthreads()
        lane = cuda.threadIdx.x % LANES
        for column in range(cuda.threadIdx.x // LANES, LANES, warps):
            f = int64(cuda.blockIdx.x) * LANES + column
            if f < n:
                for k in range(indptr[first + f] + lane, indptr[first + f + 1], LANES):
                    place = int64(position[indices[k - origin]])
                    if place < n_loaded:
                        value = values[k - origin] if has_values else float32(1)
                        # Several inputs of a feature may be summed in one place.
                        cuda.atomic.add(y, tile + place * LANES + column, value)

    return load


def make_list(threads: int, after_step: bool) -> Callable[..., Any]:
    """Make the kernel that lists the features to go on with; one block.

    Parameters
    ----------
    threads : int
    after_step : bool
        Whether it is launched behind a step, or to shorten a list that is there.
    """

    def list_carried(
        flags: Any,
        n_live: Any,
        live: Any,
        ids: Any,
        stands_for: Any,
        next_live: Any,
        n_next: Any,
        next_ids: Any,
        next_stands_for: Any,
        cursor: Any,
        steps: Any,
        counts: Any,
    ) -> None:
        """Copy what belongs to flagged features, in their order, and clear the flags.

        Behind the step that `cursor` names, features stand where their number says, so that
        numbers are written to `next_live`; those without a flag stay if the step may not drop them,
        counters are added to ``counts[:, layer]`` (live features, distinct ones of them, features
        that entered), and the cursor goes to the next step. Otherwise ``live[f]`` is copied.
        """
        sums = cuda.shared.array(threads, int32)
        thread = cuda.threadIdx.x
        n = n_live[0]
        share = (n + threads - 1) // threads
        first = min(thread * share, n)
        end = min(first + share, n)
        layer = int64(NO_LAYER)
        drops = True
        if after_step:
            step = uint64(cursor[0])
            layer = steps[step, LAYER]
            drops = steps[step, MAY_DROP] != 0
        n_flagged = int32(0)
        n_stood_for = int64(0)
        for f in range(first, end):
            if flags[f] != 0:
                n_flagged += int32(1)
                n_stood_for += stands_for[f]
        if layer != NO_LAYER and n_flagged > 0:
            cuda.atomic.add(counts, (0, layer), n_stood_for)
            cuda.atomic.add(counts, (1, layer), int64(n_flagged))
        # An inclusive scan over the threads (W. D. Hillis and G. L. Steele, 1986).
        sums[thread] = n_flagged if drops else int32(end - first)
        distance = 1
        while distance < threads:
            cuda.syncthreads()
            add = sums[thread - distance] if thread >= distance else int32(0)
            cuda.syncthreads()
            sums[thread] += add
            distance *= 2
        cuda.syncthreads()
        place = sums[thread - 1] if thread > 0 else int32(0)
        for f in range(first, end):
            if flags[f] != 0 or not drops:
                next_live[place] = int32(f) if after_step else live[f]
                next_ids[place] = ids[f]
                next_stands_for[place] = stands_for[f]
                place += int32(1)
            flags[f] = 0
        if thread == 0:
            n_next[0] = sums[threads - 1]
            if after_step:
                cursor[0] += 1
            if layer != NO_LAYER:
                cuda.atomic.add(counts, (2, layer), int64(n))

    return list_carried


def make_hash(threads: int) -> Callable[..., Any]:
    """Make the kernel that hashes carried features; grid (tiles, parts of the neurons)."""
    warps = threads // LANES

    def hash_features(y_bits: Any, n_neurons: Any, live: Any, n_live: Any, codes: Any) -> None:
        """Add to `codes` a hash of every neuron's bits: equal features get equal sums."""
        f = cuda.blockIdx.x * LANES + cuda.threadIdx.x % LANES
        if f < n_live[0]:
            source = live[f]
            start = int64(source // LANES) * n_neurons * LANES + source % LANES
            code = uint64(0)
            part = cuda.blockIdx.y * warps + cuda.threadIdx.x // LANES
            for p in range(part, n_neurons, cuda.gridDim.y * warps):
                bits = np.uint32(y_bits[uint64(start + p * LANES)])
                # The finaliser of MurmurHash3 (A. Appleby, 2011), of neuron and value.
                mixed = (np.uint64(p + 1) << np.uint64(32)) | np.uint64(bits)
                mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
                mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
                code += mixed ^ (mixed >> np.uint64(33))
            cuda.atomic.add(codes, f, code)

    return hash_features


def propose(codes: Any, n_live: Any, table: Any, first: Any, slot_of: Any) -> None:
    """Find for each feature its slot in a hash table of open addressing.

    `table` holds codes and has a power of two of slots, more than twice as many as there are
    features; ``first[slot]``, which is larger than any, becomes the smallest number of a feature
    with the slot's code.
    """
    f = cuda.grid(1)
    if f < n_live[0]:
        code = codes[f] | np.uint64(1)
        mask = np.uint64(table.size - 1)
        slot = (code >> np.uint64(20)) & mask
        while True:
            found = cuda.atomic.cas(table, slot, np.uint64(EMPTY), code)
            if found == np.uint64(EMPTY) or found == code:
                break
            slot = (slot + np.uint64(1)) & mask
        slot_of[f] = slot
        cuda.atomic.min(first, slot, f)


def make_confirm(threads: int) -> Callable[..., Any]:
    """Make the kernel that compares features by value; grid (tiles, parts of the neurons)."""
    warps = threads // LANES

    def confirm(
        y: Any, n_neurons: Any, live: Any, n_live: Any, first: Any, slot_of: Any, differs: Any
    ) -> None:
        """Set `differs` for features that are not equal to the first one of their hash."""
        f = cuda.blockIdx.x * LANES + cuda.threadIdx.x % LANES
        if f < n_live[0]:
            other = first[slot_of[f]]
            if other != f:
                mine, others = live[f], live[other]
                start = int64(mine // LANES) * n_neurons * LANES + mine % LANES
                start_of_other = int64(others // LANES) * n_neurons * LANES + others % LANES
                is_equal = True
                part = cuda.blockIdx.y * warps + cuda.threadIdx.x // LANES
                for p in range(part, n_neurons, cuda.gridDim.y * warps):
                    place = p * LANES
                    if y[uint64(start + place)] != y[uint64(start_of_other + place)]:
                        is_equal = False
                if not is_equal:
                    cuda.atomic.max(differs, f, 1)

    return confirm


def make_look(threads: int) -> Callable[..., Any]:
    """Make the kernel that looks for overflow; grid (tiles, parts of the neurons)."""
    warps = threads // LANES

    def look_for_overflow(
        y: Any, n_neurons: Any, live: Any, n_live: Any, ids: Any, found: Any
    ) -> None:
        """Set `found` to the least number of a feature with an activation that is not finite.

        The kernels of the layers add zero times each sum to what they make of it, which is NaN
        where the sum is not finite: NaN then goes through all layers.
        """
        f = cuda.blockIdx.x * LANES + cuda.threadIdx.x % LANES
        if f < n_live[0]:
            source = live[f]
            start = int64(source // LANES) * n_neurons * LANES + source % LANES
            total = float32(0)
            part = cuda.blockIdx.y * warps + cuda.threadIdx.x // LANES
            for p in range(part, n_neurons, cuda.gridDim.y * warps):
                total += y[uint64(start + p * LANES)] * float32(0)
            if total != float32(0):
                cuda.atomic.min(found, 0, ids[f])

    return look_for_overflow


def unite(
    n_live: Any,
    first: Any,
    slot_of: Any,
    differs: Any,
    ids: Any,
    stands_for: Any,
    stand_in: Any,
    flags: Any,
) -> None:
    """Let the first of equal features stand for the others; `flags` is 1 for those that stay."""
    f = cuda.grid(1)
    if f < n_live[0]:
        other = first[slot_of[f]]
        if other == f or differs[f] != 0:
            flags[f] = 1
        else:
            stand_in[ids[f]] = ids[other]
            cuda.atomic.add(stands_for, other, stands_for[f])
