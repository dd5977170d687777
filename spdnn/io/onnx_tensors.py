"""Constants of an ONNX model: tensors in files, and tensors that nodes make of constants."""

from collections.abc import Callable
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError
from spdnn.machine.memory import require_bytes

if TYPE_CHECKING:  # onnx is imported when a model is read
    from onnx import GraphProto, NodeProto, SparseTensorProto, TensorProto

Value: TypeAlias = npt.NDArray[Any] | sp.coo_array
"""Value of a constant: an array of numbers, or a sparse matrix."""

_HALVES = ("FLOAT16", "BFLOAT16")
REALS = ("FLOAT", "DOUBLE", *_HALVES)
"""ONNX's names of the types of numbers that activations may have."""

_INTEGERS = tuple(f"{sign}{bits}" for sign in ("INT", "UINT") for bits in (8, 16, 32, 64))
_NUMBERS = (*REALS, *_INTEGERS, "BOOL")
"""ONNX's names of the types of numbers that weights and biases may have."""


class Constants:
    """Constants of a graph by name, each read when it is asked for.

    Values are arrays, or `scipy.sparse.coo_array` for sparse matrices. Numbers of 16 bits become
    float32.

    Parameters
    ----------
    path : Path
        The model's file. Files with tensors are in the same folder.
    onnx : module
        The package onnx.
    graph : onnx.GraphProto
        The graph of the model.
    """

    def __init__(self, path: Path, onnx: ModuleType, graph: "GraphProto") -> None:
        self._path = path
        self._onnx = onnx
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        self._nodes: dict[str, NodeProto] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._sparse or name in self._nodes

    def __getitem__(self, name: str) -> Value:
        """Value of a constant; DataError if it does not hold numbers, or cannot be read."""
        if name in self._tensors:
            return self._array(name, self._tensors[name])
        if name in self._sparse:
            return self._matrix(name, self._sparse[name])
        node = self._nodes[name]
        if node.op_type not in _MAKERS:
            raise DataError(
                f"{self._where(name)}: operator {node.op_type} of constants is not supported; "
                f"expected {', '.join(_MAKERS)}"
            )
        with np.errstate(over="ignore"):  # infinite numbers are refused with their layer
            return _MAKERS[node.op_type](self, node)

    def dense(self, name: str) -> npt.NDArray[Any]:
        """Value of a constant as an array, with all zeros."""
        value = self[name]
        if not isinstance(value, np.ndarray):
            require_bytes(8 * prod(value.shape), self._where(name), "store fewer numbers")
            value = value.toarray()
        return value

    def number(self, name: str) -> float:
        """Value of a constant that is one number."""
        value = self.dense(name)
        if value.size != 1:
            raise DataError(f"{self._where(name)}: {value.size} numbers; expected one")
        return float(value.item())

    def integers(self, name: str) -> list[int]:
        """Value of a constant as whole numbers, such as a shape."""
        return [int(number) for number in np.ravel(self.dense(name))]

    def add(self, node: "NodeProto") -> None:
        """Add a node whose operands are constants, so that its outputs are constants, too."""
        self._nodes |= dict.fromkeys(node.output, node)

    def attributes(self, node: "NodeProto") -> dict[str, Any]:
        """Attributes of a node by name."""
        value = self._onnx.helper.get_attribute_value
        return {each.name: value(each) for each in node.attribute}

    def _where(self, name: str) -> str:
        return f"{self._path}, tensor {name}"

    def _array(self, name: str, tensor: "TensorProto") -> npt.NDArray[Any]:
        kind = self._onnx.TensorProto.DataType.Name(tensor.data_type)
        if kind not in _NUMBERS:
            raise DataError(
                f"{self._where(name)}: its numbers are of type {kind}; "
                f"expected {', '.join(_NUMBERS)}"
            )
        if min(tensor.dims, default=0) < 0:
            raise DataError(f"{self._where(name)}: its shape is {tuple(tensor.dims)}")
        if self._onnx.external_data_helper.uses_external_data(tensor):
            self._require_external(name, tensor, kind)
        try:
            array: npt.NDArray[Any] = self._onnx.numpy_helper.to_array(
                tensor, str(self._path.parent)
            )
        except (OSError, ValueError, self._onnx.checker.ValidationError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(f"{self._where(name)}: damaged ({reason})") from error
        return array.astype(np.float32) if kind in _HALVES else array

    def _require_external(self, name: str, tensor: "TensorProto", kind: str) -> None:
        """Refuse (DataError) a tensor whose bytes are not in the place that the model names."""
        said = {entry.key: entry.value for entry in tensor.external_data}
        location = said.get("location", "")
        if Path(location).is_absolute() or ".." in Path(location).parts:
            raise DataError(
                f"{self._where(name)}: external data file {location} is outside of the model's "
                "folder, where it must be"
            )
        file = self._path.parent / location
        if not file.is_file():
            raise DataError(f"{self._where(name)}: external data file {file} is missing")
        number = np.dtype(self._onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        wanted = prod(tensor.dims) * (2 if kind in _HALVES else number.itemsize)
        start = int(said.get("offset", 0))
        n_bytes = int(said.get("length", wanted))
        size = file.stat().st_size
        if start + n_bytes > size:
            raise DataError(
                f"{self._where(name)}: external data file {file} is truncated: "
                f"{start + n_bytes} bytes are expected, it has {size}"
            )
        if n_bytes != wanted:
            raise DataError(
                f"{self._where(name)}: {n_bytes} bytes of external data file {file}; "
                f"expected {wanted}, as its shape {tuple(tensor.dims)} says"
            )

    def _matrix(self, name: str, tensor: "SparseTensorProto") -> sp.coo_array:
        shape = tuple(tensor.dims)
        if len(shape) != 2 or min(shape) < 1:
            raise DataError(f"{self._where(name)}: sparse, of shape {shape}; expected a matrix")
        values, indices = self._array(name, tensor.values), self._array(name, tensor.indices)
        # Places are one number each, counted by rows, or a row and a column each.
        places = np.divmod(indices, shape[1]) if indices.ndim == 1 else tuple(indices.T)
        require_bytes(8 * sum(shape), self._where(name), "store a matrix that is less wide")
        try:
            return sp.coo_array((values, places), shape=shape)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self._where(name)}: damaged ({error})") from error

    def _constant(self, node: "NodeProto") -> Value:
        name = node.output[0]
        if len(node.attribute) != 1:
            raise DataError(f"{self._where(name)}: a Constant of {len(node.attribute)} values")
        ((kind, value),) = self.attributes(node).items()
        if kind == "value":
            return self._array(name, value)
        if kind == "sparse_value":
            return self._matrix(name, value)
        if kind not in _PLAIN:
            raise DataError(f"{self._where(name)}: a Constant of {kind}; expected numbers")
        return np.array(value, dtype=_PLAIN[kind])

    def _same(self, node: "NodeProto") -> Value:
        return self[node.input[0]]

    def _cast(self, node: "NodeProto") -> Value:
        kind = self.cast_to(node)
        if kind not in _NUMBERS:
            raise DataError(f"{self._where(node.output[0])}: a Cast to {kind}; expected numbers")
        number = self._onnx.helper.tensor_dtype_to_np_dtype(self.attributes(node)["to"])
        value = self[node.input[0]]
        is_half = kind in _HALVES
        if isinstance(value, np.ndarray):
            return value.astype(number).astype(np.float32) if is_half else value.astype(number)
        numbers = value.data.astype(number)
        numbers = numbers.astype(np.float32) if is_half else numbers
        return sp.coo_array((numbers, value.coords), value.shape)

    def _transpose(self, node: "NodeProto") -> Value:
        value = self[node.input[0]]
        axes = self.attributes(node).get("perm", range(value.ndim)[::-1])
        return value if list(axes) == list(range(value.ndim)) else value.transpose(tuple(axes))

    def _reshape(self, node: "NodeProto") -> Value:
        value, attributes = self[node.input[0]], self.attributes(node)
        shape = self.shape(node)
        if not attributes.get("allowzero", 0):
            shape = [value.shape[at] if n == 0 else n for at, n in enumerate(shape)]
        return value.reshape(tuple(shape))

    def _squeeze(self, node: "NodeProto") -> Value:
        axes = self.axes(node)
        return np.squeeze(self.dense(node.input[0]), None if axes is None else tuple(axes))

    def _unsqueeze(self, node: "NodeProto") -> Value:
        return np.expand_dims(self.dense(node.input[0]), tuple(self.axes(node) or ()))

    def cast_to(self, node: "NodeProto") -> str:
        """The type of number that a Cast makes."""
        kind: str = self._onnx.TensorProto.DataType.Name(self.attributes(node)["to"])
        return kind

    def shape(self, node: "NodeProto") -> list[int]:
        """The shape that a Reshape makes, which is an operand or an attribute."""
        if len(node.input) > 1:
            return self.integers(node.input[1])
        shape: list[int] = self.attributes(node)["shape"]
        return shape

    def axes(self, node: "NodeProto") -> list[int] | None:
        """Axes of a Squeeze or Unsqueeze, which are an operand or an attribute; None for none."""
        if len(node.input) > 1:
            return self.integers(node.input[1])
        axes: list[int] | None = self.attributes(node).get("axes")
        return axes


_PLAIN = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}
"""Types of the numbers that the attributes of a Constant hold, other than tensors."""

_MAKERS: dict[str, Callable[["Constants", "NodeProto"], Value]] = {
    "Constant": Constants._constant,
    "Identity": Constants._same,
    "Cast": Constants._cast,
    "Transpose": Constants._transpose,
    "Reshape": Constants._reshape,
    "Squeeze": Constants._squeeze,
    "Unsqueeze": Constants._unsqueeze,
}
