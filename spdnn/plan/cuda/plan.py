"""The GPU engine's plan: all layers as steps, all steps as bundles of groups and ELL blocks.

Outputs that share their inputs are groups, in bundles (`spdnn.plan.cuda.bundles`). Others are
staged ELL (`spdnn.plan.cuda.ell`), those with far more inputs than the rest in chunks
(`spdnn.plan.chunks`). Outputs are renumbered, groups first, so that a group's outputs lie side by
side, long ones next. All steps lie in long arrays with 64-bit offsets, of which a device may hold
all or a window.

A network whose activations fit into a block's shared memory, and whose weights are few beside
them, is planned for the resident kernel, which takes features through many layers in one launch;
unless an output is long. There an output is one thread, which waits for a weight from L2 at each of
its edges, and the whole block for it: 128 edges of some 100 clocks are 7 microseconds a layer, for
thousands of edges hundreds, where the launches that it would save take a few.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.machine.memory import require_bytes
from spdnn.network import Layer, Network, may_drop_after
from spdnn.plan.chunks import OUTPUT, cut_chunks, most_whole
from spdnn.plan.cuda.bundles import LEAST_SHARED, cut_bundles
from spdnn.plan.cuda.ell import LARGEST_BUFFER, Ell, cut_ell
from spdnn.plan.groups import NOTHING, group_columns
from spdnn.plan.merge import Loading, MergedLayer, loading_of, merge_layers
from spdnn.plan.parts import Parts
from spdnn.plan.work import Work

(
    FIRST_BUNDLE,
    END_BUNDLE,
    FIRST_ELL,
    FIRST_WHOLE,
    END_ELL,
    N_INPUTS,
    N_OUTPUTS,
    BIAS_START,
    IS_RELU,
    TESTS_NONZERO,
    MAY_DROP,
    LAYER,
) = range(12)
"""Columns of the step table."""

NO_LAYER = -1
"""In column LAYER: a step that only takes sums for the one behind it."""

RESIDENT_FEATURES = (16, 8, 4)
"""Features that a block of the resident kernel may carry."""

RESIDENT_STATIC_BYTES = 1 << 10
"""Shared memory of the resident kernel beside the activations: flags, and what the system keeps."""

BYTES_PER_EDGE = 8
"""Weight and index: what a plan takes for an edge, roughly."""

_HINT = "take fewer `layers` or a machine with more memory"


@dataclass(frozen=True)
class Shape:
    """The sizes that plan and kernels agree on.

    Attributes
    ----------
    bundle : int
        Groups of a bundle: the warps of a block of the grouped kernel.
    rows : int
        Outputs of a group, an even number.
    warps : int
        Slices of an ELL block.
    buffer : int
        Inputs that the staged kernel holds in shared memory at a time.
    chunk : int
        Edges of a chunk of a long output.
    skew : int
        Times the mean number of a layer's inputs from which an output is long; see
        `spdnn.plan.chunks.most_whole`.
    shared_bytes : int
        Shared memory that a block may have: 0 plans nothing for the resident kernel.
    """

    bundle: int = 8
    rows: int = 16
    warps: int = 4
    buffer: int = 240
    chunk: int = 64
    skew: int = 4
    shared_bytes: int = 163 << 10


class CudaArrays(NamedTuple):
    """What the kernels read.

    Attributes
    ----------
    steps : ndarray, shape (n_steps, 12), int64
        First bundle and the end of them, first ELL block, of chunks, first one of whole outputs and
        the end, inputs, outputs, where the bias begins, whether negative sums are cut off, whether
        the bias counts only for sums that are not zero, whether features without activations
        may be dropped after it, which layer it ends.
    caps : ndarray, shape (n_steps,), float32
        Largest activation; infinite for none.
    bundles, groups : ndarray, int64
        See `spdnn.plan.cuda.bundles`; outputs are the step's, starts those of the long arrays.
    ell_blocks, stages, slices : ndarray, int64
        See `spdnn.plan.cuda.ell`; first outputs are the step's, starts those of the long arrays.
        The first of a block of chunks is a row of `chunks`.
    chunks : ndarray, shape (n_chunks, 4), int64
        See `spdnn.plan.chunks`; outputs are those of the step.
    bias : ndarray, float32
        Of each output of each step, in plan order; equal neighbours share theirs. As many
        zeros as a group has rows are at the end: a group reads as many, whatever its size.
    group_inputs : ndarray, int32
    group_weights : ndarray, float32
    maps : ndarray, int32
    ell_indices : ndarray, uint16
    ell_weights : ndarray, float32
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


