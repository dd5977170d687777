"""Features that have become equal: one of them is carried, and stands for the others.

Equal activations stay equal, so a feature that equals another one need not be computed again.
Features of equal hashes are compared number by number. If nothing is found, the engine looks less
often.
"""

from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.columns import Columns
from spdnn.engines.cpu.kernels.equal import confirm, propose
from spdnn.engines.looks import Looks, expand_stand_ins

CONFIRMED_AT_ONCE = 1 << 18
"""Activations that one task compares, or those of one feature if these are more."""


class Duplicates(Looks):
    """Which features stand for which, among features that are numbered from 0.

    Parameters
    ----------
    n_features : int
        Number of features.
    """

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self._stand_in = np.arange(n_features, dtype=np.int64)

    def merge(self, columns: Columns, n_neurons: int, pool: Executor) -> Columns:
        """Merge equal features.

        Parameters
        ----------
        columns : Columns
            The features, with hashes.
        n_neurons : int
            Activations of each feature.
        pool : Executor
            Its threads compare features.

        Returns
        -------
        Columns
            The features that stay carried: the first one of equal features stands for all of them.
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
        """Let other features, which are carried or at rest, stand for some features.

        Parameters
        ----------
        ids : ndarray, int64
            Features that are carried no further.
        stand_in : int or ndarray, int64
            The feature that stands for each of them, or for all of them.
        """
        self._stand_in[ids] = stand_in

    def expand(
        self, carried: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Find all features that carried features stand for; see `expand_stand_ins`."""
        return expand_stand_ins(self._stand_in, carried)
