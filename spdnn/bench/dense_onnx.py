"""A network in ONNX Runtime, all its weights dense: zeros where there is no edge."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.errors import DeviceError
from spdnn.machine.memory import require_bytes
from spdnn.network import Layer

OPSET, IR_VERSION = 17, 9
"""Of ONNX: what every version of ONNX Runtime in use can read."""

MODEL_BYTES = 1 << 30
"""Weights of one model: protobuf holds 2 GiB at most."""

NAME = "ONNX Runtime, dense"

Run = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


def dense_onnx(layers: Sequence[Layer], threads: int) -> Run:
    """Make a function from inputs to the last layer's activations.

    Parameters
    ----------
    layers : sequence of Layer
        The bias is added everywhere: the challenge's rule holds only where it is not positive.
    threads : int

    Raises
    ------
    DeviceError
        If `onnxruntime` or `onnx` is not installed, or the dense weights do not fit into memory.
    """
    n_bytes = sum(4 * layer.n_inputs * layer.n_outputs for layer in layers)
    # Once in the models, once packed by the sessions, and one model as bytes.
    n_bytes = 2 * n_bytes + 2 * min(n_bytes, MODEL_BYTES)
    require_bytes(n_bytes, f"{NAME}: the weights", "take fewer layers")
    runtime, _ = (_installed(module) for module in ("onnxruntime", "onnx"))
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    sessions = [
        runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for model in map(_model, _parts(layers))
    ]

    def run(inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        for session in sessions:
            (inputs,) = session.run(None, {"inputs": inputs})
        return inputs

    return run


def _parts(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Layers in as few parts as a model may hold."""
    parts: list[list[Layer]] = [[]]
    n_bytes = 0
    for layer in layers:
        of_layer = 4 * layer.n_inputs * layer.n_outputs
        if parts[-1] and n_bytes + of_layer > MODEL_BYTES:
            parts.append([])
            n_bytes = 0
        parts[-1].append(layer)
        n_bytes += of_layer
    return parts


def _model(layers: list[Layer]) -> bytes:
    """The ONNX file of some layers."""
    onnx = _installed("onnx")
    helper, tensor = onnx.helper, onnx.numpy_helper.from_array
    nodes, constants = [], []
    last = "inputs"
    for number, layer in enumerate(layers):
        weights, bias, sums, cap = (f"{name}{number}" for name in ("W", "b", "sums", "cap"))
        constants.append(tensor(layer.weights.toarray(), weights))
        constants.append(tensor(np.broadcast_to(layer.bias, layer.n_outputs).copy(), bias))
        nodes.append(helper.make_node("Gemm", [last, weights, bias], [sums]))
        last = sums
        if layer.activation == "relu":
            nodes.append(helper.make_node("Relu", [last], [f"Y{number}"]))
            last = f"Y{number}"
        if layer.ymax is not None:
            constants.append(tensor(np.array(layer.ymax, np.float32), cap))
            nodes.append(helper.make_node("Min", [last, cap], [f"capped{number}"]))
            last = f"capped{number}"
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("inputs", kind, [None, layers[0].n_inputs])],
        [helper.make_tensor_value_info(last, kind, [None, layers[-1].n_outputs])],
        constants,
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    serialized: bytes = model.SerializeToString()
    return serialized


def _installed(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise DeviceError(f"{NAME}: {module} is not installed ({error})") from error
