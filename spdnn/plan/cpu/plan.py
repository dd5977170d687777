"""The CPU engine's plan: all layers as steps, all steps as blocks, in a few long arrays."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.features import index_dtype
from spdnn.machine.memory import require_bytes
from spdnn.network import Layer, Network, may_drop_after
from spdnn.plan.cpu.blocks import (
    INDEX_START,
    POSITION,
    TYPICAL_COSTS,
    WEIGHT_START,
    BlockCosts,
    cut_layer,
)
from spdnn.plan.cpu.dense import with_dense_outputs
from spdnn.plan.cpu.split import split_long
from spdnn.plan.merge import loading_of, merge_layers
from spdnn.plan.parts import Parts
from spdnn.plan.rest import keeps_cap
from spdnn.plan.work import Work

(
    FIRST_BLOCK,
    END_BLOCK,
    N_OUTPUTS,
    BIAS_START,
    IS_RELU,
    TESTS,
    MAY_DROP,
    LAYER,
    PART,
) = range(9)
"""Columns of the step table."""

NO_LAYER = -1
"""In column LAYER: a step that ends no layer."""

NONZERO, FINITE = 1, 2
"""Bits of column TESTS: the bias is added only where the sum is not zero; a sum that is not finite
becomes NaN, which no later layer hides (where there is no cap, so that it would be wrong)."""

WHOLE, CHUNKS, ROWS, FINISH = range(4)
"""In column PART. A layer with long outputs is three steps that write to one tile: the chunks of
the long ones, behind the outputs; the other outputs; and the long ones, from the chunks' sums.
"""

BYTES_PER_EDGE = 4 + 4
"""Weight and index: what a plan takes at most for an edge, its table left out."""

_HINT = "take fewer --layers or a machine with more memory"


class PlanArrays(NamedTuple):
    """What the kernels read, one argument for all of it.

    Attributes
    ----------
    steps : ndarray, shape (n_steps, 9), int64
        First block and the end of them, neurons of the tile that is written, where the bias begins,
        whether negative sums are cut off, what `NONZERO` and `FINITE` say of its sums,
        whether features without activations may be dropped after the step, which layer it
        ends, and which part of a layer it is.
    caps : ndarray, shape (n_steps,), float32
        Largest activation; infinite for none.
    blocks : ndarray, shape (n_blocks, 6), int64
        See `spdnn.plan.cpu.blocks`; starts are those of the long arrays, positions the tile's.
    indices : ndarray, uint16 or int32
    weights : ndarray, float32
    bias : ndarray, float32
        Of each output of each step, in the order of the blocks; equal neighbours share theirs.
    """

    steps: npt.NDArray[np.int64]
    caps: npt.NDArray[np.float32]
    blocks: npt.NDArray[np.int64]
    indices: npt.NDArray[Any]
    weights: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class CpuPlan(Parts):
    """A network made ready for the CPU engine.

    Attributes
    ----------
    mode : str
        "edges" or "merge".
    arrays : PlanArrays
    layer_edges : tuple of int
        Edges that each layer evaluates for a feature; sums that are taken first count.
    layer_neurons : tuple of int
        Outputs that each layer computes.
    load_position : ndarray, shape (n_inputs,), uint16 or uint32
        Where in the first tile each input is added; `n_loaded` for none.
    n_loaded : int
        Neurons of the first tile.
    additions : int
        How many of `layer_edges`, all together, are such sums.
    max_width : int
        Most neurons of any tile, the sums of chunks counted.
    output_position : ndarray, shape (n_outputs,), int32
        Where each output of the network stands after the last step.
    rests : ndarray, shape (n_layers,), bool
        After which layers a feature whose activations are all at the cap need not be carried:
        they stay so. In mode "edges" none.
    """

    mode: str
    arrays: PlanArrays
    layer_edges: tuple[int, ...]
    layer_neurons: tuple[int, ...]
    load_position: npt.NDArray[Any]
    n_loaded: int
    additions: int
    max_width: int
    output_position: npt.NDArray[np.int32]
    rests: npt.NDArray[np.bool_]

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layer_edges)

    @property
    def n_bytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def work(self) -> Work:
        """What is computed for a feature."""
        edges = sum(self.layer_edges) - self.additions
        return Work(sum(self.layer_neurons), edges, self.additions)

    @property
    def bytes_per_neuron(self) -> float:
        """What a tile reads of the plan for each neuron of each step, on average."""
        steps = self.arrays.steps
        ends_tile = (steps[:, PART] == WHOLE) | (steps[:, PART] == FINISH)
        return self.n_bytes / max(1, int(steps[ends_tile, N_OUTPUTS].sum()))

    @property
    def n_repeats(self) -> int:
        """How often the loaded neurons repeat along the inputs, in order; 0 where they do not."""
        n_repeats = self.load_position.size // max(self.n_loaded, 1)
        repeated = np.tile(np.arange(self.n_loaded), n_repeats)
        return n_repeats if np.array_equal(self.load_position, repeated) else 0

    def steps_end(self) -> npt.NDArray[np.int64]:
        """The step behind each layer's last, shape (n_layers,)."""
        return np.flatnonzero(self.arrays.steps[:, LAYER] != NO_LAYER) + 1


