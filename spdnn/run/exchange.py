"""What ranks agree to do with the features that they carry: merge equal ones, even out numbers.

Every rank decides by itself from what it knows of all, and so all decide the same. Nothing here
communicates.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from spdnn.engines.state import State

FEW_ROWS = 4096
FEW_BYTES = 64 << 20
"""Rows and bytes of all ranks together up to which equal features are looked for across ranks:
what may be sent to be compared."""

BYTES_PER_SECOND = 1e9
"""What a rank is taken to send or receive: less than any cluster's network does."""

SECONDS_PER_EXCHANGE = 1e-3
"""What an exchange takes however little is sent."""


GRAIN = 16
"""Rows that take no longer than one: an engine's vector, or a small part of its minibatch."""


def in_grains(n_rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Rows that take as long, in whole grains."""
    return -(-n_rows // GRAIN) * GRAIN


def are_few(n_rows: Sequence[int], row_bytes: int) -> bool:
    """Whether so few rows are left on all ranks that equal ones may be looked for."""
    return sum(n_rows) <= FEW_ROWS and sum(n_rows) * row_bytes <= FEW_BYTES


def row_codes(state: State) -> list[bytes]:
    """A hash of each row, the same for zeros of either sign."""
    return [blake2b((row + 0.0).tobytes(), digest_size=8).digest() for row in state.activations]


def owners(codes: Sequence[Sequence[bytes]], rank: int) -> npt.NDArray[np.int64]:
    """Choose who carries each row of a rank on: one of the ranks that have a row of its hash.

    The hash itself says which, so that every rank keeps about as many.

    Examples
    --------
    >>> owners([[b"a", b"b"], [b"a"]], 0)
    array([1, 0])
    """
    having: dict[bytes, list[int]] = {}
    for number, of_rank in enumerate(codes):
        for code in of_rank:
            having.setdefault(code, []).append(number)
    chosen = (having[code][code[-1] % len(having[code])] for code in codes[rank])
    return np.fromiter(chosen, dtype=np.int64)


def even_targets(n_rows: Sequence[int], rank: int) -> npt.NDArray[np.int64]:
    """Choose the rank of each row of a rank, so that numbers differ by one at most.

    As few as possible move: the last ones of ranks that have too many.

    Examples
    --------
    >>> even_targets([5, 0, 1], 0)
    array([0, 0, 1, 1, 2])
    """
    size = len(n_rows)
    share, more = divmod(sum(n_rows), size)
    wanted = np.full(size, share)
    # Those that have most keep the one more.
    wanted[np.argsort(-np.array(n_rows), kind="stable")[:more]] += 1
    missing = np.maximum(wanted - n_rows, 0)
    surplus = np.maximum(n_rows - wanted, 0)
    receivers = np.repeat(np.arange(size), missing)
    before = int(surplus[:rank].sum())
    targets = np.full(n_rows[rank], rank, dtype=np.int64)
    n_sent = int(surplus[rank])
    targets[targets.size - n_sent :] = receivers[before : before + n_sent]
    return targets


def pays(
    n_rows: Sequence[int], row_bytes: int, seconds_per_row_layer: float, n_layers: int
) -> bool:
    """Whether evening out is predicted to take less time than it saves.

    Parameters
    ----------
    n_rows : sequence of int
        What each rank carries.
    row_bytes : int
    seconds_per_row_layer : float
        As measured in the layers before, rows counted in whole grains.
    n_layers : int
        Layers to come. It is taken that no more rows die or merge.
    """
    share = -(-sum(n_rows) // len(n_rows))
    before, after = in_grains(np.array([max(n_rows), share]))
    gain = seconds_per_row_layer * n_layers * (before - after)
    most_moved = max(max(n_rows) - share, share - min(n_rows))
    return bool(gain > SECONDS_PER_EXCHANGE + most_moved * row_bytes / BYTES_PER_SECOND)
