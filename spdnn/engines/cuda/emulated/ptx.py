"""PTX, the instructions that libNVVM makes of a kernel, as typed values.

Only the form of a kernel is known here. What instructions do, and which of them are known at all,
is `spdnn.engines.cuda.emulated.translate`'s matter.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from spdnn.errors import DeviceError


class Type(NamedTuple):
    """A type of PTX.

    Attributes
    ----------
    kind : {"b", "u", "s", "f", "pred"}
        Bits without a meaning, unsigned, signed, floating point, or a truth value.
    bits : int
        Its size; 1 for a truth value.
    """

    kind: str
    bits: int

    @property
    def n_bytes(self) -> int:
        """Size in memory."""
        return self.bits // 8


PREDICATE = Type("pred", 1)

_TYPES = {
    f"{kind}{bits}": Type(kind, bits)
    for kind, sizes in (("b", (8, 16, 32, 64)), ("u", (8, 16, 32, 64)), ("s", (8, 16, 32, 64)))
    for bits in sizes
} | {"f32": Type("f", 32), "f64": Type("f", 64), "pred": PREDICATE}


class Register(NamedTuple):
    """A register of the kernel, or a special one such as ``%tid.x``."""

    name: str


class Number(NamedTuple):
    """A constant: the bits of a floating-point number, or a whole number."""

    value: int


class Name(NamedTuple):
    """A label, a parameter or a variable."""

    name: str


class Address(NamedTuple):
    """A place in memory: a base, and how many bytes behind it."""

    base: "Register | Name"
    offset: int


class Vector(NamedTuple):
    """Several registers that are loaded or stored together."""

    registers: tuple[Register, ...]


Operand = Register | Number | Name | Address | Vector


@dataclass(frozen=True)
class Instruction:
    """An instruction.

    Attributes
    ----------
    text : str
        As it is written, for messages.
    guard : Register or None
        The truth value on which it depends.
    is_negated : bool
        Whether it is executed where the guard is false.
    opcode : str
        Its first word, such as "ld".
    modifiers : tuple of str
        The words behind it that are not types, such as ("global", "v4").
    types : tuple of Type
        Its types, in their order.
    operands : tuple
        Its operands, the result first where there is one.
    """

    text: str
    guard: Register | None
    is_negated: bool
    opcode: str
    modifiers: tuple[str, ...]
    types: tuple[Type, ...]
    operands: tuple[Operand, ...]


class Label(NamedTuple):
    """A place that branches lead to."""

    name: str


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes
    ----------
    name : str
        Its function's name in Python.
    parameters : dict of str to (Type, int)
        The type of each parameter, and its number.
    registers : dict of str to Type
        The type of each register.
    shared, local : dict of str to int
        Where each variable of shared and of local memory lies, in bytes.
    shared_bytes, local_bytes : int
        Size of all of them. Shared memory that a launch asks for follows the static one.
    code : tuple of Label and Instruction
        Instructions in their order, and the places that branches lead to.
    """

    name: str
    parameters: dict[str, tuple[Type, int]]
    registers: dict[str, Type]
    shared: dict[str, int]
    shared_bytes: int
    local: dict[str, int]
    local_bytes: int
    code: tuple[Label | Instruction, ...]

    def shared_in_order(self) -> list[int]:
        """Places of the variables of shared memory, in the order in which their names count."""
        return [self.shared[name] for name in sorted(self.shared, key=_number_in)]


def _number_in(name: str) -> int:
    """The number at the end of a variable's name."""
    found = re.search(r"\d+$", name)
    return int(found[0]) if found else 0


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)([^{]*)\{(.*)\}", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+\.(\w+)\s+([\w$]+)")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(%\w+)<(\d+)>$")
_VARIABLE = re.compile(
    r"\.(shared|local)\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\s*\[(\d*)\]",
)
_LABEL = re.compile(r"([\w$]+):")
_GUARD = re.compile(r"@(!?)(%\w+)\s+")
_ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\d+))?\s*\]$")
_OPERANDS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
_SINGLE = re.compile(r"0[fF]([0-9a-fA-F]{8})$")
_DOUBLE = re.compile(r"0[dD]([0-9a-fA-F]{16})$")
_WHOLE = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")

SHARED_ALIGNMENT = 128
"""Where shared memory that a launch asks for begins, behind the static one."""


