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

from spdnn.network import Layer, Network
from spdnn.plan.groups import NOTHING, bits_of, group_columns


class MergedLayer(NamedTuple):
    """One layer after merging.

    Attributes
    ----------
    sums : csr_array, shape (n_merged_inputs, n_sums), float32, or None
        The first step: sums of inputs, with whole numbers as weights. None where it does not pay.
    weights : csr_array, shape (n_sums or n_merged_inputs, n_merged_outputs), float32
    bias : ndarray, shape (n_merged_outputs,), float32
    output_class : ndarray, shape (n_outputs,), int32
        The merged output that each of the layer's outputs has become.
    """

    sums: sp.csr_array | None
    weights: sp.csr_array
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


def all_edges(network: Network) -> Iterator[tuple[Layer, MergedLayer]]:
    """Give the layers in the form of merged ones, one at a time, with every edge kept."""
    for layer in network.layers:
        bias = np.broadcast_to(layer.bias, layer.n_outputs)
        itself = np.arange(layer.n_outputs, dtype=np.int32)
        yield layer, MergedLayer(None, layer.weights, bias, itself)


def merge_layers(network: Network) -> Iterator[tuple[Layer, MergedLayer]]:
    """Merge the neurons of all layers, one layer at a time, and give each beside its original.

    The sums of the first layer are taken while inputs are loaded (`loading_of`): they are no step
    of their own.
    """
    input_class, n_classes = np.arange(network.n_inputs, dtype=np.int32), network.n_inputs
    for layer in network.layers:
        merged = merge_layer(layer, input_class, n_classes)
        yield layer, merged
        input_class, n_classes = merged.output_class, merged.bias.size


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
    position[np.diff(first.sums.indptr) > 0] = first.sums.indices
    return Loading(position, n_loaded, n_inputs)


def merge_layer(
    layer: Layer, input_class: npt.NDArray[np.int32], n_input_classes: int
) -> MergedLayer:
    """Merge the neurons of a layer.

    Parameters
    ----------
    layer : Layer
    input_class : ndarray, shape (n_inputs,), int32
        The merged input that each input has become.
    n_input_classes : int
        Merged inputs.

    Notes
    -----
    Weights are added up in float64 and rounded to float32 once. Sums of the challenge's weights
    are exact.
    """
    rows = layer.weights
    if not rows.data.all():
        rows = rows.copy()
        rows.eliminate_zeros()
    # Inputs with equal rows: groups of inputs that only matter through their sum.
    row_group, n_groups = group_columns(
        rows.indptr, rows.indices, rows.data.view(np.uint32), NOTHING
    )
    first_of_group = _first_of_each(row_group, n_groups)
    reduced = rows[first_of_group]
    # Outputs with equal columns: their columns in the reduced matrix are equal, too, and shorter.
    columns = reduced.tocsc()
    bias = np.broadcast_to(layer.bias, layer.n_outputs)
    group, n_distinct = _equal_columns(columns, bias)
    first = _first_of_each(group, n_distinct)
    columns, bias = columns[:, first], bias[first]
    # With the inputs merged as well, more columns may have become equal.
    n_inputs = layer.n_inputs
    ones = np.ones(n_inputs)
    sums = sp.coo_array((ones, (input_class, row_group)), shape=(n_input_classes, n_groups)).tocsc()
    direct = (sums @ columns.astype(np.float64)).tocsc().astype(np.float32)
    direct.sort_indices()
    direct_group, n_outputs = _equal_columns(direct, bias)
    first = _first_of_each(direct_group, n_outputs)
    direct, columns, bias = direct[:, first], columns[:, first], bias[first]
    output_class = direct_group[group]
    # Sums that nobody reads need not be taken.
    is_used = np.diff(columns.tocsr().indptr) > 0
    sums, columns = sums[:, is_used], columns.tocsr()[is_used]
    if sums.nnz + sums.shape[1] + columns.nnz >= direct.nnz:
        return MergedLayer(None, direct.tocsr(), bias, output_class)
    return MergedLayer(sums.tocsr().astype(np.float32), columns, bias, output_class)


def _equal_columns(
    columns: sp.csc_array, bias: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int32], int]:
    """Number the distinct columns of a CSC matrix together with their bias."""
    group: npt.NDArray[np.int32]
    group, n_groups = group_columns(
        columns.indptr, columns.indices, bits_of(columns.data), bits_of(bias)
    )
    return group, n_groups


def _first_of_each(group: npt.NDArray[np.int32], n_groups: int) -> npt.NDArray[np.int64]:
    """The first member of each group; groups are numbered by their first member."""
    first = np.empty(n_groups, dtype=np.int64)
    members = np.arange(group.size)[::-1]
    first[group[members]] = members  # of several, the last written stays: the smallest
    return first
