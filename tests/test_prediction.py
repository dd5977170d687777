"""`predict` and SparseMLP: classes and scores against double precision and scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier, MLPRegressor
from threadpoolctl import threadpool_limits

from spdnn import (
    DataError,
    DeviceError,
    Features,
    Layer,
    Network,
    Session,
    SparseMLP,
    infer,
    predict,
    read_network,
)
from spdnn.io.idx import read_images, read_labels
from spdnn.io.state_dict import write_safetensors
from spdnn.models.mlp import pruned
from tests.makers import dyadic_cases
from tests.oracle import dense_inference


@given(dyadic_cases(always=True))
def test_scores_are_those_of_every_feature_the_dead_ones_too(
    case: tuple[Network, Features],
) -> None:
    network, features = case
    expected = dense_inference(network, features)[-1]
    for engine in ("cpu", "scipy"):
        found = predict(network, features, engine=engine)
        np.testing.assert_array_equal(found.scores, expected)
        wanted = expected[:, 0] > 0 if network.n_outputs == 1 else expected.argmax(axis=1)
        np.testing.assert_array_equal(found.classes, wanted)
        np.testing.assert_array_equal(found.result.live, np.flatnonzero(expected.any(axis=1)))


def test_a_dead_feature_gets_the_class_that_the_biases_give() -> None:
    layers = [
        Layer(np.eye(3), -1.0, bias_rule="always"),
        Layer(np.eye(3), [-2.0, -1.0, -3.0], activation="linear", bias_rule="always"),
    ]
    found = predict(Network(layers), Features.from_matrix([[0, 0, 0], [9, 0, 0]]))
    assert found.classes.tolist() == [1, 0]
    assert found.scores.tolist() == [[-2, -1, -3], [6, -1, -3]]


def test_a_linear_layer_may_lie_in_the_middle() -> None:
    rng = np.random.default_rng(0)
    layers = [
        Layer(rng.integers(-2, 3, size=(6, 6)), rng.integers(-2, 3, size=6), activation=kind,
              bias_rule="always")
        for kind in ("linear", "relu", "linear", "linear")
    ]  # fmt: skip
    features = Features.from_matrix(rng.integers(0, 3, size=(40, 6)))
    expected = dense_inference(Network(layers), features)[-1]
    for mode in ("edges", "merge"):
        np.testing.assert_array_equal(
            predict(Network(layers), features, mode=mode).scores, expected
        )


def test_one_output_stands_for_two_classes() -> None:
    network = Network([Layer([[1], [-1]], activation="linear")])
    found = predict(network, Features.from_matrix([[2, 1], [1, 2], [1, 1]]))
    assert found.classes.tolist() == [1, 0, 0]


def test_what_cannot_be_predicted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"^a network without outputs has no classes$"):
        predict(Network([Layer(sp.csr_array((3, 0)))]), Features.from_matrix(np.eye(3)))
    with Session(Network([Layer(np.eye(3))])) as session:
        monkeypatch.setattr("spdnn.run.session.WORTH_ASKING", 0)
        monkeypatch.setattr("spdnn.machine.memory.available_bytes", lambda: 10)
        with pytest.raises(DeviceError, match=r"^scores of 3 features needs"):
            session.predict(Features.from_matrix(np.eye(3)))


# --- scikit-learn's classifiers


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return images / 16, labels


def trained(images: np.ndarray, labels: np.ndarray, **options: Any) -> MLPClassifier:
    """A classifier that has seen everything four times: far from good, far from chance."""
    mlp = MLPClassifier((32, 24), random_state=0, learning_rate_init=0.01, **options)
    with threadpool_limits(1):
        for _ in range(4):
            mlp.partial_fit(images, labels, classes=np.unique(labels))
    return mlp


@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_an_unpruned_mlp_says_what_scikit_learn_says(
    activation: str, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    images, labels = digits
    names = np.array([f"digit {label}" for label in labels])
    mlp = trained(images, names, activation=activation)
    sparse = SparseMLP.from_sklearn(mlp)
    np.testing.assert_array_equal(sparse.classes_, mlp.classes_)
    np.testing.assert_array_equal(sparse.predict(images), mlp.predict(images))
    np.testing.assert_allclose(
        sparse.predict_proba(images), mlp.predict_proba(images), rtol=1e-3, atol=1e-6
    )
    assert sparse.score(images, names) == mlp.score(images, names) > 0.8


def test_two_classes_have_one_output(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    mlp = trained(images, labels > 4)
    sparse = SparseMLP.from_sklearn(mlp, engine="scipy")
    assert sparse.network.n_outputs == 1
    np.testing.assert_array_equal(sparse.predict(images), mlp.predict(images))
    np.testing.assert_allclose(sparse.predict_proba(images), mlp.predict_proba(images), rtol=1e-4)


def test_pruning_leaves_out_the_smallest_weights_of_each_layer(
    digits: tuple[np.ndarray, np.ndarray],
) -> None:
    mlp = trained(*digits)
    before = [weights.copy() for weights in mlp.coefs_]
    sparse = SparseMLP.from_sklearn(mlp, prune=[0.5, 0.25, 0])
    for layer, weights, fraction in zip(
        sparse.network.layers, mlp.coefs_, [0.5, 0.25, 0], strict=True
    ):
        n_left = weights.size - int(fraction * weights.size)
        assert layer.n_edges == n_left
        largest = np.sort(np.abs(weights), axis=None)[-n_left:]
        np.testing.assert_array_equal(np.sort(np.abs(layer.weights.data)), largest.astype("f4"))
    for weights, old in zip(mlp.coefs_, before, strict=True):
        np.testing.assert_array_equal(weights, old)


def test_pruning_counts_whatever_the_order_in_memory() -> None:
    weights = np.arange(1.0, 7.0).reshape(2, 3)
    for same in (weights, np.asfortranarray(weights), weights.tolist()):
        assert pruned(same, 0.5).toarray().tolist() == [[0, 0, 0], [4, 5, 6]]
    assert pruned(np.ones(4).reshape(2, 2), 0.3).toarray().tolist() == [[0, 1], [1, 1]]


def test_features_may_be_sparse(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, _ = digits
    sparse = SparseMLP.from_sklearn(trained(*digits), prune=0.3, engine="scipy")
    expected = sparse.predict(images[:50])
    for same in (sp.csr_array(images[:50]), Features.from_matrix(images[:50])):
        np.testing.assert_array_equal(sparse.predict(same), expected)


def test_what_is_no_such_classifier_is_one_line(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    mlp = trained(images, labels)
    several = np.stack([labels > 4, labels % 2], axis=1).astype(int)
    regressor = MLPRegressor(hidden_layer_sizes=(8,), random_state=0)
    regressor.partial_fit(images, labels)
    cases = [
        (MLPClassifier(), {}, r"expected a fitted MLPClassifier, not MLPClassifier\(\)"),
        (regressor, {}, "expected a fitted MLPClassifier, not MLPRegressor"),
        (object(), {}, "expected a fitted MLPClassifier"),
        (trained(images, labels, activation="tanh"), {}, "'tanh' is not one of relu, identity"),
        (
            MLPClassifier(hidden_layer_sizes=(8,)).partial_fit(images, several, classes=[0, 1]),
            {},
            "gives a feature several classes is not supported",
        ),
        (mlp, {"prune": [0.5]}, "prune: 3 fractions are needed, not 1"),
        (mlp, {"prune": 1.5}, r"prune: a fraction of 0 to 1 is needed, not 1\.5"),
    ]
    for given_mlp, options, message in cases:
        with pytest.raises(DataError, match=message):
            SparseMLP.from_sklearn(given_mlp, **options)
    with pytest.raises(DataError, match="a network of 2 outputs has 2 classes, not 3"):
        SparseMLP(Network([Layer(np.eye(2))]), ["a", "b", "c"])


# --- a trained classifier of a dozen sparse layers, from files

N_TRAINING, N_TESTED = 6000, 4000
KEPT = 0.3
"""Share of the weights that are left after pruning."""

STEP = 200
"""Images between two times that pruned weights, which training revives, are cut again."""


@pytest.fixture(scope="module")
def mnist(shared_data: Path) -> tuple[np.ndarray, np.ndarray]:
    images = read_images(shared_data / "train-images-idx3-ubyte.gz")
    labels = read_labels(shared_data / "train-labels-idx1-ubyte.gz").astype(int)
    n = N_TRAINING + N_TESTED
    return images[:n].reshape(n, -1) / np.float32(255), labels[:n]


@pytest.fixture(scope="module")
def deep_mlp(mnist: tuple[np.ndarray, np.ndarray]) -> MLPClassifier:
    """784 inputs, 12 layers: trained, pruned, and trained on without what was pruned."""
    images, labels = mnist[0][:N_TRAINING], mnist[1][:N_TRAINING]
    mlp = MLPClassifier((64,) * 11, batch_size=50, learning_rate_init=0.002, random_state=0)
    with threadpool_limits(1):
        mlp.partial_fit(images, labels, classes=np.arange(10))
        masks = [np.abs(W) >= np.quantile(np.abs(W), 1 - KEPT) for W in mlp.coefs_]
        for start in range(0, 2 * N_TRAINING, STEP):
            for W, mask in zip(mlp.coefs_, masks, strict=True):
                W *= mask
            part = slice(start % N_TRAINING, start % N_TRAINING + STEP)
            mlp.partial_fit(images[part], labels[part])
        for W, mask in zip(mlp.coefs_, masks, strict=True):
            W *= mask
    return mlp


def dense_scores(mlp: MLPClassifier, images: np.ndarray) -> np.ndarray:
    """Its scores in dense float64, of the float32 weights that files hold."""
    Y = images.astype(np.float64)
    for number, (W, b) in enumerate(zip(mlp.coefs_, mlp.intercepts_, strict=True), start=1):
        Y = Y @ W.astype(np.float32).astype(np.float64) + b.astype(np.float32)
        Y = Y if number == len(mlp.coefs_) else np.maximum(Y, 0)
    return Y


def test_a_deep_trained_classifier_from_a_file_is_right_where_double_precision_is(
    mnist: tuple[np.ndarray, np.ndarray], deep_mlp: MLPClassifier
) -> None:
    images, labels = mnist[0][N_TRAINING:], mnist[1][N_TRAINING:]
    write_safetensors(Path("deep.safetensors"), SparseMLP.from_sklearn(deep_mlp).network)
    network = read_network("deep.safetensors")
    assert (network.n_inputs, network.n_layers, network.n_outputs) == (784, 12, 10)
    assert network.n_edges < (KEPT + 0.01) * sum(n * m for n, m in network.shapes)

    expected = dense_scores(deep_mlp, images)
    first, second = np.sort(expected, axis=1)[:, :-3:-1].T
    is_tie = first - second < 1e-4 * np.abs(expected).max(axis=1)
    assert np.count_nonzero(is_tie) < 10
    features = Features.from_matrix(images)
    reference = infer(network, features, engine="scipy", activations=True)
    np.testing.assert_allclose(reference.activations, expected, rtol=1e-9, atol=1e-9)
    for mode in ("edges", "merge"):
        found = predict(network, features, engine="cpu", mode=mode)
        np.testing.assert_allclose(found.scores, expected, rtol=1e-3, atol=1e-3)
        right = (found.classes == labels)[~is_tie]
        np.testing.assert_array_equal(right, (expected.argmax(axis=1) == labels)[~is_tie])
        assert right.mean() > 0.85  # or this would show little
