"""The CPU engine's plan: all layers as steps, all steps as blocks, in a few long arrays."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.features import index_dtype
from spdnn.machine.memory import available_bytes, promised_bytes, require_bytes
from spdnn.machine.thread_pool import KeptThreads
from spdnn.network import Network, may_drop_after
from spdnn.plan.ahead import Background, ahead, worth_threads
from spdnn.plan.base import StepPlan
from spdnn.plan.cpu.blocks import (
    INDEX_START,
    POSITION,
    TYPICAL_COSTS,
    WEIGHT_START,
    Arrangement,
    BlockCosts,
    arrange,
    fill_blocks,
)
from spdnn.plan.cpu.dense import may_have_dense_outputs, with_dense_outputs
from spdnn.plan.cpu.long_array import LongArray
from spdnn.plan.cpu.repeats import keep_distinct
from spdnn.plan.cpu.rest import keeps_cap
from spdnn.plan.cpu.split import LONGEST, Split, are_long, split_long
from spdnn.plan.groups import Groups, group_outputs
from spdnn.plan.rules import PLAIN_SUMS
from spdnn.plan.steps import (
    FIRST_OWN,
    N_OUTPUTS,
    NO_LAYER,
    Step,
    StepTable,
    Walk,
)

FIRST_BLOCK, END_BLOCK, PART = range(FIRST_OWN, FIRST_OWN + 3)
"""The CPU engine's own columns of the step table, after those of `spdnn.plan.steps`.

The first block and the end of them, and which part of a layer the step is.
"""

N_COLUMNS = PART + 1
"""Columns of the CPU engine's step table."""

WHOLE, CHUNKS, ROWS, FINISH = range(4)
"""In column PART. Most layers are one step, which is the whole of them. A layer with long outputs
is three steps that write to one tile: the chunks of the long outputs, which stand after the
layer's outputs; the other outputs; and the long outputs, from the sums of their chunks.
"""

BYTES_PER_EDGE = 4 + 4
"""Weight and index: what a plan takes at most for an edge, without the tables."""

RESERVED_SHARE = 1 / 4
"""Share of the available memory that is reserved at most for a plan whose size is not known."""

CHECKED_EDGES = 1 << 23
"""Edges after which it is checked whether a plan of unknown size fits, again and again: 64 MiB."""

_HINT = "take fewer `layers` or a machine with more memory"

Blocks = tuple[int, int]
"""The first block of a step and the end of them."""


class PlanArrays(NamedTuple):
    """What the kernels read, one argument for all of it.

    Attributes
    ----------
    steps : ndarray, shape (n_steps, `N_COLUMNS`), int64
        The step table.
    caps : ndarray, shape (n_steps,), float32
        Largest activation; infinite for none.
    blocks : ndarray, shape (n_blocks, 6), int64
        See `spdnn.plan.cpu.blocks`. Starts are places in the long arrays, positions are neurons of
        the tile.
    indices : ndarray, uint16 or int32
        Inputs of blocks.
    weights : ndarray, float32
        Weights of blocks. Blocks of a step with equal weights may share them.
    bias : ndarray, float32
        The bias of each output of each step, in the order of the blocks. Steps with equal biases
        share them if they follow each other.
    """

    steps: npt.NDArray[np.int64]
    caps: npt.NDArray[np.float32]
    blocks: npt.NDArray[np.int64]
    indices: npt.NDArray[Any]
    weights: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class CpuPlan(StepPlan):
    """A network made ready for the CPU engine; see `spdnn.plan.base.StepPlan`, too.

    Attributes
    ----------
    arrays : PlanArrays
    rests : ndarray, shape (n_layers,), bool
        The layers after which a feature whose activations are all at the cap need not be carried:
        they stay so. There are none in mode "edges".
    """

    arrays: PlanArrays
    rests: npt.NDArray[np.bool_]

    @property
    def n_bytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(array.nbytes for array in self.arrays)

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