def plan_edges(network: Network, costs: BlockCosts = TYPICAL_COSTS) -> CpuPlan:
    """Plan a network for mode ``edges``: every edge is kept.

    Parameters
    ----------
    network : Network
    costs : BlockCosts
        What the engine's kernels take for a block.

    Raises
    ------
    DeviceError
        If the plan does not fit into memory.
    """
    require_bytes(network.n_edges * BYTES_PER_EDGE, f"the plan of {network.n_layers} layers", _HINT)
    inputs = np.arange(network.n_inputs, dtype=np.int32)
    steps = _Steps(network, costs, inputs.size)
    for layer in network.layers:
        bias = np.broadcast_to(layer.bias, layer.n_outputs)
        steps.add_layer(layer, layer.weights, bias)
    return steps.plan("edges", inputs, steps.position, np.zeros(network.n_layers, dtype=bool))


def plan_merge(network: Network, costs: BlockCosts = TYPICAL_COSTS) -> CpuPlan:
    """Plan a network for mode ``merge``: what must be equal is computed once.

    Layers are merged one at a time, so that a network whose layers are made one at a time
    never has to fit into memory. Parameters and errors as in `plan_edges`.
    """
    steps: _Steps | None = None
    cap: float | None = None
    keeps = []
    for layer, merged in merge_layers(network):
        if steps is None:
            inputs = loading_of(merged, network.n_inputs)
            steps = _Steps(network, costs, inputs.n_loaded)
            steps.count_additions(inputs.n_sums)
        elif merged.sums is not None:
            steps.add_sums(merged.sums)
        steps.add_layer(layer, merged.weights, merged.bias)
        keeps.append(keeps_cap(layer, merged, cap))
        cap = layer.ymax
    assert steps is not None
    rests = may_drop_after(keeps) & (cap is not None)
    return steps.plan("merge", inputs.position, steps.position[merged.output_class], rests)


class _Rules(NamedTuple):
    """What happens to a sum: columns IS_RELU and TESTS of the step table, and the cap."""

    is_relu: bool
    tests: int
    cap: float


_PLAIN_SUMS = _Rules(False, 0, math.inf)


