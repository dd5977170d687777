"""What the GPU would pay for launches: counted on the emulated GPU, and no time of anything.

Counted are PTX instructions, not those that ptxas makes of them, and accesses as a warp's lanes do
them together. Threads run one after the other here. What lanes do is put together between two
barriers: of each instruction the first execution of every lane, the second of every lane, and so
on. A region of code costs a warp as many executions as the lane with the most of them has.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from numba import typeof

from spdnn.engines.cuda.device import DeviceArray, Pending, view_of
from spdnn.engines.cuda.emulated import counting
from spdnn.engines.cuda.emulated.device import EmulatedDevice, parameters_of, parsed, require_met
from spdnn.engines.cuda.emulated.launch import Order, Program
from spdnn.engines.cuda.emulated.liveness import regions, taken_together
from spdnn.engines.cuda.emulated.ptx import Instruction, Kernel, Number
from spdnn.engines.cuda.emulated.translate import EXECUTED, Hooks
from spdnn.engines.cuda.kernels.records import Span
from spdnn.engines.cuda.titles import title_of
from spdnn.errors import DeviceError

WITHOUT_COST = frozenset({"mov", "cvta"})
"""PTX instructions that ptxas mostly makes nothing of; `_is_paid` knows some more."""


class Counts(NamedTuple):
    """What is paid for blocks of a kernel.

    A wavefront is what shared memory, or the L1 cache, does in a clock. 32 lanes of 4 bytes are one
    phase, 8 bytes are two phases of 16 lanes, 16 bytes four of 8. A phase of shared memory takes as
    many wavefronts as the bank with the most distinct words has of them; equal words are one. At
    least (*ideal*) it takes its distinct bytes divided by 128, rounded up. A phase of global memory
    takes a wavefront for each four lines of 128 bytes that it touches.

    Attributes
    ----------
    blocks, returned : float
        Blocks, and those of them that return at once: without a barrier, a write, or a loop.
    barriers : float
        Barriers of blocks.
    warp_instructions : float
        PTX instructions of warps, but those that become none.
    warp_multiply_adds : float
        Those of them that multiply and add float32.
    multiply_adds : float
        The multiply-adds of all lanes.
    shared_loads, shared_stores : float
        Accesses of warps to shared memory; atomic operations are among the stores.
    shared_load_wavefronts, shared_store_wavefronts : float
        Wavefronts of these.
    shared_load_ideal, shared_store_ideal : float
        What wavefronts would be at least.
    global_loads, global_stores, atomics : float
        Accesses of warps to global memory.
    global_load_bytes, global_store_bytes, atomic_bytes : float
        Bytes that lanes asked for.
    global_load_sectors, global_store_sectors, atomic_sectors : float
        Distinct sectors of 32 bytes of each access.
    global_load_wavefronts, global_store_wavefronts, atomic_wavefronts : float
        Wavefronts of these.
    new_sectors : float
        Sectors that a block loads for the first time: what an L1 cache without end would ask of L2.
    """

    blocks: float
    returned: float
    barriers: float
    warp_instructions: float
    warp_multiply_adds: float
    multiply_adds: float
    shared_loads: float
    shared_load_wavefronts: float
    shared_load_ideal: float
    shared_stores: float
    shared_store_wavefronts: float
    shared_store_ideal: float
    global_loads: float
    global_load_bytes: float
    global_load_sectors: float
    global_load_wavefronts: float
    new_sectors: float
    global_stores: float
    global_store_bytes: float
    global_store_sectors: float
    global_store_wavefronts: float
    atomics: float
    atomic_bytes: float
    atomic_sectors: float
    atomic_wavefronts: float

    @classmethod
    def none(cls) -> Self:
        """Nothing."""
        return cls(*[0.0] * len(cls._fields))

    def plus(self, other: "Counts", times: float = 1.0) -> "Counts":
        """The sum of these and some times others.

        Parameters
        ----------
        other : Counts
        times : float
        """
        return Counts(*(a + times * b for a, b in zip(self, other, strict=True)))

    def scaled(self, times: float) -> "Counts":
        """All of them so many times.

        Parameters
        ----------
        times : float
        """
        return Counts.none().plus(self, times)

    @property
    def working(self) -> float:
        """Blocks that did not return at once."""
        return self.blocks - self.returned

    @property
    def shared_wavefronts(self) -> float:
        """Wavefronts of shared memory."""
        return self.shared_load_wavefronts + self.shared_store_wavefronts

    @property
    def shared_ideal(self) -> float:
        """Wavefronts of shared memory at least."""
        return self.shared_load_ideal + self.shared_store_ideal

    @property
    def global_wavefronts(self) -> float:
        """Wavefronts of global memory in the L1 cache."""
        return self.global_load_wavefronts + self.global_store_wavefronts + self.atomic_wavefronts

    @property
    def sectors(self) -> float:
        """Sectors that are asked of L2 where the L1 cache keeps nothing."""
        return self.global_load_sectors + self.global_store_sectors + self.atomic_sectors

    @property
    def least_sectors(self) -> float:
        """Sectors that are asked of L2 where the L1 cache keeps all that a block loads."""
        return self.new_sectors + self.global_store_sectors + self.atomic_sectors


class Region(NamedTuple):
    """What a run of instructions costs that are executed one after the other.

    Attributes
    ----------
    first, end : int
        Its first place in the kernel's code, and the end (excluded).
    text : str
        Its first instruction.
    instructions, multiply_adds : int
        Its instructions, and those of them that multiply and add.
    times : int
        How often warps have executed it.
    """

    first: int
    end: int
    text: str
    instructions: int
    multiply_adds: int
    times: int


def _regions(kernel: Kernel, costs: npt.NDArray[np.int64]) -> list[Region]:
    """What a launch's regions cost that were executed."""
    found = []
    for (first, end), row in zip(regions(kernel), costs.tolist(), strict=True):
        begins = kernel.code[first]
        if row[2] and isinstance(begins, Instruction):
            found.append(Region(first, end, begins.text, *row))
    return found


