"""What a classifier says: scores, and the class of the largest one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.errors import DataError
from spdnn.network import Network
from spdnn.run.result import Result


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a classifier says of each feature.

    Attributes
    ----------
    classes : ndarray, shape (n_features,), int64
        The output with the largest score, counted from 0; of equal ones the first. A network of
        one output has the classes 0 and 1: 1 where its score is positive.
    scores : ndarray, shape (n_features, n_outputs)
        The last layer's activations: float32, or float64 from the reference.
    result : Result or None
        The run that the scores are from. There is none where an array was scored directly:
        such a call counts neither live features nor edges.
    """

    classes: npt.NDArray[np.int64]
    scores: npt.NDArray[Any]
    result: Result | None = None


def require_classes(network: Network) -> None:
    """Refuse a network that has no outputs (DataError)."""
    if network.n_outputs == 0:
        raise DataError("a network without outputs has no classes")


def classes_of(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Take the class of each row of scores; see `Prediction`.

    Parameters
    ----------
    scores : ndarray, shape (n_features, n_outputs)
        At least one output.
    """
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return np.asarray(scores.argmax(axis=1), dtype=np.int64)


def scores_of(result: Result, n_outputs: int) -> npt.NDArray[Any]:
    """Put the activations of a result's live features in their rows, zeros in the others.

    A feature is only dropped where all later layers map zeros to zeros, so zeros are what it
    would have; see `spdnn.network.may_drop_after`.
    """
    assert result.activations is not None
    scores = np.zeros((result.n_features, n_outputs), dtype=result.activations.dtype)
    scores[result.live] = result.activations
    return scores
