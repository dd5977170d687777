"""Features that have become equal: one is carried, and stands for the others.

Equal activations stay equal, so that a feature equal to another one need not be computed again.
Hashes propose, values decide. Looking backs off where it finds nothing, and comes back later.
"""

import numpy as np
import numpy.typing as npt

from spdnn.engines.kernels.equal import find_equal
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
        codes = np.concatenate([strip.codes[strip.columns] for strip in strips])
        addresses = [
            strip.matrix.ctypes.data + 4 * strip.columns.astype(np.int64) for strip in strips
        ]
        strides = np.repeat(
            [4 * strip.ids.size for strip in strips], [strip.columns.size for strip in strips]
        )
        first = find_equal(codes, np.concatenate(addresses), strides, strips[0].n_neurons)
        gone = np.flatnonzero(first != np.arange(first.size))
        if gone.size:
            self._let_stand(strips, first, gone)
        n_gone = int(gone.size)
        # After a second look in vain: 1 is left out, then 3, 7, ...
        self._n_failures = 0 if n_gone >= WORTHWHILE * n_carried else self._n_failures + 1
        self._to_skip = min(2 ** max(0, self._n_failures - 1) - 1, LONGEST_PAUSE)
        return n_gone

    def _let_stand(
        self, strips: list[Strip], first: npt.NDArray[np.int64], gone: npt.NDArray[np.int64]
    ) -> None:
        """Let features `first[gone]` stand for the features `gone`, numbered over all strips."""
        ids = np.concatenate([strip.ids[strip.columns] for strip in strips])
        stands_for = np.concatenate([strip.stands_for[strip.columns] for strip in strips])
        self._stand_in[ids[gone]] = ids[first[gone]]
        np.add.at(stands_for, first[gone], stands_for[gone])
        is_carried = np.ones(ids.size, dtype=bool)
        is_carried[gone] = False
        start = 0
        for strip in strips:
            stop = start + strip.columns.size
            strip.stands_for[strip.columns] = stands_for[start:stop]
            strip.columns = strip.columns[is_carried[start:stop]]
            start = stop

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
