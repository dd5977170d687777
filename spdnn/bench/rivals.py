"""Rivals: the same inference by other libraries, each of which is optional.

Each rival is the best plain loop that its library allows: one product for each layer, then bias,
ReLU and cap. Those with dense columns drop dead features after every layer, as the champions of the
challenge do. Weights are converted before the clock starts.
"""

import ctypes.util
import importlib
import os
import warnings
from importlib.metadata import PackageNotFoundError, files
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.bench.dense_onnx import dense_onnx
from spdnn.errors import DeviceError
from spdnn.features import Features
from spdnn.machine.memory import require_bytes
from spdnn.machine.threads import default_threads
from spdnn.network import Layer, Network

Live = npt.NDArray[np.int64]

EDGE_BYTES = 16
"""Bytes of an edge while it is converted: its index and its value, twice."""

COPIES = 3
"""Dense activations that are held at once: before a layer, after it, and those that are kept."""

DENSE_PART = 1 << 28
"""Dense activations that are copied to a GPU at a time: 1 GiB."""


class Step(NamedTuple):
    """A layer in the form of a library.

    Attributes
    ----------
    weights : object
        The library's matrix.
    bias : float
        Bias of every neuron.
    ymax : float or None
        Cap of activations; None for no cap.
    """

    weights: Any
    bias: float
    ymax: float | None


class Rival:
    """A library's way to run a network. It is made for a network, then run on features.

    Parameters
    ----------
    network : Network
        Its layers are like those of the challenge: relu, the challenge's bias rule, and one bias
        for all neurons that is not positive.
    threads : int, optional
        Threads of the library; by default as many as the engines of this project take.

    Attributes
    ----------
    key : str
        Its name in file names and on the command line.
    name, short : str
        Its name as it is printed, and in headings of columns.
    packages : tuple of str
        Packages whose versions are recorded.
    usual_rate : float
        Rough number of edges of live features that it evaluates a second. The number of features
        that it is given follows from it.
    uses_threads : bool
        Whether it can use more than one thread.
    threads : int
        Threads that it really uses.
    width : int
        The largest number of neurons of a layer.
    steps : list of Step
        The layers in its form.

    Raises
    ------
    DeviceError
        If its library is not installed, the network is of another kind, or memory is short.
    """

    key: str
    name: str
    short: str
    packages: tuple[str, ...] = ()
    usual_rate: float
    uses_threads = True

    def __init__(self, network: Network, threads: int | None = None) -> None:
        self.threads = (threads or default_threads()) if self.uses_threads else 1
        self.load()
        n_bytes = EDGE_BYTES * network.n_edges
        require_bytes(n_bytes, f"{self.name}: the network", "take fewer layers")
        self.width = network.max_width
        self.steps = [self._step(layer) for layer in network.layers]

    def _step(self, layer: Layer) -> Step:
        """Convert a layer."""
        if layer.bias.ndim or layer.bias > 0 or layer.activation != "relu":
            raise DeviceError(f"{self.name} runs networks of the challenge's kind only")
        return Step(self.weights(layer.weights), float(layer.bias), layer.ymax)

    def load(self) -> None:
        """Load the library (DeviceError if it cannot be)."""

    def weights(self, weights: sp.csr_array) -> Any:
        """Convert the weights of a layer (inputs x outputs) to the form of the library."""
        return weights

    def convert(self, features: Features) -> Any:
        """Convert features to the form of the library, before the clock starts."""
        raise NotImplementedError

    def run(self, converted: Any) -> Live:
        """Run converted features; return those that are live at the end, 0-based, ascending."""
        raise NotImplementedError


class ScipyCsr(Rival):
    """scipy: sparse features times sparse weights, float32, with one thread."""

    key = "scipy-csr"
    name = "scipy CSR x CSR"
    short = "scipy CSR"
    usual_rate = 2.5e8
    uses_threads = False

    def convert(self, features: Features) -> Any:
        """Convert features to a csr_array, float32."""
        return features.to_csr(np.float32)

    def run(self, converted: Any) -> Live:
        """Run all layers."""
        y = converted
        for weights, bias, ymax in self.steps:
            y = y @ weights
            y.data += np.float32(bias)
            np.clip(y.data, 0, ymax, out=y.data)
            y.eliminate_zeros()
        return np.flatnonzero(np.diff(y.indptr)).astype(np.int64)


