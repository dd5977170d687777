"""What the plans of all engines tell."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spdnn.plan.parts import Parts
from spdnn.plan.steps import LAYER, NO_LAYER
from spdnn.plan.work import Work


class HasSteps(Protocol):
    """The arrays of a plan: a named tuple, with the step table first."""

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The step table."""


@dataclass(frozen=True, eq=False)
class StepPlan(Parts):
    """A network made ready for an engine: its layers as steps.

    Attributes
    ----------
    mode : str
        "edges" or "merge".
    arrays : HasSteps
        What the engine's kernels read.
    layer_edges : tuple of int
        Edges that each layer evaluates for a feature; sums that are taken first count.
    layer_neurons : tuple of int
        Outputs that each layer computes.
    n_loaded : int
        Neurons of the first tile.
    additions : int
        How many of `layer_edges`, all together, are sums that are taken before a layer.
    max_width : int
        Most neurons of any tile.
    load_position : ndarray, shape (n_inputs,), whole numbers
        The neuron of the first tile to which each input is added; `n_loaded` for none.
    output_position : ndarray, shape (n_outputs,), int32
        Where each output of the network stands after the last step.
    """

    mode: str
    arrays: HasSteps
    layer_edges: tuple[int, ...]
    layer_neurons: tuple[int, ...]
    n_loaded: int
    additions: int
    max_width: int
    load_position: npt.NDArray[Any]
    output_position: npt.NDArray[np.int32]

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layer_edges)

    @property
    def work(self) -> Work:
        """What is computed for a feature."""
        edges = sum(self.layer_edges) - self.additions
        return Work(sum(self.layer_neurons), edges, self.additions)

    def steps_end(self) -> npt.NDArray[np.int64]:
        """The step after each layer's last, shape (n_layers,), int64."""
        return np.flatnonzero(self.arrays.steps[:, LAYER] != NO_LAYER) + 1
