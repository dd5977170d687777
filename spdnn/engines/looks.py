"""When engines look for features that have become equal, and who then stands for whom."""

import numpy as np
import numpy.typing as npt

WORTHWHILE = 0.01
"""Share of the features that must merge for a look to count as a success."""

LONGEST_PAUSE = 15
"""Looks left out at most after looks that found nothing."""


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
