"""A kernel compiled for this CPU, and its launches: thread blocks on all processors.

A block's threads take turns on one processor, from barrier to barrier. So a kernel in which a
thread waits for another one without a barrier would never end; there is none here.
"""

import ctypes
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir

from spdnn.engines.cuda.emulated.ptx import SHARED_ALIGNMENT, Kernel
from spdnn.engines.cuda.emulated.translate import (
    ENDED,
    LAUNCH,
    LAUNCH_NUMBERS,
    LONG,
    WORD,
    Hooks,
    Thread,
    translate,
)

ALIGNMENT = 256
"""Alignment of memory in bytes, as CUDA's allocations have it at least."""

_UNUSED = 0xFF
"""In each byte of shared memory that nobody has written: whole numbers and floats show it."""

CHECKED_BLOCK, CHECKED_EPOCH, CHECKED_BEGAN = range(3)
"""Places in the table of the checks: the block that runs, the epoch, which changes at each barrier
and with each block, and the epoch in which the block has begun."""

_compiler = threading.Lock()


class Divergence(NamedTuple):
    """How often a barrier was not reached by all threads of a block.

    Attributes
    ----------
    ended : int
        Times that some threads waited while others had ended.
    apart : int
        Times that threads waited at different barriers.
    """

    ended: int
    apart: int


class Order(NamedTuple):
    """In which order threads of a block, and blocks, have their turns."""

    threads: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]


class Program:
    """A kernel's machine code for this CPU.

    Parameters
    ----------
    kernel : Kernel
        Instructions, as `spdnn.engines.cuda.emulated.ptx.parse` gives them.
    hooks : Hooks, optional
        What accesses to memory are told to.

    Raises
    ------
    DeviceError
        If the kernel has an instruction that is not known.
    """

    def __init__(self, kernel: Kernel, hooks: Hooks | None = None) -> None:
        self.kernel = kernel
        thread = translate(kernel, hooks)
        self.frame_bytes = thread.frame_bytes
        _add_runner(thread, hooks)
        with _compiler:
            self._engine = _compiled(str(thread.module), 3 if hooks is None else 1)
        # A function of numbers, called without Python's lock.
        of = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(_RUNNER))
        self._run = of(self._engine.get_function_address("run"))

    def launch(
        self,
        grid: tuple[int, ...],
        n_threads: int,
        parameters: Sequence[int],
        dynamic_bytes: int,
        order: Order,
        n_workers: int = 1,
        shared: npt.NDArray[np.uint8] | None = None,
        checks: int = 0,
    ) -> Divergence:
        """Run a grid to its end.

        Parameters
        ----------
        grid : tuple of int
            Blocks along each axis.
        n_threads : int
            Threads of a block.
        parameters : sequence of int
            The bits of each parameter.
        dynamic_bytes : int
            Shared memory that the launch asks for.
        order : Order
            In which order threads and blocks have their turns.
        n_workers : int
            Blocks that run at a time.
        shared : ndarray, optional
            Shared memory for one worker; new memory by default.
        checks : int
            Address of the checks' table.
        """
        grid_x, grid_y = (*grid, 1)[:2]
        table = np.zeros(LAUNCH_NUMBERS, np.int32)
        table[LAUNCH.n_threads] = n_threads
        table[LAUNCH.grid_x], table[LAUNCH.grid_y] = grid_x, grid_y
        table[LAUNCH.dynamic_bytes] = dynamic_bytes
        given = np.array([number & (1 << 64) - 1 for number in parameters], np.uint64)
        counters = np.zeros(3, np.int64)

        def work(memory: npt.NDArray[np.uint8]) -> None:
            frames = aligned(n_threads * self.frame_bytes)
            self._run(
                given.ctypes.data,
                table.ctypes.data,
                memory.ctypes.data,
                frames.ctypes.data,
                order.threads.ctypes.data,
                order.blocks.ctypes.data,
                counters.ctypes.data,
                n_threads,
                grid_x,
                order.blocks.size,
                checks,
            )

        n_workers = max(1, min(n_workers, order.blocks.size))
        if n_workers == 1:
            work(self.new_shared(dynamic_bytes) if shared is None else shared)
        else:
            with ThreadPoolExecutor(n_workers) as pool:
                list(pool.map(work, [self.new_shared(dynamic_bytes) for _ in range(n_workers)]))
        return Divergence(int(counters[1]), int(counters[2]))

    def new_shared(self, dynamic_bytes: int) -> npt.NDArray[np.uint8]:
        """Shared memory of a block, filled with what shows if it is used."""
        memory = aligned(self.kernel.shared_bytes + dynamic_bytes, SHARED_ALIGNMENT)
        memory.fill(_UNUSED)
        return memory


