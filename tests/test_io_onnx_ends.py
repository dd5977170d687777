"""What stands behind the scores of an ONNX model is left out and told, if classes stay the same."""

import numpy as np
import pytest
from onnx import helper

from spdnn import DataError, Features, predict, read_network
from spdnn.sources.networks import open_network
from tests.onnx_models import node, scores_of, write_onnx

ROWS = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(3, 4))
CONSTANTS = {
    "w": W,
    "one_w": W[:, :1],
    "one": np.array(1.0),
    "two": np.array(2.0),
    "names": np.arange(4)[::-1].copy(),
    "flat": np.array([-1]),
}
SCORES = node("MatMul", "x w", "s")
ONE = node("MatMul", "x one_w", "s")
LABEL = node("ArgMax", "p", "i", axis=1, keepdims=0)


def noted(*operators: str) -> tuple[str, ...]:
    names = ", ".join(operators)
    return (f"left out behind the scores: {names}; classes stay the same, counted from 0",)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Sigmoid"])
def test_what_makes_probabilities_is_left_out_and_told(operator: str) -> None:
    model = write_onnx([SCORES, node(operator, "s", "y")], CONSTANTS)
    assert open_network("net.onnx").notes == noted(operator)
    found = predict(read_network("net.onnx"), Features.from_matrix(ROWS), engine="scipy")
    np.testing.assert_allclose(found.scores, ROWS @ W, rtol=1e-5, atol=1e-6)
    (probabilities,) = scores_of(model, ROWS, (3,))
    np.testing.assert_array_equal(found.classes, probabilities.argmax(axis=1))


def test_of_a_model_without_such_an_end_nothing_is_told() -> None:
    write_onnx([SCORES, node("Identity", "s", "y")], CONSTANTS)
    assert open_network("net.onnx").notes == ()


def test_of_the_first_layers_alone_nothing_is_told() -> None:
    nodes = [SCORES, node("Gemm", "s v", "t"), node("Softmax", "t", "y")]
    write_onnx(nodes, {**CONSTANTS, "v": np.eye(4)})
    assert open_network("net.onnx", layers=2).notes == noted("Softmax")
    assert open_network("net.onnx", layers=1).notes == ()


def test_a_probability_of_one_score_makes_the_class_that_its_sign_makes() -> None:
    nodes = [ONE, node("Sigmoid", "s", "p"), node("Reshape", "p flat", "y")]
    model = write_onnx(nodes, CONSTANTS)
    found = predict(read_network("net.onnx"), Features.from_matrix(ROWS), engine="scipy")
    (probabilities,) = scores_of(model, ROWS, (3,))
    np.testing.assert_array_equal(found.classes, probabilities > 0.5)
    assert set(found.classes) == {0, 1}


@pytest.mark.parametrize("outputs", ["y", "p y", "y s", "s"])
def test_classes_probabilities_and_scores_may_all_be_outputs(outputs: str) -> None:
    nodes = [SCORES, node("Softmax", "s", "p"), LABEL, node("Gather", "names i", "y")]
    write_onnx(nodes, CONSTANTS, outputs)
    assert read_network("net.onnx").shapes == ((3, 4),)


LOGIT = [ONE, node("Sigmoid", "s", "p")]
BAD_ENDS = {
    "across features": (
        [SCORES, node("Softmax", "s", "y", axis=0)],
        "node the_y: Softmax is along another axis than 1, which classes lie along",
    ),
    "largest feature": (
        [SCORES, node("ArgMax", "s", "y")],
        "node the_y: ArgMax is along another axis than 1",
    ),
    "softmax of one score": (
        [ONE, node("Softmax", "s", "y")],
        "node the_y: Softmax is of one score a feature, of which it makes the same always",
    ),
    "largest of one": (
        [*LOGIT, node("ArgMax", "p", "y", axis=1)],
        "node the_y: ArgMax is of one score a feature, which is always the largest",
    ),
    "probability of a probability": (
        [*LOGIT, node("Sigmoid", "p", "y")],
        "node the_y: Sigmoid of p makes neither probabilities nor classes of the scores",
    ),
    "other class": ([*LOGIT, node("Sub", "one p", "y")], "its output y is not what the last"),
    "two less": (
        [*LOGIT, node("Sub", "two p", "y")],
        "node the_y: Sub of p makes neither",
    ),
    "turned": (
        [*LOGIT, node("Sub", "one p", "q"), node("Concat", "p q", "y", axis=1)],
        "node the_y: Concat of p, q makes neither",
    ),
    "several labels": (
        [
            SCORES,
            node("Sigmoid", "s", "p"),
            node("Sub", "one p", "q"),
            node("Concat", "q p", "y", axis=1),
        ],
        "node the_y: Concat gives a feature several labels",
    ),
    "rounded": (
        [*LOGIT, node("Cast", "p", "y", to=7)],
        "node the_y: Cast of p makes neither",
    ),
    "a layer beside": (
        [SCORES, node("Softmax", "s", "p"), node("Relu", "s", "y")],
        "node the_y: Relu follows Softmax, which may stand at the end only",
        "y p",
    ),
    "no layer": ([node("Softmax", "x", "y")], "node the_y: Softmax must follow a Gemm, MatMul"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_ENDS)
def test_an_end_that_may_change_classes_is_refused(kind: str) -> None:
    nodes, message, *outputs = BAD_ENDS[kind]
    write_onnx(nodes, CONSTANTS, *outputs)
    with pytest.raises(DataError, match=rf"^net\.onnx(, |: ){message}") as raised:
        read_network("net.onnx")
    assert "\n" not in str(raised.value)


def test_two_probabilities_of_one_score_are_left_out() -> None:
    table = helper.make_node("ZipMap", ["p"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    pair = [node("Sub", "one h", "q"), node("Concat", "q h", "p", axis=1)]
    write_onnx([ONE, node("Sigmoid", "s", "h"), *pair, table], CONSTANTS)
    opened = open_network("net.onnx")
    assert (opened.network.n_outputs, opened.notes) == (1, noted("Sigmoid", "ZipMap"))
