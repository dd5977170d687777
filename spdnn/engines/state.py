"""A run between two layers, as a plain value that can be kept, moved, joined and resumed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class State:
    """Features that have passed some layers. Equal features may share their activations.

    Attributes
    ----------
    layer : int
        Layers that the features have passed.
    ids : ndarray, shape (n_features,), int64
        The features that go on, ascending: those that are live, or may not be dropped.
    rows : ndarray, shape (n_features,), int64
        The row of `activations` that belongs to each feature.
    activations : ndarray, shape (n_carried, n_neurons), float32 or float64
        Activations after the layer, in the order that the plan gives its outputs. Every row
        belongs to at least one feature.
    """

    layer: int
    ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    activations: npt.NDArray[Any]

    @property
    def n_carried(self) -> int:
        """Number of rows: the features that the next layer is evaluated for."""
        return int(self.activations.shape[0])

    def stands_for(self) -> npt.NDArray[np.int64]:
        """How many features each row stands for, shape (n_carried,), int64."""
        return np.bincount(self.rows, minlength=self.n_carried)

    def take(self, rows: npt.NDArray[np.int64]) -> "State":
        """Return some rows, in the order given, and the features that they stand for.

        Parameters
        ----------
        rows : ndarray, shape (n_rows,), int64
            Numbers of rows, each at most once.

        Examples
        --------
        >>> state = State(1, np.array([3, 5, 8]), np.array([0, 1, 0]), np.eye(2))
        >>> taken = state.take(np.array([0]))
        >>> taken.ids, taken.activations
        (array([3, 8]), array([[1., 0.]]))
        """
        place = np.full(self.n_carried, -1, dtype=np.int64)
        place[rows] = np.arange(rows.size)
        is_taken = place[self.rows] >= 0
        return State(
            self.layer, self.ids[is_taken], place[self.rows[is_taken]], self.activations[rows]
        )

    def merged(self) -> "State":
        """Return a state in which only the first of equal rows is left. -0.0 equals 0.0."""
        first: dict[bytes, int] = {}
        # A dict compares the values themselves if their hashes are equal.
        stand_in = [
            first.setdefault((row + 0.0).tobytes(), number)
            for number, row in enumerate(self.activations)
        ]
        if len(first) == self.n_carried:
            return self
        return replace(self, rows=np.array(stand_in)[self.rows]).take(
            np.array(list(first.values()))
        )


def joined(states: Sequence[State]) -> State:
    """Put several states together.

    Parameters
    ----------
    states : sequence of State
        At least one. All are after the same layer, and no feature is in two of them.
    """
    starts = np.cumsum([0, *(state.n_carried for state in states)])
    ids = np.concatenate([state.ids for state in states])
    rows = np.concatenate(
        [state.rows + start for state, start in zip(states, starts, strict=False)]
    )
    order = np.argsort(ids)
    activations = np.concatenate([state.activations for state in states])
    return State(states[0].layer, ids[order], rows[order], activations)
