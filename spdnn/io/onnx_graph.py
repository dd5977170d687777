"""The graph of an ONNX model, read from its input along a chain of layers.

Source of the meaning of operators: the ONNX operator schemas, opset 1 to 23.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spdnn.errors import DataError
from spdnn.io.chain import Part
from spdnn.io.onnx_ends import DROPPED, ENDS, Ends
from spdnn.io.onnx_shapes import Dims, Shape, UnsupportedError, flattened, reshaped, squeezed
from spdnn.io.onnx_tensors import REALS, Constants, Value

if TYPE_CHECKING:  # onnx is imported when a model is read
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

_OWN_DOMAINS = ("", "ai.onnx")
_ML_DOMAIN = "ai.onnx.ml"

_PREPARING = ("Scaler", "Normalizer", "Imputer", "Mul", "Div", "Sub")
"""Operators before the first layer of a model that scales its features itself."""


class GraphReader:
    """Reads the nodes of a graph in the order in which they are evaluated.

    Parameters
    ----------
    path : Path
        The model's file.
    onnx : module
        The package onnx.
    model : onnx.ModelProto
        The model.

    Attributes
    ----------
    parts : list of Part
        The layers.
    notes : tuple of str
        Texts for people on the nodes that are left out.

    Raises
    ------
    DataError
        If the model is no chain of layers. The message names the node.
    """

    def __init__(self, path: Path, onnx: ModuleType, model: "ModelProto") -> None:
        self.parts: list[Part] = []
        graph = model.graph
        self._constants = Constants(path, onnx, graph)
        inputs = [each for each in graph.input if each.name not in self._constants]
        if len(inputs) != 1:
            names = ", ".join(each.name for each in inputs)
            raise DataError(
                f"{path}: expected a model of one input, not of {len(inputs)}"
                + (f" ({names})" if names else "")
            )
        self._n_rows, dims = _declared(inputs[0])
        # Tensors that hold the outputs of the last layer so far. They only differ in shape.
        self._current: dict[str, Dims] = {inputs[0].name: dims}
        self._shapes: dict[str, Shape] = {}
        self._ends = Ends(self._constants)
        functions = {each.domain for each in model.functions}
        for node in _needed(graph):
            where = f"{path}, node {node.name or node.output[0]}"
            taken = [name for name in node.input if name and name not in self._constants]
            if not taken and node.domain in _OWN_DOMAINS:
                self._constants.add(node)
                continue
            try:
                self._require_known(node, functions)
                self._read(node, taken)
            except UnsupportedError as error:
                raise DataError(f"{where}: {node.op_type} {error}") from None
        for output in graph.output:
            if output.name not in self._current and not self._ends.may_go_out(output.name):
                raise DataError(
                    f"{path}: its output {output.name} is not what the last layer gives, nor "
                    "classes or probabilities made of that"
                )
        self.notes = self._ends.notes

    def _require_known(self, node: "NodeProto", functions: set[str]) -> None:
        if node.domain in functions:
            raise UnsupportedError(
                f"is a function of the model's own, of domain {node.domain}: inline functions "
                "with onnx.inliner.inline_local_functions"
            )
        if not self.parts and node.op_type in _PREPARING:
            raise UnsupportedError(
                "stands in front of the first layer and scales features: leave that out of the "
                "model, and scale the inputs instead"
            )
        if node.op_type not in _KNOWN or node.domain not in (*_OWN_DOMAINS, _ML_DOMAIN):
            domain = "" if node.domain in _OWN_DOMAINS else f"of domain {node.domain} "
            raise UnsupportedError(
                f"{domain}is not supported: expected a chain of {', '.join(_LAYERS)}; "
                f"behind it may be {', '.join(DROPPED)}"
            )

    def _read(self, node: "NodeProto", taken: list[str]) -> None:
        operator, output = node.op_type, node.output[0]
        if operator in _OF_SHAPES and all(name in self._shapes for name in taken):
            self._shapes[output] = _OF_SHAPES[operator](self, node)
            return
        if operator in ENDS and any(name in self._ends for name in taken):
            self._ends.read(node, taken, self._current)
            return
        of_features = [name for name in taken if name not in self._shapes]
        if len(of_features) != 1 or of_features[0] not in self._current:
            self._ends.require_none(of_features)
            raise UnsupportedError(
                f"takes {', '.join(of_features)}, not {next(reversed(self._current))}: expected a "
                "chain, each node after the one before"
            )
        name = of_features[0]
        if operator == "Shape":
            self._shapes[output] = self._shape(node, self._current[name])
        elif operator in _SAME:
            self._current[output] = _SAME[operator](self, node, self._current[name])
        elif operator in _LAYERS:
            self._read_layer(node, self._current[name])
        elif self.parts:
            self._ends.read(node, taken, self._current)
        else:
            raise UnsupportedError("must follow a Gemm, MatMul or Add")

    def _read_layer(self, node: "NodeProto", dims: Dims) -> None:
        """Read a node that begins or continues a layer."""
        self._ends.require_none()
        if dims is not None and len(dims) != 1:
            raise UnsupportedError(
                f"takes features of {len(dims)} dimensions: expected Flatten, or Reshape to "
                "one row each, before it"
            )
        is_first = not self.parts
        _LAYERS[node.op_type](self, node)
        n_inputs, n_outputs = np.shape(self.parts[-1].weights)
        if is_first and dims is not None and dims not in ((None,), (n_inputs,)):
            hint = "; are its weights transposed?" if dims == (n_outputs,) else ""
            raise UnsupportedError(
                f"has {n_inputs} inputs, but features have {dims[0]} numbers{hint}"
            )
        self._current = {node.output[0]: (n_outputs,)}

    def _shape(self, node: "NodeProto", dims: Dims) -> Shape:
        if dims is None:
            raise UnsupportedError("is of features of unknown shape")
        attributes = self._constants.attributes(node)
        return [None, *dims][attributes.get("start", 0) : attributes.get("end")]

    def _constant(self, node: "NodeProto", index: int) -> str | None:
        """Name of operand `index` of a node, which must be a constant; None if there is none."""
        if index >= len(node.input) or not node.input[index]:
            return None
        name: str = node.input[index]
        if name not in self._constants:
            raise UnsupportedError(f"has no constant as operand {index + 1} ({name})")
        return name

    def _matmul(self, node: "NodeProto") -> None:
        if node.input[0] in self._constants:
            raise UnsupportedError(
                f"has the constant {node.input[0]} on the left, which would multiply neurons by "
                "features: expected features x weights, weights as inputs x outputs"
            )
        self._begin_part(node, self._weights(node))

    def _weights(self, node: "NodeProto") -> Value:
        weights = self._constants[self._constant(node, 1) or ""]
        if weights.ndim != 2:
            raise UnsupportedError(f"has weights of shape {weights.shape}: expected a matrix")
        return weights

    def _begin_part(self, node: "NodeProto", weights: Value) -> None:
        self.parts.append(Part(node.input[1], weights, activation="linear"))

    def _gemm(self, node: "NodeProto") -> None:
        attributes = self._constants.attributes(node)
        if attributes.get("transA", 0):
            raise UnsupportedError("has transA: the features' rows would be neurons")
        weights, bias = self._weights(node), self._constant(node, 2)
        weights = weights.T if attributes.get("transB", 0) else weights
        alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
        self._begin_part(node, weights if alpha == 1 else np.float32(alpha) * weights)
        if bias is not None:
            self._add_bias(np.float32(beta) * self._constants.dense(bias))

    def _add(self, node: "NodeProto") -> None:
        if self._constants.attributes(node).get("axis", 1) not in (1, -1):  # of opsets before 7
            raise UnsupportedError("has another axis than 1, which outputs lie along")
        is_second = node.input[1] in self._constants
        bias = self._constant(node, 1 if is_second else 0)
        self._add_bias(self._constants.dense(bias or ""))

    def _add_bias(self, bias: npt.NDArray[Any]) -> None:
        last = self._open_part()
        n_outputs = np.shape(last.weights)[1]
        lies_across = bias.ndim <= 2 and bias.shape[-1:] in ((), (bias.size,))
        if not lies_across or bias.size not in (1, n_outputs):
            hint = ""
            if bias.shape == np.shape(last.weights)[:1]:
                hint = "; are its weights transposed? inputs x outputs are expected"
            raise UnsupportedError(
                f"adds numbers of shape {bias.shape} to {n_outputs} outputs: expected one an output"
                + hint
            )
        # A single number is the bias of all outputs.
        self.parts[-1] = replace(last, bias=last.bias + np.broadcast_to(bias.ravel(), n_outputs))

    def _relu(self, node: "NodeProto") -> None:
        self._clip_from(0.0, np.inf)

    def _clip(self, node: "NodeProto") -> None:
        attributes = self._constants.attributes(node)
        low, high = (
            attributes.get(name, at_most) if len(node.input) < 2 else self._bound(node, at, at_most)
            for at, name, at_most in ((1, "min", -np.inf), (2, "max", np.inf))
        )
        self._clip_from(low, high)

    def _bound(self, node: "NodeProto", index: int, default: float) -> float:
        bound = self._constant(node, index)
        return default if bound is None else self._constants.number(bound)

    def _max(self, node: "NodeProto") -> None:
        self._clip_from(self._other(node), np.inf)

    def _min(self, node: "NodeProto") -> None:
        self._clip_from(-np.inf, self._other(node))

    def _other(self, node: "NodeProto") -> float:
        """The number that a Max or Min compares activations with."""
        others = [name for name in node.input if name in self._constants]
        if len(others) != 1:
            raise UnsupportedError("is of more than two operands")
        return self._constants.number(others[0])

    def _clip_from(self, low: float, high: float) -> None:
        is_relu = bool(self.parts) and self.parts[-1].activation == "relu"
        if low > 0 or (low < 0 and not is_relu):
            raise UnsupportedError(f"is from {low:g} to {high:g}: expected from 0")
        last = self.parts[-1] if is_relu else self._open_part()
        caps = [cap for cap in (last.ymax, high) if cap not in (None, np.inf)]
        self.parts[-1] = replace(last, activation="relu", ymax=min(caps, default=None))

    def _open_part(self) -> Part:
        """The last layer, which must not have an activation yet."""
        if not self.parts or self.parts[-1].activation != "linear":
            raise UnsupportedError("must follow a Gemm, MatMul or Add")
        return self.parts[-1]

    def _identity(self, node: "NodeProto", dims: Dims) -> Dims:
        return dims

    def _cast(self, node: "NodeProto", dims: Dims) -> Dims:
        kind = self._constants.cast_to(node)
        if kind not in REALS:
            raise UnsupportedError(f"is to {kind}, which would round activations")
        return dims

    def _dropout(self, node: "NodeProto", dims: Dims) -> Dims:
        training = self._constant(node, 2)
        if training is not None and self._constants.number(training):
            raise UnsupportedError("is in training mode: export the model for inference")
        return dims

    def _flatten(self, node: "NodeProto", dims: Dims) -> Dims:
        return flattened(dims, self._constants.attributes(node).get("axis", 1))

    def _squeeze(self, node: "NodeProto", dims: Dims) -> Dims:
        return squeezed(dims, self._constants.axes(node))

    def _reshape(self, node: "NodeProto", dims: Dims) -> Dims:
        known = self._shapes.get(node.input[1]) if len(node.input) > 1 else None
        shape = self._constants.shape(node) if known is None else known
        allowzero = bool(self._constants.attributes(node).get("allowzero", 0))
        return reshaped(dims, self._n_rows, list(shape), allowzero)

    def _shape_of(self, name: str) -> Shape:
        known = self._shapes.get(name)
        return list(self._constants.integers(name)) if known is None else known

    def _shape_alone(self, node: "NodeProto") -> Shape:
        """The same shape. A number and a shape of one number are not distinguished."""
        return self._shape_of(node.input[0])

    def _shape_gather(self, node: "NodeProto") -> Shape:
        shape = self._shape_of(node.input[0])
        return [shape[at] for at in self._constants.integers(node.input[1])]

    def _shape_concat(self, node: "NodeProto") -> Shape:
        return [length for name in node.input for length in self._shape_of(name)]

    def _shape_slice(self, node: "NodeProto") -> Shape:
        start, end, *others = (self._constants.integers(name) for name in node.input[1:])
        if others[1:] not in ([], [[1]]):
            raise UnsupportedError("has another step than 1")
        return self._shape_of(node.input[0])[start[0] : end[0]]


def _declared(value: "ValueInfoProto") -> tuple[int | None, Dims]:
    """The number of features that an input declares, and their dimensions."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None, None
    dims = [each.dim_value if each.HasField("dim_value") else None for each in tensor.shape.dim]
    return (dims[0], tuple(dims[1:])) if dims else (None, None)