class _Steps:
    """Collects steps; keeps track of where each neuron stands in the tile."""

    def __init__(self, network: Network, costs: BlockCosts, n_loaded: int) -> None:
        self.position = np.arange(n_loaded, dtype=np.int32)
        self._costs = costs
        n_most = max(network.max_width, n_loaded)
        self._index_dtype = np.dtype(index_dtype(n_most))
        self._position_dtype = np.uint16 if self._index_dtype == np.uint16 else np.uint32
        self._steps: list[list[int]] = []
        self._caps: list[float] = []
        self._tables: list[npt.NDArray[np.int64]] = []
        self._indices: list[npt.NDArray[Any]] = []
        self._weights: list[npt.NDArray[np.float32]] = []
        self._biases: list[npt.NDArray[np.float32]] = []
        self._n_blocks = self._n_indices = self._n_weights = self._n_biases = 0
        self._maps_zero_to_zero: list[bool] = []
        self._layer_edges: list[int] = []
        self._uncounted = self._additions = 0
        self._n_loaded = self._max_width = n_loaded

    def count_additions(self, n_additions: int) -> None:
        """Count sums that are taken on the way to the next layer."""
        self._uncounted += n_additions
        self._additions += n_additions

    def add_sums(self, sums: sp.csr_array) -> None:
        """Add a step of plain sums."""
        self.count_additions(sums.nnz)
        bias = np.zeros(sums.shape[1], dtype=np.float32)
        self._add(sums, bias, is_relu=False, tests=0, cap=None, layer=NO_LAYER)

    def add_layer(self, layer: Layer, weights: sp.csr_array, bias: npt.NDArray[np.float32]) -> None:
        """Add the step that ends a layer, with the weights and the bias given."""
        self._layer_edges.append(self._uncounted + weights.nnz)
        self._uncounted = 0
        self._maps_zero_to_zero.append(layer.maps_zero_to_zero)
        self._add(
            weights,
            bias,
            is_relu=layer.activation == "relu",
            tests=NONZERO * layer.needs_nonzero_test | FINITE * (layer.ymax is None),
            cap=layer.ymax,
            layer=len(self._layer_edges) - 1,
        )

    def _add(
        self,
        weights: sp.csr_array,
        bias: npt.NDArray[np.float32],
        *,
        is_relu: bool,
        tests: int,
        cap: float | None,
        layer: int,
    ) -> None:
        """Add what leads from one tile to the next: one step, or three where outputs are long."""
        columns = with_dense_outputs(weights.tocsc(), self._costs)
        n_outputs = bias.size
        rules = _Rules(is_relu, tests, math.inf if cap is None else cap)
        split = split_long(columns, self.position)
        if split is None:
            order, blocks = self._cut(columns, self.position)
            bias_start = self._add_bias(bias[order])
            self._add_step(WHOLE, blocks, n_outputs, bias_start, rules, layer)
        else:
            n_chunks = split.chunks.shape[1]
            self._hold(n_outputs + n_chunks)
            of_chunk = np.empty(n_chunks, dtype=np.int32)
            in_place = np.arange(self.position.size, dtype=np.int32)
            chunks, chunk_blocks = self._cut(split.chunks, in_place, n_outputs)
            of_chunk[chunks] = np.arange(n_outputs, n_outputs + n_chunks)
            short, short_blocks = self._cut(split.rows, self.position)
            long, long_blocks = self._cut(split.sums, of_chunk, short.size)
            order = np.concatenate([split.short[short], split.long[long]])
            bias_start = self._add_bias(np.append(bias[order], np.zeros(n_chunks, np.float32)))
            self._add_step(CHUNKS, chunk_blocks, n_outputs, bias_start, _PLAIN_SUMS, NO_LAYER)
            self._add_step(ROWS, short_blocks, n_outputs, bias_start, rules, NO_LAYER)
            self._add_step(FINISH, long_blocks, n_outputs, bias_start, rules, layer)
        self._hold(n_outputs)
        self.position = np.empty_like(order)
        self.position[order] = np.arange(n_outputs, dtype=np.int32)

    def _hold(self, n_neurons: int) -> None:
        """Let a tile have so many neurons."""
        self._max_width = max(self._max_width, n_neurons)
        self._index_dtype = np.result_type(self._index_dtype, index_dtype(n_neurons))

    def _cut(
        self,
        weights: sp.csc_array,
        input_position: npt.NDArray[np.int32],
        first_position: int = 0,
    ) -> tuple[npt.NDArray[np.int32], tuple[int, int]]:
        """Cut outputs into blocks that begin at a position; gives their order, and the blocks."""
        cut = cut_layer(weights, input_position, self._costs)
        cut.table[:, POSITION] += first_position
        cut.table[:, INDEX_START] += self._n_indices
        cut.table[:, WEIGHT_START] += self._n_weights
        self._tables.append(cut.table)
        self._indices.append(cut.indices.astype(self._index_dtype))
        self._weights.append(cut.weights)
        first_block = self._n_blocks
        self._n_blocks += len(cut.table)
        self._n_indices += cut.indices.size
        self._n_weights += cut.weights.size
        return cut.order, (first_block, self._n_blocks)

    def _add_bias(self, bias: npt.NDArray[np.float32]) -> int:
        """Keep a bias, unless it is the one before; gives where it begins."""
        if not self._biases or not np.array_equal(bias, self._biases[-1]):
            self._biases.append(bias)
            self._n_biases += bias.size
        return self._n_biases - bias.size

    def _add_step(
        self,
        part: int,
        blocks: tuple[int, int],
        n_outputs: int,
        bias_start: int,
        rules: _Rules,
        layer: int,
    ) -> None:
        is_relu, tests, cap = rules
        row = [*blocks, n_outputs, bias_start, is_relu, tests, False, layer, part]
        self._steps.append(row)
        self._caps.append(cap)

    def plan(
        self,
        mode: str,
        load_position: npt.NDArray[np.int32],
        output_position: npt.NDArray[np.int32],
        rests: npt.NDArray[np.bool_],
    ) -> CpuPlan:
        """Join what was collected."""
        require_bytes(self._n_weights * BYTES_PER_EDGE, "the plan", _HINT)
        steps = np.array(self._steps, dtype=np.int64)
        ends_layer = steps[:, LAYER] != NO_LAYER
        steps[ends_layer, MAY_DROP] = may_drop_after(self._maps_zero_to_zero)
        arrays = PlanArrays(
            steps,
            np.array(self._caps, dtype=np.float32),
            np.concatenate(self._tables),
            np.concatenate(self._indices),
            np.concatenate(self._weights),
            np.concatenate(self._biases),
        )
        return CpuPlan(
            mode,
            arrays,
            tuple(self._layer_edges),
            tuple(int(n) for n in steps[ends_layer, N_OUTPUTS]),
            load_position.astype(self._position_dtype),
            self._n_loaded,
            self._additions,
            self._max_width,
            output_position,
            rests,
        )
