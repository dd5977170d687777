"""Checks of a launch, as compute-sanitizer's: memory, races, what nobody has written."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.cuda.emulated import watching as watched
from spdnn.engines.cuda.emulated.ptx import Instruction, Kernel
from spdnn.engines.cuda.emulated.translate import Hooks

SHARED = "shared memory"


class Allowed(NamedTuple):
    """A race that does no harm.

    Attributes
    ----------
    kernel : str
        Name of the kernel's function.
    array : str
        The array's name there, or "shared memory".
    kinds : tuple of int
        What meets, as in `spdnn.engines.cuda.emulated.watching`.
    reason : str
        Why it does no harm.
    """

    kernel: str
    array: str
    kinds: tuple[int, ...]
    reason: str


_ONE = "all threads that write store 1, and it is read behind a barrier"

ALLOWED = (
    Allowed("staged", "is_live", (watched.EQUAL_WRITES,), _ONE),
    Allowed("resident", "is_live", (watched.EQUAL_WRITES,), _ONE),
    Allowed(
        "grouped",
        "flags",
        (watched.READ_OF_WRITE, watched.WRITE_OF_READ),
        "a flag only changes from 0 to 1, and a thread that still reads 0 sets it by an atomic "
        "operation",
    ),
)
"""Races that are no faults."""

_TEXTS = {
    watched.OUT_OF_BOUNDS: "is out of bounds",
    watched.MISALIGNED: "is not aligned to its size",
    watched.UNWRITTEN: "reads what nobody has written",
    watched.TWO_WRITES: "races with a write",
    watched.EQUAL_WRITES: "races with a write of the same value",
    watched.READ_OF_WRITE: "reads while another thread writes",
    watched.WRITE_OF_READ: "writes while another thread reads",
}


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with a launch, or a race that is allowed.

    Attributes
    ----------
    kernel : str
        Name of the kernel's function.
    kind : int
        As in `spdnn.engines.cuda.emulated.watching`, such as `OUT_OF_BOUNDS`.
    array : str
        The array's name in the kernel, or "shared memory"; empty if it is none of them.
    instruction, other : str
        What accesses memory, and what it meets, where it meets another access.
    block, thread : int
        Of the first time.
    other_block, other_thread : int
        Whom it meets; -1 where these are several, or nobody.
    offset : int
        Bytes from the beginning of the array.
    times : int
        How often the same instructions were at fault.
    reason : str or None
        Why it is allowed.
    """

    kernel: str
    kind: int
    array: str
    instruction: str
    other: str
    block: int
    thread: int
    other_block: int
    other_thread: int
    offset: int
    times: int
    reason: str | None

    @property
    def text(self) -> str:
        """All of it, in one line."""
        where = f" of {self.array}, byte {self.offset}" if self.array else ""
        parts = [
            f"kernel {self.kernel}, block {self.block}, thread {self.thread}: "
            f"{self.instruction!r}{where} {_TEXTS[self.kind]}"
        ]
        if self.other:
            who = "several" if self.other_thread < 0 else (
                f"block {self.other_block}, thread {self.other_thread}"
            )  # fmt: skip
            parts.append(f"({self.other!r}, {who})")
        return " ".join(parts)