class _DenseColumns(Rival):
    """Sparse weights times dense features (neurons x features), dead columns dropped."""

    arrays: ModuleType = np
    """NumPy, or a module with the same functions."""

    def weights(self, weights: sp.csr_array) -> Any:
        """Transpose the weights (outputs x inputs), in CSR form."""
        return weights.T.tocsr()

    def product(self, weights: Any, y: Any) -> Any:
        """Multiply sparse weights by dense features."""
        raise NotImplementedError

    def convert(self, features: Features) -> Any:
        """Convert features to dense columns, float32."""
        n_bytes = COPIES * 4 * features.n_features * self.width
        require_bytes(n_bytes, f"{self.name}: dense features", "take fewer features")
        return np.ascontiguousarray(features.to_csr(np.float32).toarray().T)

    def run(self, converted: Any) -> Live:
        """Run all layers."""
        y = converted
        ids = self.arrays.arange(y.shape[1])
        for weights, bias, ymax in self.steps:
            y = self.product(weights, y)
            y += bias
            self.arrays.clip(y, 0, ymax, out=y)
            live = y.any(axis=0)
            if not live.all():
                y, ids = self.kept(y, live), ids[live]
        return self.on_host(ids).astype(np.int64)

    def kept(self, y: Any, live: Any) -> Any:
        """Keep the live columns."""
        return self.arrays.array(y[:, live], copy=True, order="K")

    def on_host(self, ids: Any) -> npt.NDArray[Any]:
        """Copy an array of the library to NumPy."""
        return np.asarray(ids)


class ScipyDense(_DenseColumns):
    """scipy: sparse weights times dense features with pruning, with one thread."""

    key = "scipy-dense"
    name = "scipy CSR x dense + pruning"
    short = "scipy dense"
    usual_rate = 1.2e9
    uses_threads = False

    def product(self, weights: Any, y: Any) -> Any:
        """Multiply by scipy."""
        return weights @ y


class Mkl(_DenseColumns):
    """MKL through sparse_dot_mkl: sparse weights times dense features with pruning."""

    key = "mkl"
    name = "MKL sparse x dense + pruning"
    short = "MKL"
    packages = ("sparse_dot_mkl", "mkl")
    usual_rate = 1.5e9

    def load(self) -> None:
        """Load MKL, also from where pip installs it."""
        if "MKL_RT" not in os.environ and ctypes.util.find_library("mkl_rt") is None:
            try:
                found = [file for file in files("mkl") or [] if "libmkl_rt.so" in file.name]
            except PackageNotFoundError:
                raise DeviceError(f"{self.name}: mkl is not installed") from None
            os.environ["MKL_RT"] = str(found[0].locate())
        self.mkl = _import(self.name, "sparse_dot_mkl")

    def product(self, weights: Any, y: Any) -> Any:
        """Multiply by MKL."""
        return self.mkl.dot_product_mkl(weights, y)


