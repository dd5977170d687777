"""Which registers a kernel's threads need after each barrier: what must be kept meanwhile."""

from spdnn.engines.cuda.emulated.ptx import (
    Address,
    Instruction,
    Kernel,
    Label,
    Name,
    Operand,
    Register,
    Vector,
)

WITHOUT_RESULT = frozenset({"st", "red", "bra", "bar", "barrier", "membar", "fence", "ret", "exit"})
"""Instructions whose first operand is no result."""

BARRIERS = frozenset({"bar", "barrier"})


def registers_in(operand: Operand) -> tuple[str, ...]:
    """Names of the registers that an operand is made of.

    Parameters
    ----------
    operand : Operand
        An operand of any kind.
    """
    if isinstance(operand, Register):
        return (operand.name,)
    if isinstance(operand, Vector):
        return tuple(register.name for register in operand.registers)
    if isinstance(operand, Address) and isinstance(operand.base, Register):
        return (operand.base.name,)
    return ()


def live_at_barriers(kernel: Kernel) -> dict[int, list[str]]:
    """Find the registers that are read after each barrier before they are written.

    Parameters
    ----------
    kernel : Kernel
        Instructions, as `spdnn.engines.cuda.emulated.ptx.parse` gives them.

    Returns
    -------
    dict of int to list of str
        Names of registers by the barrier's place in ``kernel.code``.
    """
    # Sets of registers are bits of whole numbers.
    bit = {name: 1 << number for number, name in enumerate(kernel.registers)}
    blocks, following = _blocks(kernel)
    effects = [
        [_effect(kernel.code[place], bit) for place in range(first, end)] for first, end in blocks
    ]
    needed = [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for number in reversed(range(len(blocks))):
            live = _united(needed, following[number])
            for read, written in reversed(effects[number]):
                live = live & ~written | read
            changed |= live != needed[number]
            needed[number] = live
    found = {}
    for number, (first, end) in enumerate(blocks):
        live = _united(needed, following[number])
        for place in reversed(range(first, end)):
            instruction = kernel.code[place]
            if isinstance(instruction, Instruction) and instruction.opcode in BARRIERS:
                found[place] = [name for name, mask in bit.items() if live & mask]
            read, written = effects[number][place - first]
            live = live & ~written | read
    return found


def _united(needed: list[int], numbers: list[int]) -> int:
    live = 0
    for number in numbers:
        live |= needed[number]
    return live


def _effect(each: Instruction | Label, bit: dict[str, int]) -> tuple[int, int]:
    """Registers that are read, and those that are surely written."""
    if isinstance(each, Label):
        return 0, 0
    n_results = 0 if each.opcode in WITHOUT_RESULT else 1
    read = written = 0
    for operand in each.operands[:n_results]:
        for name in registers_in(operand):
            written |= bit.get(name, 0)
    for operand in each.operands[n_results:]:
        for name in registers_in(operand):
            read |= bit.get(name, 0)
    if each.guard is not None:
        read |= bit.get(each.guard.name, 0)
        written = 0
    return read, written


def _blocks(kernel: Kernel) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Cut the code behind branches and before labels: places, and what follows each block."""
    code = kernel.code
    starts = {0}
    for place, each in enumerate(code):
        if isinstance(each, Label):
            starts.add(place)
        elif each.opcode in ("bra", "ret", "exit"):
            starts.add(place + 1)
    ordered = sorted(start for start in starts if start < len(code))
    blocks = list(zip(ordered, [*ordered[1:], len(code)], strict=True))
    of_label = {
        each.name: number
        for number, (first, end) in enumerate(blocks)
        for each in code[first:end]
        if isinstance(each, Label)
    }
    following = []
    for number, (_, end) in enumerate(blocks):
        last = code[end - 1]
        numbers = []
        ends = isinstance(last, Instruction) and last.opcode in ("bra", "ret", "exit")
        if not (ends and isinstance(last, Instruction) and last.guard is None):
            numbers.append(number + 1)
        if isinstance(last, Instruction) and last.opcode == "bra":
            target = last.operands[0]
            assert isinstance(target, Name)
            numbers.append(of_label[target.name])
        following.append([each for each in numbers if each < len(blocks)])
    return blocks, following
