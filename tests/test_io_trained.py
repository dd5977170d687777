"""Trained networks in any format: sizes, options, what a format cannot say, damage, packages."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spdnn import DataError, Layer, Network, read_features, read_network
from spdnn.io import matrices, onnx_chain, state_dict
from tests.makers import trained_network

FORMS: dict[str, Callable[[Path, Network], None]] = {
    "net": matrices.write_layers,
    "net.safetensors": state_dict.write_safetensors,
    "net.onnx": onnx_chain.write_model,
}


@pytest.mark.parametrize("name", FORMS)
def test_a_file_tells_its_size_and_gives_its_first_layers(name: str) -> None:
    network = trained_network()
    FORMS[name](Path(name), network)
    assert read_network(name, layers=2).shapes == network.shapes[:2]
    assert read_network(name, neurons=7).shapes == network.shapes
    with pytest.raises(DataError, match=f"^{name}: a network of 7 inputs, not of 8$"):
        read_network(name, neurons=8)
    with pytest.raises(DataError, match=f"^{name}: it has 3 layers, not 4$"):
        read_network(name, layers=4)
    with pytest.raises(DataError, match=f"^{name}: a trained network keeps its own bias$"):
        read_network(name, bias=-1.0)


@pytest.mark.parametrize("name", ["net", "net.safetensors"])
def test_what_weights_do_not_say_may_be_told(name: str) -> None:
    FORMS[name](Path(name), trained_network())
    layers = read_network(name, last="relu", ymax=6.0).layers
    assert [(layer.activation, layer.ymax) for layer in layers] == [("relu", 6.0)] * 3
    layers = read_network(name, ymax=6.0).layers
    assert [(layer.activation, layer.ymax) for layer in layers][1:] == [
        ("relu", 6.0),
        ("linear", None),
    ]


def test_onnx_and_stores_say_themselves_what_layers_do() -> None:
    onnx_chain.write_model(Path("net.onnx"), trained_network())
    for told in ({"last": "relu"}, {"ymax": 32.0}):
        with pytest.raises(DataError, match=r"^net\.onnx: ONNX says itself what a layer does"):
            read_network("net.onnx", **told)
    with pytest.raises(DataError, match=r"^recipe: it says itself what its last layer does"):
        read_network("recipe", 1024, 6, last="linear")


@pytest.mark.parametrize(
    ("layer", "fact"),
    [
        (Layer(np.eye(2), 0, 32.0), "a cap of 32"),
        (Layer(np.eye(2), 0, activation="linear"), "that it is linear, not relu"),
        (Layer(np.eye(2), 0.5), "that its bias is added only where the sum is not zero"),
    ],
)
@pytest.mark.parametrize("name", ["net", "net.safetensors"])
def test_what_a_form_cannot_say_is_not_written(name: str, layer: Layer, fact: str) -> None:
    network = Network([layer, Layer(np.eye(2), activation="linear")])
    with pytest.raises(DataError, match=f"^layer 1: .* cannot say {fact}; write a store, or ONNX"):
        FORMS[name](Path(name), network)
    assert not Path(name).exists()
    with pytest.raises(DataError, match=r"^layer 1: .* cannot say that it is relu, not linear"):
        FORMS[name](Path(name), Network([Layer(np.eye(2))]))


@pytest.mark.parametrize("name", ["1.npz", "1.bias.npy", "net.safetensors", "net.onnx"])
@given(st.data())
def test_a_damaged_file_is_refused_if_it_is_not_read(name: str, data: st.DataObject) -> None:
    folder = Path("whole")
    if not folder.exists():
        folder.mkdir()
        matrices.write_layers(folder / "net", trained_network())
        state_dict.write_safetensors(folder / "net.safetensors", trained_network())
        onnx_chain.write_model(folder / "net.onnx", trained_network())
    part = name if name.startswith("net") else f"net/{name}"
    content = bytearray((folder / part).read_bytes())
    for at in data.draw(st.lists(st.integers(0, min(len(content), 400) - 1), max_size=3)):
        content[at] = data.draw(st.integers(0, 255))
    Path(name).write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(DataError):
        (read_features if "bias" in name else read_network)(name)


@pytest.mark.parametrize(
    ("name", "module", "install"),
    [
        ("net.safetensors", "safetensors", "'spdnn\\[formats\\]'"),
        ("net.onnx", "onnx", "'spdnn\\[formats\\]'"),
        ("net.pt", "torch", "torch"),
    ],
)
def test_a_package_that_is_not_there_is_named(
    name: str, module: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(name).write_bytes(b"")

    def fail(wanted: str) -> None:
        raise ImportError(wanted)

    monkeypatch.setattr("importlib.import_module", fail)
    message = f"^{name}: such files need {module}: pip install {install}$"
    with pytest.raises(DataError, match=message):
        read_network(name)
