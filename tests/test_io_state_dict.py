"""State dicts: safetensors, and PyTorch's where it is installed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from spdnn import DataError, Features, Network, predict, read_network
from tests.makers import same_layers, trained_network


def tensors_of(network: Network, names: list[str]) -> dict[str, np.ndarray]:
    """A state dict: weights outputs x inputs."""
    tensors = {}
    for name, layer in zip(names, network.layers, strict=True):
        tensors[f"{name}.weight"] = np.ascontiguousarray(layer.weights.toarray().T)
        tensors[f"{name}.bias"] = layer.bias
    return tensors


@pytest.mark.parametrize("names", [["0", "2", "10"], ["fc1", "fc2", "fc10"], ["a.0", "a.9", "b"]])
def test_layers_of_a_state_dict_follow_each_other_as_names_count(names: list[str]) -> None:
    network = trained_network()
    save_file(tensors_of(network, names), "net.safetensors")
    assert same_layers(read_network("net.safetensors"), network)


def test_one_layer_may_have_no_name_and_no_bias() -> None:
    save_file({"weight": np.array([[1, 0, 2], [0, 3, 0]], np.float64)}, "net.safetensors")
    (layer,) = read_network("net.safetensors").layers
    assert layer.weights.toarray().tolist() == [[1, 0], [0, 3], [2, 0]]
    assert (layer.n_edges, layer.bias.item()) == (3, 0)


def test_masks_of_pruning_are_applied() -> None:
    whole = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    mask = np.array([[1, 0, 1], [0, 1, 0]], np.float32)
    save_file({"0.weight_orig": whole, "0.weight_mask": mask}, "net.safetensors")
    (layer,) = read_network("net.safetensors").layers
    np.testing.assert_array_equal(layer.weights.toarray(), (whole * mask).T)
    assert layer.n_edges == 3


def state_dict_with(**changes: Any) -> dict[str, np.ndarray]:
    tensors = tensors_of(trained_network(), ["0", "1", "2"])
    for name, value in changes.items():
        tensors[name.replace("_", ".")] = value
    return {name: value for name, value in tensors.items() if value is not None}


ONES = np.ones
BAD_STATE_DICTS = {
    "transposed first": (
        {"0_weight": ONES((7, 5), np.float32)},
        r"layer 1 \(0\.weight\): expected a bias of 7 numbers, one an output, not of shape \(5,\); "
        r"are its weights transposed\? outputs x inputs are expected",
    ),
    "transposed second": (
        {"1_weight": ONES((5, 4), np.float32), "1_bias": None},
        r"layer 2 \(1\.weight\): expected 5 inputs, the outputs of layer 1 \(0\.weight\), not 4; "
        r"are its weights transposed\? outputs x inputs are expected",
    ),
    "missing layer": (
        {"1_weight": None, "1_bias": None},
        r"layer 2 \(2\.weight\): expected 5 inputs, the outputs of layer 1 \(0\.weight\), not 4$",
    ),
    "bias alone": ({"1_weight": None}, r"1\.bias is of no Linear layer: there is no 1\.weight"),
    "bias of another size": (
        {"1_bias": ONES(3, np.float32)},
        r"layer 2 \(1\.weight\): expected a bias of 4 numbers, one an output, not of shape \(3,\)$",
    ),
    "convolution": (
        {"0_weight": ONES((5, 1, 3, 3), np.float32)},
        r"layer 1 \(0\.weight\): expected a matrix of weights, outputs x inputs, not shape "
        r"\(5, 1, 3, 3\)",
    ),
    "another tensor": (
        {"1_scale": ONES(1, np.float32)},
        r"1\.scale is of no Linear layer: only NAME\.weight and NAME\.bias are known",
    ),
    "NaN": (
        {"2_weight": np.full((3, 4), np.nan, np.float32)},
        r"layer 3 \(2\.weight\): a weight of the layer is NaN or infinite",
    ),
    "too large": (
        {"2_weight": np.full((3, 4), 1e300)},
        r"layer 3 \(2\.weight\): a weight of the layer is NaN or infinite",
    ),
}


@pytest.mark.parametrize("kind", BAD_STATE_DICTS)
def test_a_state_dict_of_something_else_is_one_line(kind: str) -> None:
    changes, message = BAD_STATE_DICTS[kind]
    save_file(state_dict_with(**changes), "net.safetensors")
    with pytest.raises(DataError, match=rf"^net\.safetensors(, |: ){message}") as raised:
        read_network("net.safetensors")
    assert "\n" not in str(raised.value)


def test_what_is_no_safetensors_file_is_refused() -> None:
    save_file(state_dict_with(), "net.safetensors")
    whole = Path("net.safetensors").read_bytes()
    for content in (b"", b"1\t1\t1\n", whole[:-1], whole[:9]):
        Path("net.safetensors").write_bytes(content)
        with pytest.raises(DataError, match=r"^net\.safetensors: not a safetensors file, or a dam"):
            read_network("net.safetensors")
    save_file({}, "empty.safetensors")
    with pytest.raises(DataError, match=r"^empty\.safetensors: there is no layer in it$"):
        read_network("empty.safetensors")
    with pytest.raises(DataError, match=r"^nowhere\.safetensors: No such file"):
        read_network("nowhere.safetensors")


def write_raw(kind: str, numbers: npt.NDArray[Any]) -> None:
    """A matrix whose numbers safetensors calls by a name: a header in JSON, then the numbers."""
    facts = {"dtype": kind, "shape": numbers.shape, "data_offsets": [0, numbers.nbytes]}
    header = json.dumps({"0.weight": facts}).encode()
    length = len(header).to_bytes(8, "little")
    Path("net.safetensors").write_bytes(length + header + numbers.tobytes())


def test_numbers_of_16_bits_are_widened() -> None:
    weights = np.array([[1.5, -0.25, 0.0], [3.0, 2.0**-20, 80.0]], np.float32)
    halves = (weights.view(np.uint32) >> 16).astype("<u2")
    for kind, numbers in (("BF16", halves), ("F16", weights.astype(np.float16))):
        write_raw(kind, numbers)
        layer = read_network("net.safetensors").layers[0].weights
        assert layer.dtype == np.float32
        wanted = weights if kind == "BF16" else weights.astype(np.float16)
        assert np.array_equal(layer.toarray(), wanted.T)


def test_a_type_of_numbers_that_is_not_read_is_named() -> None:
    write_raw("F8_E4M3", np.ones((2, 2), np.uint8))
    message = r"^net\.safetensors, tensor 0\.weight: its numbers are of type F8_E4M3; expected BF16"
    with pytest.raises(DataError, match=message):
        read_network("net.safetensors")


def test_state_dicts_of_pytorch_are_read() -> None:
    torch = pytest.importorskip("torch")
    network = trained_network()
    tensors = {
        name: torch.from_numpy(array)
        for name, array in tensors_of(network, ["0", "2", "4"]).items()
    }
    torch.save(tensors, "net.pt")
    assert same_layers(read_network("net.pt"), network)
    tensors["2.weight"] = tensors["2.weight"].to_sparse_coo()
    torch.save({"state_dict": tensors, "epoch": 3}, "checkpoint.pth")
    assert same_layers(read_network("checkpoint.pth"), network)


def test_a_pruned_module_of_pytorch_computes_the_same_here() -> None:
    torch = pytest.importorskip("torch")
    from torch.nn.utils import prune

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(9, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    prune.l1_unstructured(model[0], "weight", 0.5)
    torch.save(model.state_dict(), "net.pt")
    rows = torch.rand(6, 9)
    scores = predict(read_network("net.pt"), Features.from_matrix(rows.numpy())).scores
    np.testing.assert_allclose(scores, model(rows).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_what_is_no_state_dict_of_pytorch_is_refused() -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(2, 2), "model.pt")
    torch.save([torch.ones(2, 2)], "list.pt")
    torch.save({"0.weight": torch.ones(2, 2), "epoch": 3}, "mixed.pt")
    Path("text.pt").write_bytes(b"1\t1\t1\n")
    Path("empty.pt").write_bytes(b"")
    for name, message in {
        "model.pt": "not a state dict that torch.save wrote",
        "list.pt": "expected a state dict, names and tensors, not a list",
        "mixed.pt": "epoch is no tensor: expected a state dict",
        "text.pt": "not a state dict that torch.save wrote",
        "empty.pt": "not a state dict that torch.save wrote",
        "nowhere.pt": "No such file",
    }.items():
        with pytest.raises(DataError, match=f"^{name}: {message}"):
            read_network(name)