class Access(NamedTuple):
    """What one instruction that accesses memory costs.

    Attributes
    ----------
    place : int
        Its place in the kernel's code.
    text : str
        The instruction.
    requests : int
        Times that a warp has executed it.
    wavefronts, least : int
        Wavefronts, and what they would be at least: without conflicts, or of neighbours.
    """

    place: int
    text: str
    requests: int
    wavefronts: int
    least: int


def _accesses(kernel: Kernel, of_code: npt.NDArray[np.int64]) -> list[Access]:
    """What a launch's instructions cost that have accessed memory."""
    rows = of_code[counting.REQUESTS : counting.LEAST_WAVEFRONTS + 1].T.tolist()
    return [
        Access(place, each.text, *row)
        for place, (each, row) in enumerate(zip(kernel.code, rows, strict=True))
        if isinstance(each, Instruction) and row[0]
    ]


@dataclass(frozen=True)
class Counted:
    """A launch, and what its blocks cost.

    Attributes
    ----------
    kernel : str
        The kernel's name, and which of its variants it is.
    grid : tuple of int
        Blocks along each axis.
    n_threads : int
        Threads of a block.
    sampled : Counts
        What the blocks cost that were counted.
    accesses : list of Access
        What the instructions that access memory cost in these blocks.
    regions : list of Region
        What runs of instructions cost in these blocks.
    n_steps : int
        Steps that it takes features through, where it says so; else 1.
    """

    kernel: str
    grid: tuple[int, ...]
    n_threads: int
    sampled: Counts
    accesses: list[Access]
    regions: list[Region]
    n_steps: int = 1

    @property
    def n_blocks(self) -> int:
        """Blocks of the grid."""
        return int(np.prod(self.grid))

    @property
    def counts(self) -> Counts:
        """What all blocks cost, if those that were counted are like the others."""
        return self.sampled.scaled(self.n_blocks / self.sampled.blocks)


