"""ONNX models: chains that are read as ONNX means them, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from spdnn import DataError, Features, Layer, Network, predict, read_network
from spdnn.io import onnx_chain
from tests.makers import trained_networks


def write_onnx(
    nodes: list[Any], constants: dict[str, Any], output: str = "y", n_inputs: int = 3
) -> onnx.ModelProto:
    """A model of these nodes, from input "x"; also as ``net.onnx``."""
    real = onnx.TensorProto.FLOAT
    tensors = [
        numpy_helper.from_array(np.asarray(value, dtype=np.float32), name)
        for name, value in constants.items()
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", real, ["n", n_inputs])],
        [helper.make_tensor_value_info(output, real, None)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, "net.onnx")
    return model


def node(operator: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(operator, inputs.split(), [output], name=f"the_{output}", **attributes)


@st.composite
def onnx_chains(draw: st.DrawFn) -> tuple[list[Any], dict[str, Any], str, int]:
    """Any chain of the operators that are read: nodes, constants, output, inputs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_inputs = n = draw(st.integers(1, 6))
    nodes, constants, now = [], {}, "x"

    def then(operator: str, *operands: Any, **attributes: Any) -> None:
        nonlocal now
        names = [now]
        for operand in operands:
            names.append(f"c{len(constants)}")
            constants[names[-1]] = operand
        if operator == "Add" and draw(st.booleans()):
            names.reverse()
        out = f"t{len(nodes)}"
        nodes.append(helper.make_node(operator, names, [out], **attributes))
        now = out

    if draw(st.booleans()):
        then("Flatten")
    for _ in range(draw(st.integers(1, 4))):
        n_before, n = n, draw(st.integers(1, 6))
        weights = rng.normal(size=(n_before, n)).astype(np.float32)
        bias = rng.normal(size=draw(st.sampled_from([(n,), (1, n), (1, 1), (1,), ()])))
        if draw(st.booleans()):
            turned = draw(st.booleans())
            operands = [weights.T if turned else weights, bias][: draw(st.integers(1, 2))]
            then("Gemm", *operands, transB=int(turned), alpha=0.5, beta=2.0)
        else:
            then("MatMul", weights)
        if draw(st.booleans()):
            then("Add", bias)
        if draw(st.booleans()):
            then("Relu")
            if draw(st.booleans()):
                then("Clip", np.float32(-1), np.float32(0.5))
        elif draw(st.booleans()):
            then("Clip", np.float32(0), np.float32(0.75))
        if draw(st.booleans()):
            then("Identity")
    return nodes, constants, now, n_inputs


@given(onnx_chains(), st.integers(0, 2**32 - 1))
def test_a_chain_of_onnx_computes_what_onnx_says(
    chain: tuple[list[Any], dict[str, Any], str, int], seed: int
) -> None:
    model = write_onnx(*chain)
    rows = np.random.default_rng(seed).normal(size=(5, chain[3])).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": rows})
    scores = predict(read_network("net.onnx"), Features.from_matrix(rows), engine="scipy").scores
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


@given(trained_networks)
def test_a_model_that_was_written_is_one_by_onnx_own_judgement(network: Network) -> None:
    onnx_chain.write_model(Path("net.onnx"), network)
    model = onnx.load("net.onnx")
    onnx.checker.check_model(model, full_check=True)
    rows = np.random.default_rng(0).normal(size=(5, network.n_inputs)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"features": rows})
    scores = predict(network, Features.from_matrix(rows), engine="scipy").scores
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_constants_may_be_nodes_and_bounds_attributes() -> None:
    value = numpy_helper.from_array(np.eye(3, dtype=np.float32))
    nodes = [
        helper.make_node("Constant", [], ["w"], value=value),
        node("MatMul", "x w", "t"),
        node("Clip", "t", "y", min=0.0, max=2.0),
    ]
    write_onnx(nodes, {})
    (layer,) = read_network("net.onnx").layers
    assert (layer.activation, layer.ymax, layer.n_edges) == ("relu", 2.0, 3)


