"""A network as steps, and the step table: what the plans of all engines have in common.

A step is one pass over a tile: a layer, or the sums that are taken before one. `Walk` goes through
a network's layers and gives their steps. An engine cuts each step for its kernels, and collects
rows of the step table, caps and biases in a `StepTable`.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.machine.thread_pool import KeptThreads
from spdnn.network import Network, may_drop_after
from spdnn.plan.merge import MergedLayer, all_edges, loading_of, merge_layers
from spdnn.plan.rules import PLAIN_SUMS, Rules

N_OUTPUTS, BIAS_START, IS_RELU, TESTS, MAY_DROP, LAYER = range(6)
"""The first columns of every step table; an engine's own columns come after them.

The neurons that the step leaves, where its biases begin, whether negative sums become 0, what
`NONZERO` and `FINITE` say of its sums, whether features without activations may be dropped after
it, and the layer that it ends.
"""

FIRST_OWN = 6
"""The first of an engine's own columns."""

NO_LAYER = -1
"""In column LAYER: a step that ends no layer."""


class Step(NamedTuple):
    """One step, before an engine cuts it.

    Attributes
    ----------
    weights : csr_array or csc_array, shape (n_before, n_outputs), float32
    bias : ndarray, shape (n_outputs,), float32
    rules : Rules
    ends_layer : bool
        Whether it ends a layer; if not, it takes sums for the step after it.
    sums : csc_array or None
        The sums that its layer takes before it, if any; see `spdnn.plan.merge.MergedLayer`.
    n_sums : int
        Inputs that were added up for this layer before the step: while they were loaded, or in a
        step of their own.
    """

    weights: sp.csr_array | sp.csc_array
    bias: npt.NDArray[np.float32]
    rules: Rules
    ends_layer: bool
    sums: sp.csc_array | None
    n_sums: int


class Walk:
    """The steps of a network, one layer at a time.

    A network whose layers are made one at a time never has to fit into memory.

    Parameters
    ----------
    network : Network
    mode : {"edges", "merge"}
        "edges" keeps every edge: a layer is a step. "merge" computes once what must be equal: a
        layer is one step or two.
    threads : KeptThreads, optional
        They look at the layers that come next.

    Attributes
    ----------
    loading : Loading
        How inputs are taken.
    merged : MergedLayer
        What is computed of the layer whose step was given last.
    """

    def __init__(self, network: Network, mode: str, threads: KeptThreads | None = None) -> None:
        layers = merge_layers(network, threads) if mode == "merge" else all_edges(network)
        first = next(layers)
        self.merged: MergedLayer = first[1]
        self.loading = loading_of(self.merged, network.n_inputs)
        self._layers = chain([first], layers)

    def steps(self) -> Iterator[Step]:
        """Give the steps, once."""
        is_first = True
        for rules, merged in self._layers:
            self.merged = merged
            sums, weights, bias, _ = merged
            n_sums = 0
            if is_first:
                n_sums = self.loading.n_sums
            elif sums is not None:
                n_sums = sums.nnz
                zeros = np.zeros(sums.shape[1], dtype=np.float32)
                yield Step(sums, zeros, PLAIN_SUMS, False, None, 0)
            yield Step(weights, bias, rules, True, sums, n_sums)
            is_first = False


class StepTable:
    """Collects the rows of a step table, and what belongs to them.

    Attributes
    ----------
    layer_edges : list of int
        Edges that each layer evaluates for a feature; sums that are taken first count.
    additions : int
        How many of `layer_edges`, all together, are such sums.
    n_biases : int
        Numbers in all biases so far.
    """

    def __init__(self) -> None:
        self.layer_edges: list[int] = []
        self.additions = 0
        self.n_biases = 0
        self._rows: list[list[int]] = []
        self._caps: list[float] = []
        self._biases: list[npt.NDArray[np.float32]] = []
        self._maps_zero_to_zero: list[bool] = []

    def count_layer(self, step: Step) -> int:
        """Count the layer that a step ends.

        Parameters
        ----------
        step : Step

        Returns
        -------
        int
            The layer's number, from 0; `NO_LAYER` where the step ends none.
        """
        if not step.ends_layer:
            return NO_LAYER
        self.layer_edges.append(step.n_sums + step.weights.nnz)
        self.additions += step.n_sums
        self._maps_zero_to_zero.append(step.rules.maps_zero_to_zero)
        return len(self.layer_edges) - 1

    def add_bias(self, bias: npt.NDArray[np.float32]) -> int:
        """Keep a bias, unless it equals the one before; gives where it begins."""
        if not self._biases or not np.array_equal(bias, self._biases[-1]):
            self._biases.append(bias)
            self.n_biases += bias.size
        return self.n_biases - bias.size

    def add(
        self, rules: Rules, layer: int, n_outputs: int, bias_start: int, own: Sequence[int]
    ) -> None:
        """Add a row.

        Parameters
        ----------
        rules : Rules
        layer : int
            As `count_layer` gave it; `NO_LAYER` for a row that does not end its layer.
        n_outputs : int
            Neurons that there are after the step.
        bias_start : int
            As `add_bias` gave it.
        own : sequence of int
            The engine's own columns, in their order.
        """
        is_relu, tests, cap, _ = rules
        self._rows.append([n_outputs, bias_start, is_relu, tests, False, layer, *own])
        self._caps.append(cap)

    def steps(self) -> npt.NDArray[np.int64]:
        """The step table, shape (n_steps, `FIRST_OWN` + the engine's own columns), int64."""
        steps = np.array(self._rows, dtype=np.int64)
        steps[steps[:, LAYER] != NO_LAYER, MAY_DROP] = may_drop_after(self._maps_zero_to_zero)
        return steps

    def layer_neurons(self) -> tuple[int, ...]:
        """Outputs that each layer computes."""
        return tuple(row[N_OUTPUTS] for row in self._rows if row[LAYER] != NO_LAYER)

    def caps(self) -> npt.NDArray[np.float32]:
        """The largest activation of each step, infinite for none, shape (n_steps,), float32."""
        return np.array(self._caps, dtype=np.float32)

    def bias(self) -> npt.NDArray[np.float32]:
        """All biases, one after the other, shape (n_biases,), float32."""
        return np.concatenate(self._biases)