@dataclass
class HostCounts:
    """What the host asks of the device beside launches.

    Attributes
    ----------
    waits : int
        Times that the host waits for the device: reads, waits, times of events.
    reads, writes : int
        Copies from the device and to it.
    read_bytes, written_bytes : int
        Bytes of these.
    fills : int
        Times that memory is filled with a byte.
    """

    waits: int = 0
    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    fills: int = 0


def _is_paid(each: Instruction) -> bool:
    """Whether ptxas makes an instruction of one: parameters are operands, halves are registers."""
    if each.opcode == "cvt":
        to, of = each.types
        return of.kind == "f" or to.kind == "f" or 64 not in (to.bits, of.bits) or of.kind == "s"
    if each.opcode == "shr":
        return not (each.types[0].bits == 64 and each.operands[2] == Number(32))
    return each.opcode not in WITHOUT_COST and "param" not in each.modifiers


def _costs(kernel: Kernel) -> npt.NDArray[np.int64]:
    """The table of the regions, shape (n_regions, 3): instructions, multiply-adds, and 0."""
    rows = []
    together = taken_together(kernel)
    for first, end in regions(kernel):
        code = [
            each
            for place, each in enumerate(kernel.code[first:end], first)
            if isinstance(each, Instruction) and together.get(place, 1)
        ]
        n_adds = sum(each.opcode == "fma" and each.types[0].bits == 32 for each in code)
        rows.append((sum(map(_is_paid, code)), n_adds, 0))
    return np.array(rows, np.int64).reshape(-1, counting.REGION_COLUMNS)


class Counter:
    """The tables in which launches are counted."""

    def __init__(self) -> None:
        self._natives = counting.native("access"), counting.native("epoch")
        access, epoch = (native.address for native in self._natives)
        self.hooks = Hooks(access, epoch=epoch, counts=True)
        # Only what is used of them is ever touched.
        self._log = np.empty((counting.LOG_TABLES, counting.LOG_ROWS + 1), np.int64)
        self._seen = np.zeros((2, counting.SEEN_ROWS), np.int64)
        self._epoch = 1

    def count(
        self,
        program: Program,
        grid: tuple[int, ...],
        n_threads: int,
        parameters: list[int],
        shared: int,
        blocks: npt.NDArray[np.int64],
    ) -> tuple[Counts, list[Access], list[Region]]:
        """Run blocks of a launch, and count what they cost.

        Parameters
        ----------
        program : Program
            Compiled with `hooks`.
        grid : tuple of int
            Blocks along each axis.
        n_threads : int
            Threads of a block.
        parameters : list of int
            The bits of each parameter.
        shared : int
            Dynamic shared memory of a block, in bytes.
        blocks : ndarray, int64
            The blocks that are run.

        Raises
        ------
        DeviceError
            If a block does more than there is room to note, or not all threads reach a barrier.
        """
        kernel = program.kernel
        costs = _costs(kernel)
        executed = np.zeros((n_threads, len(costs)), np.int32)
        of_code = np.zeros((counting.CODE_TABLES, len(kernel.code)), np.int64)
        totals = np.zeros(len(counting.COLUMNS), np.int64)
        launch = np.zeros(counting.LAUNCH_COLUMNS, np.int64)
        for place, number in (
            (counting.EPOCH, self._epoch),
            (EXECUTED, executed.ctypes.data),
            (counting.N_THREADS, n_threads),
            (counting.REGIONS, costs.ctypes.data),
            (counting.N_REGIONS, len(costs)),
            (counting.LOG, self._log.ctypes.data),
            (counting.OF_CODE, of_code.ctypes.data),
            (counting.N_CODE, len(kernel.code)),
            (counting.WARP_NUMBER, -1),
            (counting.SEEN, self._seen.ctypes.data),
            (counting.TOTALS, totals.ctypes.data),
        ):
            launch[place] = number
        order = Order(np.arange(n_threads), blocks)
        reached = program.launch(
            grid, n_threads, parameters, shared, order, checks=launch.ctypes.data
        )
        require_met(kernel, reached)
        self._epoch = int(launch[counting.EPOCH]) + 1
        if launch[counting.IS_FULL]:
            raise DeviceError(
                f"kernel {kernel.name}: more accesses between two barriers, or more memory read by "
                "a block, than can be counted: count a smaller network"
            )
        found = Counts(*map(float, totals))
        return found, _accesses(kernel, of_code), _regions(kernel, costs)


