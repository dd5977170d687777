"""The device on which the GPU kernels' compiled instructions run on this CPU."""

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import typeof

from spdnn.engines.cuda.device import (
    DeviceArray,
    SimulatedDevice,
    at_least_one,
    in_memory,
    packed,
    view_of,
)
from spdnn.engines.cuda.emulated.checks import Checks, Fault
from spdnn.engines.cuda.emulated.launch import Divergence, Order, Program, aligned
from spdnn.engines.cuda.emulated.ptx import Kernel, parse
from spdnn.engines.cuda.kernels import gpu
from spdnn.errors import DeviceError
from spdnn.machine.memory import available_bytes
from spdnn.machine.threads import default_threads

CAPABILITY = (9, 0)
"""Compute capability for which kernels are compiled: an H200's."""

INSTALL = "pip install 'spdnn[gpu-proof]'"
"""What brings the compiler, without a GPU or CuPy."""


class EmulatedDevice(SimulatedDevice):
    """Executes what libNVVM has made of the kernels, on all processors that there are.

    Parameters
    ----------
    n_bytes : int, optional
        Memory that it claims to have; by default what the machine has left.
    n_processors : int, optional
        Blocks that run at a time; by default `spdnn.machine.threads.default_threads`.
    seed : int, optional
        With it blocks, and threads between barriers, run in another order in each launch.

    Raises
    ------
    DeviceError
        If the compiler of kernels is not there; says what to install.
    """

    name = "emulated GPU"
    is_checked = False
    n_multiprocessors = 132
    shared_bytes = 227 << 10

    def __init__(
        self,
        n_bytes: int | None = None,
        n_processors: int | None = None,
        seed: int | None = None,
    ) -> None:
        if gpu.SIMULATED:
            raise DeviceError(
                "an emulated GPU runs what the compiler makes of kernels: "
                "unset NUMBA_ENABLE_CUDASIM, which takes its place"
            )
        if not gpu.has_compiler():
            raise DeviceError(f"an emulated GPU needs libNVVM, which is not there: {INSTALL}")
        super().__init__(1 << 62 if n_bytes is None else n_bytes)
        self.n_processors = n_processors or default_threads()
        self._random = None if seed is None else np.random.default_rng(seed)

    def free_bytes(self) -> int:
        """What the machine has left, or what it claims to have."""
        return min(self.n_bytes, available_bytes())

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """An array with the alignment of a GPU's memory, filled with what shows if it is used."""
        sizes = at_least_one(shape)
        n_bytes = int(np.prod(sizes)) * np.dtype(dtype).itemsize
        array = aligned(n_bytes).view(dtype).reshape(sizes)
        array.fill(np.nan if array.dtype.kind == "f" else 77)
        return in_memory(array)

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Run a kernel's instructions to their end."""
        views = tuple(map(view_of, arguments))
        program = self._program(kernel, views)
        reached = program.launch(
            grid, n_threads, parameters_of(arguments), shared, self._order(grid, n_threads),
            self.n_processors,
        )  # fmt: skip
        require_met(program.kernel, reached)

    def _program(self, kernel: Any, views: tuple[Any, ...]) -> Program:
        """The program of a kernel for arguments of these types, compiled when first wanted."""
        signature = tuple(map(typeof, views))
        key = (kernel, signature, self.is_checked)
        if key not in _PROGRAMS:
            _PROGRAMS[key] = self.compiled(parsed(kernel, signature))
        return _PROGRAMS[key]

    def compiled(self, kernel: Kernel) -> Program:
        """The program of a kernel's instructions.

        Parameters
        ----------
        kernel : Kernel
            Instructions, as `parsed` gives them.
        """
        return Program(kernel)

    def _order(self, grid: tuple[int, ...], n_threads: int) -> Order:
        n_blocks = int(np.prod(grid))
        if self._random is None:
            return Order(np.arange(n_threads), np.arange(n_blocks))
        return Order(self._random.permutation(n_threads), self._random.permutation(n_blocks))


_PROGRAMS: dict[tuple[Any, ...], Program] = {}
"""What has been compiled in this process: by kernel, types of arguments, and whether checked."""


@cache
def parsed(kernel: Any, signature: tuple[Any, ...]) -> Kernel:
    """The instructions that the compiler makes of a kernel.

    Parameters
    ----------
    kernel : kernel
        As `spdnn.engines.cuda.kernels.gpu.kernel` makes it.
    signature : tuple
        Types of its arguments.
    """
    text = gpu.compile_ptx(kernel.py_func, signature, CAPABILITY)
    return parse(text, kernel.py_func.__name__)


