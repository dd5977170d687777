"""ONNX models: chains that are read as ONNX means them, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from spdnn import DataError, Features, Layer, Network, predict, read_network
from spdnn.io import onnx_chain
from tests.makers import trained_networks
from tests.onnx_models import bfloat16, node, scores_of, tensor, write_onnx


class ChainMaker:
    """Grows a graph at its end, each constant and step in one of the forms that exporters use."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.now = "x"

    def add(self, operator: str, names: list[str], **attributes: Any) -> str:
        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [out], **attributes))
        return out

    def then(self, operator: str, *operands: Any, **attributes: Any) -> None:
        names = [self.now, *(self.constant(operand) for operand in operands)]
        if operator in ("Add", "Max", "Min") and self.draw(st.booleans()):
            names.reverse()
        self.now = self.add(operator, names, **attributes)

    def stored(self, value: Any) -> str:
        """A constant as it is: an initializer or a node."""
        proto = value if isinstance(value, onnx.TensorProto) else tensor(value)
        if self.draw(st.booleans()):
            name = f"c{len(self.constants)}"
            proto.name = name
            self.constants[name] = proto
            return name
        if isinstance(value, np.ndarray) and value.ndim < 2 and value.size:
            kind = "float" if value.dtype.kind == "f" else "int"
            if value.ndim == 0:
                return self.add("Constant", [], **{f"value_{kind}": value.item()})
            return self.add("Constant", [], **{f"value_{kind}s": value.tolist()})
        return self.add("Constant", [], value=proto)

    def constant(self, value: Any) -> str:
        """A constant, of numbers that 16 bits hold, and what makes it of another."""
        value = np.asarray(value)
        if value.dtype.kind != "f":
            return self.stored(value)
        form = self.draw(st.sampled_from(["", "half", "brain", "turned", "flat", "same", "thin"]))
        real = onnx.TensorProto.FLOAT
        if form == "half":
            return self.add("Cast", [self.stored(value.astype(np.float16)[()])], to=real)
        if form == "brain":
            return self.add("Cast", [self.stored(bfloat16(value))], to=real)
        if form == "turned" and value.ndim == 2:
            how = self.draw(st.sampled_from([{}, {"perm": [1, 0]}]))
            return self.add("Transpose", [self.stored(np.ascontiguousarray(value.T))], **how)
        if form == "flat":
            shape = self.stored(np.array(value.shape, np.int64))
            return self.add("Reshape", [self.stored(value.reshape(-1)), shape])
        if form == "thin":
            axes = self.stored(np.array([0]))
            return self.add("Squeeze", [self.stored(value[np.newaxis]), axes])
        name = self.stored(value)
        return self.add("Identity", [name]) if form == "same" else name

    def decorate(self, n: int) -> None:
        """What leaves a row of n numbers a feature as it is."""
        forms = ["", "Identity", "Dropout", "Cast", "Flatten", "Reshape", "Shape"]
        form = self.draw(st.sampled_from(forms))
        if form in ("Identity", "Dropout", "Flatten"):
            self.then(form)
        elif form == "Cast":
            self.then(form, to=onnx.TensorProto.FLOAT)
        elif form == "Reshape":
            shapes = [[-1, n], [0, n], [0, -1]]
            self.then(form, np.array(self.draw(st.sampled_from(shapes)), np.int64))
        elif form == "Shape":  # as torch's older exporter writes x.view(x.size(0), -1)
            shape = self.add("Shape", [self.now])
            rows = self.add("Gather", [shape, self.stored(np.array(0))], axis=0)
            rows = self.add("Unsqueeze", [rows, self.stored(np.array([0]))])
            both = self.add("Concat", [rows, self.stored(np.array([-1]))], axis=0)
            self.now = self.add("Reshape", [self.now, both], allowzero=0)

    def layer(self, rng: np.random.Generator, n_before: int, n: int) -> None:
        draw = self.draw

        def numbers(*shape: int) -> np.ndarray:  # eighths: 16 bits hold them
            return np.asarray(rng.integers(-16, 17, size=shape) / 8, np.float32)

        weights = numbers(n_before, n)
        bias = numbers(*draw(st.sampled_from([(n,), (1, n), (1, 1), (1,), ()])))
        if draw(st.booleans()):
            turned = draw(st.booleans())
            operands = [np.ascontiguousarray(weights.T) if turned else weights, bias]
            operands = operands[: draw(st.integers(1, 2))]
            self.then("Gemm", *operands, transB=int(turned), alpha=0.5, beta=2.0)
        else:
            self.then("MatMul", weights)
        self.decorate(n)
        if draw(st.booleans()):
            self.then("Add", bias)
        zero = np.zeros((), np.float32)
        form = draw(st.sampled_from(["", "Relu", "Relu Clip", "Relu Min", "Clip", "Max"]))
        if "Relu" in form:
            self.then("Relu")
        if form == "Relu Clip":
            self.then("Clip", zero - 1, zero + 0.5)
        elif form == "Relu Min":
            self.then("Min", zero + 0.5)
        elif form == "Clip":
            self.then("Clip", zero, zero + 0.75)
        elif form == "Max":
            self.then("Max", zero)
        self.decorate(n)


@st.composite
def onnx_chains(draw: st.DrawFn) -> tuple[ChainMaker, tuple[int, ...], int]:
    """Any chain of the operators that are read; dimensions of its features; outputs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dims = draw(st.sampled_from([(1,), (4,), (6,), (1, 2, 3), (2, 2)]))
    n = int(np.prod(dims))
    maker = ChainMaker(draw)
    if len(dims) > 1:
        if draw(st.booleans()):
            maker.then("Flatten", axis=1)
        else:
            maker.then("Reshape", np.array(draw(st.sampled_from([[-1, n], [0, -1]]))))
    maker.decorate(n)
    for _ in range(draw(st.integers(1, 4))):
        n_before, n = n, draw(st.integers(1, 6))
        maker.layer(rng, n_before, n)
    return maker, dims, n


@given(onnx_chains(), st.sampled_from(["", "Softmax", "LogSoftmax", "Sigmoid"]), st.booleans())
def test_a_chain_of_onnx_computes_what_onnx_says(
    chain: tuple[ChainMaker, tuple[int, ...], int], end: str, names_dims: bool
) -> None:
    maker, dims, n_outputs = chain
    names = [maker.now]
    if end and n_outputs > 1:
        names.append(maker.add(end, names))
    needs_dims = any(each.op_type == "Shape" for each in maker.nodes)
    declared = ("n", *dims) if names_dims or needs_dims else None
    model = write_onnx(maker.nodes, maker.constants, " ".join(names), declared)
    rows = np.random.default_rng(len(names)).normal(size=(5, int(np.prod(dims))))
    expected, *ends = scores_of(model, rows.astype(np.float32), dims)
    found = predict(read_network("net.onnx"), Features.from_matrix(rows), engine="scipy")
    np.testing.assert_allclose(found.scores, expected, rtol=1e-4, atol=1e-5)
    for probabilities in ends:  # rounding may make equal what was not
        chosen = probabilities[range(len(rows)), found.classes]
        np.testing.assert_allclose(chosen, probabilities.max(axis=1), rtol=1e-4, atol=1e-5)


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
    nodes = [
        helper.make_node("Constant", [], ["w"], value=tensor(np.eye(3))),
        node("MatMul", "x w", "t"),
        node("Clip", "t", "y", min=0.0, max=2.0),
    ]
    write_onnx(nodes, {})
    (layer,) = read_network("net.onnx").layers
    assert (layer.activation, layer.ymax, layer.n_edges) == ("relu", 2.0, 3)


def test_features_of_unknown_shape_are_as_long_as_the_first_layer_is_wide() -> None:
    nodes = [node("Reshape", "x rows", "t"), node("MatMul", "t w", "y")]
    for dims in (None, [None, None], ["n", "channels", 3], ["n", 1, 3], [4, 3]):
        write_onnx(nodes, {**W, "rows": np.array([-1, 3])}, dims=dims)
        assert read_network("net.onnx").n_inputs == 3
    write_onnx(nodes, {**W, "rows": np.array([4, -1])}, dims=[4, 3])  # a batch of four
    assert read_network("net.onnx").n_inputs == 3


def test_a_function_of_the_models_own_is_refused_with_what_to_do() -> None:
    imports = [helper.make_opsetid("", 13)]
    gemm = helper.make_function(
        "own", "dense", ["a", "b"], ["c"], [node("MatMul", "a b", "c")], imports
    )
    write_onnx([node("dense", "x w", "y", domain="own")], W, functions=[gemm])
    message = (
        r"^net\.onnx, node the_y: dense is a function of the model's own, of domain own: inline"
    )
    with pytest.raises(DataError, match=message):
        read_network("net.onnx")


def test_what_does_not_lead_to_an_output_is_of_no_interest() -> None:
    nodes = [node("Conv", "x k", "u"), node("MatMul", "x w", "y"), node("Tanh", "y", "z")]
    write_onnx(nodes, W)
    assert read_network("net.onnx").shapes == ((3, 2),)


def test_an_output_between_two_layers_is_refused() -> None:
    write_onnx([node("MatMul", "x w", "t"), node("MatMul", "t v", "y")], W, "t y")
    with pytest.raises(
        DataError, match=r"^net\.onnx: its output t is not what the last layer gives"
    ):
        read_network("net.onnx")


W = {"w": np.ones((3, 2)), "v": np.ones((2, 2)), "b": np.ones(2)}
CONSTANTS = {
    **W,
    "c": np.ones(3),
    "m": np.ones((2, 3)),
    "zero": np.array(0.0),
    "one": np.array(True),
    "mixed": np.array([-1, 4]),
    "five": np.array([5, -1]),
    "all": np.array([-1]),
    "zeros": np.array([0, -1]),
    "axis": np.array([1]),
    "thick": np.array([0, 1, 2]),
}
BAD_CHAINS = {
    "softmax": (
        [node("MatMul", "x w", "t"), node("Softmax", "t", "s"), node("MatMul", "s v", "y")],
        "node the_y: MatMul follows Softmax, which may stand at the end only",
    ),
    "convolution": (
        [node("Conv", "x w", "y")],
        "node the_y: Conv is not supported: expected a chain of Gemm, MatMul, Add",
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
        r"node the_y: Add adds numbers of shape \(2, 2\) to 2 outputs: expected one an output",
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
        r"node the_y: MatMul has the constant w on the left, which would multiply neurons by feat",
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
        r"node the_y: Gemm adds numbers of shape \(3,\) to 2 outputs: expected one an output; are",
    ),
    "no output": ([node("MatMul", "x w", "t")], "its output y is not what the last layer gives"),
    "nothing": ([], "its output y is not what the last layer gives"),
    "transposed first": (
        [node("MatMul", "x m", "y")],
        r"node the_y: MatMul has 2 inputs, but features have 3 numbers; are its weights transposed",
    ),
    "vector": (
        [node("MatMul", "x c", "y")],
        r"node the_y: MatMul has weights of shape \(3,\): expected a matrix",
    ),
    "bias of another size": (
        [node("Gemm", "x w b", "t"), node("Add", "t c", "y")],
        r"node the_y: Add adds numbers of shape \(3,\) to 2 outputs: expected one an output",
    ),
    "bias along features": (
        [node("MatMul", "x w", "t"), node("Add", "t b", "y", axis=0)],
        "node the_y: Add has another axis than 1",
    ),
    "bounds": (
        [node("MatMul", "x w", "t"), node("Clip", "t zero b", "y")],
        "tensor b: 2 numbers; expected one",
    ),
    "two operands": (
        [node("MatMul", "x w", "t"), node("Max", "t zero b", "y")],
        "node the_y: Max is of more than two operands",
    ),
    "scaled inputs": (
        [node("Div", "x c", "t"), node("MatMul", "t w", "y")],
        "node the_t: Div stands in front of the first layer and scales features: leave that out",
    ),
    "training": (
        [node("Dropout", "x zero one", "t"), node("MatMul", "t w", "y")],
        "node the_t: Dropout is in training mode: export the model for inference",
    ),
    "rounding": (
        [node("MatMul", "x w", "t"), node("Cast", "t", "y", to=onnx.TensorProto.INT64)],
        "node the_y: Cast is to INT64, which would round activations",
    ),
    "features mixed": (
        [node("MatMul", "x w", "t"), node("Reshape", "t mixed", "y")],
        r"node the_y: Reshape is to shape \(-1, 4\): expected a row of all numbers for each "
        "feature, which has 2",
    ),
    "a fixed number of features": (
        [node("Reshape", "x five", "t"), node("MatMul", "t w", "y")],
        r"node the_t: Reshape is to shape \(5, -1\): expected a row of all numbers",
    ),
    "one row of all features": (
        [node("MatMul", "x w", "t"), node("Reshape", "t all", "y")],
        r"node the_y: Reshape is to shape \(-1,\): expected a row",
    ),
    "zeros that are lengths": (
        [node("Reshape", "x zeros", "t", allowzero=1), node("MatMul", "t w", "y")],
        r"node the_t: Reshape is to shape \(0, -1\): expected a row",
    ),
    "squeezed": (
        [node("MatMul", "x w", "t"), node("Squeeze", "t axis", "y")],
        "node the_y: Squeeze drops an axis that is more than one number a feature",
    ),
    "vectors": (
        [node("Gemm", "x w", "t"), node("Reshape", "t thick", "s"), node("MatMul", "s v", "y")],
        "node the_y: MatMul takes features of 2 dimensions: expected Flatten, or Reshape to one",
    ),
    "shape of what has none": (
        [node("Shape", "w", "s"), node("Reshape", "x s", "t"), node("MatMul", "t w", "y")],
        "tensor s: operator Shape of constants is not supported; expected Constant, Identity, Cast",
    ),
    "product of constants": (
        [node("Mul", "w zero", "u"), node("MatMul", "x u", "y")],
        "tensor u: operator Mul of constants is not supported",
    ),
    "another domain": (
        [node("Gemm", "x w", "y", domain="com.microsoft")],
        "node the_y: Gemm of domain com.microsoft is not supported: expected a chain of Gemm",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_CHAINS)
def test_a_model_that_is_no_chain_is_one_line_that_names_the_node(kind: str) -> None:
    nodes, message = BAD_CHAINS[kind]
    write_onnx(nodes, CONSTANTS)
    with pytest.raises(DataError, match=rf"^net\.onnx(, |: ){message}") as raised:
        read_network("net.onnx")
    assert "\n" not in str(raised.value)


def test_a_model_of_two_inputs_is_refused() -> None:
    model = write_onnx([node("MatMul", "x w", "y")], W)
    model.graph.input.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1]))
    onnx.save(model, "net.onnx")
    with pytest.raises(
        DataError, match=r"^net\.onnx: expected a model of one input, not of 2 \(x, z\)"
    ):
        read_network("net.onnx")


def test_what_is_no_onnx_model_is_refused() -> None:
    Path("net.onnx").write_bytes(b"1\t1\t1\n")
    with pytest.raises(DataError, match=r"^net\.onnx: not an ONNX model, or a damaged one$"):
        read_network("net.onnx")
    Path("net.onnx").write_bytes(b"")
    with pytest.raises(DataError, match=r"^net\.onnx: expected a model of one input, not of 0$"):
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
