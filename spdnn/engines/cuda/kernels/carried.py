"""Kernels around the layers: loading inputs, listing live features, finding equal ones."""

from collections.abc import Callable
from typing import Any

import numpy as np

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
from spdnn.engines.cuda.kernels.records import FeatureList, HashTable, Rows
from spdnn.plan.steps import LAYER, MAY_DROP, NO_LAYER

EMPTY = 0
"""What an empty slot of the hash table holds; no code is 0."""

COUNT_WORDS = 8192
"""Words of shared memory in which a thread block counts inputs."""

LISTED = 4
"""Features of a thread that lists: a byte for each of them, in one number."""

RUNNING = 0x01010101
"""Four bytes times this number are their running sums, which are all below 256."""

DISTINCT = 48
"""The bit from which on distinct features are counted, above those that they stand for."""


def make_load_ones(threads: int, bits: int) -> Callable[..., Any]:
    """Make the kernel that turns features whose inputs are all 1 into tiles.

    Its grid is (tiles, windows of `window_of` loaded neurons). A thread block counts the inputs of
    its window in shared memory. It then writes its part of the tile, once.

    Parameters
    ----------
    threads : int
        Threads of a thread block.
    bits : int
        Bits of a count: 1 where no two inputs are added in one place, or 8, or 32.
    """
    warps = threads // WARP
    of_word = WARP // bits
    window = window_of(bits)
    # One place more than there are: the features of a place then stand in different banks.
    counts_shape = (bits, window + 1)
    most = (1 << bits) - 1

    def load_ones(rows: Rows, n_loaded: Any, first: Any, n: Any, origin: Any, y: Any) -> None:
        """Count each input at its position in the tile, for `n` features from number `first`.

        ``indices[indptr[f] - origin]`` is the first input of feature f. An input whose position is
        `n_loaded` is not loaded. A warp takes a feature at a time.
        """
        indptr, indices, _, position = rows
        counts = cuda.shared.array(counts_shape, uint32)
        # Whole numbers of 64 bits without a sign: an index of them needs no further instruction.
        in_warp = cuda.threadIdx.x % WARP
        first_place = uint64(cuda.blockIdx.y) * uint64(window)
        n_places = min(uint64(window), uint64(n_loaded) - first_place)
        place = uint64(cuda.threadIdx.x)
        while place < n_places:
            for word in range(bits):
                counts[word, place] = uint32(0)
            place += uint64(threads)
        cuda.syncthreads()
        for column in range(cuda.threadIdx.x // WARP, WARP, warps):
            f = int64(cuda.blockIdx.x) * WARP + column
            if f < n:
                one = uint32(uint32(1) << uint32(bits * (column % of_word)))
                word = uint32(column // of_word)
                k = uint64(indptr[first + f] - origin + in_warp)
                end = uint64(indptr[first + f + 1] - origin)
                while k < end:
                    # What lies before the window wraps around, and lies beyond it.
                    place = uint64(position[indices[k]]) - first_place
                    if place < n_places:
                        cuda.atomic.add(counts, (word, place), one)
                    k += uint64(WARP)
        cuda.syncthreads()
        shift = bits * (in_warp % of_word)
        mask = uint32(most << shift)
        scale = int_as_float(int32((127 - shift) << 23))  # 2 ** -shift: exact, as all counts are
        word = uint32(in_warp // of_word)
        tile = (uint64(cuda.blockIdx.x) * uint64(n_loaded) + first_place) * uint64(WARP)
        place = uint64(cuda.threadIdx.x // WARP)
        at = tile + place * uint64(WARP) + uint64(in_warp)
        while place < n_places:
            y[at] = float32(uint32(counts[word, place] & mask)) * scale
            place += uint64(warps)
            at += uint64(warps * WARP)

    return load_ones


def window_of(bits: int) -> int:
    """Loaded neurons whose inputs a thread block counts: their counts take 32 KiB.

    Parameters
    ----------
    bits : int
        Bits of a count.
    """
    return COUNT_WORDS // bits


def make_load_values(threads: int, in_order: bool) -> Callable[..., Any]:
    """Make the kernel that turns features with values into tiles; a thread block takes a tile.

    Parameters
    ----------
    threads : int
        Threads of a thread block.
    in_order : bool
        Whether several inputs may be added in one place. One thread then adds all values of a
        feature, in the order of the inputs: sums are the same bits in every run.
    """
    warps = threads // WARP

    def load_values(rows: Rows, n_loaded: Any, first: Any, n: Any, origin: Any, y: Any) -> None:
        """Add each input at its position in the tile, for `n` features from number `first`.

        ``indices[indptr[f] - origin]`` is the first input of feature f. An input whose position is
        `n_loaded` is not loaded. A warp takes a feature at a time, so that the writes of a thread
        block stay within a tile, which the L2 cache holds.
        """
        indptr, indices, values, position = rows
        tile = int64(cuda.blockIdx.x) * n_loaded * WARP
        at = uint64(tile + cuda.threadIdx.x)
        while at < uint64(tile + n_loaded * WARP):
            y[at] = float32(0)
            at += uint64(threads)
        cuda.syncthreads()
        in_warp = 0 if in_order else cuda.threadIdx.x % WARP
        first_column = cuda.threadIdx.x if in_order else cuda.threadIdx.x // WARP
        for column in range(first_column, WARP, threads if in_order else warps):
            f = int64(cuda.blockIdx.x) * WARP + column
            if f < n:
                k = uint64(indptr[first + f] - origin + in_warp)
                end = uint64(indptr[first + f + 1] - origin)
                while k < end:
                    place = int64(position[indices[k]])
                    if place < n_loaded:
                        at = uint64(tile + place * WARP + column)
                        if in_order:
                            y[at] += values[k]
                        else:
                            y[at] = values[k] + float32(0)  # as in a sum: never -0
                    k += uint64(1 if in_order else WARP)

    return load_values


def _packed_flags(flags: Any, first: Any, distance: int, n: Any) -> Any:
    """Whether features `first`, ``first + distance``, ... are flagged: a byte for each of them."""
    packed = int32(0)
    for row in range(LISTED):
        f = int32(first + row * distance)
        if f < n and flags[uint32(f)] != 0:
            packed = int32(packed | (1 << 8 * row))
    return packed


def _sum_below(numbers: Any, row: Any, end: Any, count: int) -> Any:
    """The sum of ``numbers[row, k]`` for all k below `end`, of `count` numbers."""
    total = int32(0)
    for k in range(count):
        # Without a branch: all loads are done at once, four numbers each.
        total = int32(total + numbers[row, k] * int32(int32(k) < int32(end)))
    return total


def _read_features(
    features: FeatureList,
    stays: Any,
    first: Any,
    distance: int,
    after_step: Any,
    live: Any,
    ids: Any,
    stands_for: Any,
) -> None:
    """Read a thread's features that stay, before any of them is written: all loads at once."""
    for row in range(LISTED):
        if stays >> 8 * row & 1 != 0:
            f = uint32(first + row * distance)
            live[row] = int32(f) if after_step != 0 else features.live[f]
            ids[row] = features.ids[f]
            stands_for[row] = features.stands_for[f]


def _write_features(
    following: FeatureList,
    stays: Any,
    place: Any,
    starts: Any,
    live: Any,
    ids: Any,
    stands_for: Any,
) -> None:
    """Write a thread's features that stay: from `place`, further by the row's byte of `starts`."""
    for row in range(LISTED):
        if stays >> 8 * row & 1 != 0:
            to = uint32(place + int32(starts >> 8 * row & 255))
            following.live[to] = live[row]
            following.ids[to] = ids[row]
            following.stands_for[to] = stands_for[row]


packed_flags, sum_below = inlined(_packed_flags), inlined(_sum_below)
read_features, write_features = inlined(_read_features), inlined(_write_features)


def make_lists(threads: int) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Make the kernels that list the features to go on with.

    A thread block lists ``LISTED * threads`` features. Where all fit into one thread block, the
    first kernel does everything. Otherwise the second one counts for each thread block, and then
    the third one lists. Thread blocks beyond the last feature return at once.

    A warp has ``LISTED`` rows of features. A thread has one feature of each row, so that a warp
    reads side by side. The number of features before a thread's comes from two levels of sums: of
    the threads before it in its warp, and of the warps before that. All rows of a warp are added
    up at once, in a byte each.

    Parameters
    ----------
    threads : int
        Threads of a thread block, at most 1024.

    Returns
    -------
    callable
        `list_carried`, for one thread block.
    callable
        `count_carried`, the first one for several thread blocks.
    callable
        `list_counted`, the second one for several thread blocks.
    """
    of_warp = min(threads, WARP)
    warps = threads // of_warp
    of_block = threads * LISTED

    def list_carried(
        flags: Any,
        features: FeatureList,
        following: FeatureList,
        after_step: Any,
        cursor: Any,
        steps: Any,
        counts: Any,
    ) -> None:
        """Copy the flagged features from one list to the other, in order, and clear the flags.

        After the step that `cursor` names, feature f stands in place f of the activations. The
        features without a flag stay if the step may not drop them. The kernel adds to
        ``counts[:, layer]`` (live features, distinct ones of them, features that entered), and
        moves the cursor to the next step. With 0 for `after_step`, it only shortens a list.
        """
        rows = cuda.shared.array((warps, of_warp), int32, ALIGNED)
        warp_rows = cuda.shared.array(warps, int32)
        warp_sums = cuda.shared.array((1, warps), int32, ALIGNED)
        counted = cuda.shared.array(threads, int64)
        column_sums = cuda.shared.array(of_warp, int64)
        live = cuda.local.array(LISTED, int32)
        ids = cuda.local.array(LISTED, int64)
        stands_for = cuda.local.array(LISTED, int64)
        thread = uint32(cuda.threadIdx.x)
        in_warp, warp = uint32(thread % of_warp), uint32(thread // of_warp)
        n = features.n_live[0]
        layer, drops = int64(NO_LAYER), True
        if after_step != 0:
            step = uint64(cursor[0])
            layer = steps[step, LAYER]
            drops = steps[step, MAY_DROP] != 0
        first = int32(warp * (of_warp * LISTED) + in_warp)
        flagged = packed_flags(flags, first, of_warp, n)
        stays = flagged
        if not drops:
            for row in range(LISTED):
                if first + row * of_warp < n:
                    stays = int32(stays | (1 << 8 * row))
        read_features(features, stays, first, of_warp, after_step, live, ids, stands_for)
        both = int64(0)
        for row in range(LISTED):
            if flagged >> 8 * row & 1 != 0:
                flags[uint32(first + row * of_warp)] = 0
                both += (int64(1) << DISTINCT) + stands_for[row]
        rows[warp, in_warp] = stays
        counted[thread] = both
        cuda.syncthreads()
        before = int32(0)
        if first - in_warp < n:
            before = sum_below(rows, warp, in_warp, of_warp)
        if in_warp == of_warp - 1:
            total = int32(before + stays)
            warp_rows[warp] = total
            warp_sums[0, warp] = total * RUNNING >> 24 & 255
        if warp == warps - 1 and layer != NO_LAYER:
            # The last warp has the fewest features.
            both = int64(0)
            for k in range(warps):
                both += counted[uint32(k * of_warp + in_warp)]
            column_sums[in_warp] = both
        cuda.syncthreads()
        if first - in_warp < n or warp == warps - 1:
            place = sum_below(warp_sums, 0, warp, warps)
            running = int32(warp_rows[warp] * RUNNING)
            starts = int32((running << 8) + before)
            write_features(following, stays, place, starts, live, ids, stands_for)
            if thread == threads - 1:
                following.n_live[0] = place + (running >> 24 & 255)
                # Atomic operations, though no other thread adds: their results are not waited for.
                cuda.atomic.add(cursor, 0, int64(after_step))
                if layer != NO_LAYER:
                    both = int64(0)
                    for k in range(of_warp):
                        both += column_sums[k]
                    cuda.atomic.add(counts, (0, layer), both & ((int64(1) << DISTINCT) - 1))
                    cuda.atomic.add(counts, (1, layer), both >> DISTINCT)
                    cuda.atomic.add(counts, (2, layer), int64(n))

    def count_carried(
        flags: Any,
        features: FeatureList,
        after_step: Any,
        cursor: Any,
        steps: Any,
        counts: Any,
        kept: Any,
    ) -> None:
        """Count what each thread block of `list_counted` will list, in `kept`; add to `counts`.

        Where the step may not drop features, all their flags are set.
        """
        counted = cuda.shared.array(threads, int64)
        column_sums = cuda.shared.array(of_warp, int64)
        thread = uint32(cuda.threadIdx.x)
        in_warp, warp = uint32(thread % of_warp), uint32(thread // of_warp)
        n = features.n_live[0]
        block_first = int32(cuda.blockIdx.x * of_block)
        if block_first >= n:
            return
        layer, drops = int64(NO_LAYER), True
        if after_step != 0:
            step = uint64(cursor[0])
            layer = steps[step, LAYER]
            drops = steps[step, MAY_DROP] != 0
        first = int32(block_first + warp * (of_warp * LISTED) + in_warp)
        flagged = packed_flags(flags, first, of_warp, n)
        both = int64(0)
        for row in range(LISTED):
            if flagged >> 8 * row & 1 != 0:
                stood_for = features.stands_for[uint32(first + row * of_warp)]
                both += (int64(1) << DISTINCT) + stood_for
        if not drops:
            for row in range(LISTED):
                f = int32(first + row * of_warp)
                if f < n and flagged >> 8 * row & 1 == 0:
                    flags[uint32(f)] = 1
        counted[thread] = both
        cuda.syncthreads()
        if thread < of_warp:
            both = int64(0)
            for k in range(warps):
                both += counted[uint32(k * of_warp + thread)]
            column_sums[thread] = both
        cuda.syncthreads()
        if thread == 0:
            both = int64(0)
            for k in range(of_warp):
                both += column_sums[k]
            n_flagged = both >> DISTINCT
            kept[cuda.blockIdx.x] = n_flagged if drops else min(of_block, n - block_first)
            if layer != NO_LAYER:
                n_stood_for = both & ((int64(1) << DISTINCT) - 1)
                cuda.atomic.add(counts, (0, layer), n_stood_for)
                cuda.atomic.add(counts, (1, layer), n_flagged)
                if block_first == 0:
                    cuda.atomic.add(counts, (2, layer), int64(n))

    def list_counted(
        flags: Any,
        features: FeatureList,
        following: FeatureList,
        after_step: Any,
        cursor: Any,
        kept: Any,
    ) -> None:
        """Do what `list_carried` does, less what `count_carried` has done."""
        rows = cuda.shared.array((warps, of_warp), int32, ALIGNED)
        warp_rows = cuda.shared.array(warps, int32)
        warp_sums = cuda.shared.array((1, warps), int32, ALIGNED)
        earlier = cuda.shared.array((1, of_warp), int32, ALIGNED)
        live = cuda.local.array(LISTED, int32)
        ids = cuda.local.array(LISTED, int64)
        stands_for = cuda.local.array(LISTED, int64)
        thread = uint32(cuda.threadIdx.x)
        in_warp, warp = uint32(thread % of_warp), uint32(thread // of_warp)
        n = features.n_live[0]
        block = int32(cuda.blockIdx.x)
        block_first = int32(block * of_block)
        if block_first >= n and block > 0:
            return
        if warp == warps - 1:
            # Features that the thread blocks before this one keep.
            kept_before = int32(0)
            for other in range(in_warp, block, of_warp):
                kept_before = int32(kept_before + kept[other])
            earlier[0, in_warp] = kept_before
        first = int32(block_first + warp * (of_warp * LISTED) + in_warp)
        stays = packed_flags(flags, first, of_warp, n)
        read_features(features, stays, first, of_warp, after_step, live, ids, stands_for)
        for row in range(LISTED):
            if stays >> 8 * row & 1 != 0:
                flags[uint32(first + row * of_warp)] = 0
        rows[warp, in_warp] = stays
        cuda.syncthreads()
        before = int32(0)
        if first - in_warp < n:
            before = sum_below(rows, warp, in_warp, of_warp)
        if in_warp == of_warp - 1:
            total = int32(before + stays)
            warp_rows[warp] = total
            warp_sums[0, warp] = total * RUNNING >> 24 & 255
        cuda.syncthreads()
        if first - in_warp < n or warp == warps - 1:
            place = sum_below(earlier, 0, of_warp, of_warp)
            place = int32(place + sum_below(warp_sums, 0, warp, warps))
            running = int32(warp_rows[warp] * RUNNING)
            starts = int32((running << 8) + before)
            write_features(following, stays, place, starts, live, ids, stands_for)
            if thread == threads - 1 and block_first + of_block >= n:
                following.n_live[0] = place + (running >> 24 & 255)
                cuda.atomic.add(cursor, 0, int64(after_step))

    return list_carried, count_carried, list_counted


def make_hash(threads: int) -> Callable[..., Any]:
    """Make the kernel that hashes carried features; its grid is (tiles, parts of the neurons).

    Parameters
    ----------
    threads : int
        Threads of a thread block.
    """
    warps = threads // WARP

    def hash_features(
        y_bits: Any, n_neurons: Any, features: FeatureList, hashes: HashTable
    ) -> None:
        """Add to `codes` a hash of every neuron's bits: equal features get equal sums."""
        live, n_live, codes = features.live, features.n_live, hashes.codes
        f = cuda.blockIdx.x * WARP + cuda.threadIdx.x % WARP
        if f < n_live[0]:
            source = live[f]
            start = int64(source // WARP) * n_neurons * WARP + source % WARP
            code = uint64(0)
            part = cuda.blockIdx.y * warps + cuda.threadIdx.x // WARP
            for p in range(part, n_neurons, cuda.gridDim.y * warps):
                bits = np.uint32(y_bits[uint64(start + p * WARP)])
                # The finaliser of MurmurHash3 (A. Appleby, 2011), of neuron and value.
                mixed = (np.uint64(p + 1) << np.uint64(32)) | np.uint64(bits)
                mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
                mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
                code += mixed ^ (mixed >> np.uint64(33))
            cuda.atomic.add(codes, f, code)

    return hash_features


def propose(features: FeatureList, hashes: HashTable) -> None:
    """Find the slot of each feature's code, and the first feature of each slot."""
    codes, table, first, slot_of, _ = hashes
    f = cuda.grid(1)
    if f < features.n_live[0]:
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
    """Make the kernel that compares features by value; its grid is (tiles, parts of the neurons).

    Parameters
    ----------
    threads : int
        Threads of a thread block.
    """
    warps = threads // WARP

    def confirm(y: Any, n_neurons: Any, features: FeatureList, hashes: HashTable) -> None:
        """Set `differs` for features that are not equal to the first one of their slot."""
        live, n_live = features.live, features.n_live
        _, _, first, slot_of, differs = hashes
        f = cuda.blockIdx.x * WARP + cuda.threadIdx.x % WARP
        if f < n_live[0]:
            other = first[slot_of[f]]
            if other != f:
                mine, others = live[f], live[other]
                start = int64(mine // WARP) * n_neurons * WARP + mine % WARP
                start_of_other = int64(others // WARP) * n_neurons * WARP + others % WARP
                is_equal = True
                part = cuda.blockIdx.y * warps + cuda.threadIdx.x // WARP
                for p in range(part, n_neurons, cuda.gridDim.y * warps):
                    place = p * WARP
                    if y[uint64(start + place)] != y[uint64(start_of_other + place)]:
                        is_equal = False
                if not is_equal:
                    cuda.atomic.max(differs, f, 1)

    return confirm


def make_look(threads: int) -> Callable[..., Any]:
    """Make the kernel that looks for overflow; its grid is (tiles, parts of the neurons).

    Parameters
    ----------
    threads : int
        Threads of a thread block.
    """
    warps = threads // WARP

    def look_for_overflow(y: Any, n_neurons: Any, features: FeatureList, found: Any) -> None:
        """Set `found` to the least number of a feature with an activation that is not finite.

        A sum that is not finite has become NaN (`spdnn.engines.cuda.kernels.activation`), which
        goes through all layers.
        """
        live, n_live, ids = features.live, features.n_live, features.ids
        f = cuda.blockIdx.x * WARP + cuda.threadIdx.x % WARP
        if f < n_live[0]:
            source = live[f]
            start = int64(source // WARP) * n_neurons * WARP + source % WARP
            total = float32(0)
            part = cuda.blockIdx.y * warps + cuda.threadIdx.x // WARP
            for p in range(part, n_neurons, cuda.gridDim.y * warps):
                total += y[uint64(start + p * WARP)] * float32(0)
            if total != float32(0):
                cuda.atomic.min(found, 0, ids[f])

    return look_for_overflow


def unite(features: FeatureList, hashes: HashTable, stand_in: Any, flags: Any) -> None:
    """Let the first of equal features stand for the others.

    ``stand_in[i]`` becomes the feature that stands for feature i of the run. Flags become 1 for
    those that stay.
    """
    _, n_live, ids, stands_for = features
    _, _, first, slot_of, differs = hashes
    f = cuda.grid(1)
    if f < n_live[0]:
        other = first[slot_of[f]]
        if other == f or differs[f] != 0:
            flags[f] = 1
        else:
            stand_in[ids[f]] = ids[other]
            cuda.atomic.add(stands_for, other, stands_for[f])