def parse(text: str, name: str) -> Kernel:
    """Parse the one kernel of a PTX module.

    Parameters
    ----------
    text : str
        What the compiler gives.
    name : str
        The kernel's name, for messages.

    Raises
    ------
    DeviceError
        If it has another form than kernels here have; with the statement.
    """
    text = _COMMENT.sub("", text)
    entry = _ENTRY.search(text)
    if entry is None or ".func" in text:
        raise DeviceError(f"kernel {name}: its PTX is not one kernel without calls of functions")
    _, parameters, _, body = entry.groups()
    registers: dict[str, Type] = {}
    code: list[Label | Instruction] = []
    for statement in re.split(r"[;\n]", body):
        rest = statement.strip()
        while label := _LABEL.match(rest):
            code.append(Label(label[1]))
            rest = rest[label.end() :].strip()
        if rest.startswith(".reg"):
            declared = _REGISTERS.match(re.sub(r"\s+", " ", rest))
            if declared is None:
                raise _unknown(name, rest)
            kind, prefix, count = declared.groups()
            registers |= {f"{prefix}{n}": _type(kind, rest, name) for n in range(int(count))}
        elif rest.startswith((".local", ".shared")):
            if _VARIABLE.match(rest) is None:
                raise _unknown(name, rest)
        elif rest and rest not in "{}" and not rest.startswith((".pragma", ".loc")):
            code.append(_instruction(rest, name))
    shared, shared_bytes = _laid_out(text, "shared")
    local, local_bytes = _laid_out(text, "local")
    return Kernel(
        name,
        {
            parameter: (_type(kind, f".param .{kind}", name), number)
            for number, (kind, parameter) in enumerate(_PARAMETER.findall(parameters))
        },
        registers,
        shared,
        shared_bytes,
        local,
        local_bytes,
        tuple(code),
    )


def _unknown(kernel: str, statement: str) -> DeviceError:
    return DeviceError(f"kernel {kernel}: unknown PTX: {statement}")


def _type(word: str, statement: str, kernel: str) -> Type:
    if word not in _TYPES:
        raise _unknown(kernel, statement)
    return _TYPES[word]


def _laid_out(text: str, space: str) -> tuple[dict[str, int], int]:
    """Give each variable of a memory its place; what a launch asks for comes last."""
    places: dict[str, int] = {}
    at = 0
    dynamic = None
    for of_space, alignment, variable, size in _VARIABLE.findall(text):
        if of_space != space:
            continue
        if not size:
            dynamic = variable
            continue
        at = -(-at // int(alignment)) * int(alignment)
        places[variable] = at
        at += int(size)
    if dynamic is not None:
        at = -(-at // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
        places[dynamic] = at
    return places, at


def _instruction(statement: str, kernel: str) -> Instruction:
    guard = _GUARD.match(statement)
    rest = statement[guard.end() :] if guard else statement
    words, _, listed = rest.partition(" ") if "\t" not in rest else rest.partition("\t")
    opcode, *suffixes = words.strip().split(".")
    try:
        operands = tuple(_operand(each.strip()) for each in _OPERANDS.findall(listed))
    except ValueError:
        raise _unknown(kernel, statement) from None
    return Instruction(
        re.sub(r"\s+", " ", re.sub(r"[\w$]+_param_", "param_", statement)),
        Register(guard[2]) if guard else None,
        bool(guard and guard[1]),
        opcode,
        tuple(word for word in suffixes if word not in _TYPES),
        tuple(_TYPES[word] for word in suffixes if word in _TYPES),
        operands,
    )


def _operand(text: str) -> Operand:
    """Parse an operand.

    Examples
    --------
    >>> _operand("[%rd5+16]")
    Address(base=Register(name='%rd5'), offset=16)
    >>> _operand("0f3F800000")
    Number(value=1065353216)
    """
    if text.startswith("{"):
        parts = [part.strip() for part in text.strip("{}").split(",")]
        return Vector(tuple(map(Register, parts)))
    if address := _ADDRESS.match(text):
        base, offset = address.groups()
        place = Register(base) if base.startswith("%") else Name(base)
        return Address(place, int(offset or 0))
    if text.startswith("%"):
        return Register(text)
    if bits := _SINGLE.match(text) or _DOUBLE.match(text):
        return Number(int(bits[1], 16))
    if _WHOLE.match(text):
        return Number(int(text.rstrip("U"), 0))
    if re.fullmatch(r"[\w$]+", text):
        return Name(text)
    raise ValueError(text)
