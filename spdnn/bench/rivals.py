"""The same inference by other libraries, each optional, behind one small face.

Each is the best plain loop that its library allows: one product a layer, then bias, ReLU and cap.
Those with dense columns drop dead features after every layer, as the challenge's champions do.
Weights are converted before the clock starts.
"""

import ctypes.util
import importlib
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DeviceError
from spdnn.features import Features
from spdnn.network import Layer, Network

Live = npt.NDArray[np.int64]
Run = Callable[[Any], Live]
Product = Callable[[Any, npt.NDArray[np.float32]], npt.NDArray[np.float32]]


class Rival:
    """One way to run a network; made for a network, then run on features.

    Parameters
    ----------
    network : Network
        Layers of the challenge's kind: `relu`, the challenge's bias rule, a scalar bias that
        is not positive.

    Raises
    ------
    DeviceError
        If its library is not installed; the message says which.
    """

    name: str

    def __init__(self, network: Network) -> None:
        self.layers = list(network.layers)
        for layer in self.layers:
            if layer.bias.ndim or layer.bias > 0 or layer.activation != "relu":
                raise DeviceError(f"{self.name} runs networks of the challenge's kind only")

    def convert(self, features: Features) -> Any:
        """Bring features into the library's own form, before the clock starts."""
        raise NotImplementedError

    def run(self, converted: Any) -> Live:
        """Return the live features (0-based, ascending) of converted features."""
        raise NotImplementedError


class ScipyCsr(Rival):
    """scipy: sparse features times sparse weights, float32, one thread."""

    name = "scipy CSR x CSR"

    def convert(self, features: Features) -> Any:
        """Features as csr_array, float32."""
        return features.to_csr(np.float32)

    def run(self, converted: Any) -> Live:
        """Run all layers."""
        y = converted
        for layer in self.layers:
            y = y @ layer.weights
            y.data += layer.bias
            np.clip(y.data, 0, layer.ymax, out=y.data)
            y.eliminate_zeros()
        return np.flatnonzero(np.diff(y.indptr)).astype(np.int64)


class _DenseColumns(Rival):
    """Sparse weights times dense features (neurons x features), dead columns dropped."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.transposed = [layer.weights.T.tocsr() for layer in self.layers]
        self.product = self.make_product()

    def make_product(self) -> Product:
        """The library's product of a csr_array and a dense matrix."""
        raise NotImplementedError

    def convert(self, features: Features) -> Any:
        """Features as dense columns, float32."""
        return np.ascontiguousarray(features.to_csr(np.float32).toarray().T)

    def run(self, converted: Any) -> Live:
        """Run all layers."""
        y = converted
        ids = np.arange(y.shape[1])
        for layer, weights in zip(self.layers, self.transposed, strict=True):
            y = self.product(weights, y)
            y += layer.bias
            np.clip(y, 0, layer.ymax, out=y)
            live = y.any(axis=0)
            if not live.all():
                y, ids = np.ascontiguousarray(y[:, live]), ids[live]
        return ids.astype(np.int64)


class ScipyDense(_DenseColumns):
    """scipy: sparse weights times dense features with pruning, one thread."""

    name = "scipy CSR x dense + pruning"

    def make_product(self) -> Product:
        """Scipy's own."""
        return lambda weights, y: weights @ y


class Mkl(_DenseColumns):
    """MKL through sparse_dot_mkl: sparse weights times dense features with pruning."""

    name = "MKL sparse x dense + pruning"

    def make_product(self) -> Product:
        """MKL's, its library found where pip puts it."""
        if "MKL_RT" not in os.environ and ctypes.util.find_library("mkl_rt") is None:
            try:
                found = [file for file in files("mkl") or [] if "libmkl_rt.so" in file.name]
            except PackageNotFoundError:
                raise DeviceError(f"{self.name}: mkl is not installed") from None
            os.environ["MKL_RT"] = str(found[0].locate())
        product: Product = _import(self.name, "sparse_dot_mkl").dot_product_mkl
        return product


class GraphBlas(Rival):
    """SuiteSparse:GraphBLAS through python-graphblas, sparse throughout."""

    name = "SuiteSparse:GraphBLAS"

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.graphblas = _import(self.name, "graphblas")
        self.matrices = [self._matrix(layer.weights) for layer in self.layers]

    def _matrix(self, csr: Any) -> Any:
        return self.graphblas.io.from_scipy_sparse(sp.csr_matrix(csr))

    def convert(self, features: Features) -> Any:
        """Features as a GraphBLAS matrix, FP32."""
        return self._matrix(features.to_csr(np.float32))

    def run(self, converted: Any) -> Live:
        """Run all layers."""
        op = self.graphblas.op
        y = converted
        for layer, weights in zip(self.layers, self.matrices, strict=True):
            y = y.mxm(weights, op.plus_times).new(dtype="FP32")
            y = self._activated(y, layer, op)
        live = y.reduce_rowwise(op.plus).new().to_coo()[0]
        return np.sort(live).astype(np.int64)

    def _activated(self, y: Any, layer: Layer, op: Any) -> Any:
        y = y.apply(op.plus, right=float(layer.bias)).new()
        y = y.select(">", 0).new()
        return y if layer.ymax is None else y.apply(op.min, right=layer.ymax).new()


def _import(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DeviceError(f"{name}: {module} is not installed ({error})") from error


RIVALS: tuple[type[Rival], ...] = (Mkl, ScipyDense, GraphBlas, ScipyCsr)
"""All of them, the fastest first."""
