"""Models of ONNX for tests, node by node."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator


def tensor(value: Any, name: str = "") -> Any:
    """A tensor of ONNX; real numbers of 64 bits become 32 bits."""
    value = np.asarray(value)
    return numpy_helper.from_array(
        value.astype(np.float32) if value.dtype == np.float64 else value, name
    )


def bfloat16(value: Any, name: str = "") -> Any:
    """A tensor of the upper halves of float32."""
    value = np.asarray(value, np.float32)
    raw = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
    return helper.make_tensor(name, onnx.TensorProto.BFLOAT16, value.shape, raw, raw=True)


def write_onnx(
    nodes: list[Any],
    constants: dict[str, Any],
    output: str = "y",
    dims: Sequence[int | str | None] | None = ("n", 3),
    functions: Sequence[Any] = (),
) -> onnx.ModelProto:
    """A model of these nodes, from input "x" of these dimensions; also as ``net.onnx``.

    Constants are numbers or tensors.
    """
    real = onnx.TensorProto.FLOAT
    tensors = [
        value if isinstance(value, onnx.TensorProto) else tensor(value, name)
        for name, value in constants.items()
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", real, dims)],
        [helper.make_tensor_value_info(name, real, None) for name in output.split()],
        tensors,
    )
    domains = {"": 18, "ai.onnx.ml": 1, "own": 1}
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*each) for each in domains.items()],
        functions=functions,
        ir_version=8,
    )
    onnx.save(model, "net.onnx")
    return model


def node(operator: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(operator, inputs.split(), [output], name=f"the_{output}", **attributes)


def scores_of(model: onnx.ModelProto, rows: np.ndarray, dims: Sequence[int]) -> list[Any]:
    """What onnx's own evaluator says of features, whose dimensions these are."""
    feeds = {model.graph.input[0].name: rows.reshape(len(rows), *dims)}
    found: list[Any] = ReferenceEvaluator(model).run(None, feeds)
    return found
