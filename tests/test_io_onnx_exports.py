"""Models as scikit-learn's converter and PyTorch's exporters really write them."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from spdnn import DataError, Features, Prediction, predict, read_network
from spdnn.sources.networks import open_network
from tests.onnx_models import node, scores_of, tensor, write_onnx

DIGITS, LABELS = load_digits(return_X_y=True)
IMAGES = (DIGITS[:300] / 16).astype(np.float32)
NUMBERS = LABELS[:300]
LETTERS = np.array(list("jihgfedcba"))


def converted(model: Any, targets: Any, **options: Any) -> onnx.ModelProto:
    """What skl2onnx makes of a model that was fitted to the digits; also as ``net.onnx``."""
    skl2onnx = pytest.importorskip("skl2onnx")
    with warnings.catch_warnings(action="ignore"):  # few iterations; types of the future
        model.fit(IMAGES, targets)
        proto = skl2onnx.to_onnx(model, IMAGES[:1], options=options or None)
    onnx.save(proto, "net.onnx")
    made: onnx.ModelProto = proto
    return made


def mlp(**options: Any) -> Any:
    sizes = {"hidden_layer_sizes": (16, 8), "max_iter": 20, "random_state": 0}
    return MLPClassifier(**sizes, **options)


def predicted() -> Prediction:
    return predict(read_network("net.onnx"), Features.from_matrix(IMAGES), engine="scipy")


@pytest.mark.parametrize("options", [{}, {"zipmap": False}])
def test_a_classifier_of_scikit_learn_is_as_right_here(options: dict[str, Any]) -> None:
    model = mlp()
    proto = converted(model, NUMBERS, **options)
    assert len(proto.graph.output) == 2
    found = predicted()
    np.testing.assert_array_equal(found.classes, model.predict(IMAGES))
    assert len(set(found.classes)) > 3
    exps = np.exp(found.scores)
    probabilities = exps / exps.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, model.predict_proba(IMAGES), rtol=1e-4, atol=1e-5)
    (note,) = open_network("net.onnx").notes
    assert note.startswith("left out behind the scores: Softmax, ArgMax, ")


def test_probabilities_a_column_each_are_beyond_a_chain() -> None:
    converted(mlp(), NUMBERS, zipmap="columns")
    with pytest.raises(DataError, match=r"^net\.onnx, node .*Slice follows Softmax, ArgMax, which"):
        read_network("net.onnx")


def test_names_of_scikit_learns_classes_are_counted_in_their_order() -> None:
    model = mlp()
    converted(model, LETTERS[NUMBERS])
    names = np.sort(LETTERS)[predicted().classes]
    np.testing.assert_array_equal(names, model.predict(IMAGES))


@pytest.mark.parametrize("options", [{}, {"zipmap": False}])
def test_a_classifier_of_two_classes_has_one_score(options: dict[str, Any]) -> None:
    model = mlp()
    converted(model, NUMBERS > 4, **options)
    found = predicted()
    assert found.scores.shape == (300, 1)
    np.testing.assert_array_equal(found.classes, model.predict(IMAGES))
    assert 50 < np.count_nonzero(found.classes) < 250


def test_a_regressor_of_scikit_learn_gives_its_numbers() -> None:
    regressor = MLPRegressor(hidden_layer_sizes=(16,), max_iter=20, random_state=0)
    converted(regressor, NUMBERS.astype(float))
    np.testing.assert_allclose(
        predicted().scores[:, 0], regressor.predict(IMAGES), rtol=1e-4, atol=1e-4
    )
    assert open_network("net.onnx").notes == ()


BEYOND: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "scaled": (
        lambda: make_pipeline(StandardScaler(), mlp()),
        NUMBERS,
        "Scaler stands in front of the first layer and scales features: leave that out of ",
    ),
    "scaled to 1": (
        lambda: make_pipeline(MinMaxScaler(), mlp()),
        NUMBERS,
        "Mul stands in front of the first layer and scales features",
    ),
    "several labels": (
        mlp,
        np.stack([NUMBERS > 4, NUMBERS % 2 == 0], axis=1),
        "gives a feature several labels, each by a probability of its own: expected one class",
    ),
    "another activation": (
        lambda: mlp(activation="tanh"),
        NUMBERS,
        "Tanh is not supported: expected a chain of Gemm, MatMul, Add, Relu",
    ),
}


@pytest.mark.parametrize("kind", BEYOND)
def test_what_of_scikit_learn_is_beyond_a_chain_is_named(kind: str) -> None:
    make, targets, message = BEYOND[kind]
    converted(make(), targets)
    with pytest.raises(DataError, match=rf"^net\.onnx, node \w+: .*{message}") as raised:
        read_network("net.onnx")
    assert "\n" not in str(raised.value)


RNG = np.random.default_rng(0)
FIRST, SECOND = RNG.normal(size=(16, 8)), RNG.normal(size=(8, 3))
TORCH = {
    "1.weight": FIRST.T,
    "1.bias": RNG.normal(size=8),
    "4.weight": SECOND.T,
    "4.bias": RNG.normal(size=3),
    "onnx::MatMul_18": FIRST,
    "six": np.array(6.0),
    "zero": np.array(0.0),
    "val_5": np.array([-1, 16]),
    "val_3": np.array([1, 0]),
}
GEMM = {"alpha": 1.0, "beta": 1.0, "transB": 1}
END = node("Gemm", "c 4.weight 4.bias", "y", **GEMM)
FORMS = {
    "script": [
        node("Flatten", "x", "/0/Flatten_output_0", axis=1),
        node("Gemm", "/0/Flatten_output_0 1.weight 1.bias", "g", **GEMM),
        node("Constant", "", "/2/Constant_output_0", value=tensor(np.array(0.0))),
        node("Constant", "", "/2/Constant_1_output_0", value=tensor(np.array(6.0))),
        node("Clip", "g /2/Constant_output_0 /2/Constant_1_output_0", "c"),
        END,
    ],
    "dynamo": [
        node("Reshape", "x val_5", "view", allowzero=1),
        node("Transpose", "1.weight", "permute", perm=[1, 0]),
        node("MatMul", "view permute", "matmul"),
        node("Add", "1.bias matmul", "add"),
        node("Clip", "add zero six", "c"),
        END,
    ],
    "a view of as many rows as there are": [
        node("Shape", "x", "/Shape_output_0"),
        node("Constant", "", "/Constant_output_0", value=tensor(np.array(0))),
        node("Gather", "/Shape_output_0 /Constant_output_0", "rows", axis=0),
        node("Constant", "", "axes", value=tensor(np.array([0]))),
        node("Unsqueeze", "rows axes", "row"),
        node("Constant", "", "rest", value=tensor(np.array([-1]))),
        node("Concat", "row rest", "shape", axis=0),
        node("Reshape", "x shape", "v", allowzero=0),
        node("MatMul", "v onnx::MatMul_18", "m"),
        node("Add", "m 1.bias", "a"),
        node("Relu", "a", "r"),
        node("Min", "six r", "c"),
        END,
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_model_in_the_forms_of_torchs_exporters_computes_the_same(form: str) -> None:
    model = write_onnx(FORMS[form], TORCH, dims=("n", 1, 4, 4))
    rows = RNG.normal(size=(6, 16)).astype(np.float32)
    (expected,) = scores_of(model, rows, (1, 4, 4))
    network = read_network("net.onnx")
    assert [layer.ymax for layer in network.layers] == [6.0, None]
    scores = predict(network, Features.from_matrix(rows), engine="scipy").scores
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dynamo", [False, True])
def test_a_module_of_torch_that_was_exported_computes_the_same(dynamo: bool, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    if dynamo:
        pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    number = getattr(torch, dtype)
    layers = [torch.nn.Flatten(), torch.nn.Linear(16, 90), torch.nn.ReLU6(), torch.nn.Dropout()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(90, 3), torch.nn.Softmax(1)).eval()
    rows = torch.rand(6, 1, 4, 4)
    model.to(number)
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(model, (rows.to(number),), "net.onnx", dynamo=dynamo)
    assert Path("net.onnx.data").exists() == dynamo
    network = read_network("net.onnx")
    assert network.shapes == ((16, 90), (90, 3))
    found = predict(network, Features.from_matrix(rows.reshape(6, 16).numpy()), engine="scipy")
    expected = model.to(torch.float32)(rows).detach().numpy()
    exps = np.exp(found.scores)
    np.testing.assert_allclose(exps / exps.sum(axis=1, keepdims=True), expected, rtol=1e-3)
    np.testing.assert_array_equal(found.classes, expected.argmax(axis=1))
