"""Trained networks in other programs' files: what is read, what comes back, what is refused."""

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
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
from safetensors.numpy import save_file

from spdnn import DataError, Features, Layer, Network, predict, read_features, read_network
from spdnn.io import matrices, onnx_chain, state_dict
from tests.makers import same_features, same_layers

WIDTHS = [7, 5, 4, 3]


def trained_network(seed: int = 0, widths: list[int] | None = None) -> Network:
    """Relu layers and a linear one, half of the weights left out, a bias a neuron."""
    rng = np.random.default_rng(seed)
    shapes = list(pairwise(widths or WIDTHS))
    layers = []
    for number, (n_inputs, n_outputs) in enumerate(shapes, start=1):
        dense = rng.normal(size=(n_inputs, n_outputs)) * (rng.random((n_inputs, n_outputs)) < 0.5)
        activation = "linear" if number == len(shapes) else "relu"
        bias = rng.normal(size=n_outputs)
        layers.append(Layer(dense, bias, activation=activation, bias_rule="always"))
    return Network(layers, "trained")


networks = st.builds(
    trained_network, st.integers(0, 2**32 - 1), st.lists(st.integers(1, 12), min_size=2, max_size=6)
)

FORMS: dict[str, Callable[[Path, Network], None]] = {
    "net": matrices.write_layers,
    "net.safetensors": state_dict.write_safetensors,
    "net.onnx": onnx_chain.write_model,
}


@pytest.mark.parametrize("name", FORMS)
@given(networks)
def test_a_network_that_was_written_comes_back(name: str, network: Network) -> None:
    path = Path(name)
    if path.is_dir():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    FORMS[name](path, network)
    assert same_layers(read_network(path), network)


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


# --- scipy's files


def write_npz(**layers: Any) -> Path:
    folder = Path("folder")
    folder.mkdir()
    for name, weights in layers.items():
        sp.save_npz(folder / f"{name}.npz", sp.csr_array(weights))
    return folder


def test_npz_layers_follow_each_other_as_people_count() -> None:
    widths = range(2, 13)
    folder = write_npz(**{f"fc{n}": np.ones((n, n + 1)) for n in widths})
    np.save(folder / "fc3.bias.npy", [1, 2, 3, 4])
    network = read_network(folder)
    assert network.shapes == tuple((n, n + 1) for n in widths)
    assert network.layers[1].bias.tolist() == [1, 2, 3, 4]
    assert network.layers[0].bias == 0
    assert {layer.bias_rule for layer in network.layers} == {"always"}
    assert read_network(folder / "fc12.npz").shapes == ((12, 13),)


@pytest.mark.parametrize("kind", [sp.csc_array, sp.coo_array, sp.bsr_array, sp.csr_matrix])
def test_npz_layers_may_be_of_any_sparse_kind(kind: type) -> None:
    sp.save_npz("one.npz", kind(np.diag([1.0, 2.0])))
    assert read_network("one.npz").layers[0].weights.toarray().tolist() == [[1, 0], [0, 2]]


def test_a_gap_in_the_numbers_of_npz_files_is_a_missing_layer() -> None:
    folder = write_npz(**{name: np.eye(2) for name in ("w1", "w2", "w4")})
    with pytest.raises(DataError, match=r"^folder: a layer is missing: no w3\.npz, but a later"):
        read_network(folder)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (np.ones((4, 3)), r"\(2\.npz\): expected 3 inputs, the outputs of layer 1 \(1\.npz\), not "
         r"4; are its weights transposed\? inputs x outputs are expected"),
        (np.ones((4, 5)), r"\(2\.npz\): expected 3 inputs, .* not 4$"),
        (np.full((3, 5), np.nan), r"\(2\.npz\): a weight of the layer is NaN or infinite"),
    ],
)  # fmt: skip
def test_npz_layers_that_do_not_follow_each_other_are_named(
    second: np.ndarray, message: str
) -> None:
    folder = write_npz(**{"1": np.ones((2, 3)), "2": second})
    with pytest.raises(DataError, match=f"^folder, layer 2 {message}"):
        read_network(folder)


def test_npz_files_of_something_else_are_refused() -> None:
    np.savez("arrays.npz", np.eye(3))
    Path("text.npz").write_bytes(b"1\t1\t1\n")
    Path("cut.npz").write_bytes(Path("arrays.npz").read_bytes()[:-9])
    Path("empty.npz").write_bytes(b"")
    for name in ("arrays", "text", "cut", "empty"):
        with pytest.raises(DataError, match=rf"^{name}\.npz: not a sparse matrix as scipy"):
            read_network(f"{name}.npz")
        with pytest.raises(DataError, match=rf"^{name}\.npz: not a sparse matrix as scipy"):
            read_features(f"{name}.npz")
    with pytest.raises(DataError, match=r"^nowhere\.npz: No such file"):
        read_network("nowhere.npz")


def test_features_are_matrices_dense_or_sparse() -> None:
    dense = np.array([[0, 1.5, 0], [0, 0, 0], [2, 0, 1]])
    expected = Features.from_matrix(dense)
    np.save("f.npy", dense)
    matrices.write_features(Path("f.npz"), expected)
    for name in ("f.npy", "f.npz"):
        assert same_features(read_features(name), expected)
        assert same_features(read_features(name, 3, 2), expected.part(0, 2))
        with pytest.raises(DataError, match=f"^{name}: features of 3 neurons, not of 4$"):
            read_features(name, 4)
    np.save("g.npy", np.array([[0, 255]], np.uint8))
    assert read_features("g.npy").values.tolist() == [255]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(3), r"features must be a matrix, not of shape \(3,\)"),
        (np.array([[1, np.inf]]), "a value is NaN or infinite"),
        (np.array([["a"]]), "not an array of numbers"),
        (np.array([{}], dtype=object), "not an array of numbers"),
    ],
)
def test_arrays_that_are_no_features_are_refused(array: np.ndarray, message: str) -> None:
    np.save("f.npy", array)
    with pytest.raises(DataError, match=rf"^f\.npy: .*{message}"):
        read_features("f.npy")


def test_matrices_of_complex_numbers_are_refused() -> None:
    sp.save_npz("f.npz", sp.csr_array([[1j]]))
    np.save("f.npy", [[1j]])
    for name in ("f.npz", "f.npy"):
        with pytest.raises(DataError, match=f"^{name}: not a"):
            read_features(name)


# --- state dicts


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


def test_numbers_that_numpy_does_not_have_are_named() -> None:
    save_file({"0.weight": np.ones((2, 2), np.uint16)}, "net.safetensors")
    data = Path("net.safetensors").read_bytes().replace(b'"U16"', b'"BF16"'.ljust(5))
    length = len(data) - 8 - 8
    Path("net.safetensors").write_bytes(length.to_bytes(8, "little") + data[8:])
    with pytest.raises(DataError, match=r"^net\.safetensors: NumPy has no numbers of type BF16"):
        read_network("net.safetensors")


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


# --- ONNX


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


@given(networks)
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