def plan_edges(
    network: Network, costs: BlockCosts = TYPICAL_COSTS, threads: KeptThreads | None = None
) -> CpuPlan:
    """Plan a network for mode ``edges``: every edge is kept.

    Parameters
    ----------
    network : Network
    costs : BlockCosts
        What the engine's kernels take for a block.
    threads : KeptThreads, optional
        They work on several layers at once. The plan does not depend on them.

    Raises
    ------
    DeviceError
        If the plan does not fit into memory.
    """
    n_bytes = network.n_edges * BYTES_PER_EDGE
    if network.n_edges > CHECKED_EDGES and n_bytes > available_bytes():
        # It fits if enough weights repeat. Memory is asked for while the plan grows.
        return _plan(network, "edges", costs, threads, is_checked=False)
    with promised_bytes(n_bytes, f"the plan of {network.n_layers} layers", _HINT):
        return _plan(network, "edges", costs, threads, is_checked=True)


def plan_merge(
    network: Network, costs: BlockCosts = TYPICAL_COSTS, threads: KeptThreads | None = None
) -> CpuPlan:
    """Plan a network for mode ``merge``: what must be equal is computed once.

    Layers are merged one at a time, so that a network whose layers are made one at a time
    never has to fit into memory.

    Parameters
    ----------
    network : Network
    costs : BlockCosts
        What the engine's kernels take for a block.
    threads : KeptThreads, optional
        They work on several layers at once. The plan does not depend on them.

    Raises
    ------
    DeviceError
        If the plan does not fit into memory.
    """
    return _plan(network, "merge", costs, threads, is_checked=False)


def _plan(
    network: Network, mode: str, costs: BlockCosts, threads: KeptThreads | None, is_checked: bool
) -> CpuPlan:
    """Plan a network; `is_checked` says whether memory for all edges was asked for."""
    if mode == "merge":
        threads = worth_threads(threads, network.layer_edges)
    walk = Walk(network, mode, threads)
    room = n_checked = network.n_edges
    if not is_checked:
        n_checked = 0
        room = min(room, int(RESERVED_SHARE * available_bytes() / BYTES_PER_EDGE))
    cutter = _Cutter(network, walk.loading.n_loaded, costs, threads, room, n_checked)
    keeps: list[bool] = []
    for (step, _), prepared in ahead(
        partial(_prepare, mode=mode, costs=costs), _with_caps(walk.steps()), _n_numbers, threads
    ):
        cutter.add(step, prepared)
        if step.ends_layer:
            keeps.append(prepared.keeps_cap)
    rests = may_drop_after(keeps) & (mode == "merge" and math.isfinite(step.rules.cap))
    output_position = cutter.position[walk.merged.output_class]
    return cutter.plan(mode, walk.loading.position, output_position, rests)


def _with_caps(steps: Iterable[Step]) -> Iterator[tuple[Step, float]]:
    """Give each step with the cap of the layer before it, infinite for none."""
    cap = math.inf
    for step in steps:
        yield step, cap
        if step.ends_layer:
            cap = step.rules.cap


def _n_numbers(item: tuple[Step, float]) -> int:
    """How many numbers a step holds of neurons and edges."""
    step, _ = item
    n_before, n_outputs = step.weights.shape
    return int(step.weights.nnz + n_before + n_outputs)


class _Arranged(NamedTuple):
    """Weights and their blocks, before it is known where inputs stand.

    Attributes
    ----------
    weights : csr_array or csc_array
    arrangement : Arrangement
    distinct : ndarray, float32, or None
        The weights of the blocks, where equal ones are kept once; see `keep_distinct`.
    """

    weights: sp.csr_array | sp.csc_array
    arrangement: Arrangement
    distinct: npt.NDArray[np.float32] | None


def _arranged(
    weights: sp.csr_array | sp.csc_array, outputs: Groups, costs: BlockCosts
) -> _Arranged:
    """Choose the blocks of weights whose outputs are grouped."""
    return _Arranged(weights, *keep_distinct(weights, arrange(outputs, costs)))


class _Prepared(NamedTuple):
    """A step before it is cut: all that does not depend on where its inputs stand.

    Attributes
    ----------
    weights : csr_array or csc_array
        The weights, with dense outputs completed.
    arranged : _Arranged or None
        The same with their blocks; None where outputs are long.
    keeps_cap : bool
        Whether inputs that are all at the cap give outputs that are all at the cap; in mode
        "edges" this is not asked.
    """

    weights: sp.csr_array | sp.csc_array
    arranged: _Arranged | None
    keeps_cap: bool


def _prepare(item: tuple[Step, float], mode: str, costs: BlockCosts) -> _Prepared:
    """Prepare a step, which comes with the cap of the layer before."""
    step, cap_before = item
    keeps = mode == "merge" and step.ends_layer and keeps_cap(step, cap_before)
    weights = step.weights
    outputs = group_outputs(weights)
    may_be_dense = may_have_dense_outputs(outputs.degree, weights.shape[0], costs)
    if may_be_dense or outputs.degree.max(initial=0) >= LONGEST:
        weights = with_dense_outputs(weights.tocsc(), costs)
        if are_long(weights).any():
            return _Prepared(weights, None, keeps)
        outputs = group_outputs(weights)
    return _Prepared(weights, _arranged(weights, outputs, costs), keeps)


class _Cutter:
    """Cuts steps into blocks; keeps track of where each neuron stands in the tile."""

    def __init__(
        self,
        network: Network,
        n_loaded: int,
        costs: BlockCosts,
        threads: KeptThreads | None,
        room: int,
        n_checked: int,
    ) -> None:
        self.position = np.arange(n_loaded, dtype=np.int32)
        self._costs = costs
        n_neurons = max(network.max_width, n_loaded)
        self._index_dtype = np.dtype(index_dtype(n_neurons))
        self._position_dtype = np.uint16 if self._index_dtype == np.uint16 else np.uint32
        self._table = StepTable()
        self._blocks: list[npt.NDArray[np.int64]] = []
        self._n_blocks = 0
        self._indices = LongArray(self._index_dtype, room)
        self._weights = LongArray(np.float32, room)
        self._writing = Background(threads)
        # Edges that were found to fit into memory, or are so few that this is not asked.
        self._n_checked = max(n_checked, CHECKED_EDGES)
        self._n_loaded = self._max_width = n_loaded

    def add(self, step: Step, prepared: _Prepared) -> None:
        """Cut what leads from one tile to the next: one step, or three where outputs are long."""
        weights, arranged, _ = prepared
        layer = self._table.count_layer(step)
        if arranged is None:
            split = split_long(weights, self.position)
            assert split is not None
            order = self._add_split(step, split, layer)
        else:
            order = arranged.arrangement.order
            blocks = self._write(arranged, self.position)
            bias_start = self._table.add_bias(step.bias[order])
            own = [*blocks, WHOLE]
            self._table.add(step.rules, layer, order.size, bias_start, own)
        self._hold(order.size)
        self.position = np.empty_like(order)
        self.position[order] = np.arange(order.size, dtype=np.int32)

    def _add_split(self, step: Step, split: Split, layer: int) -> npt.NDArray[np.int32]:
        """Add the three steps of a layer with long outputs; gives the order of its outputs."""
        n_outputs, n_chunks = step.bias.size, split.chunks.shape[1]
        self._hold(n_outputs + n_chunks)
        of_chunk = np.empty(n_chunks, dtype=np.int32)
        in_place = np.arange(self.position.size, dtype=np.int32)
        chunks, chunk_blocks = self._cut(split.chunks, in_place, n_outputs)
        of_chunk[chunks] = np.arange(n_outputs, n_outputs + n_chunks)
        short, short_blocks = self._cut(split.rows, self.position)
        long, long_blocks = self._cut(split.sums, of_chunk, short.size)
        order = np.concatenate([split.short[short], split.long[long]])
        bias = np.append(step.bias[order], np.zeros(n_chunks, np.float32))
        bias_start = self._table.add_bias(bias)
        for part, blocks, rules, ends_layer in (
            (CHUNKS, chunk_blocks, PLAIN_SUMS, NO_LAYER),
            (ROWS, short_blocks, step.rules, NO_LAYER),
            (FINISH, long_blocks, step.rules, layer),
        ):
            self._table.add(rules, ends_layer, n_outputs, bias_start, [*blocks, part])
        return order

    def _hold(self, n_neurons: int) -> None:
        """Let a tile have so many neurons."""
        self._max_width = max(self._max_width, n_neurons)
        self._index_dtype = np.result_type(self._index_dtype, index_dtype(n_neurons))

    def _cut(
        self,
        weights: sp.csc_array,
        input_position: npt.NDArray[np.int32],
        first_position: int = 0,
    ) -> tuple[npt.NDArray[np.int32], Blocks]:
        """Cut outputs into blocks that begin at a position; gives their order, and the blocks."""
        arranged = _arranged(weights, group_outputs(weights), self._costs)
        blocks = self._write(arranged, input_position, first_position)
        return arranged.arrangement.order, blocks

    def _write(
        self,
        arranged: _Arranged,
        input_position: npt.NDArray[np.int32],
        first_position: int = 0,
    ) -> Blocks:
        """Write blocks to the long arrays; gives the first and the end of them."""
        weights, arrangement, distinct = arranged
        table = arrangement.table.copy()
        table[:, POSITION] += first_position
        table[:, INDEX_START] += self._indices.size
        table[:, WEIGHT_START] += self._weights.size
        self._blocks.append(table)
        first_block = self._n_blocks
        self._n_blocks += len(table)
        n_indices, n_weights = arrangement.n_indices, arrangement.n_weights
        n_after = max(self._indices.size + n_indices, self._weights.size + n_weights)
        if n_after > self._n_checked:
            n_more = max(n_indices, n_weights) + CHECKED_EDGES
            require_bytes(n_more * BYTES_PER_EDGE, "the plan", _HINT)
            self._n_checked = n_after + CHECKED_EDGES
        dtype = self._index_dtype
        if self._indices.must_move(n_indices, dtype) or self._weights.must_move(
            n_weights, np.float32
        ):
            self._writing.finish()
            if n_after > CHECKED_EDGES:
                require_bytes(n_after * BYTES_PER_EDGE, "the plan", _HINT)
        indices = self._indices.extend(n_indices, dtype)
        values = self._weights.extend(n_weights, np.float32)
        if distinct is not None:
            values[:] = distinct
            values = values[:0]
        self._writing.call(
            weights.nnz,
            partial(fill_blocks, weights, arrangement, input_position, indices, values),
        )
        return first_block, self._n_blocks

    def plan(
        self,
        mode: str,
        load_position: npt.NDArray[np.int32],
        output_position: npt.NDArray[np.int32],
        rests: npt.NDArray[np.bool_],
    ) -> CpuPlan:
        """Join what was cut."""
        self._writing.finish()
        table = self._table
        return CpuPlan(
            mode=mode,
            arrays=PlanArrays(
                table.steps(),
                table.caps(),
                np.concatenate(self._blocks),
                self._indices.finished(),
                self._weights.finished(),
                table.bias(),
            ),
            layer_edges=tuple(table.layer_edges),
            layer_neurons=table.layer_neurons(),
            n_loaded=self._n_loaded,
            additions=table.additions,
            max_width=self._max_width,
            load_position=load_position.astype(self._position_dtype),
            output_position=output_position,
            rests=rests,
        )
