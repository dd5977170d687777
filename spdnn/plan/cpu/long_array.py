"""Arrays that are written part by part, without a second copy in the end."""

from typing import Any

import numpy as np
import numpy.typing as npt

_GROWTH = 1.5
"""How much larger an array becomes, at least, when its room is used up."""


class LongArray:
    """An array that grows at its end.

    Memory that was never written to is only reserved: it takes none.

    Parameters
    ----------
    dtype : numpy dtype
    room : int
        How many numbers to reserve memory for.

    Attributes
    ----------
    size : int
        How many numbers there are.
    """

    def __init__(self, dtype: npt.DTypeLike, room: int) -> None:
        self.size = 0
        self._array: npt.NDArray[Any] = np.empty(room, dtype=dtype)

    def must_move(self, n: int, dtype: npt.DTypeLike) -> bool:
        """Whether `extend` would move the numbers, so that nobody may be writing to them."""
        return self.size + n > self._array.size or self._array.dtype != dtype

    def extend(self, n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Give room for `n` more numbers, as numbers of type `dtype`, which all of them become.

        Parameters
        ----------
        n : int
            How many numbers.
        dtype : numpy dtype
            It has room for all numbers that there are.

        Returns
        -------
        ndarray, shape (n,), dtype
            To be written to, before the next call that must move the numbers.
        """
        if self.must_move(n, dtype):
            most = max(self._array.size, self.size + n)
            if most > self._array.size:
                most = max(most, int(_GROWTH * self._array.size))
            moved = np.empty(most, dtype=dtype)
            moved[: self.size] = self._array[: self.size]
            self._array = moved
        self.size += n
        return self._array[self.size - n : self.size]

    def finished(self) -> npt.NDArray[Any]:
        """Give the numbers, shape (size,), and forget them."""
        array, self._array = self._array, self._array[:0].copy()
        # Room that was not needed is given back in place. Nobody has a part any more.
        array.resize(self.size, refcheck=False)
        return array