def _needed(graph: "GraphProto") -> "list[NodeProto]":
    """Nodes that the outputs of a graph depend on, in their order."""
    wanted = {output.name for output in graph.output}
    nodes = []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            nodes.append(node)
            wanted.update(node.input)
    return nodes[::-1]


_LAYERS: dict[str, Callable[[GraphReader, "NodeProto"], None]] = {
    "Gemm": GraphReader._gemm,
    "MatMul": GraphReader._matmul,
    "Add": GraphReader._add,
    "Relu": GraphReader._relu,
    "Clip": GraphReader._clip,
    "Max": GraphReader._max,
    "Min": GraphReader._min,
}
"""Operators that layers are made of."""

_SAME: dict[str, Callable[[GraphReader, "NodeProto", Dims], Dims]] = {
    "Identity": GraphReader._identity,
    "Dropout": GraphReader._dropout,
    "Cast": GraphReader._cast,
    "Flatten": GraphReader._flatten,
    "Reshape": GraphReader._reshape,
    "Squeeze": GraphReader._squeeze,
}
"""Operators that do not change any number."""

_OF_SHAPES: dict[str, Callable[[GraphReader, "NodeProto"], Shape]] = {
    "Identity": GraphReader._shape_alone,
    "Cast": GraphReader._shape_alone,
    "Unsqueeze": GraphReader._shape_alone,
    "Squeeze": GraphReader._shape_alone,
    "Gather": GraphReader._shape_gather,
    "Concat": GraphReader._shape_concat,
    "Slice": GraphReader._shape_slice,
}
"""Operators that make the shape for a Reshape."""

_KNOWN = {*_LAYERS, *_SAME, *_OF_SHAPES, *ENDS, "Shape"}
