"""The compiler of GPU kernels: numba-cuda, or what comes after it.

Everything that this package takes from the compiler is in this module. Another compiler of the same
language (numba-cuda-mlir) is then one import away; see docs/decisions/0005. Under
``NUMBA_ENABLE_CUDASIM=1`` kernels run in the simulator, in Python, without a GPU.
"""

import importlib.util
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

if importlib.util.find_spec("numba_cuda") is None:
    raise ImportError("numba-cuda is not installed")

try:
    from numba import config, cuda, float32, int32, int64, typeof, uint16, uint32, uint64
except RuntimeError as error:  # its loader's own: numba-cuda without the CUDA libraries
    raise ImportError(str(error).splitlines()[0]) from error

__all__ = [
    "ALIGNED",
    "SIMULATED",
    "WARP",
    "compile_for",
    "compile_ptx",
    "cuda",
    "float32",
    "has_compiler",
    "inlined",
    "int32",
    "int64",
    "int_as_float",
    "kernel",
    "launch_errors",
    "let_share",
    "uint16",
    "uint32",
    "uint64",
]

WARP = 32
"""Threads of a warp."""

SIMULATED = bool(config.ENABLE_CUDASIM)
"""Whether kernels run in the simulator."""

if not SIMULATED and not hasattr(np, "row_stack"):
    # numba-cuda uses a name that NumPy 2.5 has removed, and that will not be changed (its issue
    # 907). Without it no kernel can be compiled.
    _numpy: Any = np
    _numpy.row_stack = np.vstack
    try:
        importlib.import_module("numba.cuda.np.arrayobj")
    finally:
        del _numpy.row_stack

if not SIMULATED:
    # A launch of few blocks is no mistake that users should hear of.
    _config: Any = importlib.import_module("numba.cuda.core.config")
    _config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

ALIGNED = None if SIMULATED else 16
"""Alignment in bytes of shared memory that is read four numbers at a time."""


def _int_as_float(bits: Any) -> Any:
    return np.int32(bits).view(np.float32)


int_as_float: Any = (
    _int_as_float if SIMULATED else importlib.import_module("numba.cuda.libdevice").int_as_float
)
"""The float32 number that 32 bits are; a scalar's `view` would need a device to compile."""


def kernel(function: Callable[..., Any], max_registers: int | None = None) -> Any:
    """Make a kernel of a function, compiled when it is first launched.

    Parameters
    ----------
    function : callable
        A function of arrays, numbers and records of them (`spdnn.engines.cuda.kernels.records`).
    max_registers : int, optional
        Registers a thread at most: what the occupancy wanted leaves.
    """
    if SIMULATED:
        return cuda.jit(function)
    return cuda.jit(function, max_registers=max_registers)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make of a function of numbers one that kernels can call."""
    if SIMULATED:
        return function
    device: Callable[..., Any] = cuda.jit(function, device=True, inline="always")
    return device


def compile_for(compiled: Any, arguments: tuple[Any, ...]) -> None:
    """Compile a kernel for arguments of these types now, not when it is first launched.

    Parameters
    ----------
    compiled : kernel
    arguments : tuple
        As a launch takes them.
    """
    if not SIMULATED:
        compiled.compile(tuple(map(typeof, arguments)))


def launch_errors() -> tuple[type[Exception], ...]:
    """What the compiler's driver raises when a module or a launch fails."""
    from numba.cuda.cudadrv.driver import CudaAPIError, LinkerError

    errors: list[type[Exception]] = [CudaAPIError, LinkerError]
    with suppress(ImportError):  # it has no public name, and has moved before
        errors.append(importlib.import_module("cuda.core._utils.cuda_utils").CUDAError)
    return tuple(errors)


def let_share(compiled: Any, n_bytes: int) -> None:
    """Let a compiled kernel be launched with so much dynamic shared memory.

    Parameters
    ----------
    compiled : kernel
        A kernel that `compile_for` has compiled.
    n_bytes : int

    Notes
    -----
    Without it a launch may ask for 48 KiB less the kernel's static shared memory. numba-cuda does
    not ask for more by itself; its successor, which does, missed that at first (issue 143 of
    numba-cuda-mlir). numba-cuda has no public way to set this attribute (its issue 94). This
    function takes the way that numba-cuda itself takes for the carve-out. It is the only private
    part of numba-cuda that is used.
    """
    if SIMULATED:
        return
    from numba.cuda.cudadrv.driver import binding, driver

    attribute = binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    for overload in compiled.overloads.values():
        function = overload._codelibrary.get_cufunc()
        driver.cuKernelSetAttribute(attribute, n_bytes, function.handle, function.device.id)


def has_compiler() -> bool:
    """Whether kernels can be compiled here: whether libNVVM can be loaded."""
    if SIMULATED:
        return False
    try:
        importlib.import_module("numba.cuda.cudadrv.nvvm").NVVM()
    except Exception:  # its loader has errors of its own, and others in each version
        return False
    return True


def compile_ptx(
    function: Callable[..., Any],
    signature: tuple[Any, ...],
    capability: tuple[int, int],
) -> str:
    """Compile a kernel to PTX; this needs neither a GPU nor a driver.

    Parameters
    ----------
    function : callable
    signature : tuple
        The compiler's types of the arguments.
    capability : tuple of int
        Compute capability of the GPU.
    """
    text: str
    text, _ = cuda.compile(
        function, signature, cc=capability, device=False, abi="numba", output="ptx"
    )
    return text
