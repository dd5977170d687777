"""ONNX models that are chains of layers: Gemm or MatMul (+ Add), then Relu or Clip."""

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from spdnn.errors import DataError
from spdnn.io.chain import chain, dense_bytes, package
from spdnn.io.files import DAMAGE, require_file, whole_file
from spdnn.io.onnx_graph import GraphReader
from spdnn.machine.memory import require_bytes
from spdnn.network import Network

if TYPE_CHECKING:  # onnx is imported when a model is read or written
    from onnx import GraphProto

SUFFIX = ".onnx"

OPSET = 13
"""Operator set of the models that are written. Every current runtime reads one so old."""

IR_VERSION = 8
"""Version of the file format that goes with this operator set."""

LARGEST_BYTES = 2**31 - 1
"""Largest model in one file, which is one message of protobuf."""


def read_layers(path: Path) -> tuple[Network, tuple[str, ...]]:
    """Read a network from an ONNX model.

    Parameters
    ----------
    path : Path
        The model's file. Tensors may be in other files of its folder.

    Returns
    -------
    network : Network
        The layers of the model.
    notes : tuple of str
        Texts for people on the nodes after the scores that are left out.

    Raises
    ------
    DataError
        If the file is no model, onnx is not installed, a tensor cannot be read, or the model is no
        chain of layers. The message names the tensor or node.
    """
    onnx = package("onnx", path)
    try:
        require_file(path)
        # Tensors in other files are read one at a time.
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except (package("google.protobuf.message", path).DecodeError, ValueError) as error:
        raise DataError(f"{path}: not an ONNX model, or a damaged one") from error
    try:
        graph = GraphReader(path, onnx, model)
    except DAMAGE as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: not an ONNX model, or a damaged one ({reason})") from error
    return chain(path, graph.parts, "inputs x outputs"), graph.notes


def write_model(path: Path, network: Network) -> None:
    """Write a network as an ONNX model: Gemm, then Relu, or Clip where there is a cap.

    Parameters
    ----------
    path : Path
        The file to write.
    network : Network
        Layers whose biases are added everywhere, or where that makes no difference.

    Raises
    ------
    DataError
        If the file cannot be written, onnx is not installed, the model would be too large, or a
        layer adds its bias only where the sum is not zero.
    DeviceError
        If the weights, with all zeros, do not fit into memory.
    """
    onnx = package("onnx", path)
    _require_fits(path, network)
    model = onnx.helper.make_model(
        _graph(onnx, network),
        producer_name="spdnn",
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    with whole_file(path) as file:
        file.write(model.SerializeToString())


def _require_fits(path: Path, network: Network) -> None:
    """Refuse a network that a model cannot hold, or that memory cannot."""
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


def _graph(onnx: ModuleType, network: Network) -> "GraphProto":
    """Make the graph of a model; weights are constants of it, inputs x outputs."""
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
    graph: GraphProto = helper.make_graph(nodes, network.name, [features], [scores], constants)
    return graph
