"""Exact merging of neurons: what must be equal is computed once.

Two outputs of a layer with equal columns (inputs, weights, bias) have equal values. One of them is
computed, and the next layer's edges from the other start at it instead. Edges that then coincide
are added up. Two inputs with equal rows only matter through their sum. The sum can be taken first,
which turns a layer into two steps. Equal rows and columns are proposed by hashes and confirmed by
value, so that this holds for any network.

A merged layer is one step or two, whichever has fewer edges.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.machine.jit import jit, read_only
from spdnn.machine.thread_pool import KeptThreads
from spdnn.network import Layer, Network
from spdnn.plan.ahead import ahead
from spdnn.plan.columns import Columns, columns_of_rows
from spdnn.plan.groups import NOTHING, are_all_equal, bits_of, first_of_groups
from spdnn.plan.rules import Rules, rules_of


class MergedLayer(NamedTuple):
    """One layer after merging.

    Attributes
    ----------
    sums : csc_array, shape (n_merged_inputs, n_sums), float32, or None
        The first step: sums of inputs, with whole numbers as weights. None where it does not pay.
    weights : csc_array, shape (n_sums or n_merged_inputs, n_merged_outputs), float32
        A csr_array where every edge is kept.
    bias : ndarray, shape (n_merged_outputs,), float32
    output_class : ndarray, shape (n_outputs,), int32
        The merged output that each of the layer's outputs has become.
    """

    sums: sp.csc_array | None
    weights: sp.csr_array | sp.csc_array
    bias: npt.NDArray[np.float32]
    output_class: npt.NDArray[np.int32]


class Loading(NamedTuple):
    """How a network's inputs are taken: the first layer's sums are taken while they are loaded.

    Attributes
    ----------
    position : ndarray, shape (n_inputs,), int32
        The loaded neuron to which each input is added; `n_loaded` for none.
    n_loaded : int
        Loaded neurons.
    n_sums : int
        Inputs that are added up while they are loaded; 0 where each is a neuron of its own.
    """

    position: npt.NDArray[np.int32]
    n_loaded: int
    n_sums: int


def all_edges(network: Network) -> Iterator[tuple[Rules, MergedLayer]]:
    """Give the layers in the form of merged ones, one at a time, with every edge kept."""
    for layer in network.layers:
        bias = np.broadcast_to(layer.bias, layer.n_outputs)
        itself = np.arange(layer.n_outputs, dtype=np.int32)
        yield rules_of(layer), MergedLayer(None, layer.weights, bias, itself)


def merge_layers(
    network: Network, threads: KeptThreads | None = None
) -> Iterator[tuple[Rules, MergedLayer]]:
    """Merge the neurons of all layers, one layer at a time, and give each with its rules.

    The sums of the first layer are taken while inputs are loaded (`loading_of`): they are no step
    of their own.

    Parameters
    ----------
    network : Network
    threads : KeptThreads, optional
        They make the layers that come next, find what is equal within them, and merge their
        inputs.

    Notes
    -----
    How a layer's inputs are merged is only known once the layer before is. Threads guess it: the
    layer before has no more equal outputs than those that are equal within it. Where a guess was
    wrong the layer is merged once more, and nothing is guessed from then on.
    """

    def made(index: int) -> tuple[Rules, EqualNeurons]:
        layer = network.layers[index]
        return rules_of(layer), equal_neurons(layer)

    edges = network.layer_edges
    start = Classes(np.arange(network.n_inputs, dtype=np.int32), network.n_inputs)
    is_guessing = threads is not None and threads.n_threads > 1

    def with_guesses() -> Iterator[tuple[Rules, EqualNeurons, Classes | None]]:
        guess = start
        for _, (rules, equal) in ahead(made, range(len(edges)), edges.__getitem__, threads):
            yield rules, equal, guess if is_guessing else None
            guess = Classes(equal.output_group, equal.bias.size)

    def as_guessed(item: tuple[Rules, EqualNeurons, Classes | None]) -> MergedLayer | None:
        _, equal, guess = item
        return None if guess is None else merge_inputs(equal, *guess)

    inputs = start
    for (rules, equal, guess), merged in ahead(
        as_guessed, with_guesses(), lambda item: item[1].n_numbers, threads
    ):
        if merged is None or not inputs.equals(guess):
            is_guessing = False
            merged = merge_inputs(equal, *inputs)
        yield rules, merged
        inputs = Classes(merged.output_class, merged.bias.size)


class Classes(NamedTuple):
    """What neurons have become by merging.

    Attributes
    ----------
    of_neuron : ndarray, shape (n_neurons,), int32
        The merged neuron that each has become.
    n_classes : int
        Merged neurons.
    """

    of_neuron: npt.NDArray[np.int32]
    n_classes: int

    def equals(self, other: "Classes | None") -> bool:
        """Whether others are the same."""
        return other is not None and (
            self.n_classes == other.n_classes and np.array_equal(self.of_neuron, other.of_neuron)
        )


def loading_of(first: MergedLayer, n_inputs: int) -> Loading:
    """How inputs are taken for a network.

    Parameters
    ----------
    first : MergedLayer
        The first layer.
    n_inputs : int
        Inputs of the network.
    """
    if first.sums is None:
        return Loading(np.arange(n_inputs, dtype=np.int32), n_inputs, 0)
    # Nothing is merged yet: every input is in one sum at most.
    n_loaded = first.sums.shape[1]
    position = np.full(n_inputs, n_loaded, dtype=np.int32)
    position[first.sums.indices] = np.repeat(np.arange(n_loaded), np.diff(first.sums.indptr))
    return Loading(position, n_loaded, n_inputs)


class EqualNeurons(NamedTuple):
    """What is equal within a layer, whatever its inputs are.

    Attributes
    ----------
    input_group : ndarray, shape (n_inputs,), int32
        Inputs with equal rows are one group: they only matter through their sum.
    columns : Columns
        The weights: a row for each group of inputs, a column for each distinct output.
    bias : ndarray, float32
        The bias of each distinct output.
    output_group : ndarray, shape (n_outputs,), int32
        The distinct output that each output equals.
    """

    input_group: npt.NDArray[np.int32]
    columns: Columns
    bias: npt.NDArray[np.float32]
    output_group: npt.NDArray[np.int32]

    @property
    def n_numbers(self) -> int:
        """How many numbers it holds of neurons and edges."""
        return self.input_group.size + self.columns.indices.size + self.output_group.size


def equal_neurons(layer: Layer) -> EqualNeurons:
    """Find the equal inputs and outputs of a layer; it depends on no other layer."""
    rows = layer.weights
    values = rows.data.view(np.uint32)
    if rows.nnz and rows.data[0] and are_all_equal(values):
        values = NOTHING  # equal patterns are equal rows
    elif not rows.data.all():
        rows = rows.copy()
        rows.eliminate_zeros()
        values = rows.data.view(np.uint32)
    input_group, first = first_of_groups(rows.indptr, rows.indices, values, NOTHING)
    # Outputs with equal columns: with a row for each group they are equal, too, and shorter.
    columns = columns_of_rows(rows, first)
    bias = np.broadcast_to(layer.bias, layer.n_outputs)
    output_group, first = _equal_columns(columns, bias)
    return EqualNeurons(input_group, columns.selected(first), bias[first], output_group)


def merge_layer(
    layer: Layer, input_class: npt.NDArray[np.int32], n_input_classes: int
) -> MergedLayer:
    """Merge the neurons of a layer; see `merge_inputs`."""
    return merge_inputs(equal_neurons(layer), input_class, n_input_classes)


def merge_inputs(
    equal: EqualNeurons, input_class: npt.NDArray[np.int32], n_input_classes: int
) -> MergedLayer:
    """Merge the neurons of a layer whose inputs have been merged.

    Parameters
    ----------
    equal : EqualNeurons
        What is equal within the layer.
    input_class : ndarray, shape (n_inputs,), int32
        The merged input that each input has become.
    n_input_classes : int
        Merged inputs.

    Notes
    -----
    Weights are added up in float64 and rounded to float32 once. Sums of the challenge's weights
    are exact.
    """
    columns, bias, group = equal.columns, equal.bias, equal.output_group
    n_groups = columns.n_rows
    sums = Columns(
        *_sums_of_inputs(read_only(input_class), n_input_classes, equal.input_group, n_groups),
        n_input_classes,
    )
    direct = Columns(
        *_without_sums(
            sums.indptr,
            sums.indices,
            sums.values,
            columns.indptr,
            columns.indices,
            columns.values,
            n_input_classes,
        ),
        n_input_classes,
    ).in_order()
    # With the inputs merged as well, more columns may have become equal.
    direct_group, first = _equal_columns(direct, bias)
    output_class = direct_group[group]
    if first.size < bias.size:
        direct, columns, bias = direct.selected(first), columns.selected(first), bias[first]
    # Sums that nobody reads need not be taken.
    is_used = np.zeros(n_groups, dtype=np.bool_)
    is_used[columns.indices] = True
    used = np.flatnonzero(is_used).astype(np.int32)
    n_summed = int(np.diff(sums.indptr)[used].sum())
    if n_summed + used.size + columns.indices.size >= direct.indices.size:
        return MergedLayer(None, direct.matrix(), bias, output_class)
    number = np.empty(n_groups, dtype=np.int32)
    number[used] = np.arange(used.size, dtype=np.int32)
    columns = Columns(columns.indptr, number[columns.indices], columns.values, used.size)
    return MergedLayer(sums.selected(used).matrix(), columns.matrix(), bias, output_class)


def _equal_columns(
    columns: Columns, bias: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Number the distinct columns together with their bias; gives the first of each, too."""
    return first_of_groups(columns.indptr, columns.indices, bits_of(columns.values), bits_of(bias))


