"""Other libraries give the same answer, and those that are missing say so."""

import sys

import numpy as np
import pytest

from spdnn import Layer, Network, infer
from spdnn.bench.rivals import RIVALS, Rival
from spdnn.errors import DeviceError
from tests.makers import dyadic_features, small_network

NETWORK = small_network(64, 4)
FEATURES = dyadic_features(3, 40, 64, "binary")
LIVE = infer(NETWORK, FEATURES, engine="scipy").live


@pytest.fixture(params=RIVALS)
def rival(request: pytest.FixtureRequest) -> Rival:
    """Each that is installed."""
    try:
        return RIVALS[request.param](NETWORK, 2)
    except DeviceError as error:
        pytest.skip(str(error))


def test_the_live_features_are_the_true_ones(rival: Rival) -> None:
    assert 5 < LIVE.size < 35
    converted = rival.convert(FEATURES)
    for _ in range(2):  # what is converted stays as it is
        assert np.array_equal(rival.run(converted), LIVE)


def test_threads_are_those_asked_for_or_one(rival: Rival) -> None:
    assert rival.threads == (2 if rival.uses_threads else 1)


@pytest.mark.parametrize(
    ("key", "module"),
    [
        ("mkl", "sparse_dot_mkl"),
        ("torch", "torch"),
        ("graphblas", "graphblas"),
        ("onnxruntime", "onnxruntime"),
        ("onnxruntime", "onnx"),
        ("cusparse", "cupy"),
    ],
)
def test_a_missing_library_is_named(key: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("MKL_RT", "not looked for")
    with pytest.raises(DeviceError, match=f"{module} is not installed"):
        RIVALS[key](NETWORK)


def test_a_network_of_another_kind_is_refused() -> None:
    weights = NETWORK.layers[0].weights
    for layer in (
        Layer(weights, 0.5),
        Layer(weights, np.zeros(64)),
        Layer(weights, 0, None, "linear"),
    ):
        with pytest.raises(DeviceError, match="networks of the challenge's kind only"):
            RIVALS["scipy-csr"](Network([layer]))


def test_what_memory_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rival = RIVALS["scipy-dense"](NETWORK)
    monkeypatch.setattr("spdnn.machine.memory.available_bytes", lambda: 1000)
    with pytest.raises(DeviceError, match="dense features needs"):
        rival.convert(FEATURES)
    with pytest.raises(DeviceError, match="the network needs"):
        RIVALS["scipy-dense"](NETWORK)


def test_dense_weights_that_memory_does_not_hold_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spdnn.machine.memory.available_bytes", lambda: 200_000)
    with pytest.raises(DeviceError, match="ONNX Runtime, dense: the weights"):
        RIVALS["onnxruntime"](NETWORK)


def test_a_network_that_is_too_large_for_one_model_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = RIVALS["onnxruntime"](NETWORK, 1)
    monkeypatch.setattr("spdnn.bench.dense_onnx.MODEL_BYTES", 1)
    parts = RIVALS["onnxruntime"](NETWORK, 1)
    converted = whole.convert(FEATURES)
    np.testing.assert_array_equal(parts.run(converted), whole.run(converted))