class CountedDevice(EmulatedDevice):
    """Counts what launches cost while the emulated GPU runs them; for small networks.

    Parameters
    ----------
    n_bytes : int, optional
        As of `EmulatedDevice`.
    sample : int, optional
        Blocks of each launch that are counted, drawn by chance; the others are run all the same,
        without being counted. All are counted by default.

    Attributes
    ----------
    launches : list of Counted
        The launches in their order.
    host : HostCounts
        What else the host has asked for.
    """

    name = "emulated GPU with counts"

    def __init__(self, n_bytes: int | None = None, sample: int | None = None) -> None:
        super().__init__(n_bytes)
        self.sample = sample
        self.launches: list[Counted] = []
        self.host = HostCounts()
        self._counter = Counter()
        self._counted: dict[tuple[Any, ...], Program] = {}

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Run a kernel to its end, and count what it costs."""
        views = tuple(map(view_of, arguments))
        n_blocks = int(np.prod(grid))
        blocks = np.arange(n_blocks)
        others = blocks[:0]
        if self.sample is not None and self.sample < n_blocks:
            mixed = np.random.default_rng(len(self.launches)).permutation(n_blocks)
            blocks, others = np.sort(mixed[: self.sample]), np.sort(mixed[self.sample :])
        parameters = parameters_of(arguments)
        program = self._counting_program(kernel, views)
        found = self._counter.count(program, grid, n_threads, parameters, shared, blocks)
        if others.size:
            self._program(kernel, views).launch(
                grid, n_threads, parameters, shared, Order(np.arange(n_threads), others),
                self.n_processors,
            )  # fmt: skip
        spans = [each for each in arguments if isinstance(each, Span)]
        n_steps = spans[0].end_step - spans[0].first_step if spans else 1
        self.launches.append(Counted(title_of(kernel), grid, n_threads, *found, n_steps))

    def _counting_program(self, kernel: Any, views: tuple[Any, ...]) -> Program:
        signature = tuple(map(typeof, views))
        key = kernel, signature
        if key not in self._counted:
            self._counted[key] = Program(parsed(kernel, signature), self._counter.hooks)
        return self._counted[key]

    def fill_bytes(self, array: DeviceArray, byte: int) -> None:
        """Set all bytes."""
        self.host.fills += 1
        super().fill_bytes(array, byte)

    def write(self, array: DeviceArray, host: npt.NDArray[Any], ahead: bool = False) -> None:
        """Copy to the beginning."""
        self.host.writes += 1
        self.host.written_bytes += host.nbytes
        super().write(array, host, ahead)

    def read(self, array: DeviceArray, count: int | None = None) -> npt.NDArray[Any]:
        """A copy of the first elements."""
        taken = super().read(array, count)
        self.host.reads += 1
        self.host.waits += 1
        self.host.read_bytes += taken.nbytes
        return taken

    def read_later(self, array: DeviceArray) -> Pending:
        """A copy, which is there at once."""
        pending = super().read_later(array)
        self.host.reads += 1
        self.host.read_bytes += pending.host.nbytes
        return Pending(pending.host, self._wait)

    def _wait(self) -> None:
        self.host.waits += 1

    def wait(self) -> None:
        """All work is done at once."""
        self.host.waits += 1

    def seconds_between(self, start: float, end: float) -> float:
        """Their difference."""
        self.host.waits += 1
        return super().seconds_between(start, end)
