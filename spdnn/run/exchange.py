"""What ranks agree to do with the features that they carry: merge equal ones.

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