class CheckedDevice(EmulatedDevice):
    """Watches every access to memory of the emulated GPU; for small networks.

    A launch raises DeviceError where it does what compute-sanitizer would report: an access out of
    bounds or not aligned, a read of memory that nobody has written, a race, a barrier that not all
    threads reach. Races that do no harm are allowed by name; see
    `spdnn.engines.cuda.emulated.checks.ALLOWED`.

    Parameters
    ----------
    n_bytes, seed : int, optional
        As of `EmulatedDevice`.

    Attributes
    ----------
    allowed : list of Fault
        Races found that are allowed.
    """

    name = "emulated GPU with checks"
    is_checked = True

    def __init__(self, n_bytes: int | None = None, seed: int | None = None) -> None:
        super().__init__(n_bytes, 1, seed)
        self._checks = Checks()
        self.allowed: list[Fault] = []

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """An array of which is known that nobody has written it."""
        array = super().empty(shape, dtype)
        self._checks.add(array.memory)
        return array

    def fill_bytes(self, array: DeviceArray, byte: int) -> None:
        """Set all bytes."""
        super().fill_bytes(array, byte)
        self._checks.note_written(array.memory, array.n_bytes)

    def write(self, array: DeviceArray, host: npt.NDArray[Any], ahead: bool = False) -> None:
        """Copy to the beginning."""
        super().write(array, host, ahead)
        self._checks.note_written(array.memory, host.nbytes)

    def copy(self, target: DeviceArray, source: DeviceArray, first: int, count: int) -> None:
        """Copy to the beginning."""
        super().copy(target, source, first, count)
        self._checks.note_written(target.memory, count * target.memory.itemsize)

    def compiled(self, kernel: Kernel) -> Program:
        """The program of a kernel's instructions, with a call at each access."""
        return Program(kernel, self._checks.hooks)

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Run a kernel to its end, or raise (DeviceError) at the first thing that is wrong."""
        views = tuple(map(view_of, arguments))
        program = self._program(kernel, views)
        memory = program.new_shared(shared)
        order = self._order(grid, n_threads)
        watch = self._checks.watch(
            named_arrays(kernel.py_func, views),
            dict(zip(program.kernel.shared_in_order(), shared_names(kernel.py_func), strict=True)),
            memory,
            n_threads,
            order.blocks.size,
        )
        reached = program.launch(
            grid, n_threads, parameters_of(arguments), shared, order, 1, memory, watch.address
        )
        faults = self._checks.found(watch, program.kernel)
        wrong = [fault for fault in faults if fault.reason is None]
        self.allowed += [fault for fault in faults if fault.reason is not None]
        if wrong:
            others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise DeviceError(f"{wrong[0].text}{others}")
        require_met(program.kernel, reached)


def open_emulated(name: str) -> EmulatedDevice:
    """Open the device "emulated" or "emulated-checked".

    Parameters
    ----------
    name : str
        One of `spdnn.engines.EMULATED`.

    Raises
    ------
    DeviceError
        If the compiler of kernels is not there; says what to install.
    """
    return CheckedDevice() if name == "emulated-checked" else EmulatedDevice()


def parameters_of(arguments: tuple[Any, ...]) -> list[int]:
    """The bits of the parameters that arguments become.

    Parameters
    ----------
    arguments : tuple
        DeviceArrays, numbers, and named tuples of them.
    """
    bits: list[int] = np.frombuffer(packed(arguments), np.uint64).tolist()
    return bits


def named_arrays(function: Any, arguments: tuple[Any, ...]) -> dict[str, npt.NDArray[Any]]:
    """The arrays among a kernel's arguments, by the names that the kernel has for them.

    Parameters
    ----------
    function : callable
        The kernel's function in Python.
    arguments : tuple
        Arrays, numbers, and named tuples of them.
    """
    named: dict[str, npt.NDArray[Any]] = {}

    def add(name: str, argument: Any) -> None:
        if isinstance(argument, np.ndarray):
            named[name] = argument
        elif isinstance(argument, tuple):
            fields = getattr(argument, "_fields", range(len(argument)))
            for field, each in zip(fields, argument, strict=True):
                add(f"{name}.{field}", each)

    for name, argument in zip(inspect.signature(function).parameters, arguments, strict=True):
        add(name, argument)
    return named


def shared_names(function: Any) -> list[str]:
    """Names of a kernel's arrays in shared memory, in the order of its source.

    Parameters
    ----------
    function : callable
        The kernel's function in Python.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return [
        each.targets[0].id
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign)
        and isinstance(each.targets[0], ast.Name)
        and isinstance(each.value, ast.Call)
        and ast.unparse(each.value.func) == "cuda.shared.array"
    ]


def require_met(kernel: Kernel, reached: Divergence) -> None:
    """Require that every barrier was reached by all threads of its block.

    Raises
    ------
    DeviceError
        If not.
    """
    if reached.ended:
        raise DeviceError(
            f"kernel {kernel.name}: threads wait at a barrier, others of their block have ended"
        )
    if reached.apart:
        raise DeviceError(f"kernel {kernel.name}: threads of a block wait at different barriers")