class Watch:
    """The tables of one launch.

    Parameters
    ----------
    spans : list of (str, int, ndarray, ndarray)
        Name, address, which bytes have been written, and a record for each word, of each array.
    shared_names : mapping of int to str
        Names of the arrays in shared memory, by where they begin.
    shared : ndarray
        The block's shared memory.
    n_threads, n_blocks : int
        Threads of a block, and blocks of the launch.
    epoch : int
        The first epoch of the launch.
    """

    def __init__(
        self,
        spans: list[tuple[str, int, npt.NDArray[np.uint8], npt.NDArray[np.int64]]],
        shared_names: Mapping[int, str],
        shared: npt.NDArray[np.uint8],
        n_threads: int,
        n_blocks: int,
        epoch: int,
    ) -> None:
        self.n_threads = n_threads
        self._shared_names = shared_names
        spans = [(SHARED, shared.ctypes.data, *_new_records(shared.size)), *spans]
        self.names = [name for name, *_ in spans]
        self.spans = np.array(
            [
                (
                    low,
                    low + written.size,
                    written.ctypes.data,
                    records.ctypes.data,
                    name == SHARED,
                )
                for name, low, written, records in spans
            ],
            np.int64,
        )
        self._kept = spans
        self._threads = np.zeros((n_threads * n_blocks, watched.THREAD_COLUMNS), np.int64)
        self._faults = np.zeros((watched.MOST_FAULTS, watched.FAULT_COLUMNS), np.int64)
        self._scratch = np.zeros(64, np.uint8)
        self.launch = np.zeros(watched.LAUNCH_COLUMNS, np.int64)
        for place, number in (
            (watched.EPOCH, epoch),
            (watched.START, epoch),
            (watched.N_THREADS, n_threads),
            (watched.N_SPANS, len(spans)),
            (watched.SPANS, self.spans.ctypes.data),
            (watched.THREADS, self._threads.ctypes.data),
            (watched.FAULTS, self._faults.ctypes.data),
            (watched.SCRATCH, self._scratch.ctypes.data),
        ):
            self.launch[place] = number

    @property
    def address(self) -> int:
        """Address of the launch's table."""
        return self.launch.ctypes.data

    def faults(self, kernel: Kernel) -> list[Fault]:
        """What was found, when the launch is done.

        Parameters
        ----------
        kernel : Kernel
            The instructions that were run.
        """
        found = self._faults[: self.launch[watched.N_FAULTS]]
        return [self._fault(kernel, row) for row in found.tolist()]

    def _fault(self, kernel: Kernel, row: list[int]) -> Fault:
        at = row[watched.AT]
        inside = (self.spans[:, watched.LOW] <= at) & (at < self.spans[:, watched.HIGH])
        array, offset = "", 0
        if inside.any():
            number = int(inside.argmax())
            array, offset = self.names[number], at - int(self.spans[number, watched.LOW])
            if array == SHARED:
                begins = [place for place in self._shared_names if place <= offset]
                array, offset = self._shared_names[max(begins)], offset - max(begins)
        kind = row[watched.KIND]
        block, thread = divmod(row[watched.THREAD], self.n_threads)
        other_block, other_thread = divmod(row[watched.OTHER_THREAD], self.n_threads)
        if row[watched.OTHER_THREAD] == watched.MANY:
            other_block = other_thread = -1
        reason = next(
            (
                allowed.reason
                for allowed in ALLOWED
                if allowed.kernel == kernel.name
                and allowed.array == array.rpartition(".")[2]
                and kind in allowed.kinds
            ),
            None,
        )
        return Fault(
            kernel.name,
            kind,
            array,
            _text_of(kernel, row[watched.INSTRUCTION]),
            _text_of(kernel, row[watched.OTHER]),
            block,
            thread,
            other_block,
            other_thread,
            offset,
            row[watched.TIMES],
            reason,
        )


def _text_of(kernel: Kernel, place: int) -> str:
    instruction = kernel.code[place] if place >= 0 else None
    return instruction.text if isinstance(instruction, Instruction) else ""


def _new_records(n_bytes: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Which bytes have been written, none so far, and a record for each word."""
    n_words = -(-n_bytes // watched.WORD_BYTES)
    return np.zeros(n_bytes, np.uint8), np.zeros((n_words, watched.RECORD_COLUMNS), np.int64)


class Checks:
    """What is known of a device's memory from launch to launch."""

    def __init__(self) -> None:
        self._natives = watched.native("access"), watched.native("fence")
        self.hooks = Hooks(*(native.address for native in self._natives))
        self._arrays: dict[int, tuple[Any, npt.NDArray[np.uint8], npt.NDArray[np.int64]]] = {}
        self._epoch = 1

    def add(self, memory: npt.NDArray[Any]) -> None:
        """Note new memory, which nobody has written.

        Parameters
        ----------
        memory : ndarray
            An array of the device, with its own memory.
        """
        address = memory.ctypes.data
        base = memory
        while isinstance(base.base, np.ndarray):
            base = base.base
        forget = weakref.ref(base, lambda _: self._arrays.pop(address, None))
        self._arrays[address] = (forget, *_new_records(memory.nbytes))

    def note_written(self, memory: npt.NDArray[Any], n_bytes: int) -> None:
        """Note that the host has written the first `n_bytes` of some memory.

        Parameters
        ----------
        memory : ndarray
            An array that was given to `add`, or one that begins with it.
        n_bytes : int
            How many bytes, from the beginning.
        """
        _, written, _ = self._arrays[memory.ctypes.data]
        written[:n_bytes] = 1

    def watch(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        shared_names: Mapping[int, str],
        shared: npt.NDArray[np.uint8],
        n_threads: int,
        n_blocks: int,
    ) -> Watch:
        """Make the tables for a launch.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            The arrays that the launch may use.
        shared_names : mapping of int to str
            Names of the arrays in shared memory, by where they begin.
        shared : ndarray
            The block's shared memory.
        n_threads, n_blocks : int
            Threads of a block, and blocks of the launch.
        """
        spans = [
            (name, address, *self._arrays[address][1:])
            for name, address in ((name, array.ctypes.data) for name, array in arrays.items())
        ]
        return Watch(spans, shared_names, shared, n_threads, n_blocks, self._epoch)

    def found(self, watch: Watch, kernel: Kernel) -> list[Fault]:
        """What a launch has done wrong, when it is done; and what is allowed.

        Parameters
        ----------
        watch : Watch
            The tables that the launch had.
        kernel : Kernel
            The instructions that were run.
        """
        self._epoch = int(watch.launch[watched.EPOCH]) + 1
        return watch.faults(kernel)
