"""How a kernel's code hangs together: what threads need after each barrier, and its regions."""

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

BRANCHES = frozenset({"bra", "ret", "exit"})


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


def regions(kernel: Kernel) -> list[tuple[int, int]]:
    """Find the runs of instructions that a thread executes one after the other.

    A region ends behind a branch or barrier, and before a label.

    Parameters
    ----------
    kernel : Kernel
        Instructions, as `spdnn.engines.cuda.emulated.ptx.parse` gives them.

    Returns
    -------
    list of (int, int)
        The place of the first instruction of each region in ``kernel.code``, and the end
        (excluded).
    """
    found = []
    first = 0
    for place, each in enumerate(kernel.code):
        if isinstance(each, Label) or each.opcode in BRANCHES | BARRIERS:
            end = place if isinstance(each, Label) else place + 1
            if end > first:
                found.append((first, end))
            first = place + 1
    if first < len(kernel.code):
        found.append((first, len(kernel.code)))
    return found


WIDEST = 16
"""Bytes of the widest access."""


def taken_together(kernel: Kernel) -> dict[int, int]:
    """Find neighbouring numbers of shared memory that ptxas loads or stores at once.

    These are accesses of equal size in a region, with the same base, up to 16 bytes, where nothing
    between them may change what they find. ptxas must know that the first one is aligned to the
    size of all; here only those who run the kernel see whether it is.

    Parameters
    ----------
    kernel : Kernel
        Instructions, as `spdnn.engines.cuda.emulated.ptx.parse` gives them.

    Returns
    -------
    dict of int to int
        By the places of the accesses in ``kernel.code``: how many there are, for the first one; 0
        for the others.
    """
    found: dict[int, int] = {}
    for first, end in regions(kernel):
        runs: list[list[int]] = []
        changed: set[str] = set()
        for place in range(first, end):
            each = kernel.code[place]
            assert isinstance(each, Instruction)
            if _in_shared(each) is None:
                if each.opcode in ("st", "red", "atom", "membar", "fence"):
                    runs.append([])
            elif not (runs and runs[-1] and _follows(kernel, runs[-1][-1], place, changed)):
                runs.append([place])
                changed = set()
            else:
                runs[-1].append(place)
            if each.opcode not in WITHOUT_RESULT:
                changed.update(registers_in(each.operands[0]))
        for run in runs:
            found |= _cut_run(kernel, run)
    return found


def _cut_run(kernel: Kernel, run: list[int]) -> dict[int, int]:
    """Cut accesses that follow one another into those that are taken together."""
    found: dict[int, int] = {}
    while len(run) > 1:
        each = kernel.code[run[0]]
        assert isinstance(each, Instruction)
        most = WIDEST // _n_bytes(each)
        count = most if len(run) >= most else 1 << len(run).bit_length() - 1
        if count > 1:
            found |= dict.fromkeys(run[:count], 0) | {run[0]: count}
        run = run[max(1, count) :]
    return found


def _n_bytes(each: Instruction) -> int:
    """Bytes that a load or store moves."""
    vector = next((int(word[1]) for word in each.modifiers if word in ("v2", "v4")), 1)
    return each.types[0].n_bytes * vector


def _in_shared(each: Instruction) -> Address | None:
    """The address, if an instruction loads or stores whole words of shared memory."""
    if each.guard is not None or "shared" not in each.modifiers or each.opcode not in ("ld", "st"):
        return None
    operand = each.operands[1 if each.opcode == "ld" else 0]
    is_whole = each.types[0].bits >= 32
    return operand if is_whole and isinstance(operand, Address) else None


def _follows(kernel: Kernel, before: int, place: int, changed: set[str]) -> bool:
    """Whether an access is to what lies behind that of another one, of the same kind and size."""
    one, other = kernel.code[before], kernel.code[place]
    assert isinstance(one, Instruction)
    assert isinstance(other, Instruction)
    here, there = _in_shared(one), _in_shared(other)
    assert here is not None
    assert there is not None
    is_next = here.base == there.base and there.offset == here.offset + _n_bytes(one)
    is_alike = one.opcode == other.opcode and _n_bytes(one) == _n_bytes(other)
    return is_alike and is_next and here.base.name not in changed


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
        elif each.opcode in BRANCHES:
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
        ends = isinstance(last, Instruction) and last.opcode in BRANCHES
        if not (ends and isinstance(last, Instruction) and last.guard is None):
            numbers.append(number + 1)
        if isinstance(last, Instruction) and last.opcode == "bra":
            target = last.operands[0]
            assert isinstance(target, Name)
            numbers.append(of_label[target.name])
        following.append([each for each in numbers if each < len(blocks)])
    return blocks, following