@dataclass(frozen=True, eq=False)
class CudaPlan(Parts):
    """A network made ready for the GPU engine.

    Attributes
    ----------
    mode : str
        "edges" or "merge".
    shape : Shape
    is_resident : bool
        Whether it is planned for the resident kernel.
    arrays : CudaArrays
    extents : ndarray, shape (n_steps + 1, 5), int64
        Where each step begins in each of the `WINDOWED` arrays.
    layer_edges : tuple of int
        Edges that each layer evaluates for a feature; sums that are taken first count.
    additions : int
        How many of `layer_edges`, all together, are such sums.
    load_position : ndarray, shape (n_inputs,), int32
        Where in the first tile each input is added; `n_loaded` for none.
    n_loaded : int
        Neurons of the first tile.
    max_width : int
        Most neurons before or after any step.
    max_chunks : int
        Most chunks of a step.
    output_position : ndarray, shape (n_outputs,), int32
        Where each output of the network stands after the last step.
    """

    mode: str
    shape: Shape
    is_resident: bool
    arrays: CudaArrays
    extents: npt.NDArray[np.int64]
    layer_edges: tuple[int, ...]
    additions: int
    load_position: npt.NDArray[np.int32]
    n_loaded: int
    max_width: int
    max_chunks: int
    output_position: npt.NDArray[np.int32]

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layer_edges)

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return len(self.extents) - 1

    @property
    def work(self) -> Work:
        """What is computed for a feature."""
        steps = self.arrays.steps
        n_neurons = int(steps[steps[:, LAYER] != NO_LAYER, N_OUTPUTS].sum())
        return Work(n_neurons, sum(self.layer_edges) - self.additions, self.additions)

    @property
    def n_bytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(int(array.nbytes) for array in self.arrays)

    def steps_end(self) -> npt.NDArray[np.int64]:
        """The step behind each layer's last, shape (n_layers,)."""
        return np.flatnonzero(self.arrays.steps[:, LAYER] != NO_LAYER) + 1

    def step_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of the windowed arrays that each step needs, shape (n_steps,)."""
        sizes = [getattr(self.arrays, name).itemsize for name in WINDOWED]
        total: npt.NDArray[np.int64] = np.diff(self.extents, axis=0) @ np.array(sizes)
        return total


def plan_cuda(network: Network, mode: str, shape: Shape) -> CudaPlan:
    """Plan a network.

    Parameters
    ----------
    network : Network
    mode : {"edges", "merge"}
        "edges" keeps every edge; "merge" computes once what must be equal.
    shape : Shape

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
        is_resident = suits_resident(widths, network.n_edges, shape)
        steps = _cut(lambda: _steps_of(network), shape, network.n_inputs, is_resident)
        inputs = np.arange(network.n_inputs, dtype=np.int32)
        return steps.plan(mode, inputs, steps.position)
    merged_steps, loading, last = _merged_steps(network)
    widths = [loading.n_loaded, *(step.weights.shape[1] for step, _ in merged_steps)]
    n_edges = sum(step.weights.nnz for step, _ in merged_steps)
    is_resident = suits_resident(widths, n_edges, shape)
    steps = _cut(lambda: merged_steps, shape, loading.n_loaded, is_resident)
    return steps.plan(mode, loading.position, steps.position[last.output_class])


def row_stride(features: int) -> int:
    """Floats from a row of `features` floats in shared memory to the next.

    Rows stay aligned for loads of four, and eight rows side by side begin in eight different
    quarters of the banks.
    """
    return features if features == 4 else features + 4


def resident_bytes(max_width: int, features: int) -> int:
    """Dynamic shared memory of a block of the resident kernel."""
    return 2 * 4 * max_width * row_stride(features)


def resident_choices(max_width: int, shared_bytes: int) -> list[int]:
    """Features that a block of the resident kernel can carry, the most first."""
    room = shared_bytes - RESIDENT_STATIC_BYTES
    return [count for count in RESIDENT_FEATURES if resident_bytes(max_width, count) <= room]


