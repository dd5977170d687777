"""Features between two stages: strips, and how they are put together into tiles."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spdnn.engines.kernels.vectors import LANES


@dataclass(eq=False)
class Strip:
    """Some features and their activations, as a tile left them.

    Attributes
    ----------
    ids, stands_for : ndarray, int64
        The features' numbers, and how many features each stands for.
    matrix : ndarray, float32
        Activations, neurons x features, flat.
    n_neurons : int
    codes : ndarray, uint64
        A hash of each feature's activations, and some numbers more; empty where none was taken.
    columns : ndarray, int32
        The features that are still carried, ascending.
    """

    ids: npt.NDArray[np.int64]
    stands_for: npt.NDArray[np.int64]
    matrix: npt.NDArray[np.float32]
    n_neurons: int
    codes: npt.NDArray[np.uint64]
    columns: npt.NDArray[np.int32]

    @property
    def n_bytes(self) -> int:
        """Size of the activations."""
        return self.matrix.nbytes

    def carried(self) -> npt.NDArray[np.float32]:
        """Activations of the features still carried, shape (n_neurons, columns.size)."""
        n_numbers = self.n_neurons * self.ids.size
        return self.matrix[:n_numbers].reshape(self.n_neurons, self.ids.size)[:, self.columns]


@dataclass(frozen=True, eq=False)
class Piece:
    """Some columns of a strip, to be loaded into a tile."""

    strip: Strip
    columns: npt.NDArray[np.int32]


def cut_pieces(strips: list[Strip], width: int) -> list[list[Piece]]:
    """Share the carried columns of strips, in order, among tiles of `width` features."""
    tiles: list[list[Piece]] = []
    room = 0
    for strip in strips:
        first = 0
        while first < strip.columns.size:
            if room == 0:
                tiles.append([])
                room = width
            columns = strip.columns[first : first + room]
            tiles[-1].append(Piece(strip, columns))
            first += columns.size
            room -= columns.size
    return tiles


def lanes_for(n_features: int) -> int:
    """Lanes that hold so many features: the next multiple of the kernels' lanes."""
    return -(-n_features // LANES) * LANES


def aligned_empty(size: int) -> npt.NDArray[np.float32]:
    """Uninitialised float32 numbers that begin at a multiple of 64 bytes: of a cache line."""
    longer = np.empty(size + 16, dtype=np.float32)
    first = -longer.ctypes.data % 64 // 4
    return longer[first : first + size]
