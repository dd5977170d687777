"""The compiler of GPU kernels: numba-cuda, or what comes after it.

Everything that this package takes from the compiler is in this module. Another compiler of the same
language (numba-cuda-mlir) is then one import away; see docs/decisions/0005. Under
``NUMBA_ENABLE_CUDASIM=1`` kernels run in the simulator, in Python, without a GPU.
"""

import ctypes
import importlib.util
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

if importlib.util.find_spec("numba_cuda") is None:
    raise ImportError("numba-cuda is not installed")

with suppress(ImportError):
    # numba-cuda takes the place of Numba's own `numba.cuda` by a .pth file. Python does not read
    # that in a folder of PYTHONPATH, where `pip install --target` may have put it.
    importlib.import_module("_numba_cuda_redirector")

try:
    from numba import config, cuda, float32, int32, int64, typeof, uint16, uint32, uint64
except RuntimeError as error:  # its loader's own: numba-cuda without the CUDA libraries
    raise ImportError(str(error).splitlines()[0]) from error

if getattr(cuda, "implementation", None) != "NVIDIA":
    raise ImportError(
        "numba.cuda was imported first, and is Numba's own: import _numba_cuda_redirector before it"
    )

__all__ = [
    "ALIGNED",
    "QUAD",
    "SIMULATED",
    "WARP",
    "PackedLaunch",
    "compile_ptx",
    "cuda",
    "float32",
    "float_as_int",
    "has_compiler",
    "in_global",
    "in_shared",
    "inlined",
    "int32",
    "int64",
    "int_as_float",
    "kernel",
    "launch_errors",
    "least_capability",
    "let_share",
    "loaded",
    "store4",
    "uint16",
    "uint32",
    "uint64",
    "what_failed",
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


QUAD = 4
"""Numbers that one instruction loads or stores at most: 16 bytes, aligned to as many."""


def _place(array: Any, index: Any) -> Any:
    return index


def _load(array: Any, place: Any, further: Any) -> Any:
    return array[place + further]


def _load4(array: Any, place: Any, further: Any) -> tuple[Any, ...]:
    return tuple(array[place + further : place + further + QUAD])


def _store4(array: Any, index: Any, first: Any, second: Any, third: Any, fourth: Any) -> None:
    array[index : index + QUAD] = first, second, third, fourth


def _float_as_int(number: Any) -> Any:
    return np.float32(number).view(np.int32)


class Access(NamedTuple):
    """Ways to memory that the compiler of kernels does not offer, in one of the memories.

    Attributes
    ----------
    place : callable
        ``place(array, index)``: where a number of an array lies. `array` has one axis, numbers of
        32 bits. `index` is a whole number without a sign.
    load : callable
        ``load(array, place, further)``: the number so many numbers behind a place. A loop whose
        place stays the same has less to compute at each load than with an index.
    load4 : callable
        ``load4(array, place, further)``: four numbers of float32 from there on, a tuple, by one
        instruction. They must lie at a multiple of 16 bytes.
    """

    place: Any
    load: Any
    load4: Any


def _compiled(space: int) -> Access:
    """Make `Access` for kernels, for an address space of NVVM: 1 global, 3 shared memory."""
    four = ir.VectorType(ir.FloatType(), QUAD)

    def place(typing_context: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _pointer(context, builder, signature, arguments)
            pointer = builder.addrspacecast(pointer, pointer.type.pointee.as_pointer(space))
            return builder.ptrtoint(pointer, ir.IntType(64))

        return types.uint64(array, index), generate

    def loaded(kind: Any, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Load a number, or four."""
        further = context.cast(builder, arguments[2], signature.args[2], types.uint64)
        further = builder.mul(further, ir.Constant(ir.IntType(64), 4))
        at = builder.add(arguments[1], further)
        pointer = builder.inttoptr(at, kind.as_pointer(space))
        return builder.load(pointer, align=4 * QUAD if kind is four else 4)

    def load(typing_context: Any, array: Any, place: Any, further: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = context.get_data_type(array.dtype)
            return loaded(kind, context, builder, signature, arguments)

        return array.dtype(array, types.uint64, further), generate

    def load4(typing_context: Any, array: Any, place: Any, further: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vector = loaded(four, context, builder, signature, arguments)
            numbers = [
                builder.extract_element(vector, ir.Constant(ir.IntType(32), number))
                for number in range(QUAD)
            ]
            return context.make_tuple(builder, signature.return_type, numbers)

        return types.UniTuple(types.float32, QUAD)(array, types.uint64, further), generate

    return Access(intrinsic(place), intrinsic(load), intrinsic(load4))


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The pointer to a number of an array: the first two of the arguments."""
    memory = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(
        memory, [context.cast(builder, arguments[1], signature.args[1], types.uint64)]
    )


def _compiled_store4(
    typing_context: Any, array: Any, index: Any, first: Any, second: Any, third: Any, fourth: Any
) -> Any:
    quad = ir.VectorType(ir.FloatType(), QUAD)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments)
        stored = ir.Constant(quad, ir.Undefined)
        for number, value in enumerate(arguments[2:]):
            stored = builder.insert_element(stored, value, ir.Constant(ir.IntType(32), number))
        builder.store(stored, builder.bitcast(pointer, quad.as_pointer()), align=4 * QUAD)
        return context.get_dummy_value()

    return types.none(array, index, *[types.float32] * QUAD), generate


in_global: Access
"""Access to global memory."""

in_shared: Access
"""Access to shared memory."""

store4: Any
"""``store4(array, index, a, b, c, d)``: store four numbers, aligned to 16 bytes, at once."""

float_as_int: Any
"""The bits of a float32 number as int32; a scalar's `view` would need a device to compile."""

if SIMULATED:
    in_global = in_shared = Access(_place, _load, _load4)
    store4, float_as_int = _store4, _float_as_int
else:
    from llvmlite import ir

    types: Any = importlib.import_module("numba.core.types")
    intrinsic: Any = importlib.import_module("numba.cuda.extending").intrinsic
    in_global, in_shared = _compiled(1), _compiled(3)
    store4 = intrinsic(_compiled_store4)
    float_as_int = importlib.import_module("numba.cuda.libdevice").float_as_int


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


def launch_errors() -> tuple[type[Exception], ...]:
    """What the compiler, its linker and its driver raise when a module or a launch fails."""
    errors: list[type[Exception]] = []
    for module, name in _ERRORS:
        with suppress(ImportError, AttributeError):  # a version without it does not raise it
            errors.append(getattr(importlib.import_module(module), name))
    return tuple(errors)


def loaded(compiled: Any, arguments: tuple[Any, ...]) -> Any:
    """Compile a kernel for arguments of these types, and load it to the current GPU.

    Parameters
    ----------
    compiled : kernel
    arguments : tuple
        Arrays of NumPy instead of those of the device, numbers, and tuples of them.

    Returns
    -------
    object
        What `let_share` and `PackedLaunch` take.

    Notes
    -----
    numba-cuda's dispatcher takes some 60 to 100 microseconds for a launch, since it looks at every
    argument each time. It has no public way to a compiled kernel's handle (its issue 94 asks for
    one). These functions take the way that numba-cuda itself takes; no other private part of it
    is used.
    """
    kernel = compiled.compile(tuple(map(typeof, arguments)))
    return kernel._codelibrary.get_cufunc()


def let_share(function: Any, n_bytes: int) -> None:
    """Let a kernel be launched with so much dynamic shared memory.

    Parameters
    ----------
    function : object
        As `loaded` gave it.
    n_bytes : int

    Notes
    -----
    Without it a launch may ask for 48 KiB less the kernel's static shared memory. numba-cuda does
    not ask for more by itself; its successor, which does, missed that at first (issue 143 of
    numba-cuda-mlir).
    """
    from numba.cuda.cudadrv.driver import binding, driver

    attribute = binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.cuKernelSetAttribute(attribute, n_bytes, function.handle, function.device.id)


class PackedLaunch:
    """A launch whose parameters are packed: a call costs little more than the driver's.

    Parameters
    ----------
    function : object
        As `loaded` gave it.
    n_threads : int
        Threads of a thread block.
    parameters : bytes
        Eight for each parameter.
    shared : int
        Dynamic shared memory of a thread block, in bytes.
    stream : int
        The address of the stream.
    """

    __slots__ = (
        "_at", "_binding_launch", "_function", "_n_threads", "_pointers", "_shared", "_stream",
        "_values",
    )  # fmt: skip

    def __init__(
        self, function: Any, n_threads: int, parameters: bytes, shared: int, stream: int
    ) -> None:
        from numba.cuda.cudadrv.driver import binding

        self._values = ctypes.create_string_buffer(parameters, len(parameters))
        first = ctypes.addressof(self._values)
        self._pointers = np.arange(first, first + len(parameters), 8, dtype=np.uint64)
        self._at = self._pointers.ctypes.data
        self._function = binding.CUfunction(int(function.handle))
        self._stream = binding.CUstream(stream)
        self._n_threads, self._shared = n_threads, shared
        self._binding_launch = binding.cuLaunchKernel

    def __call__(self, grid: tuple[int, ...]) -> None:
        """Launch.

        Parameters
        ----------
        grid : tuple of int
            Thread blocks along one axis or two.
        """
        n_x, n_y = grid if len(grid) == 2 else (grid[0], 1)
        (status,) = self._binding_launch(
            self._function, n_x, n_y, 1, self._n_threads, 1, 1, self._shared, self._stream,
            self._at, 0,
        )  # fmt: skip
        if status:
            from numba.cuda.cudadrv.driver import CudaAPIError

            raise CudaAPIError(int(status), f"cuLaunchKernel results in {status.name}")


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


_ERRORS = (
    ("numba.cuda.cudadrv.driver", "CudaAPIError"),
    ("numba.cuda.cudadrv.driver", "LinkerError"),
    ("numba.cuda.cudadrv.error", "CCSupportError"),
    ("numba.cuda.cudadrv.error", "NvvmError"),
    ("numba.cuda.cudadrv.error", "NvvmSupportError"),
    ("cuda.bindings.nvjitlink", "nvJitLinkError"),
    ("cuda.bindings.nvvm", "nvvmError"),
    ("cuda.core._utils.cuda_utils", "CUDAError"),  # it has no public name, and has moved before
    ("cuda.pathfinder", "DynamicLibNotFoundError"),
)
"""What is raised where a kernel is compiled, linked, loaded or launched, by module."""


VERSIONS_DIFFER = re.compile(
    r"Unsupported \.version|UNSUPPORTED_PTX_VERSION|newer version of nvJitLink"
    r"|OUTDATED_LIBRARY|(UNRECOGNIZED|UNSUPPORTED)_ARCH"
)
"""How nvJitLink, ptxas and the driver say that what libNVVM made is too new for them."""


def what_failed(error: BaseException) -> str:
    """One line of what was raised; where versions do not fit, with what would.

    Parameters
    ----------
    error : BaseException
        One of `launch_errors`, or any other.
    """
    text = str(error).replace("\0", "").strip() or type(error).__name__
    # A linker gives its status first. What it found follows in its log, what ptxas found in that.
    log = text.partition("error log:")[2].strip() or text
    line = log.splitlines()[0]
    line = line.partition("fatal")[2].strip(" :") or line
    if not VERSIONS_DIFFER.search(text):
        return line
    return (
        f"{line}: libNVVM must not be newer than nvJitLink or the driver: "
        f"pip install --upgrade {_linker_package()}"
    )


def _linker_package() -> str:
    """The package of nvJitLink, which links what any older libNVVM of its CUDA has made."""
    bindings = importlib.import_module("cuda.bindings")
    is_old = int(bindings.__version__.partition(".")[0]) < 13
    return "nvidia-nvjitlink-cu12" if is_old else "nvidia-nvjitlink"


def least_capability() -> tuple[int, int] | None:
    """Compute capability of the oldest GPUs that the compiler makes code for, where it tells it."""
    if SIMULATED:
        return None
    try:
        least: tuple[int, int] = importlib.import_module(
            "numba.cuda.cudadrv.nvrtc"
        ).get_lowest_supported_cc()
    except Exception:  # its loader has errors of its own; whatever is wrong, a launch will say it
        return None
    return least