def suits_resident(widths: list[int], n_edges: int, shape: Shape) -> bool:
    """Whether the resident kernel moves fewer bytes than a launch a step would.

    It reads all weights once for the features of a block; a launch a step moves every
    activation three times: read by two groups, and written.

    Parameters
    ----------
    widths : list of int
        Neurons before the first step and after each.
    n_edges : int
        Of all steps; a weight is 4 bytes, and groups have few indices.
    shape : Shape
    """
    choices = resident_choices(max(widths), shape.shared_bytes)
    return bool(choices) and 4 * n_edges / choices[0] <= 3 * 4 * sum(widths[1:])


class _Step(NamedTuple):
    """One step before it is cut; `layer` is None where it only takes sums."""

    weights: sp.csr_array
    bias: npt.NDArray[np.float32]
    layer: Layer | None


def _steps_of(network: Network) -> Iterable[tuple[_Step, int]]:
    """All layers as they are, a step each, one at a time."""
    for layer in network.layers:
        bias = np.broadcast_to(layer.bias, layer.n_outputs)
        yield _Step(layer.weights, bias, layer), 0


def _merged_steps(network: Network) -> tuple[list[tuple[_Step, int]], Loading, MergedLayer]:
    """Merge the neurons of all layers; a layer becomes one step or two.

    Returns the steps, each with the sums that were taken on the way to it, how inputs are
    loaded, and the last layer.
    """
    loading: Loading | None = None
    steps: list[tuple[_Step, int]] = []
    for layer, merged in merge_layers(network):
        n_sums = 0
        if loading is None:
            loading = loading_of(merged, network.n_inputs)
            n_sums = loading.n_sums
        elif merged.sums is not None:
            n_sums = merged.sums.nnz
            zeros = np.zeros(merged.sums.shape[1], dtype=np.float32)
            steps.append((_Step(merged.sums, zeros, None), 0))
        steps.append((_Step(merged.weights, merged.bias, layer), n_sums))
    assert loading is not None
    return steps, loading, merged


