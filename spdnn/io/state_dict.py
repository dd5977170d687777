"""State dicts of `Linear` layers: safetensors, and the files that PyTorch saves.

Weights are named ``NAME.weight`` (outputs x inputs), biases ``NAME.bias``. The numbers in the names
give the order of the layers. The weights that `torch.nn.utils.prune` keeps in two tensors,
``NAME.weight_orig`` and ``NAME.weight_mask``, are multiplied. Edges are the weights that are not
zero.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
"""NumPy's names of the types of numbers in safetensors files."""


def read_layers(path: Path, last: Activation = "linear", ymax: float | None = None) -> Network:
    """Read a network from a file of tensors.

    Parameters
    ----------
    path : Path
        A file whose name ends in ``.safetensors`` (needs safetensors), or else a state dict that
        PyTorch has saved (needs torch).
    last : {"relu", "linear"}
        Activation of the last layer; all others are relu.
    ymax : float or None
        Cap of the relu layers.

    Returns
    -------
    Network
        Named after the path.

    Raises
    ------
    DataError
        If it is no such file, the package for it is not installed, or the tensors are not those of
        a chain of `Linear` layers.
    """
    read = _read_safetensors if path.suffix == SAFETENSORS else _read_torch
    try:
        require_file(path)
        tensors = read(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    return chain(path, activated(_parts(path, tensors), last, ymax), _LAYOUT)


def _parts(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> list[Part]:
    """Make the layers of tensors, in the order of their names."""
    left = dict(tensors)
    parts = []
    for name in sorted((key.rpartition(".")[0] for key in tensors), key=natural):
        prefix = f"{name}." if name else ""
        weights = left.pop(f"{prefix}weight", None)
        if weights is None:
            if f"{prefix}weight_orig" not in left or f"{prefix}weight_mask" not in left:
                continue  # taken already, or no layer, which raises below
            weights = left.pop(f"{prefix}weight_orig") * left.pop(f"{prefix}weight_mask")
        weights = weights.T if weights.ndim == 2 else weights
        parts.append(Part(f"{prefix}weight", weights, left.pop(f"{prefix}bias", 0.0)))
    if left:
        name = min(left, key=natural)
        wanted = f"{name.removesuffix('bias')}weight" if name.endswith("bias") else None
        reason = f"there is no {wanted}" if wanted else "only NAME.weight and NAME.bias are known"
        raise DataError(f"{path}: {name} is of no Linear layer: {reason}")
    return parts


def _read_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    safetensors = package("safetensors", path)
    data = path.read_bytes()
    try:
        # safetensors.numpy does not read bfloat16, which NumPy does not have.
        tensors = safetensors.deserialize(data)
        return {name: _array(path, name, tensor) for name, tensor in tensors}
    except (safetensors.SafetensorError, ValueError) as error:
        raise DataError(f"{path}: not a safetensors file, or a damaged one ({error})") from error


def _array(path: Path, name: str, tensor: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Make an array of a tensor; numbers of 16 bits, which SciPy does not have, become float32."""
    kind, shape = tensor["dtype"], tensor["shape"]
    if kind == _BFLOAT16:  # they are the upper halves of float32
        halves = np.frombuffer(tensor["data"], "<u2").astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(shape)
    if kind not in _DTYPES:
        raise DataError(
            f"{path}, tensor {name}: its numbers are of type {kind}; "
            f"expected {', '.join((_BFLOAT16, *_DTYPES))}"
        )
    array = np.frombuffer(tensor["data"], _DTYPES[kind]).reshape(shape)
    return array.astype(np.float32) if kind == "F16" else array


def _read_torch(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    torch = package("torch", path, install="torch")
    try:
        # Only tensors are loaded, since a pickle could run any program.
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged pickle raises errors of any type
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

    Parameters
    ----------
    path : Path
        The file to write.
    network : Network
        A network that its weights and biases tell all of.

    Raises
    ------
    DataError
        If the file cannot be written, safetensors is not installed, or the network is more than
        its weights and biases.
    DeviceError
        If its weights, with all zeros, do not fit into memory.
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