def aligned(n_bytes: int, alignment: int = ALIGNMENT) -> npt.NDArray[np.uint8]:
    """New memory at a multiple of `alignment` bytes.

    Parameters
    ----------
    n_bytes : int
        Size of the memory.
    alignment : int
        A power of two.
    """
    memory = np.empty(n_bytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + n_bytes]


_RUNNER = (
    "parameters",
    "launch",
    "shared",
    "frames",
    "threads",
    "blocks",
    "counters",
    "n_threads",
    "grid_x",
    "n_blocks",
    "checks",
)
"""What the runner takes: addresses of tables, and numbers."""


def _add_runner(thread: Thread, hooks: Hooks | None) -> None:
    """Add the function that takes blocks, one after the other, until all are taken.

    For each block it calls the threads' function for all threads in rounds, from barrier to
    barrier, and counts the rounds in which not all threads stand at the same barrier.
    """
    is_checked = hooks is not None
    module = thread.module
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [LONG] * len(_RUNNER)), "run")
    given = dict(zip(_RUNNER, function.args, strict=True))
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    n_threads = given["n_threads"]

    def constant(number: int) -> Any:
        return ir.Constant(LONG, number)

    def element(table: str, number: Any) -> Any:
        at = builder.inttoptr(given[table], LONG.as_pointer())
        return builder.gep(at, [number])

    def add_to(pointer: Any, number: Any) -> None:
        builder.store(builder.add(builder.load(pointer), number), pointer)

    def frame_of(number: Any) -> Any:
        at = builder.mul(number, constant(thread.frame_bytes))
        return builder.inttoptr(builder.add(given["frames"], at), ir.IntType(8).as_pointer())

    names = ("take", "block", "clear", "round", "turn", "call", "next", "met", "end")
    places = {name: function.append_basic_block(name) for name in names}
    locals_ = {name: builder.alloca(LONG) for name in ("thread", "waiting", "ended")}
    first, apart = builder.alloca(WORD), builder.alloca(LONG)
    builder.branch(places["take"])

    builder.position_at_end(places["take"])
    counter = element("counters", constant(0))
    number = builder.atomic_rmw("add", counter, constant(1), "monotonic")
    is_left = builder.icmp_unsigned("<", number, given["n_blocks"])
    builder.cbranch(is_left, places["block"], places["end"])

    builder.position_at_end(places["block"])
    block = builder.load(element("blocks", number))
    block_x = builder.trunc(builder.urem(block, given["grid_x"]), WORD)
    block_y = builder.trunc(builder.udiv(block, given["grid_x"]), WORD)
    if is_checked:
        builder.store(block, element("checks", constant(CHECKED_BLOCK)))
        add_to(element("checks", constant(CHECKED_EPOCH)), constant(1))
        epoch = builder.load(element("checks", constant(CHECKED_EPOCH)))
        builder.store(epoch, element("checks", constant(CHECKED_BEGAN)))
    builder.store(constant(0), locals_["thread"])
    builder.branch(places["clear"])

    builder.position_at_end(places["clear"])
    thread_number = builder.load(locals_["thread"])
    state = builder.bitcast(frame_of(thread_number), WORD.as_pointer())
    builder.store(ir.Constant(WORD, 0), state)
    following = builder.add(thread_number, constant(1))
    builder.store(following, locals_["thread"])
    is_left = builder.icmp_unsigned("<", following, n_threads)
    builder.cbranch(is_left, places["clear"], places["round"])

    builder.position_at_end(places["round"])
    for name in locals_:
        builder.store(constant(0), locals_[name])
    builder.store(constant(0), apart)
    builder.store(ir.Constant(WORD, 0), first)
    builder.branch(places["turn"])

    builder.position_at_end(places["turn"])
    place = builder.load(locals_["thread"])
    thread_number = builder.load(element("threads", place))
    frame = frame_of(thread_number)
    state = builder.bitcast(frame, WORD.as_pointer())
    has_ended = builder.icmp_signed("==", builder.load(state), ir.Constant(WORD, ENDED))
    add_to(locals_["ended"], builder.zext(has_ended, LONG))
    builder.cbranch(has_ended, places["next"], places["call"])

    builder.position_at_end(places["call"])
    arguments = [
        frame,
        builder.inttoptr(given["parameters"], LONG.as_pointer()),
        builder.inttoptr(given["launch"], WORD.as_pointer()),
        given["shared"],
        builder.trunc(thread_number, WORD),
        block_x,
        block_y,
        given["checks"],
    ]
    reached = builder.call(thread.function, arguments)
    waits = builder.icmp_signed("!=", reached, ir.Constant(WORD, ENDED))
    add_to(locals_["waiting"], builder.zext(waits, LONG))
    add_to(locals_["ended"], builder.zext(builder.not_(waits), LONG))
    known = builder.load(first)
    is_first = builder.icmp_signed("==", known, ir.Constant(WORD, 0))
    differs = builder.icmp_signed("!=", known, reached)
    is_apart = builder.and_(waits, builder.and_(builder.not_(is_first), differs))
    add_to(apart, builder.zext(is_apart, LONG))
    builder.store(builder.select(builder.and_(waits, is_first), reached, known), first)
    builder.branch(places["next"])

    builder.position_at_end(places["next"])
    following = builder.add(builder.load(locals_["thread"]), constant(1))
    builder.store(following, locals_["thread"])
    is_left = builder.icmp_unsigned("<", following, n_threads)
    builder.cbranch(is_left, places["turn"], places["met"])

    builder.position_at_end(places["met"])
    if hooks is not None and hooks.epoch:
        of_epoch = ir.FunctionType(LONG, [LONG, LONG]).as_pointer()
        call = builder.inttoptr(constant(hooks.epoch), of_epoch)
        builder.call(call, [given["checks"], builder.load(locals_["waiting"])])
    if is_checked:
        add_to(element("checks", constant(CHECKED_EPOCH)), constant(1))
    waiting = builder.icmp_unsigned("!=", builder.load(locals_["waiting"]), constant(0))
    ended = builder.icmp_unsigned("!=", builder.load(locals_["ended"]), constant(0))
    differ = builder.icmp_unsigned("!=", builder.load(apart), constant(0))
    for at, is_wrong in ((1, builder.and_(waiting, ended)), (2, builder.and_(waiting, differ))):
        builder.atomic_rmw(
            "add", element("counters", constant(at)), builder.zext(is_wrong, LONG), "monotonic"
        )
    builder.cbranch(waiting, places["round"], places["take"])

    builder.position_at_end(places["end"])
    builder.ret_void()


def _compiled(text: str, level: int) -> Any:
    """Compile a module for this machine's processor, as fast as `level` says; keep the engine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # The engine takes the machine for its own.
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=level,
        jit=True,
    )
    module = llvm.parse_assembly(text)
    module.triple = llvm.get_default_triple()
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.slp_vectorization = level > 1
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine
