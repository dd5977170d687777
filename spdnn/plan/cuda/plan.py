"""The GPU engine's plan: all layers as steps, all steps as bundles of groups and ELL blocks.

Outputs that share their inputs are groups, in bundles (`spdnn.plan.cuda.bundles`). Others are
staged ELL (`spdnn.plan.cuda.ell`); those with far more inputs than the rest are cut into chunks
(`spdnn.plan.chunks`). Outputs are renumbered, groups first, so that the outputs of a group lie side
by side, and long ones next. All steps lie in long arrays with 64-bit offsets. A device may hold all
of them, or a window.

A network is planned for the resident kernel, which takes features through many layers in one
launch, if its activations fit into the shared memory of a thread block, its weights are few beside
them, and no output is long. A long output would be the work of one thread, which waits for a weight
from L2 at each edge, and all of its block would wait for it. For 128 edges of some 100 clocks that
is 7 microseconds a layer, for thousands of edges hundreds of them; the launches that it would save
take a few.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.machine.memory import require_bytes
from spdnn.network import Network
from spdnn.plan.base import StepPlan
from spdnn.plan.chunks import OUTPUT, cut_chunks
from spdnn.plan.cuda.bundles import cut_bundles
from spdnn.plan.cuda.ell import LARGEST_BUFFER, cut_ell
from spdnn.plan.cuda.outputs import sort_outputs
from spdnn.plan.cuda.sizes import PlanSizes, row_of, suits_resident
from spdnn.plan.rules import NONZERO
from spdnn.plan.steps import FIRST_OWN, Step, StepTable, Walk

(
    FIRST_BUNDLE,
    END_BUNDLE,
    FIRST_ELL,
    FIRST_WHOLE,
    END_ELL,
    N_INPUTS,
) = range(FIRST_OWN, FIRST_OWN + 6)
"""The GPU engine's own columns of the step table, after those of `spdnn.plan.steps`.

The first bundle and the end of them; the first ELL block, which is one of chunks if there are any,
the first one of whole outputs and the end of them; and the neurons before the step.
"""

LAYOUT = 2
"""Changes with what numbers of a plan mean, so that a kept plan of another layout is refused."""

BYTES_PER_EDGE = 8
"""Weight and index: what a plan takes for an edge, roughly."""

_HINT = "take fewer `layers` or a machine with more memory"


class CudaArrays(NamedTuple):
    """What the kernels read.

    Attributes
    ----------
    steps : ndarray, shape (n_steps, 12), int64
        The step table. `NONZERO` is the only bit of column TESTS.
    caps : ndarray, shape (n_steps,), float32
        Largest activation; infinite for none.
    bundles, groups : ndarray, int64
        See `spdnn.plan.cuda.bundles`. First outputs count from the step's first, starts are places
        in the long arrays.
    ell_blocks, stages, slices : ndarray, int64
        See `spdnn.plan.cuda.ell`. First outputs count from the step's first, starts are places in
        the long arrays. The first output of a block of chunks is a row of `chunks`.
    chunks : ndarray, shape (n_chunks, 4), int64
        See `spdnn.plan.chunks`; outputs count from the step's first.
    bias : ndarray, float32
        The bias of each output of each step, in plan order. Steps with equal biases share them if
        they follow each other. Zeros are at the end, as many as a group has rows: a group always
        reads so many.
    group_inputs : ndarray, int32
        Inputs of groups: their positions, or for the resident kernel their rows
        (`spdnn.plan.cuda.sizes.row_of`).
    group_weights : ndarray, float32
        Weights of groups.
    maps : ndarray, int32
        Inputs that the stages of ELL blocks hold.
    ell_indices : ndarray, uint16
        Entries of ELL blocks: places in the buffer, or for the resident kernel rows.
    ell_weights : ndarray, float32
        Their weights.
    """

    steps: npt.NDArray[np.int64]
    caps: npt.NDArray[np.float32]
    bundles: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    ell_blocks: npt.NDArray[np.int64]
    stages: npt.NDArray[np.int64]
    slices: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    bias: npt.NDArray[np.float32]
    group_inputs: npt.NDArray[np.int32]
    group_weights: npt.NDArray[np.float32]
    maps: npt.NDArray[np.int32]
    ell_indices: npt.NDArray[np.uint16]
    ell_weights: npt.NDArray[np.float32]


WINDOWED = ("group_inputs", "group_weights", "maps", "ell_indices", "ell_weights")
"""The arrays of which a device may hold a window of some steps."""

GROUP_INPUTS, GROUP_WEIGHTS, MAPS, ELL_INDICES, ELL_WEIGHTS = range(len(WINDOWED))
"""Their places, such as in a row of `CudaPlan.extents`."""

OF_STEP_TABLE = ("steps", "caps", "bias")
"""The arrays that a `StepTable` collects."""


@dataclass(frozen=True, eq=False)
class CudaPlan(StepPlan):
    """A network made ready for the GPU engine; see `spdnn.plan.base.StepPlan`, too.

    Attributes
    ----------
    arrays : CudaArrays
    sizes : PlanSizes
        The sizes that it was made for.
    is_resident : bool
        Whether it is planned for the resident kernel.
    extents : ndarray, shape (n_steps + 1, 5), int64
        Where each step begins in each of the `WINDOWED` arrays.
    max_chunks : int
        Most chunks of a step.
    """

    arrays: CudaArrays
    sizes: PlanSizes
    is_resident: bool
    extents: npt.NDArray[np.int64]
    max_chunks: int

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return len(self.extents) - 1

    @property
    def n_bytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(int(array.nbytes) for array in self.arrays)

    def step_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of the windowed arrays that each step needs, shape (n_steps,), int64."""
        sizes = [getattr(self.arrays, name).itemsize for name in WINDOWED]
        total: npt.NDArray[np.int64] = np.diff(self.extents, axis=0) @ np.array(sizes)
        return total


def plan_cuda(network: Network, mode: str, sizes: PlanSizes) -> CudaPlan:
    """Plan a network.

    Parameters
    ----------
    network : Network
    mode : {"edges", "merge"}
        "edges" keeps every edge; "merge" computes once what must be equal.
    sizes : PlanSizes

    Raises
    ------
    DeviceError
        If the plan does not fit into memory.
    """
    if mode == "edges":
        require_bytes(
            network.n_edges * BYTES_PER_EDGE, f"the plan of {network.n_layers} layers", _HINT
        )
        widths = [network.n_inputs, *(n_outputs for _, n_outputs in network.shapes)]
        is_resident = suits_resident(widths, network.n_edges, sizes)
        # Layers that are made one at a time are made again, should one have a long output.
        cutter = _cut(lambda: Walk(network, mode).steps(), sizes, network.n_inputs, is_resident)
        inputs = np.arange(network.n_inputs, dtype=np.int32)
        return cutter.plan(mode, inputs, cutter.position)
    walk = Walk(network, mode)
    n_loaded = walk.loading.n_loaded
    steps = list(walk.steps())
    widths = [n_loaded, *(step.bias.size for step in steps)]
    n_edges = sum(step.weights.nnz for step in steps)
    cutter = _cut(lambda: steps, sizes, n_loaded, suits_resident(widths, n_edges, sizes))
    return cutter.plan(mode, walk.loading.position, cutter.position[walk.merged.output_class])


def _cut(
    make: Callable[[], Iterable[Step]], sizes: PlanSizes, n_loaded: int, is_resident: bool
) -> "_Cutter":
    """Cut all steps: for the resident kernel, if it takes them."""
    cutter = _Cutter(sizes, n_loaded, is_resident)
    for step in make():
        if not cutter.add(step):
            return _cut(make, sizes, n_loaded, False)
    return cutter


class _Cutter:
    """Cuts steps into groups and ELL blocks; keeps track of where each neuron stands."""

    def __init__(self, sizes: PlanSizes, n_loaded: int, is_resident: bool) -> None:
        self.position = np.arange(n_loaded, dtype=np.int32)
        self._sizes, self._is_resident = sizes, is_resident
        self._n_loaded = self._max_width = n_loaded
        self._table = StepTable()
        self._parts: dict[str, list[npt.NDArray[Any]]] = {
            name: [] for name in CudaArrays._fields if name not in OF_STEP_TABLE
        }
        self._lengths = dict.fromkeys(self._parts, 0)
        self._extents = [[0] * len(WINDOWED)]
        self._max_chunks = 0

    def add(self, step: Step) -> bool:
        """Cut a step, and tell whether it was: for the resident kernel no output may be long."""
        columns = step.weights.tocsc()
        outputs = sort_outputs(columns, self._sizes)
        if self._is_resident and outputs.long.size:
            return False
        shared, group_sizes, long, alone = outputs
        first_bundle, first_ell = self._lengths["bundles"], self._lengths["ell_blocks"]
        inputs = self.position[columns.indices]
        if self._is_resident:
            inputs = row_of(inputs)
        self._add_groups(columns, inputs, shared, group_sizes)
        self._add_long(columns[:, long], shared.size)
        first_whole = self._lengths["ell_blocks"]
        first_alone = shared.size + long.size
        self._add_ell(columns.indptr, inputs, columns.data, alone, columns.shape[0], first_alone)
        end_bundle, end_ell = self._lengths["bundles"], self._lengths["ell_blocks"]
        order = outputs.order
        # The kernels make NaN of every sum that is not finite: FINITE would tell them nothing. A
        # column with one bit needs no mask, with which a kernel would spill registers.
        rules = step.rules._replace(tests=step.rules.tests & NONZERO)
        self._table.add(
            rules,
            self._table.count_layer(step),
            order.size,
            self._table.add_bias(step.bias[order]),
            [first_bundle, end_bundle, first_ell, first_whole, end_ell, self.position.size],
        )
        self._max_width = max(self._max_width, order.size)
        self.position = np.empty_like(order)
        self.position[order] = np.arange(order.size, dtype=np.int32)
        self._extents.append([self._lengths[name] for name in WINDOWED])
        return True

    def _append(self, name: str, part: npt.NDArray[Any]) -> None:
        self._parts[name].append(part)
        self._lengths[name] += len(part)

    def _add_groups(
        self,
        columns: sp.csc_array,
        inputs: npt.NDArray[np.int32],
        outputs: npt.NDArray[np.int32],
        group_sizes: npt.NDArray[np.int64],
    ) -> None:
        """Pack groups into bundles."""
        sizes = self._sizes
        cut = cut_bundles(columns, inputs, outputs, group_sizes, sizes.bundle, sizes.rows)
        cut.bundles[:, 1] += self._lengths["group_inputs"]
        self._append("bundles", cut.bundles)
        self._append("groups", cut.groups)
        self._append("group_inputs", cut.inputs)
        self._append("group_weights", cut.weights)

    def _add_long(self, long: sp.csc_array, first_output: int) -> None:
        """Cut long outputs into chunks, and these into ELL blocks."""
        chunks = cut_chunks(long, self._sizes.chunk)
        chunks.table[:, OUTPUT] += first_output
        inputs, first = self.position[long.indices], self._lengths["chunks"]
        self._add_ell(chunks.indptr, inputs, long.data, chunks.order, long.shape[0], first)
        self._append("chunks", chunks.table)
        self._max_chunks = max(self._max_chunks, chunks.order.size)

    def _add_ell(
        self,
        indptr: npt.NDArray[np.integer],
        inputs: npt.NDArray[np.int32],
        values: npt.NDArray[np.float32],
        columns: npt.NDArray[np.int32],
        n_inputs: int,
        first_output: int,
    ) -> None:
        """Cut columns of a CSC matrix into ELL blocks: outputs in no group, or chunks."""
        buffer = self._sizes.buffer
        if self._is_resident:
            assert n_inputs <= LARGEST_BUFFER
            buffer = 0
        ell = cut_ell(
            indptr, inputs, values, columns, n_inputs, warps=self._sizes.warps, buffer=buffer
        )
        ell.blocks[:, 0] += first_output
        ell.blocks[:, 2:] += self._lengths["stages"]
        ell.stages[:, 0] += self._lengths["maps"]
        ell.stages[:, 2] += self._lengths["slices"]
        ell.slices[:, 0] += self._lengths["ell_weights"]
        self._append("ell_blocks", ell.blocks)
        self._append("stages", ell.stages)
        self._append("slices", ell.slices)
        self._append("maps", ell.maps)
        self._append("ell_indices", ell.indices)
        self._append("ell_weights", ell.weights)

    def plan(
        self,
        mode: str,
        load_position: npt.NDArray[np.int32],
        output_position: npt.NDArray[np.int32],
    ) -> CudaPlan:
        """Join what was cut."""
        table = self._table
        n_bytes = sum(int(part.nbytes) for parts in self._parts.values() for part in parts)
        require_bytes(n_bytes, f"the plan of {len(table.layer_edges)} layers", _HINT)
        padding = np.zeros(self._sizes.rows, dtype=np.float32)
        return CudaPlan(
            mode=mode,
            arrays=CudaArrays(
                steps=table.steps(),
                caps=table.caps(),
                bias=np.concatenate([table.bias(), padding]),
                **{name: np.concatenate(parts) for name, parts in self._parts.items()},
            ),
            layer_edges=tuple(table.layer_edges),
            layer_neurons=table.layer_neurons(),
            n_loaded=self._n_loaded,
            additions=table.additions,
            max_width=self._max_width,
            load_position=load_position,
            output_position=output_position,
            sizes=self._sizes,
            is_resident=self._is_resident,
            extents=np.array(self._extents, dtype=np.int64),
            max_chunks=self._max_chunks,
        )
