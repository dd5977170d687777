"""Fusion of parallel branches: networks over the same inputs become one ordinary network.

The outputs of the first layers are put side by side, and deeper layers are block-diagonal. A layer
of all branches is then one launch or one parallel loop, with tiles for all of them (the idea is
from Di et al., "Magneto", TACO 2025). No sum changes: an output has the same inputs in the same
order.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError
from spdnn.network import Activation, BiasRule, Layer, Network

Join = Literal["concatenate", "sum"]
JOINS: tuple[Join, ...] = ("concatenate", "sum")
"""Ways to join the outputs of branches."""


class _Rule(NamedTuple):
    """Activation, cap and bias rule of a layer, which fused layers must have in common."""

    ymax: float | None
    activation: Activation
    bias_rule: BiasRule

    def __str__(self) -> str:
        cap = f", cap {self.ymax:g}" if self.ymax is not None else ""
        return f"{self.activation}{cap}, bias rule {self.bias_rule}"

    def keeps_outputs_of(self, before: "_Rule | None") -> bool:
        """Whether this rule does not change any output of a layer with the rule `before`.

        `before` is None for the inputs of the network, which may be any numbers.
        """
        if self.activation == "linear":
            return True
        if before is None or before.activation == "linear":
            return False
        return self.ymax is None or (before.ymax is not None and before.ymax <= self.ymax)


class _Branch(NamedTuple):
    """A branch and its name in messages."""

    label: str
    layers: tuple[Layer, ...]

    @property
    def rules(self) -> list[_Rule]:
        return [_Rule(each.ymax, each.activation, each.bias_rule) for each in self.layers]

    @property
    def widths(self) -> list[int]:
        """Number of neurons before the first layer and after each layer."""
        return [self.layers[0].n_inputs, *(layer.n_outputs for layer in self.layers)]


def fuse(
    branches: Sequence[Network | Layer], join: Join = "concatenate", name: str = "fused"
) -> Network:
    """Make one network of branches that take the same inputs.

    Parameters
    ----------
    branches : sequence of Network or Layer
        Branches with the same number of inputs. A layer is a branch of one layer, so that fused
        layers can be a part of a longer network. Layers that are fused must have the same
        activation, cap and bias rule.
    join : {"concatenate", "sum"}
        Whether the outputs are put side by side, in the order of the branches, or added up.
    name : str
        Name of the fused network.

    Returns
    -------
    Network
        It is as deep as the deepest branch, or one layer deeper. A shallower branch gets layers of
        identities (one edge for each neuron, no bias), where they change nothing. This is the case
        in a relu layer that follows a relu layer of the branch with no greater cap, and in any
        linear layer. Of the possible places those with the fewest neurons are taken. The last layer
        adds the outputs up, if the last layers of all branches are linear and their biases are zero
        or added everywhere. Otherwise one more layer does.

    Raises
    ------
    DataError
        If the branches differ in the number of inputs, or of outputs to be added up, or a layer has
        no counterpart.

    Notes
    -----
    In mode ``edges`` a branch has the same activations, bit for bit, as it has alone, with one
    exception. An engine may split outputs of many inputs (256 or more on the CPU, see
    `spdnn.plan.cpu.split`) into chunks, which depends on the whole layer. The last bits of such
    sums may differ.

    Examples
    --------
    >>> from spdnn import Features, Layer, Network, fuse, predict
    >>> double, minus = (Layer([[weight]], activation="linear") for weight in (2, -1))
    >>> predict(fuse([double, minus]), Features.from_matrix([[3]])).scores
    array([[ 6., -3.]], dtype=float32)
    >>> predict(fuse([double, minus], "sum"), Features.from_matrix([[3]])).scores
    array([[3.]], dtype=float32)
    """
    if join not in JOINS:
        raise DataError(f"unknown join {join!r}: {' or '.join(JOINS)}")
    parts = [_branch(number, each) for number, each in enumerate(branches, start=1)]
    if not parts:
        raise DataError("there must be at least one branch to fuse")
    model = max(parts, key=lambda branch: len(branch.layers))  # the first of the deepest ones
    _require_equal(parts, 0, "inputs")
    if join == "sum":
        _require_equal(parts, -1, "outputs")
    rows = list(zip(*(_lined_up(branch, model) for branch in parts), strict=True))
    last = rows[-1]
    if join == "sum" and not _can_add_up(last):
        last = tuple(_identity(layer.n_outputs, _Rule(None, "linear", "always")) for layer in last)
        rows.append(last)
    layers = [_side_by_side(row, is_first=number == 0) for number, row in enumerate(rows)]
    if join == "sum":
        layers[-1] = _added_up(last, is_first=len(rows) == 1)
    return Network(layers, name)


def _branch(number: int, branch: Network | Layer) -> _Branch:
    if isinstance(branch, Layer):
        return _Branch(f"branch {number}", (branch,))
    return _Branch(f"branch {number} ({branch.name})", tuple(branch.layers))


def _require_equal(branches: list[_Branch], place: int, what: str) -> None:
    expected = branches[0].widths[place]
    for branch in branches:
        if branch.widths[place] != expected:
            layer = 1 if place == 0 else len(branch.layers)
            raise DataError(
                f"{branch.label}, layer {layer}: {branch.widths[place]} {what}, "
                f"expected {expected} as in {branches[0].label}"
            )


def _lined_up(branch: _Branch, model: _Branch) -> list[Layer]:
    """Add identities to the layers of a branch, so that it has one for each layer of the model."""
    path = _path(branch, model)
    return [
        branch.layers[before] if before < after else _identity(branch.widths[after], rule)
        for before, after, rule in zip(path, path[1:], model.rules, strict=False)
    ]


def _path(branch: _Branch, model: _Branch) -> list[int]:
    """Number of the branch's layers before each of the model's layers, and after its last one.

    Of all possible paths the one with the fewest neurons in identities is taken.
    """
    rules, widths, n_layers = branch.rules, branch.widths, len(branch.layers)
    # By number of placed layers: neurons in identities so far, and the number of layers before.
    steps: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]
    for number, rule in enumerate(model.rules, start=1):
        n_left = len(model.layers) - number
        reached: dict[int, tuple[int, int]] = {}
        for placed, (passed, _) in steps[-1].items():
            if placed < n_layers and rules[placed] == rule:
                way = (passed, placed)
                reached[placed + 1] = min(way, reached.get(placed + 1, way))
            is_passed_on = rule.keeps_outputs_of(rules[placed - 1] if placed else None)
            if is_passed_on and n_layers - placed <= n_left:
                way = (passed + widths[placed], placed)
                reached[placed] = min(way, reached.get(placed, way))
        if not reached:
            raise DataError(_no_counterpart(branch, max(steps[-1]), model, number))
        steps.append(reached)
    path = [n_layers]
    for reached in steps[:0:-1]:
        path.append(reached[path[-1]][1])
    return path[::-1]


def _no_counterpart(branch: _Branch, placed: int, model: _Branch, number: int) -> str:
    """Message that after `placed` layers of a branch none fits the model's layer `number`."""
    expected = f"{model.rules[number - 1]}, as layer {number} of {model.label}"
    if placed == len(branch.layers):
        return (
            f"{branch.label}, layer {placed}: {branch.rules[-1]}, which cannot be passed on "
            f"unchanged; expected {expected}"
        )
    message = f"{branch.label}, layer {placed + 1}: {branch.rules[placed]}; expected {expected}"
    if len(branch.layers) < len(model.layers):
        message += ", or relu layers before it that can be passed on unchanged"
    return message