class _Steps:
    """Cuts steps; keeps track of where each neuron stands after the last of them."""

    def __init__(self, shape: Shape, n_loaded: int, is_resident: bool) -> None:
        self.position = np.arange(n_loaded, dtype=np.int32)
        self._shape, self._is_resident = shape, is_resident
        self._n_loaded = n_loaded
        self._steps: list[list[int]] = []
        self._caps: list[float] = []
        self._parts: dict[str, list[npt.NDArray[Any]]] = {
            name: [] for name in CudaArrays._fields if name not in ("steps", "caps")
        }
        self._lengths = dict.fromkeys(self._parts, 0)
        self._extents = [[0] * len(WINDOWED)]
        self._layer_edges: list[int] = []
        self._additions = 0
        self._max_chunks = 0
        self._maps_zero_to_zero: list[bool] = []

    def add(self, step: _Step, n_sums: int = 0) -> bool:
        """Cut a step; `n_sums` inputs were added up for it before.

        Returns whether it was: one with long outputs is not, for the resident kernel.
        """
        columns = step.weights.tocsc()
        shared, sizes, long, alone = _choose(columns, self._shape)
        if self._is_resident and long.size:
            return False
        first_bundle, first_ell = self._lengths["bundles"], self._lengths["ell_blocks"]
        inputs = self.position[columns.indices]
        self._add_groups(columns, inputs, shared, sizes)
        self._add_long(columns[:, long], shared.size)
        first_whole = self._lengths["ell_blocks"]
        first = shared.size + long.size
        self._add_ell(columns.indptr, inputs, columns.data, alone, columns.shape[0], first)
        order = np.concatenate([shared, long, alone])
        bias = step.bias[order]
        if not self._parts["bias"] or not np.array_equal(bias, self._parts["bias"][-1]):
            self._append("bias", bias)
        layer = step.layer
        number = NO_LAYER
        if layer is not None:
            number = len(self._layer_edges)
            self._layer_edges.append(n_sums + step.weights.nnz)
            self._additions += n_sums
            self._maps_zero_to_zero.append(layer.maps_zero_to_zero)
        self._caps.append(math.inf if layer is None or layer.ymax is None else layer.ymax)
        self._steps.append(
            [
                first_bundle,
                self._lengths["bundles"],
                first_ell,
                first_whole,
                self._lengths["ell_blocks"],
                self.position.size,
                order.size,
                self._lengths["bias"] - order.size,
                layer is not None and layer.activation == "relu",
                layer is not None and layer.needs_nonzero_test,
                False,
                number,
            ]
        )
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
        sizes: npt.NDArray[np.int64],
    ) -> None:
        """Pack groups into bundles."""
        cut = cut_bundles(columns, inputs, outputs, sizes, self._shape.bundle, self._shape.rows)
        cut.bundles[:, 1] += self._lengths["group_inputs"]
        self._append("bundles", cut.bundles)
        self._append("groups", cut.groups)
        self._append("group_inputs", cut.inputs)
        self._append("group_weights", cut.weights)

    def _add_long(self, long: sp.csc_array, first_output: int) -> None:
        """Cut long outputs into chunks, and these into ELL blocks."""
        chunks = cut_chunks(long, self._shape.chunk)
        chunks.table[:, OUTPUT] += first_output
        inputs, first = self.position[long.indices], self._lengths["chunks"]
        self._add_ell(chunks.indptr, inputs, long.data, chunks.order, long.shape[0], first)
        self._append("chunks", chunks.table)
        self._max_chunks = max(self._max_chunks, chunks.order.size)

    def _add_ell(
        self,
        indptr: npt.NDArray[Any],
        inputs: npt.NDArray[np.int32],
        values: npt.NDArray[np.float32],
        columns: npt.NDArray[np.int32],
        n_inputs: int,
        first_output: int,
    ) -> None:
        """Cut columns of a CSC matrix into ELL blocks: outputs in no group, or chunks."""
        buffer = self._shape.buffer
        if self._is_resident:
            assert n_inputs <= LARGEST_BUFFER
            buffer = 0
        ell: Ell = cut_ell(
            indptr, inputs, values, columns, n_inputs, warps=self._shape.warps, buffer=buffer
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
        n_bytes = sum(int(part.nbytes) for parts in self._parts.values() for part in parts)
        require_bytes(n_bytes, f"the plan of {len(self._layer_edges)} layers", _HINT)
        steps = np.array(self._steps, dtype=np.int64)
        ends_layer = steps[:, LAYER] != NO_LAYER
        steps[ends_layer, MAY_DROP] = may_drop_after(self._maps_zero_to_zero)
        self._append("bias", np.zeros(self._shape.rows, dtype=np.float32))
        arrays = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        return CudaPlan(
            mode,
            self._shape,
            self._is_resident,
            CudaArrays(steps, np.array(self._caps, dtype=np.float32), **arrays),
            np.array(self._extents, dtype=np.int64),
            tuple(self._layer_edges),
            self._additions,
            load_position,
            self._n_loaded,
            int(max(self._n_loaded, steps[:, N_OUTPUTS].max())),
            self._max_chunks,
            output_position,
        )


def _cut(
    make: Callable[[], Iterable[tuple[_Step, int]]],
    shape: Shape,
    n_loaded: int,
    is_resident: bool,
) -> _Steps:
    """Cut all steps, given with the sums before each: for the resident kernel, if it takes them."""
    steps = _Steps(shape, n_loaded, is_resident)
    for step, n_sums in make():
        if not steps.add(step, n_sums):
            return _cut(make, shape, n_loaded, False)
    return steps


def _choose(
    columns: sp.csc_array, shape: Shape
) -> tuple[
    npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]
]:
    """Find the long outputs, and groups of the others with the same inputs; the rest is alone.

    Returns
    -------
    ndarray, int32
        The outputs of all groups, those with the most inputs first.
    ndarray, int64
        How many of them each group has, the rows of a group at most.
    ndarray, int32
        The long outputs, and
    ndarray, int32
        the other ones: by inputs, the most first, and those of one pattern side by side.
    """
    of_column, _ = group_columns(columns.indptr, columns.indices, NOTHING, NOTHING)
    degree = np.diff(columns.indptr)
    order = np.lexsort((of_column, -degree)).astype(np.int32)
    starts = np.flatnonzero(np.diff(of_column[order], prepend=-1))
    sizes = np.diff(np.append(starts, order.size))
    in_pattern = np.arange(order.size) - np.repeat(starts, sizes)
    starts = np.flatnonzero(in_pattern % shape.rows == 0)
    sizes = np.diff(np.append(starts, order.size))
    is_long = degree[order] > most_whole(degree, shape.chunk, shape.skew)
    is_shared = (sizes >= LEAST_SHARED) & (degree[order[starts]] > 0) & ~is_long[starts]
    in_group = np.repeat(is_shared, sizes)
    return order[in_group], sizes[is_shared], order[is_long], order[~in_group & ~is_long]
