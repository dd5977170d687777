"""How ranks merge equal features: which rank carries each of them on.

Every rank decides by itself from facts that all ranks have, so that all decide the same. Nothing
here communicates.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from spdnn.engines.state import State

FEW_ROWS = 4096
FEW_BYTES = 64 << 20
"""Equal features are looked for across ranks if all ranks together have at most so many rows and
bytes. Hashes of all rows are sent to every rank."""


def are_few(n_rows: Sequence[int], row_bytes: int) -> bool:
    """Whether so few rows are left on all ranks that equal ones may be looked for."""
    return sum(n_rows) <= FEW_ROWS and sum(n_rows) * row_bytes <= FEW_BYTES


def row_codes(state: State) -> list[bytes]:
    """A hash of each row, the same for zeros of either sign."""
    return [blake2b((row + 0.0).tobytes(), digest_size=8).digest() for row in state.activations]


def owners(codes: Sequence[Sequence[bytes]], rank: int) -> npt.NDArray[np.int64]:
    """Choose which rank carries each row on: one of the ranks that have a row of the same hash.

    The hash chooses among them, so that every rank keeps about as many rows.

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