W = {"w": np.ones((3, 2)), "v": np.ones((2, 2)), "b": np.ones(2)}
BAD_CHAINS = {
    "softmax": (
        [node("MatMul", "x w", "t"), node("Softmax", "t", "y")],
        "node the_y: operator Softmax is not supported; expected a chain of Gemm, MatMul, Add",
    ),
    "convolution": (
        [node("Conv", "x w", "y")],
        "node the_y: operator Conv is not supported; expected a chain of Gemm",
    ),
    "branch": (
        [node("MatMul", "x w", "t"), node("MatMul", "x w", "s"), node("Add", "s t", "y")],
        "node the_s: MatMul takes x, not t: expected a chain",
    ),
    "skip": (
        [node("MatMul", "x w", "t"), node("MatMul", "t v", "s"), node("Add", "s t", "y")],
        "node the_y: Add takes s, t, not s: expected a chain",
    ),
    "relu first": (
        [node("Relu", "x", "t"), node("MatMul", "t w", "y")],
        "node the_t: Relu must follow a Gemm, MatMul or Add",
    ),
    "add after relu": (
        [node("MatMul", "x w", "t"), node("Relu", "t", "s"), node("Add", "s b", "y")],
        "node the_y: Add must follow a Gemm, MatMul or Add",
    ),
    "add of a matrix": (
        [node("MatMul", "x w", "t"), node("Add", "t v", "y")],
        r"node the_y: Add adds numbers of shape \(2, 2\): expected one an output",
    ),
    "clip elsewhere": (
        [node("MatMul", "x w", "t"), node("Clip", "t", "y", min=-1.0, max=1.0)],
        "node the_y: Clip is from -1 to 1: expected from 0",
    ),
    "turned features": (
        [node("Gemm", "x w", "y", transA=1)],
        "node the_y: Gemm has transA",
    ),
    "weights first": (
        [node("MatMul", "w x", "y")],
        r"node the_y: MatMul has no constant as operand 2 \(x\)",
    ),
    "flattened elsewhere": (
        [node("Flatten", "x", "t", axis=0), node("MatMul", "t w", "y")],
        "node the_t: Flatten has another axis than 1",
    ),
    "transposed": (
        [node("MatMul", "x w", "t"), node("MatMul", "t w", "y")],
        r"layer 2 \(w\): expected 2 inputs, the outputs of layer 1 \(w\), not 3; are its weights "
        r"transposed\? inputs x outputs are expected",
    ),
    "bias": (
        [node("Gemm", "x w c", "y")],
        r"layer 1 \(w\): expected a bias of 2 numbers, one an output, not of shape \(3,\)",
    ),
    "no output": ([node("MatMul", "x w", "t")], "its output is y, not the last node's"),
    "constant": (
        [helper.make_node("Constant", [], ["c"], value_float=1.0)],
        "node c: a Constant of value_float: expected a tensor",
    ),
    "nothing": ([], "its output is y, not the last node's"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_CHAINS)
def test_a_model_that_is_no_chain_is_one_line_that_names_the_node(kind: str) -> None:
    nodes, message = BAD_CHAINS[kind]
    write_onnx(nodes, {**W, "c": np.ones(3)})
    with pytest.raises(DataError, match=rf"^net\.onnx(, |: ){message}") as raised:
        read_network("net.onnx")
    assert "\n" not in str(raised.value)


def test_a_model_of_two_inputs_is_refused() -> None:
    model = write_onnx([node("MatMul", "x w", "y")], W)
    model.graph.input.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1]))
    onnx.save(model, "net.onnx")
    with pytest.raises(DataError, match=r"^net\.onnx: expected a model of one input and one out"):
        read_network("net.onnx")


def test_what_is_no_onnx_model_is_refused() -> None:
    Path("net.onnx").write_bytes(b"1\t1\t1\n")
    with pytest.raises(DataError, match=r"^net\.onnx: not an ONNX model, or a damaged one$"):
        read_network("net.onnx")
    Path("net.onnx").write_bytes(b"")
    with pytest.raises(DataError, match=r"^net\.onnx: expected a model of one input and one out"):
        read_network("net.onnx")
    with pytest.raises(DataError, match=r"^nowhere\.onnx: No such file"):
        read_network("nowhere.onnx")


def test_onnx_keeps_caps_and_activations_but_not_the_challenges_positive_bias() -> None:
    layers = [
        Layer(np.eye(2), -0.5, 32.0, bias_rule="always"),
        Layer(np.eye(2), [1, 2], activation="linear", bias_rule="always"),
        Layer(np.eye(2), 0.25, bias_rule="always"),
    ]
    onnx_chain.write_model(Path("net.onnx"), Network(layers))
    read = read_network("net.onnx").layers
    facts = [(layer.activation, layer.ymax, layer.bias.tolist()) for layer in read]
    assert facts == [
        ("relu", 32.0, [-0.5, -0.5]),
        ("linear", None, [1, 2]),
        ("relu", None, [0.25, 0.25]),
    ]
    with pytest.raises(DataError, match=r"^layer 1: ONNX cannot say that its bias is added only"):
        onnx_chain.write_model(Path("other.onnx"), Network([Layer(np.eye(2), 0.5)]))
    assert not Path("other.onnx").exists()


def test_a_model_beyond_what_onnx_holds_is_refused_before_the_work() -> None:
    wide = Network([Layer(sp.csr_array((30000, 30000)))])
    with pytest.raises(DataError, match=r"are 3\.4 GiB; a model in one file holds 2"):
        onnx_chain.write_model(Path("net.onnx"), wide)
