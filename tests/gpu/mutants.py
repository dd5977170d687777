"""Kernels with one instruction changed: what the checks must find."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numba import typeof

from spdnn.engines.cuda.emulated.device import CheckedDevice, parsed
from spdnn.engines.cuda.emulated.launch import Program
from spdnn.engines.cuda.emulated.ptx import Instruction, Kernel

Change = Callable[[Kernel], Kernel]


class MutantDevice(CheckedDevice):
    """Runs a changed form of one kernel.

    Attributes
    ----------
    n_launched : int
        Launches of the changed kernel that were begun.
    """

    def __init__(self, target: Any, change: Change) -> None:
        super().__init__()
        self.target, self.change = target, change
        self.n_launched = 0
        self._changed: dict[Any, Program] = {}

    def _program(self, kernel: Any, views: tuple[Any, ...]) -> Program:
        if kernel is not self.target:
            return super()._program(kernel, views)
        self.n_launched += 1
        signature = tuple(map(typeof, views))
        if signature not in self._changed:
            self._changed[signature] = self.compiled(self.change(parsed(kernel, signature)))
        return self._changed[signature]


class NotingDevice(CheckedDevice):
    """Notes each kernel that is launched, as instructions."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: dict[Any, Kernel] = {}

    def _program(self, kernel: Any, views: tuple[Any, ...]) -> Program:
        program = super()._program(kernel, views)
        self.launched[kernel] = program.kernel
        return program


def places_of(kernel: Kernel, *opcodes: str) -> list[int]:
    """Where instructions of some kind stand in a kernel's code."""
    return [
        place
        for place, each in enumerate(kernel.code)
        if isinstance(each, Instruction) and each.opcode in opcodes
    ]


def without(place: int) -> Change:
    """Leave out the instruction at a place."""
    return lambda kernel: replace(kernel, code=(*kernel.code[:place], *kernel.code[place + 1 :]))


def changed(place: int, **parts: Any) -> Change:
    """Change parts of the instruction at a place."""

    def change(kernel: Kernel) -> Kernel:
        instruction = kernel.code[place]
        assert isinstance(instruction, Instruction)
        other = replace(instruction, **parts)
        return replace(kernel, code=(*kernel.code[:place], other, *kernel.code[place + 1 :]))

    return change
