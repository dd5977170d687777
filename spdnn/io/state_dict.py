"""State dicts of `Linear` layers: safetensors, and what PyTorch saves.

Weights lie outputs x inputs under ``NAME.weight``, biases under ``NAME.bias``. Layers follow each
other as their names count. What `torch.nn.utils.prune` keeps apart, ``NAME.weight_orig``
and ``NAME.weight_mask``, is multiplied. Edges are the weights that are not zero.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spdnn.errors import DataError
from spdnn.io.chain import (
    Part,
    activated,
    chain,
    dense_bytes,
    natural,
    package,
    require_weights_say_all,
)
from spdnn.io.files import require_file, whole_file
from spdnn.machine.memory import require_bytes
from spdnn.network import Activation, Network

SAFETENSORS = ".safetensors"
TORCH = (".pt", ".pth")

_LAYOUT = "outputs x inputs"

_BFLOAT16 = "BF16"
_DTYPES = {
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    **{f"{sign}{8 * size}": f"<{sign.lower()}{size}" for sign in "IU" for size in (1, 2, 4, 8)},
    "BOOL": "?",
}
"""Types of numbers in safetensors files, as NumPy calls them."""


def read_layers(path: Path, last: Activation = "linear", ymax: float | None = None) -> Network:
    """Read a network from a file of tensors.

    Parameters
    ----------
    path : Path
        Named ``.safetensors`` (needs safetensors); else a state dict as PyTorch
        saves it (needs torch).
    last : {"relu", "linear"}
        Activation of the last layer; all others are relu.
    ymax : float or None
        Cap of the relu layers.

    Raises
    ------
    DataError
        If it is no such file, the package for it is not installed, or a tensor is none of a
        chain of `Linear` layers.
    """
    read = _read_safetensors if path.suffix == SAFETENSORS else _read_torch
    try:
        require_file(path)
        tensors = read(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    return chain(path, activated(_parts(path, tensors), last, ymax), _LAYOUT)


def _parts(path: Path, tensors: Mapping[str, Any]) -> list[Part]:
    """Layers of tensors, in the order of their names."""
    left = dict(tensors)
    parts = []
    for name in sorted((key.rpartition(".")[0] for key in tensors), key=natural):
        prefix = f"{name}." if name else ""
        weights = left.pop(f"{prefix}weight", None)
        if weights is None:
            if f"{prefix}weight_orig" not in left or f"{prefix}weight_mask" not in left:
                continue  # taken already, or no layer: told below
            weights = left.pop(f"{prefix}weight_orig") * left.pop(f"{prefix}weight_mask")
        weights = weights.T if weights.ndim == 2 else weights
        parts.append(Part(f"{prefix}weight", weights, left.pop(f"{prefix}bias", 0.0)))
    if left:
        name = min(left, key=natural)
        wanted = f"{name.removesuffix('bias')}weight" if name.endswith("bias") else None
        reason = f"there is no {wanted}" if wanted else "only NAME.weight and NAME.bias are known"
        raise DataError(f"{path}: {name} is of no Linear layer: {reason}")
    return parts


def _read_safetensors(path: Path) -> dict[str, Any]:
    safetensors = package("safetensors", path)
    data = path.read_bytes()
    try:
        # Not safetensors.numpy: NumPy has no bfloat16.
        tensors = safetensors.deserialize(data)
        return {name: _array(path, name, tensor) for name, tensor in tensors}
    except (safetensors.SafetensorError, ValueError) as error:
        raise DataError(f"{path}: not a safetensors file, or a damaged one ({error})") from error


def _array(path: Path, name: str, tensor: Mapping[str, Any]) -> Any:
    """A tensor as an array; numbers of 16 bits, which SciPy does not have, become float32."""
    kind, shape = tensor["dtype"], tensor["shape"]
    if kind == _BFLOAT16:  # the upper half of a float32
        halves = np.frombuffer(tensor["data"], "<u2").astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(shape)
    if kind not in _DTYPES:
        raise DataError(
            f"{path}, tensor {name}: its numbers are of type {kind}; "
            f"expected {', '.join((_BFLOAT16, *_DTYPES))}"
        )
    array = np.frombuffer(tensor["data"], _DTYPES[kind]).reshape(shape)
    return array.astype(np.float32) if kind == "F16" else array


def _read_torch(path: Path) -> dict[str, Any]:
    torch = package("torch", path, install="torch")
    try:
        # Only tensors: a pickle could run any program.
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged pickle raises anything
        raise DataError(
            f"{path}: not a state dict that torch.save wrote "
            "(save model.state_dict(), not the model)"
        ) from error
    if not isinstance(saved, Mapping):
        raise DataError(
            f"{path}: expected a state dict, names and tensors, not a {type(saved).__name__}"
        )
    saved = saved.get("state_dict", saved)
    for name, tensor in saved.items():
        if not isinstance(tensor, torch.Tensor):
            raise DataError(f"{path}: {name} is no tensor: expected a state dict")
    return {
        str(name): tensor.detach().to_dense().to(torch.float32).numpy()
        for name, tensor in saved.items()
    }


def write_safetensors(path: Path, network: Network) -> None:
    """Write a network as a state dict of `Linear` layers ``0``, ``1``, ...

    Raises
    ------
    DataError
        If the file cannot be written, or the network is more than its weights.
    DeviceError
        If its weights, zeros and all, do not fit into memory.
    """
    safetensors = package("safetensors.numpy", path)
    require_weights_say_all(network, "safetensors")
    require_bytes(2 * dense_bytes(network), f"{path}: all weights, zeros and all", "write a store")
    tensors = {}
    for number, layer in enumerate(network.layers):
        tensors[f"{number}.weight"] = np.ascontiguousarray(layer.weights.toarray().T)
        tensors[f"{number}.bias"] = np.broadcast_to(layer.bias, layer.n_outputs).copy()
    with whole_file(path) as file:
        file.write(safetensors.save(tensors))
