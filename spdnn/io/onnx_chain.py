"""ONNX models that are chains of layers: Gemm or MatMul (+ Add), then Relu or Clip.

Source of the operators' meaning: the ONNX operator schemas, opset 1 to 22.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from spdnn.errors import DataError
from spdnn.io.chain import Part, chain, dense_bytes, package
from spdnn.io.files import whole_file
from spdnn.memory import require_bytes
from spdnn.network import Network

SUFFIX = ".onnx"

OPSET = 13
"""Of the models that are written: old enough for every runtime of today."""

IR_VERSION = 8
"""Of the file, as that opset wants it."""

LARGEST_BYTES = 2**31 - 1
"""Of a model in one file, which is one message of protobuf."""

_DAMAGE = (AttributeError, LookupError, TypeError, ValueError)
"""What onnx, and reading, raise where a model's parts do not fit each other."""


def read_layers(path: Path) -> Network:
    """Read a network from an ONNX model.

    Raises
    ------
    DataError
        If it is none, onnx is not installed, or the model is no chain of layers: the message
        names the operator.
    """
    onnx = package("onnx", path)
    try:
        graph = onnx.load(path).graph
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except (
        package("google.protobuf.message", path).DecodeError,
        onnx.checker.ValidationError,
        ValueError,
    ) as error:
        raise DataError(f"{path}: not an ONNX model, or a damaged one") from error
    try:
        parts = _Reader(path, onnx, graph).parts
    except _DAMAGE as error:
        raise DataError(f"{path}: not an ONNX model, or a damaged one") from error
    return chain(path, parts, "inputs x outputs")


class _Reader:
    """Walks the nodes of a graph, which stand in the order in which they are evaluated."""

    def __init__(self, path: Path, onnx: Any, graph: Any) -> None:
        self.path = path
        self.parts: list[Part] = []
        self._onnx = onnx
        self._constants = {
            tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer
        }
        inputs = [each.name for each in graph.input if each.name not in self._constants]
        if len(inputs) != 1 or len(graph.output) != 1:
            raise DataError(
                f"{path}: expected a model of one input and one output, "
                f"not of {len(inputs)} and {len(graph.output)}"
            )
        current = inputs[0]
        for node in graph.node:
            where = f"{path}, node {node.name or node.output[0]}"
            if node.op_type == "Constant":
                self._constants[node.output[0]] = self._value(where, node)
                continue
            operator = _OPERATORS.get(node.op_type)
            if operator is None or node.domain not in ("", "ai.onnx"):
                raise DataError(
                    f"{where}: operator {node.op_type} is not supported; "
                    f"expected a chain of {', '.join(_OPERATORS)}"
                )
            taken = [name for name in node.input if name and name not in self._constants]
            if taken != [current]:
                raise DataError(
                    f"{where}: {node.op_type} takes {', '.join(taken) or 'constants only'}, not "
                    f"{current}: expected a chain, each node after the one before"
                )
            try:
                operator(self, node)
            except _UnsupportedError as error:
                raise DataError(f"{where}: {node.op_type} {error}") from None
            current = node.output[0]
        if current != graph.output[0].name:
            raise DataError(f"{path}: its output is {graph.output[0].name}, not the last node's")

    def _value(self, where: str, node: Any) -> Any:
        """Value of a Constant."""
        attributes = self._attributes(node)
        if "value" not in attributes:
            raise DataError(f"{where}: a Constant of {', '.join(attributes)}: expected a tensor")
        return attributes["value"]

    def _attributes(self, node: Any) -> dict[str, Any]:
        helper, to_array = self._onnx.helper, self._onnx.numpy_helper.to_array
        values = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        tensor = self._onnx.TensorProto
        return {
            name: to_array(value) if isinstance(value, tensor) else value
            for name, value in values.items()
        }

    def _constant(self, node: Any, index: int) -> Any:
        """Operand `index` of a node, which must be stored in the model; None if there is none."""
        if index >= len(node.input) or not node.input[index]:
            return None
        if node.input[index] not in self._constants:
            raise _UnsupportedError(f"has no constant as operand {index + 1} ({node.input[index]})")
        return self._constants[node.input[index]]

    def matmul(self, node: Any) -> None:
        weights = self._constant(node, 1)
        self.parts.append(Part(node.input[1], weights, activation="linear"))

    def gemm(self, node: Any) -> None:
        attributes = self._attributes(node)
        if attributes.get("transA", 0):
            raise _UnsupportedError("has transA: the features' rows would be neurons")
        weights, bias = self._constant(node, 1), self._constant(node, 2)
        weights = weights.T if attributes.get("transB", 0) else weights
        weights = np.float32(attributes.get("alpha", 1.0)) * weights
        self.parts.append(Part(node.input[1], weights, activation="linear"))
        if bias is not None:
            self._add(np.float32(attributes.get("beta", 1.0)) * bias)

    def add(self, node: Any) -> None:
        is_second = node.input[1] in self._constants
        self._add(self._constant(node, 1 if is_second else 0))

    def _add(self, bias: Any) -> None:
        last = self._open_part()
        if bias.shape[-1:] not in ((), (bias.size,)):
            raise _UnsupportedError(f"adds numbers of shape {bias.shape}: expected one an output")
        # One number may be for all outputs.
        same = (
            np.full(np.shape(last.weights)[-1:], bias.item())
            if bias.size == 1
            else bias.reshape(-1)
        )
        self.parts[-1] = replace(last, bias=last.bias + same)

    def relu(self, node: Any) -> None:
        if not (self.parts and self.parts[-1].activation == "relu"):
            self.parts[-1] = replace(self._open_part(), activation="relu")

    def clip(self, node: Any) -> None:
        attributes = self._attributes(node)
        low = float(attributes.get("min", -np.inf) if len(node.input) < 2 else self._bound(node, 1))
        high = float(attributes.get("max", np.inf) if len(node.input) < 3 else self._bound(node, 2))
        is_relu = bool(self.parts) and self.parts[-1].activation == "relu"
        if low > 0 or (low < 0 and not is_relu):
            raise _UnsupportedError(f"is from {low:g} to {high:g}: expected from 0")
        last = self.parts[-1] if is_relu else self._open_part()
        caps = [cap for cap in (last.ymax, high) if cap not in (None, np.inf)]
        self.parts[-1] = replace(last, activation="relu", ymax=min(caps, default=None))

    def _bound(self, node: Any, index: int) -> Any:
        bound = self._constant(node, index)
        return (np.inf if index == 2 else -np.inf) if bound is None else bound.item()

    def keep(self, node: Any) -> None:
        """Operators that change nothing."""

    def flatten(self, node: Any) -> None:
        if self._attributes(node).get("axis", 1) != 1:
            raise _UnsupportedError("has another axis than 1, which features lie along")

    def _open_part(self) -> Part:
        """The last layer, which has no activation yet."""
        if not self.parts or self.parts[-1].activation != "linear":
            raise _UnsupportedError("must follow a Gemm, MatMul or Add")
        return self.parts[-1]


