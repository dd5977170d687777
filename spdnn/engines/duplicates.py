"""Features that have become equal: one is carried, and stands for the others.

Equal activations stay equal, so that a feature equal to another one need not be computed again.
Hashes propose, values decide. Looking backs off where it finds nothing, and comes back later.
"""

from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from spdnn.engines.columns import Columns
from spdnn.engines.kernels.equal import confirm, propose

WORTHWHILE = 0.01
"""Share of the features that must merge for a look to count as a success."""

LONGEST_PAUSE = 15
"""Looks left out at most after looks that found nothing."""

CONFIRMED_AT_ONCE = 1 << 18
"""Activations of features that a thread compares at a time, at least."""


class Looks:
    """When to look for equal features: less and less often where there are none."""

    def __init__(self) -> None:
        self._n_failures = 0
        self._to_skip = 0

    def wants_look(self) -> bool:
        """Whether to look the next time; each call counts as an occasion."""
        if self._to_skip:
            self._to_skip -= 1
            return False
        return True

    def note(self, n_gone: int, n_carried: int) -> None:
        """Remember that a look at `n_carried` features has merged `n_gone` of them."""
        # After a second look in vain: 1 is left out, then 3, 7, ...
        self._n_failures = 0 if n_gone >= WORTHWHILE * n_carried else self._n_failures + 1
        self._to_skip = min(2 ** max(0, self._n_failures - 1) - 1, LONGEST_PAUSE)


class Duplicates(Looks):
    """Who stands for whom, among features numbered from 0.

    Parameters
    ----------
    n_features : int
    """

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self._stand_in = np.arange(n_features, dtype=np.int64)

    def merge(self, columns: Columns, n_neurons: int, pool: Executor) -> Columns:
        """Merge equal features among those given, which have hashes.

        Returns those that stay carried: of equal ones the first, which stands for all.
        """
        first = propose(columns.codes)
        candidates = np.flatnonzero(first != np.arange(first.size))
        step = max(1, CONFIRMED_AT_ONCE // max(n_neurons, 1))
        pieces = [candidates[start : start + step] for start in range(0, candidates.size, step)]

        def compare(piece: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
            return confirm(piece, first[piece], columns.addresses, columns.strides, n_neurons)

        is_equal = list(pool.map(compare, pieces)) if len(pieces) > 1 else map(compare, pieces)
        gone = candidates[np.concatenate([*is_equal, np.empty(0, bool)])]
        self.note(gone.size, columns.size)
        if not gone.size:
            return columns
        self.let_stand(columns.ids[gone], columns.ids[first[gone]])
        np.add.at(columns.stands_for, first[gone], columns.stands_for[gone])
        is_carried = np.ones(columns.size, dtype=bool)
        is_carried[gone] = False
        return columns.take(is_carried)

    def let_stand(self, ids: npt.NDArray[np.int64], stand_in: int | npt.NDArray[np.int64]) -> None:
        """Let features be represented by others, which are carried, or at rest."""
        self._stand_in[ids] = stand_in

    def expand(
        self, carried: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """All features that the carried ones stand for; see `expand_stand_ins`."""
        return expand_stand_ins(self._stand_in, carried)


def expand_stand_ins(
    stand_in: npt.NDArray[np.int64], carried: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All features that the carried ones stand for.

    Parameters
    ----------
    stand_in : ndarray, shape (n_features,), int64
        Which feature stood for each when it was merged; itself where it was not.
    carried : ndarray, int64
        Ascending.

    Returns
    -------
    ndarray, int64
        The features, ascending.
    ndarray, int64
        Where in `carried` each one's stand-in is.
    """
    while True:  # chains halve in length each time
        further = stand_in[stand_in]
        if np.array_equal(further, stand_in):
            break
        stand_in = further
    is_carried = np.zeros(stand_in.size, dtype=bool)
    is_carried[carried] = True
    features = np.flatnonzero(is_carried[stand_in]).astype(np.int64)
    return features, np.searchsorted(carried, stand_in[features])
