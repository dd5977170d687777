"""Kernels around the layers: loading inputs, listing live features, finding equal ones."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spdnn.engines.cuda.kernels.gpu import WARP, cuda, float32, int32, int64, uint64
from spdnn.engines.cuda.kernels.records import FeatureList, HashTable, Rows
from spdnn.plan.steps import LAYER, MAY_DROP, NO_LAYER

EMPTY = 0
"""What an empty slot of the hash table holds; no code is 0."""


def make_load(threads: int, has_values: bool) -> Callable[..., Any]:
    """Make the kernel that turns features in index form into tiles; a thread block takes a tile.

    Parameters
    ----------
    threads : int
        Threads of a thread block.
    has_values : bool
        Whether inputs have values; without, all are 1.
    """
    warps = threads // WARP

    def load(rows: Rows, n_loaded: Any, first: Any, n: Any, origin: Any, y: Any) -> None:
        """Add each input at its position in the tile, for `n` features from number `first`.

        ``indices[indptr[f] - origin]`` is the first input of feature f. An input whose position is
        `n_loaded` is not loaded. A warp takes a feature at a time, so that the writes of a thread
        block stay within a tile, which the L2 cache holds.
        """
        indptr, indices, values, position = rows
        tile = int64(cuda.blockIdx.x) * n_loaded * WARP
        for place in range(cuda.threadIdx.x, n_loaded * WARP, threads):
            y[uint64(tile + place)] = float32(0)
        cuda.syncthreads()
        in_warp = cuda.threadIdx.x % WARP
        for column in range(cuda.threadIdx.x // WARP, WARP, warps):
            f = int64(cuda.blockIdx.x) * WARP + column
            if f < n:
                for k in range(indptr[first + f] + in_warp, indptr[first + f + 1], WARP):
                    place = int64(position[indices[k - origin]])
                    if place < n_loaded:
                        value = values[k - origin] if has_values else float32(1)
                        # Several inputs of a feature may be summed in one place.
                        cuda.atomic.add(y, tile + place * WARP + column, value)

    return load


def make_list(threads: int, after_step: bool) -> Callable[..., Any]:
    """Make the kernel that lists the features to go on with; it is one thread block.

    Parameters
    ----------
    threads : int
        Threads of the thread block.
    after_step : bool
        Whether it is launched after a step; otherwise it shortens a list.
    """

    def list_carried(
        flags: Any,
        features: FeatureList,
        following: FeatureList,
        cursor: Any,
        steps: Any,
        counts: Any,
    ) -> None:
        """Copy the flagged features from one list to the other, in order, and clear the flags.

        After the step that `cursor` names, feature f stands in place f of the activations. The
        features without a flag stay if the step may not drop them. The kernel adds to
        ``counts[:, layer]`` (live features, distinct ones of them, features that entered), and
        moves the cursor to the next step.
        """
        live, n_live, ids, stands_for = features
        next_live, n_next, next_ids, next_stands_for = following
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