@jit
def _sums_of_inputs(
    input_class: npt.NDArray[np.int32],
    n_classes: int,
    input_group: npt.NDArray[np.int32],
    n_groups: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """For each group of inputs, the merged inputs in it, ascending, and how often each is."""
    n_inputs = input_class.size
    # Inputs in the order of their classes, and then, among equals in that order, of their groups.
    place = np.zeros(n_classes + 1, dtype=np.int64)
    for i in range(n_inputs):
        place[input_class[i] + 1] += 1
    for c in range(n_classes):
        place[c + 1] += place[c]
    by_class = np.empty(n_inputs, dtype=np.int32)
    for i in range(n_inputs):
        by_class[place[input_class[i]]] = i
        place[input_class[i]] += 1
    start = np.zeros(n_groups + 1, dtype=np.int64)
    for i in range(n_inputs):
        start[input_group[i] + 1] += 1
    for g in range(n_groups):
        start[g + 1] += start[g]
    of_group = np.empty(n_inputs, dtype=np.int32)
    end = start[:-1].copy()
    for k in range(n_inputs):
        i = by_class[k]
        of_group[end[input_group[i]]] = input_class[i]
        end[input_group[i]] += 1
    indptr = np.empty(n_groups + 1, dtype=np.int64)
    indptr[0] = 0
    indices = np.empty(n_inputs, dtype=np.int32)
    counts = np.empty(n_inputs, dtype=np.float32)
    n_entries = 0
    for g in range(n_groups):
        for k in range(start[g], start[g + 1]):
            if k > start[g] and of_group[k] == of_group[k - 1]:
                counts[n_entries - 1] += np.float32(1)
            else:
                indices[n_entries] = of_group[k]
                counts[n_entries] = np.float32(1)
                n_entries += 1
        indptr[g + 1] = n_entries
    return indptr, indices[:n_entries].copy(), counts[:n_entries].copy()


@jit
def _without_sums(
    sums_indptr: npt.NDArray[np.int64],
    sums_indices: npt.NDArray[np.int32],
    counts: npt.NDArray[np.float32],
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    n_classes: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The weights that merged inputs have where no sums are taken first; in no order in a column.

    Those that cancel to zero are left out.
    """
    n_columns = indptr.size - 1
    n_most = 0
    for k in range(indices.size):
        n_most += sums_indptr[indices[k] + 1] - sums_indptr[indices[k]]
    new_indptr = np.empty(n_columns + 1, dtype=np.int64)
    new_indptr[0] = 0
    new_indices = np.empty(n_most, dtype=np.int32)
    new_values = np.empty(n_most, dtype=np.float32)
    total = np.zeros(n_classes, dtype=np.float64)
    seen_by = np.full(n_classes, -1, dtype=np.int32)
    n_entries = 0
    for j in range(n_columns):
        first = n_entries
        for k in range(indptr[j], indptr[j + 1]):
            for s in range(sums_indptr[indices[k]], sums_indptr[indices[k] + 1]):
                c = sums_indices[s]
                if seen_by[c] != j:
                    seen_by[c] = j
                    total[c] = 0.0
                    new_indices[n_entries] = c
                    n_entries += 1
                # The product is exact: 24 bits times a count of less than 2^24.
                total[c] += np.float64(values[k]) * np.float64(counts[s])
        n_kept = first
        for entry in range(first, n_entries):
            c = new_indices[entry]
            if total[c] != 0.0:
                new_indices[n_kept] = c
                new_values[n_kept] = np.float32(total[c])
                n_kept += 1
        n_entries = n_kept
        new_indptr[j + 1] = n_entries
    return new_indptr, new_indices[:n_entries].copy(), new_values[:n_entries].copy()
