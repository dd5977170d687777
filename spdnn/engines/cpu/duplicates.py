"""Features that have become equal: one is carried, and stands for the others.

Equal activations stay equal, so that a feature equal to another one need not be computed again.
Hashes propose, values decide. Looking backs off where it finds nothing, and comes back later.
"""

from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.columns import Columns
from spdnn.engines.cpu.kernels.equal import confirm, propose
from spdnn.engines.looks import Looks, expand_stand_ins

CONFIRMED_AT_ONCE = 1 << 18
"""Activations of features that a thread compares at a time, at least."""


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