class _UnsupportedError(Exception):
    """What of an operator is beyond a chain of layers; becomes a DataError that names the node."""


_OPERATORS: dict[str, Callable[[_Reader, Any], None]] = {
    "Gemm": _Reader.gemm,
    "MatMul": _Reader.matmul,
    "Add": _Reader.add,
    "Relu": _Reader.relu,
    "Clip": _Reader.clip,
    "Flatten": _Reader.flatten,
    "Identity": _Reader.keep,
}


def write_model(path: Path, network: Network) -> None:
    """Write a network as an ONNX model: Gemm, then Relu, or Clip where there is a cap.

    Raises
    ------
    DataError
        If the file cannot be written, onnx is not installed, the model would be too large, or a
        layer adds its bias only where the sum is not zero.
    DeviceError
        If the weights, zeros and all, do not fit into memory.
    """
    onnx = package("onnx", path)
    for number, layer in enumerate(network.layers, start=1):
        if layer.needs_nonzero_test:
            raise DataError(
                f"layer {number}: ONNX cannot say that its bias is added only where the sum is "
                "not zero; write a store"
            )
    n_bytes = dense_bytes(network)
    if n_bytes > LARGEST_BYTES:
        raise DataError(
            f"cannot write {path}: all weights, zeros and all, are {n_bytes / 2**30:.1f} GiB; "
            "a model in one file holds 2; write a store"
        )
    require_bytes(3 * n_bytes, f"{path}: all weights, zeros and all", "write a store")
    helper, from_array = onnx.helper, onnx.numpy_helper.from_array
    nodes, constants, name = [], [from_array(np.float32(0), "zero")], "features"
    for number, layer in enumerate(network.layers, start=1):
        bias = np.broadcast_to(layer.bias, layer.n_outputs)
        constants.append(from_array(layer.weights.toarray(), f"weights{number}"))
        constants.append(from_array(np.ascontiguousarray(bias), f"bias{number}"))
        operands = [name, f"weights{number}", f"bias{number}"]
        name = f"sums{number}"
        nodes.append(helper.make_node("Gemm", operands, [name], name=f"layer{number}"))
        if layer.activation == "linear":
            continue
        before, name = name, f"activations{number}"
        if layer.ymax is None:
            nodes.append(helper.make_node("Relu", [before], [name]))
        else:
            constants.append(from_array(np.float32(layer.ymax), f"cap{number}"))
            nodes.append(helper.make_node("Clip", [before, "zero", f"cap{number}"], [name]))
    real = onnx.TensorProto.FLOAT
    features = helper.make_tensor_value_info("features", real, ["n", network.n_inputs])
    scores = helper.make_tensor_value_info(name, real, ["n", network.n_outputs])
    graph = helper.make_graph(nodes, network.name, [features], [scores], constants)
    model = helper.make_model(
        graph,
        producer_name="spdnn",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    with whole_file(path) as file:
        file.write(model.SerializeToString())
