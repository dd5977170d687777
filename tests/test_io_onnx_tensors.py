"""Constants of ONNX models: every form and place of them, and what is wrong with one."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from spdnn import DataError, DeviceError, Network, read_network
from spdnn.io import onnx_chain
from tests.makers import same_layers, trained_network
from tests.onnx_models import bfloat16, node, tensor, write_onnx

DENSE = np.array([[1, 0], [0, -2], [0.5, 0]], np.float32)
CHAIN = [node("MatMul", "x w", "y")]


def sparse(indices: Any, dims: tuple[int, ...] = (3, 2), name: str = "") -> Any:
    return helper.make_sparse_tensor(
        tensor(np.array([1, -2, 0.5]), name), tensor(np.array(indices)), dims
    )


THROUGH = [0, 3, 4]
PAIRS = [[0, 0], [1, 1], [2, 0]]


@pytest.mark.parametrize("indices", [THROUGH, PAIRS])
def test_sparse_weights_are_those_of_a_sparse_constant(indices: Any) -> None:
    constant = helper.make_node("Constant", [], ["w"], sparse_value=sparse(indices))
    write_onnx([constant, *CHAIN], {})
    (layer,) = read_network("net.onnx").layers
    np.testing.assert_array_equal(layer.weights.toarray(), DENSE)
    assert layer.n_edges == 3


def test_sparse_weights_may_be_an_initializer_and_transposed() -> None:
    model = write_onnx([node("Transpose", "s", "w"), node("Gemm", "x w", "y", alpha=2.0)], {})
    turned = sparse([[0, 0], [1, 1], [0, 2]], (2, 3), "s")
    model.graph.sparse_initializer.append(turned)
    onnx.save(model, "net.onnx")
    (layer,) = read_network("net.onnx").layers
    np.testing.assert_array_equal(layer.weights.toarray(), 2 * DENSE)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (sparse(THROUGH, (3, 1)), "damaged"),
        (sparse(THROUGH, (6,)), r"sparse, of shape \(6,\); expected a matrix"),
    ],
)
def test_a_sparse_constant_that_is_no_matrix_is_refused(stored: Any, message: str) -> None:
    write_onnx([helper.make_node("Constant", [], ["w"], sparse_value=stored), *CHAIN], {})
    with pytest.raises(DataError, match=f"^net.onnx, tensor w: {message}"):
        read_network("net.onnx")


def test_a_sparse_constant_of_a_huge_shape_is_refused_before_memory_is_taken() -> None:
    stored = sparse(THROUGH, (3, 2**50))
    write_onnx([helper.make_node("Constant", [], ["w"], sparse_value=stored), *CHAIN], {})
    with pytest.raises(DeviceError, match=r"^net\.onnx, tensor w needs .* GiB of memory"):
        read_network("net.onnx")


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "int8"])
def test_weights_of_other_types_become_float32(kind: str) -> None:
    values = np.array([[1, 0], [0, -2], [3, 0]])
    stored = bfloat16(values, "w") if kind == "bfloat16" else values.astype(kind)
    if kind == "float64":
        stored = onnx.numpy_helper.from_array(stored, "w")
    write_onnx(CHAIN, {"w": stored})
    (layer,) = read_network("net.onnx").layers
    assert layer.weights.dtype == np.float32
    np.testing.assert_array_equal(layer.weights.toarray(), values)


BAD_CONSTANTS = {
    "eight bits": (
        helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, (3, 2), bytes(6), raw=True),
        "its numbers are of type FLOAT8E4M3FN; expected FLOAT, DOUBLE, FLOAT16, BFLOAT16",
    ),
    "text": (
        helper.make_tensor("w", TensorProto.STRING, (2,), [b"a", b"b"]),
        "its numbers are of type STRING; expected FLOAT",
    ),
    "too short": (
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(3, 2), raw_data=bytes(20)),
        r"damaged \(cannot reshape array of size 5 into shape \(3,2\)\)",
    ),
    "negative": (
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(-1, 2), raw_data=bytes(24)),
        r"its shape is \(-1, 2\)",
    ),
}


@pytest.mark.parametrize("kind", BAD_CONSTANTS)
def test_a_tensor_that_cannot_be_read_is_named_with_the_reason(kind: str) -> None:
    stored, message = BAD_CONSTANTS[kind]
    write_onnx(CHAIN, {"w": stored})
    with pytest.raises(DataError, match=f"^net.onnx, tensor w: {message}") as raised:
        read_network("net.onnx")
    assert "\n" not in str(raised.value)


def test_a_constant_of_text_is_refused_where_numbers_are_needed() -> None:
    write_onnx([helper.make_node("Constant", [], ["w"], value_string="1"), *CHAIN], {})
    message = r"^net\.onnx, tensor w: a Constant of value_string; expected numbers$"
    with pytest.raises(DataError, match=message):
        read_network("net.onnx")


def external() -> tuple[Network, onnx.ModelProto]:
    """A network in ``net.onnx`` with its numbers in ``net.onnx.data``, as torch writes it."""
    network = trained_network(3, [40, 30, 20])
    onnx_chain.write_model(Path("net.onnx"), network)
    model = onnx.load("net.onnx")
    onnx.save(model, "net.onnx", save_as_external_data=True, location="net.onnx.data")
    return network, onnx.load("net.onnx", load_external_data=False)


def test_numbers_may_lie_in_a_file_beside_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    network, _ = external()
    assert Path("net.onnx.data").stat().st_size > 4 * 40 * 30
    assert same_layers(read_network("net.onnx"), network)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert same_layers(read_network("../net.onnx"), network)


def test_a_missing_file_of_numbers_is_named() -> None:
    external()
    Path("net.onnx.data").unlink()
    message = r"^net\.onnx, tensor weights1: external data file net\.onnx\.data is missing$"
    with pytest.raises(DataError, match=message):
        read_network("net.onnx")


def test_a_truncated_file_of_numbers_is_named() -> None:
    external()
    data = Path("net.onnx.data").read_bytes()
    Path("net.onnx.data").write_bytes(data[:-1])
    message = (
        rf"^net\.onnx, tensor \w+: external data file net\.onnx\.data is truncated: {len(data)} "
        rf"bytes are expected, it has {len(data) - 1}$"
    )
    with pytest.raises(DataError, match=message):
        read_network("net.onnx")


@pytest.mark.parametrize("location", ["../secret.data", "/secret.data"])
def test_a_file_of_numbers_outside_of_the_models_folder_is_refused(location: str) -> None:
    _, model = external()
    for each in model.graph.initializer:
        for entry in each.external_data:
            entry.value = location if entry.key == "location" else entry.value
    onnx.save(model, "net.onnx")
    with pytest.raises(
        DataError, match=rf"external data file {location} is outside of the model's"
    ):
        read_network("net.onnx")


def test_a_part_of_another_length_than_the_shape_says_is_refused() -> None:
    _, model = external()
    model.graph.initializer[1].dims[0] -= 1  # the weights of the first layer
    onnx.save(model, "net.onnx")
    message = r"^net\.onnx, tensor weights1: 4800 bytes of external data file net\.onnx\.data; expe"
    with pytest.raises(DataError, match=message):
        read_network("net.onnx")