def _identity(n_neurons: int, rule: _Rule) -> Layer:
    return Layer(sp.eye_array(n_neurons, dtype=np.float32, format="csr"), 0.0, *rule)


def _side_by_side(row: Sequence[Layer], *, is_first: bool) -> Layer:
    """Fuse layers that have the same inputs, or (later layers) each its own inputs."""
    weights = [layer.weights for layer in row]
    joined = sp.hstack(weights) if is_first else sp.block_diag(weights)
    bias = np.concatenate([_biases(layer) for layer in row])
    return Layer(joined, bias, row[0].ymax, row[0].activation, row[0].bias_rule)


def _can_add_up(row: Sequence[Layer]) -> bool:
    """Whether the outputs of layers can be added up before their biases are added."""
    return all(
        layer.activation == "linear" and (layer.bias_rule == "always" or not layer.bias.any())
        for layer in row
    )


def _added_up(row: Sequence[Layer], *, is_first: bool) -> Layer:
    """Add up linear layers that have the same inputs, or (later layers) each its own inputs."""
    weights = [layer.weights for layer in row]
    joined = reduce(add, weights) if is_first else sp.vstack(weights)
    bias = np.sum([_biases(layer) for layer in row], axis=0, dtype=np.float64)
    return Layer(joined, bias, activation="linear", bias_rule=row[0].bias_rule)


def _biases(layer: Layer) -> npt.NDArray[np.float32]:
    return np.broadcast_to(layer.bias, layer.n_outputs)