class CuSparse(_DenseColumns):
    """cuSPARSE through CuPy: sparse weights times dense features with pruning, on the GPU."""

    key = "cusparse"
    name = "cuSPARSE (CuPy) sparse x dense + pruning"
    short = "cuSPARSE"
    packages = ("cupy", "cupy-cuda12x", "cupy-cuda13x")
    usual_rate = 1e11
    uses_threads = False

    def load(self) -> None:
        """Load CuPy, and find a GPU that it can use."""
        self.arrays = _import(self.name, "cupy")
        self.sparse = _import(self.name, "cupyx.scipy.sparse")
        try:
            n_devices = self.arrays.cuda.runtime.getDeviceCount()
        except self.arrays.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(f"{self.name}: no GPU can be used ({error})") from error
        if not n_devices:
            raise DeviceError(f"{self.name}: there is no GPU")

    def weights(self, weights: sp.csr_array) -> Any:
        """Copy the weights to the GPU."""
        return self.sparse.csr_matrix(sp.csr_matrix(super().weights(weights)))

    def product(self, weights: Any, y: Any) -> Any:
        """Multiply by cuSPARSE's SpMM, which needs the numbers of each column together."""
        return weights @ y

    def convert(self, features: Features) -> Any:
        """Make dense columns on the GPU, part by part, with the numbers of each column together."""
        rows = features.to_csr(np.float32)
        dense = self.arrays.empty(rows.shape, dtype=np.float32)
        step = max(1, DENSE_PART // features.n_neurons)
        for first in range(0, features.n_features, step):
            dense[first : first + step] = self.arrays.asarray(rows[first : first + step].toarray())
        return dense.T

    def kept(self, y: Any, live: Any) -> Any:
        """Keep the live columns, with the numbers of each column together."""
        return y.T[live].T

    def on_host(self, ids: Any) -> npt.NDArray[Any]:
        """Wait for the GPU and copy its array."""
        host: npt.NDArray[Any] = self.arrays.asnumpy(ids)
        return host


class Torch(_DenseColumns):
    """PyTorch: sparse CSR weights times dense features with pruning, on the CPU."""

    key = "torch"
    name = "PyTorch sparse CSR x dense + pruning"
    short = "PyTorch"
    packages = ("torch",)
    usual_rate = 1.5e9

    def load(self) -> None:
        """Load PyTorch, and set its threads."""
        self.torch = _import(self.name, "torch")
        self.torch.set_num_threads(self.threads)

    def weights(self, weights: sp.csr_array) -> Any:
        """Make a sparse CSR tensor of the weights."""
        transposed = super().weights(weights)
        parts = (transposed.indptr, transposed.indices, transposed.data)
        tensors = [self.torch.from_numpy(np.array(part)) for part in parts]
        with warnings.catch_warnings(category=UserWarning, action="ignore"):  # "in beta state"
            return self.torch.sparse_csr_tensor(*tensors, size=transposed.shape)

    def convert(self, features: Features) -> Any:
        """Make a tensor of dense columns."""
        return self.torch.from_numpy(super().convert(features))

    def run(self, converted: Any) -> Live:
        """Run all layers with PyTorch's own operations."""
        y = converted
        ids = self.torch.arange(y.shape[1])
        with self.torch.inference_mode():
            for weights, bias, ymax in self.steps:
                y = (weights @ y).add_(bias).clamp_(0, ymax)
                live = (y != 0).any(dim=0)
                if not live.all():
                    y, ids = y[:, live], ids[live]
        return np.asarray(ids.numpy()).astype(np.int64)


class GraphBlas(Rival):
    """SuiteSparse:GraphBLAS through python-graphblas: sparse weights and sparse features."""

    key = "graphblas"
    name = "SuiteSparse:GraphBLAS"
    short = "GraphBLAS"
    packages = ("python-graphblas", "suitesparse-graphblas")
    usual_rate = 1e8

    def load(self) -> None:
        """Load GraphBLAS, and set its threads."""
        self.graphblas = _import(self.name, "graphblas")
        self.graphblas.ss.config["nthreads"] = self.threads

    def weights(self, weights: sp.csr_array) -> Any:
        """Make a GraphBLAS matrix of the weights."""
        return self.graphblas.io.from_scipy_sparse(sp.csr_matrix(weights))

    def convert(self, features: Features) -> Any:
        """Make a GraphBLAS matrix of the features, FP32."""
        return self.weights(features.to_csr(np.float32))

    def run(self, converted: Any) -> Live:
        """Run all layers."""
        op = self.graphblas.op
        y = converted
        for weights, bias, ymax in self.steps:
            y = y.mxm(weights, op.plus_times).new(dtype="FP32")
            y = y.apply(op.plus, right=bias).new()
            y = y.select(">", 0).new()
            y = y if ymax is None else y.apply(op.min, right=ymax).new()
        live = y.reduce_rowwise(op.plus).new().to_coo()[0]
        return np.sort(live).astype(np.int64)


class OnnxRuntime(Rival):
    """ONNX Runtime: dense weights times dense features, with zeros for all that is not there.

    What one takes who knows nothing of sparsity. Nothing is dropped.
    """

    key = "onnxruntime"
    name = "ONNX Runtime, dense"
    short = "ONNX Runtime"
    packages = ("onnxruntime",)
    usual_rate = 1e8

    def __init__(self, network: Network, threads: int | None = None) -> None:
        super().__init__(network, threads)
        self.scores = dense_onnx(network.layers, self.threads)

    def convert(self, features: Features) -> Any:
        """Features as dense rows, float32."""
        n_bytes = COPIES * 4 * features.n_features * self.width
        require_bytes(n_bytes, f"{self.name}: dense features", "take fewer `features`")
        return features.to_csr(np.float32).toarray()

    def run(self, converted: Any) -> Live:
        """Run all layers."""
        return np.flatnonzero(self.scores(converted).any(axis=1)).astype(np.int64)


def _import(name: str, module: str) -> ModuleType:
    """Import a library of a rival (DeviceError if it cannot be imported)."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DeviceError(f"{name}: {module} is not installed ({error})") from error


RIVALS: dict[str, type[Rival]] = {
    rival.key: rival
    for rival in (Mkl, Torch, OnnxRuntime, ScipyDense, GraphBlas, ScipyCsr, CuSparse)
}
"""All rivals by key. A new rival is a class and its name here."""
