"""When engines look for features that have become equal, and which features stand for which."""

import numpy as np
import numpy.typing as npt

WORTHWHILE = 0.01
"""Share of the features that must be merged for a look to count as a success."""

LONGEST_PAUSE = 15
"""Most looks that are left out after looks without success."""


class Looks:
    """Decides when to look for equal features: less and less often if none are found."""

    def __init__(self) -> None:
        self._n_failures = 0
        self._to_skip = 0

    def wants_look(self) -> bool:
        """Whether to look this time. Each call counts as an occasion to look."""
        if self._to_skip:
            self._to_skip -= 1
            return False
        return True

    def note(self, n_gone: int, n_carried: int) -> None:
        """Remember the result of a look.

        Parameters
        ----------
        n_gone : int
            Features that were merged into others.
        n_carried : int
            Features that were looked at.
        """
        # The second look in a row without success leaves out 1 look, the third 3, then 7, ...
        self._n_failures = 0 if n_gone >= WORTHWHILE * n_carried else self._n_failures + 1
        self._to_skip = min(2 ** max(0, self._n_failures - 1) - 1, LONGEST_PAUSE)


def expand_stand_ins(
    stand_in: npt.NDArray[np.int64], carried: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find all features that the carried features stand for.

    Parameters
    ----------
    stand_in : ndarray, shape (n_features,), int64
        The feature into which each one was merged; its own number if it was not merged.
    carried : ndarray, int64
        Numbers of the carried features, ascending.

    Returns
    -------
    features : ndarray, int64
        The features, ascending.
    place : ndarray, int64
        Where in `carried` the feature is that stands for each of them.
    """
    while True:  # each pass halves the length of chains
        further = stand_in[stand_in]
        if np.array_equal(further, stand_in):
            break
        stand_in = further
    is_carried = np.zeros(stand_in.size, dtype=bool)
    is_carried[carried] = True
    features = np.flatnonzero(is_carried[stand_in]).astype(np.int64)
    return features, np.searchsorted(carried, stand_in[features])
