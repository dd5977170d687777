"""Features that have become equal: one is carried, and stands for the others.

Equal activations stay equal, so that a feature equal to another one need not be computed again.
Hashes propose, values decide. Looking backs off where it finds nothing, and comes back later.
"""

import numpy as np
import numpy.typing as npt

from spdnn.engines.kernels.tile import columns_equal
from spdnn.engines.strips import Strip

WORTHWHILE = 0.01
"""Share of the features that must merge for a look to count as a success."""

LONGEST_PAUSE = 15
"""Looks left out at most after looks that found nothing."""


class Duplicates:
    """Who stands for whom, among features numbered from 0.

    Parameters
    ----------
    n_features : int
    """

    def __init__(self, n_features: int) -> None:
        self._stand_in = np.arange(n_features, dtype=np.int64)
        self._n_failures = 0
        self._to_skip = 0

    def wants_look(self) -> bool:
        """Whether to look the next time; each call counts as an occasion."""
        if self._to_skip:
            self._to_skip -= 1
            return False
        return True

    def merge(self, strips: list[Strip]) -> int:
        """Merge equal features among strips with hashes: only the first of them stays carried.

        Returns how many are no longer carried.
        """
        strips = [strip for strip in strips if strip.codes.size]
        n_carried = sum(strip.columns.size for strip in strips)
        if not n_carried:
            return 0
        owner = np.concatenate([np.full(s.columns.size, i) for i, s in enumerate(strips)])
        column = np.concatenate([strip.columns for strip in strips])
        codes = np.concatenate([strip.codes[strip.columns] for strip in strips])
        order = np.argsort(codes, kind="stable")
        same = codes[order[1:]] == codes[order[:-1]]
        is_first = np.concatenate([[True], ~same])
        # Of each run of equal hashes, the first is the one that the others are compared with.
        first = order[np.maximum.accumulate(np.where(is_first, np.arange(order.size), 0))]
        gone: list[list[int]] = [[] for _ in strips]
        for place in np.flatnonzero(~is_first):
            a, b = first[place], order[place]
            if self._merge_pair(strips[owner[a]], column[a], strips[owner[b]], column[b]):
                gone[owner[b]].append(column[b])
        n_gone = 0
        for strip, columns in zip(strips, gone, strict=True):
            if columns:
                strip.columns = np.setdiff1d(strip.columns, columns)
                n_gone += len(columns)
        # After a second look in vain: 1 is left out, then 3, 7, ...
        self._n_failures = 0 if n_gone >= WORTHWHILE * n_carried else self._n_failures + 1
        self._to_skip = min(2 ** max(0, self._n_failures - 1) - 1, LONGEST_PAUSE)
        return n_gone

    def _merge_pair(self, a: Strip, column_a: int, b: Strip, column_b: int) -> bool:
        """Let feature `column_a` of `a` stand for the other one, if they are equal."""
        if not columns_equal(
            a.matrix, a.ids.size, column_a, b.matrix, b.ids.size, column_b, a.n_neurons
        ):
            return False
        self._stand_in[b.ids[column_b]] = a.ids[column_a]
        a.stands_for[column_a] += b.stands_for[column_b]
        return True

    def expand(
        self, carried: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """All features that the carried ones stand for.

        Parameters
        ----------
        carried : ndarray, int64
            Ascending.

        Returns
        -------
        ndarray, int64
            The features, ascending.
        ndarray, int64
            Where in `carried` each one's stand-in is.
        """
        stand_in = self._stand_in
        while True:  # chains halve in length each time
            further = stand_in[stand_in]
            if np.array_equal(further, stand_in):
                break
            stand_in = further
        is_carried = np.zeros(stand_in.size, dtype=bool)
        is_carried[carried] = True
        features = np.flatnonzero(is_carried[stand_in]).astype(np.int64)
        return features, np.searchsorted(carried, stand_in[features])
