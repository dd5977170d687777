"""PTX to LLVM IR: a function that takes one thread of a block up to its next barrier.

A thread keeps a frame in memory. At a barrier it stores there the registers that it needs later,
and where it stands, and returns; the next call goes on from there. So a block is run by calling
the function for each of its threads, again and again, until all have ended.

Arithmetic is the GPU's to the bit: single roundings, fused multiply-adds where PTX has them and
nowhere else, shifts that may be too far, divisions by zero that do not stop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from llvmlite import ir

from spdnn.engines.cuda.emulated.liveness import (
    live_at_barriers,
    regions,
    taken_together,
)
from spdnn.engines.cuda.emulated.ptx import (
    PREDICATE,
    Address,
    Instruction,
    Kernel,
    Label,
    Name,
    Number,
    Operand,
    Register,
    Type,
    Vector,
)
from spdnn.errors import DeviceError

BIT, BYTE = ir.IntType(1), ir.IntType(8)
WORD, LONG = ir.IntType(32), ir.IntType(64)
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()

ENDED = -1
"""State of a thread that has ended. Otherwise it is the number of the barrier, from 1, or 0."""

LOAD, STORE, ATOMIC = range(3)
"""Kinds of accesses, as checks are told."""

IN_SHARED = 4
"""Is added to the kind of an access to shared memory."""

EXECUTED = 3
"""Place in the table of a launch that is counted: the address of the executions of each region by
each thread, 32-bit numbers."""

MOST_VALUES = 4
"""Numbers that one instruction stores at most."""

_FRAME_HEAD = 16
"""Bytes of a frame before the thread's local memory: its state."""

_FRAME_UNIT = 64

_SPACES = ("global", "shared", "local")
_ORDERS = frozenset({"relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys"})
"""Words of atomic instructions that ask for no more than what is done: one order of all."""


class Launch(NamedTuple):
    """Places in the table of numbers (int32) that all threads of a launch share."""

    n_threads: int = 0
    grid_x: int = 1
    grid_y: int = 2
    dynamic_bytes: int = 3


LAUNCH = Launch()

LAUNCH_NUMBERS = len(LAUNCH)


@dataclass(frozen=True)
class Hooks:
    """Addresses of functions that are called while a kernel runs; all take the table's address.

    Attributes
    ----------
    access : int
        Called before each access to global and shared memory.
    fence : int
        Called at each fence; 0 for none.
    epoch : int
        Called when all threads of a block stand at a barrier or have ended; 0 for none.
    counts : bool
        Whether threads count how often they execute each region, and accesses are told together
        that ptxas makes one of (see `spdnn.engines.cuda.emulated.liveness`).
    """

    access: int
    fence: int = 0
    epoch: int = 0
    counts: bool = False


class Thread(NamedTuple):
    """The function that runs a thread, in a module.

    Attributes
    ----------
    module : llvmlite.ir.Module
        What the function is in.
    function : llvmlite.ir.Function
        It takes a thread to its next barrier.
    frame_bytes : int
        Size of a thread's frame, a multiple of 64.
    """

    module: Any
    function: Any
    frame_bytes: int


def translate(kernel: Kernel, hooks: Hooks | None = None) -> Thread:
    """Translate a kernel.

    Parameters
    ----------
    kernel : Kernel
        Instructions, as `spdnn.engines.cuda.emulated.ptx.parse` gives them.
    hooks : Hooks, optional
        With them every access to global and shared memory is told to them first, and goes where
        they say.

    Raises
    ------
    DeviceError
        If it has an instruction that is not known; with the instruction.
    """
    return _Translator(kernel, hooks).thread()


def _llvm(of: Type) -> Any:
    """The type of LLVM for one of PTX."""
    if of.kind == "f":
        return FLOAT if of.bits == 32 else DOUBLE
    return ir.IntType(of.bits)


def _is_float(of: Any) -> bool:
    return bool(of in (FLOAT, DOUBLE))


def _width(of: Any) -> int:
    if of == FLOAT:
        return 32
    return 64 if of == DOUBLE else int(of.width)


_SIGNED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = _SIGNED | {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}


class _Translator:
    """Translates one kernel, instruction by instruction."""

    def __init__(self, kernel: Kernel, hooks: Hooks | None) -> None:
        self.kernel, self.hooks = kernel, hooks
        self.module = ir.Module()
        arguments = [BYTE.as_pointer(), LONG.as_pointer(), WORD.as_pointer(), LONG]
        arguments += [WORD, WORD, WORD, LONG]
        self.function = ir.Function(self.module, ir.FunctionType(WORD, arguments), "thread")
        self.function.linkage = "internal"
        names = ("frame", "parameters", "launch", "shared", "thread", "x", "y", "checks")
        for argument, name in zip(self.function.args, names, strict=True):
            argument.name = name
        self.frame, self.parameters, self.launch, self.shared = self.function.args[:4]
        self.thread_number, self.block_x, self.block_y, self.checks = self.function.args[4:]
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.live = live_at_barriers(kernel)
        self.regions = {first: place for place, (first, _) in enumerate(regions(kernel))}
        self.together = taken_together(kernel) if hooks is not None and hooks.counts else {}
        self.n_barriers = 0
        self.number = 0
        self.instruction: Instruction | None = None
        self.at_local = _FRAME_HEAD
        self.at_slots = _FRAME_HEAD + -(-kernel.local_bytes // 16) * 16

    def thread(self) -> Thread:
        """Translate all instructions."""
        builder, kernel = self.builder, self.kernel
        self.variables = {
            name: builder.alloca(_llvm(of), name=name[1:]) for name, of in kernel.registers.items()
        }
        self.specials = self._specials()
        self.executed = self._executed()
        self.labels = {
            each.name: self.function.append_basic_block(each.name.strip("$"))
            for each in kernel.code
            if isinstance(each, Label)
        }
        state_at = builder.bitcast(self.frame, WORD.as_pointer())
        start = self.function.append_basic_block("start")
        self.resumed = builder.switch(builder.load(state_at), start)
        builder.position_at_end(start)
        for number, each in enumerate(kernel.code):
            self.number = number
            if isinstance(each, Label):
                if not builder.block.is_terminated:
                    builder.branch(self.labels[each.name])
                builder.position_at_end(self.labels[each.name])
            else:
                self._translate(each)
        self._end()
        slots = max(map(len, self.live.values()), default=0)
        n_bytes = self.at_slots + 8 * slots
        return Thread(self.module, self.function, -(-n_bytes // _FRAME_UNIT) * _FRAME_UNIT)

    def _specials(self) -> dict[str, Any]:
        """Values of the special registers."""

        def of_launch(place: int) -> Any:
            at = self.builder.gep(self.launch, [ir.Constant(LONG, place)])
            return self.builder.load(at)

        zero, one = ir.Constant(WORD, 0), ir.Constant(WORD, 1)
        return {
            "%tid.x": self.thread_number,
            "%tid.y": zero,
            "%tid.z": zero,
            "%ntid.x": of_launch(LAUNCH.n_threads),
            "%ntid.y": one,
            "%ntid.z": one,
            "%ctaid.x": self.block_x,
            "%ctaid.y": self.block_y,
            "%ctaid.z": zero,
            "%nctaid.x": of_launch(LAUNCH.grid_x),
            "%nctaid.y": of_launch(LAUNCH.grid_y),
            "%nctaid.z": one,
            "%dynamic_smem_size": of_launch(LAUNCH.dynamic_bytes),
        }

    def _executed(self) -> Any:
        """Where the thread counts the regions that it executes; None where nobody counts."""
        if self.hooks is None or not self.hooks.counts:
            return None
        builder = self.builder
        table = builder.inttoptr(self.checks, LONG.as_pointer())
        all_threads = builder.load(builder.gep(table, [ir.Constant(LONG, EXECUTED)]))
        row_bytes = ir.Constant(LONG, WORD.width // 8 * len(self.regions))
        before = builder.mul(builder.zext(self.thread_number, LONG), row_bytes)
        return builder.inttoptr(builder.add(all_threads, before), WORD.as_pointer())

    def _count(self) -> None:
        """Count the region that begins here, if one does."""
        region = self.regions.get(self.number)
        if self.executed is not None and region is not None:
            at = self.builder.gep(self.executed, [ir.Constant(LONG, region)])
            more = self.builder.add(self.builder.load(at), ir.Constant(WORD, 1))
            self.builder.store(more, at)

    def _end(self) -> None:
        """Note that the thread has ended, and return."""
        if self.builder.block.is_terminated:
            return
        ended = ir.Constant(WORD, ENDED)
        self.builder.store(ended, self.builder.bitcast(self.frame, WORD.as_pointer()))
        self.builder.ret(ended)

    def _translate(self, instruction: Instruction) -> None:
        self.instruction = instruction
        builder = self.builder
        if builder.block.is_terminated:
            # What no branch leads to: LLVM wants a block for it all the same.
            builder.position_at_end(self.function.append_basic_block())
        self._count()
        translated: Callable[[Instruction], None] | None = getattr(
            self, f"_{instruction.opcode}_", None
        )
        if translated is None:
            self._refuse()
        if instruction.guard is None:
            translated(instruction)
            return
        guard = self._value(instruction.guard, PREDICATE)
        taken = self.function.append_basic_block()
        passed = self.function.append_basic_block()
        if instruction.is_negated:
            builder.cbranch(guard, passed, taken)
        else:
            builder.cbranch(guard, taken, passed)
        builder.position_at_end(taken)
        translated(instruction)
        if not builder.block.is_terminated:
            builder.branch(passed)
        builder.position_at_end(passed)

    def _refuse(self) -> NoReturn:
        """Raise: the instruction is not known."""
        assert self.instruction is not None
        raise DeviceError(
            f"kernel {self.kernel.name}: the emulated device does not know the instruction "
            f"{self.instruction.text!r}"
        )

    def _one_type(self, instruction: Instruction, *allowed: tuple[str, ...]) -> Type:
        """The one type of an instruction whose modifiers are among those allowed."""
        if len(instruction.types) != 1 or instruction.modifiers not in (allowed or ((),)):
            self._refuse()
        return instruction.types[0]

    # Operands.

    def _value(self, operand: Operand, of: Type) -> Any:
        """The value of an operand, as a type of the instruction."""
        wanted = _llvm(of)
        if isinstance(operand, Number):
            if _is_float(wanted):
                return ir.Constant(ir.IntType(of.bits), operand.value).bitcast(wanted)
            return ir.Constant(wanted, operand.value)
        if isinstance(operand, Name):
            value = self._place(operand.name)
        elif isinstance(operand, Register) and operand.name in self.specials:
            value = self.specials[operand.name]
        elif isinstance(operand, Register) and operand.name in self.variables:
            value = self.builder.load(self.variables[operand.name])
        else:
            self._refuse()
        held = value.type
        if held == wanted:
            return value
        if _width(held) == of.bits:
            return self.builder.bitcast(value, wanted)
        if _is_float(held) or _is_float(wanted) or _width(held) < of.bits:
            self._refuse()
        return self.builder.trunc(value, wanted)

    def _values(self, instruction: Instruction, of: Type, count: int) -> list[Any]:
        """The values of all operands behind the result."""
        if len(instruction.operands) != count + 1:
            self._refuse()
        return [self._value(operand, of) for operand in instruction.operands[1:]]

    def _place(self, name: str) -> Any:
        """The address of a variable of shared or local memory."""
        if name in self.kernel.shared:
            return self.builder.add(self.shared, ir.Constant(LONG, self.kernel.shared[name]))
        if name in self.kernel.local:
            frame = self.builder.ptrtoint(self.frame, LONG)
            at = self.at_local + self.kernel.local[name]
            return self.builder.add(frame, ir.Constant(LONG, at))
        self._refuse()

    def _set(self, operand: Operand, value: Any, of: Type) -> None:
        """Write a register; what is larger than the value is filled with its sign or zero."""
        if not isinstance(operand, Register) or operand.name not in self.variables:
            self._refuse()
        wanted = _llvm(self.kernel.registers[operand.name])
        if value.type != wanted:
            if _width(value.type) == _width(wanted):
                value = self.builder.bitcast(value, wanted)
            elif _is_float(value.type) or _is_float(wanted) or _width(value.type) > _width(wanted):
                self._refuse()
            elif of.kind == "s":
                value = self.builder.sext(value, wanted)
            else:
                value = self.builder.zext(value, wanted)
        self.builder.store(value, self.variables[operand.name])

    # Control.

    def _bra_(self, instruction: Instruction) -> None:
        target = instruction.operands[0]
        if instruction.modifiers not in ((), ("uni",)) or not isinstance(target, Name):
            self._refuse()
        self.builder.branch(self.labels[target.name])

    def _ret_(self, instruction: Instruction) -> None:
        self._end()

    _exit_ = _ret_

    def _bar_(self, instruction: Instruction) -> None:
        """Keep what is needed later, and return; go on from here when called again."""
        if instruction.modifiers not in (("sync",), ("sync", "aligned")) or (
            instruction.operands != (Number(0),)
        ):
            self._refuse()
        self.n_barriers += 1
        builder, number = self.builder, ir.Constant(WORD, self.n_barriers)
        names = self.live[self.number]
        for slot, name in enumerate(names):
            builder.store(builder.load(self.variables[name]), self._slot(slot, name))
        builder.store(number, builder.bitcast(self.frame, WORD.as_pointer()))
        builder.ret(number)
        resumed = self.function.append_basic_block()
        self.resumed.add_case(number, resumed)
        builder.position_at_end(resumed)
        for slot, name in enumerate(names):
            builder.store(builder.load(self._slot(slot, name)), self.variables[name])

    _barrier_ = _bar_

    def _slot(self, number: int, name: str) -> Any:
        """Where a register is kept at a barrier."""
        at = self.builder.gep(self.frame, [ir.Constant(LONG, self.at_slots + 8 * number)])
        return self.builder.bitcast(at, _llvm(self.kernel.registers[name]).as_pointer())

    def _membar_(self, instruction: Instruction) -> None:
        self.builder.fence("seq_cst")
        if self.hooks is not None and self.hooks.fence:
            self._call(self.hooks.fence, [self.checks, self.thread_number])

    _fence_ = _membar_

    # Memory.

    def _ld_(self, instruction: Instruction) -> None:
        space, vector = self._memory(instruction)
        of, (target, source) = instruction.types[0], instruction.operands
        if space == "param":
            self._load_parameter(target, source, of)
            return
        targets = target.registers if isinstance(target, Vector) else (target,)
        if len(targets) != vector:
            self._refuse()
        at = self._checked(self._address(source), of, vector, space, LOAD)
        loaded = self.builder.load(*self._pointed(at, of, vector))
        loaded.align = of.n_bytes
        for number, register in enumerate(targets):
            value = loaded
            if vector > 1:
                value = self.builder.extract_element(loaded, ir.Constant(WORD, number))
            self._set(register, value, of)

    def _st_(self, instruction: Instruction) -> None:
        space, vector = self._memory(instruction)
        of, (target, source) = instruction.types[0], instruction.operands
        sources = source.registers if isinstance(source, Vector) else (source,)
        if len(sources) != vector or space == "param":
            self._refuse()
        values = [self._value(register, of) for register in sources]
        at = self._checked(self._address(target), of, vector, space, STORE, values)
        stored = values[0]
        if vector > 1:
            stored = ir.Constant(ir.VectorType(_llvm(of), vector), ir.Undefined)
            for number, value in enumerate(values):
                stored = self.builder.insert_element(stored, value, ir.Constant(WORD, number))
        done = self.builder.store(stored, *self._pointed(at, of, vector))
        done.align = of.n_bytes

    def _memory(self, instruction: Instruction) -> tuple[str, int]:
        """The space of a load or store, and how many numbers it moves."""
        words = [word for word in instruction.modifiers if word != "nc"]
        if len(instruction.types) != 1 or len(instruction.operands) != 2 or not words:
            self._refuse()
        space, *rest = words
        if space not in (*_SPACES, "param") or rest not in ([], ["v2"], ["v4"]):
            self._refuse()
        return space, int(rest[0][1]) if rest else 1

    def _load_parameter(self, target: Operand, source: Operand, of: Type) -> None:
        """A parameter's bits stand in the table of parameters, in 64 bits each."""
        if not isinstance(source, Address) or not isinstance(source.base, Name) or source.offset:
            self._refuse()
        _, number = self.kernel.parameters[source.base.name]
        at = self.builder.gep(self.parameters, [ir.Constant(LONG, number)])
        pointer = self.builder.bitcast(at, _llvm(of).as_pointer())
        self._set(target, self.builder.load(pointer), of)

    def _address(self, operand: Operand) -> Any:
        if not isinstance(operand, Address):
            self._refuse()
        base = self._value(operand.base, Type("b", 64))
        return self.builder.add(base, ir.Constant(LONG, operand.offset))

    def _pointed(self, at: Any, of: Type, count: int) -> tuple[Any]:
        """The pointer to one or several numbers at an address."""
        pointed = _llvm(of) if count == 1 else ir.VectorType(_llvm(of), count)
        return (self.builder.inttoptr(at, pointed.as_pointer()),)

    def _checked(
        self, at: Any, of: Type, count: int, space: str, kind: int, values: list[Any] | None = None
    ) -> Any:
        """Where an access goes: to `at`, or where the checks say that it does no harm."""
        together = self.together.get(self.number, 1)
        if self.hooks is None or space == "local" or not together:
            return at
        words = [self._as_long(value) for value in values or []]
        words += [ir.Constant(LONG, 0)] * (MOST_VALUES - len(words))
        numbers = (of.n_bytes, count * together, kind + (IN_SHARED if space == "shared" else 0))
        constants = [ir.Constant(LONG, number) for number in (*numbers, self.number)]
        thread = self.builder.zext(self.thread_number, LONG)
        return self._call(self.hooks.access, [self.checks, at, thread, *constants, *words])

    def _as_long(self, value: Any) -> Any:
        if _is_float(value.type):
            value = self.builder.bitcast(value, ir.IntType(_width(value.type)))
        return value if value.type == LONG else self.builder.zext(value, LONG)

    def _call(self, address: int, arguments: list[Any]) -> Any:
        """Call a function of the host by its address: all numbers of 64 bits."""
        arguments = [self._as_long(argument) for argument in arguments]
        of = ir.FunctionType(LONG, [LONG] * len(arguments))
        pointer = self.builder.inttoptr(ir.Constant(LONG, address), of.as_pointer())
        return self.builder.call(pointer, arguments)

    def _atom_(self, instruction: Instruction) -> None:
        target, place, *given = instruction.operands
        value, of = self._atomic(instruction, place, given)
        self._set(target, value, of)

    def _red_(self, instruction: Instruction) -> None:
        place, *given = instruction.operands
        self._atomic(instruction, place, given)

    def _atomic(
        self, instruction: Instruction, place: Operand, given: list[Operand]
    ) -> tuple[Any, Type]:
        """Do an atomic operation; the value before it, and its type."""
        words = [word for word in instruction.modifiers if word not in _ORDERS]
        if len(words) != 2 or words[0] not in ("global", "shared") or len(instruction.types) != 1:
            self._refuse()
        (space, word), of = words, instruction.types[0]
        values = [self._value(operand, of) for operand in given]
        at = self._checked(self._address(place), of, 1, space, ATOMIC)
        pointer = self.builder.inttoptr(at, _llvm(of).as_pointer())
        if word == "cas" and len(values) == 2 and of.kind != "f":
            pair = self.builder.cmpxchg(pointer, *values, "seq_cst")
            return self.builder.extract_value(pair, 0), of
        is_float = of.kind == "f"
        prefix = "" if of.kind == "s" else "u"
        operations = {
            "add": "fadd" if is_float else "add",
            "exch": "xchg",
            "min": f"{prefix}min",
            "max": f"{prefix}max",
            "and": "and",
            "or": "or",
            "xor": "xor",
        }
        if word not in operations or len(values) != 1 or (is_float and word != "add"):
            self._refuse()
        return self.builder.atomic_rmw(operations[word], pointer, values[0], "seq_cst"), of

    # Moving and converting.

    def _mov_(self, instruction: Instruction) -> None:
        of = self._one_type(instruction)
        (value,) = self._values(instruction, of, 1)
        self._set(instruction.operands[0], value, of)

    def _cvta_(self, instruction: Instruction) -> None:
        """Addresses are the same in all spaces: those of the host."""
        words = [word for word in instruction.modifiers if word != "to"]
        if len(words) != 1 or words[0] not in _SPACES or len(instruction.types) != 1:
            self._refuse()
        (value,) = self._values(instruction, instruction.types[0], 1)
        self._set(instruction.operands[0], value, instruction.types[0])

    def _cvt_(self, instruction: Instruction) -> None:
        if len(instruction.types) != 2:
            self._refuse()
        to, of = instruction.types
        (value,) = self._values(instruction, of, 1)
        wanted = _llvm(to)
        builder, rounding = self.builder, instruction.modifiers
        if to.kind != "f" and of.kind != "f" and not rounding:
            if to.bits < of.bits:
                value = builder.trunc(value, wanted)
            elif to.bits > of.bits:
                value = (builder.sext if of.kind == "s" else builder.zext)(value, wanted)
        elif to.kind == "f" and of.kind != "f" and rounding == ("rn",):
            value = (builder.sitofp if of.kind == "s" else builder.uitofp)(value, wanted)
        elif to == Type("f", 64) and of == Type("f", 32) and not rounding:
            value = builder.fpext(value, wanted)
        elif to == Type("f", 32) and of == Type("f", 64) and rounding == ("rn",):
            value = builder.fptrunc(value, wanted)
        else:
            self._refuse()
        self._set(instruction.operands[0], value, to)

    def _selp_(self, instruction: Instruction) -> None:
        of = self._one_type(instruction)
        if len(instruction.operands) != 4:
            self._refuse()
        target, yes, no, condition = instruction.operands
        chosen = self.builder.select(
            self._value(condition, PREDICATE), self._value(yes, of), self._value(no, of)
        )
        self._set(target, chosen, of)

    def _setp_(self, instruction: Instruction) -> None:
        if len(instruction.modifiers) != 1 or len(instruction.types) != 1:
            self._refuse()
        (word,), of = instruction.modifiers, instruction.types[0]
        left, right = self._values(instruction, of, 2)
        builder = self.builder
        if of.kind == "f" and word in _SIGNED:
            result = builder.fcmp_ordered(_SIGNED[word], left, right)
        elif of.kind == "f" and word in _UNORDERED:
            result = builder.fcmp_unordered(_UNORDERED[word], left, right)
        elif of.kind == "s" and word in _SIGNED:
            result = builder.icmp_signed(_SIGNED[word], left, right)
        elif of.kind in ("u", "b") and word in _UNSIGNED:
            result = builder.icmp_unsigned(_UNSIGNED[word], left, right)
        else:
            self._refuse()
        self._set(instruction.operands[0], result, PREDICATE)

    # Arithmetic.

    def _binary(
        self, instruction: Instruction, whole: Callable[..., Any], real: Callable[..., Any]
    ) -> None:
        of = self._one_type(instruction, (), ("rn",))
        if instruction.modifiers and of.kind != "f":
            self._refuse()
        left, right = self._values(instruction, of, 2)
        result = (real if of.kind == "f" else whole)(left, right)
        self._set(instruction.operands[0], result, of)

    def _add_(self, instruction: Instruction) -> None:
        self._binary(instruction, self.builder.add, self.builder.fadd)

    def _sub_(self, instruction: Instruction) -> None:
        self._binary(instruction, self.builder.sub, self.builder.fsub)

    def _mul_(self, instruction: Instruction) -> None:
        if instruction.types and instruction.types[0].kind == "f":
            self._binary(instruction, self.builder.mul, self.builder.fmul)
            return
        of = self._one_type(instruction, ("lo",), ("wide",))
        left, right = self._values(instruction, of, 2)
        product, result = self._product(instruction, of, left, right)
        self._set(instruction.operands[0], product, result)

    def _mad_(self, instruction: Instruction) -> None:
        of = self._one_type(instruction, ("lo",), ("wide",))
        if of.kind == "f" or len(instruction.operands) != 4:
            self._refuse()
        target, one, other, added = instruction.operands
        left, right = self._value(one, of), self._value(other, of)
        product, result = self._product(instruction, of, left, right)
        self._set(target, self.builder.add(product, self._value(added, result)), result)

    def _product(
        self, instruction: Instruction, of: Type, left: Any, right: Any
    ) -> tuple[Any, Type]:
        """A product of as many bits, or of twice as many; and its type."""
        result = of
        if instruction.modifiers == ("wide",):
            result = Type(of.kind, 2 * of.bits)
            extend = self.builder.sext if of.kind == "s" else self.builder.zext
            left, right = (extend(each, _llvm(result)) for each in (left, right))
        return self.builder.mul(left, right), result

    def _fma_(self, instruction: Instruction) -> None:
        of = self._one_type(instruction, ("rn",))
        if of.kind != "f":
            self._refuse()
        values = self._values(instruction, of, 3)
        self._set(instruction.operands[0], self.builder.fma(*values), of)

    def _div_(self, instruction: Instruction) -> None:
        of = self._one_type(instruction, (), ("rn",))
        left, right = self._values(instruction, of, 2)
        if of.kind == "f" and instruction.modifiers:
            result = self.builder.fdiv(left, right)
        elif of.kind in ("s", "u") and not instruction.modifiers:
            result = self._quotient(of, left, right)
        else:
            self._refuse()
        self._set(instruction.operands[0], result, of)

    def _rem_(self, instruction: Instruction) -> None:
        of = self._one_type(instruction)
        if of.kind not in ("s", "u"):
            self._refuse()
        left, right = self._values(instruction, of, 2)
        multiple = self.builder.mul(self._quotient(of, left, right), right)
        self._set(instruction.operands[0], self.builder.sub(left, multiple), of)

    def _quotient(self, of: Type, left: Any, right: Any) -> Any:
        """A quotient; all ones for a division by zero, which a CPU would stop at."""
        builder, wanted = self.builder, _llvm(of)
        zero, one, ones = (ir.Constant(wanted, number) for number in (0, 1, -1))
        is_zero = builder.icmp_unsigned("==", right, zero)
        if of.kind == "u":
            quotient = builder.udiv(left, builder.select(is_zero, one, right))
        else:
            # The smallest number divided by -1 stops a CPU, too.
            is_minus = builder.icmp_unsigned("==", right, ones)
            safe = builder.select(builder.or_(is_zero, is_minus), one, right)
            quotient = builder.sdiv(left, safe)
            quotient = builder.select(is_minus, builder.sub(zero, left), quotient)
        return builder.select(is_zero, ones, quotient)

    def _extreme(self, instruction: Instruction, is_most: bool) -> None:
        of = self._one_type(instruction)
        left, right = self._values(instruction, of, 2)
        builder = self.builder
        if of.kind == "f":
            result = self._float_extreme(of, left, right, is_most)
        elif of.kind == "s":
            is_right = builder.icmp_signed("<" if is_most else ">", left, right)
            result = builder.select(is_right, right, left)
        else:
            is_right = builder.icmp_unsigned("<" if is_most else ">", left, right)
            result = builder.select(is_right, right, left)
        self._set(instruction.operands[0], result, of)

    def _float_extreme(self, of: Type, left: Any, right: Any, is_most: bool) -> Any:
        """The larger or smaller one: not NaN if one is a number, and -0 is smaller than 0."""
        builder, wanted = self.builder, _llvm(of)
        # What is chosen of a NaN and a number is the number; of two NaNs, a NaN.
        is_left = builder.fcmp_ordered(">" if is_most else "<", left, right)
        left_is_number = builder.fcmp_ordered("ord", left, left)
        right_is_nan = builder.fcmp_unordered("uno", right, right)
        takes_left = builder.or_(is_left, builder.and_(left_is_number, right_is_nan))
        chosen = builder.select(takes_left, left, right)
        # Equal numbers differ in the sign of zero at most.
        bits = ir.IntType(of.bits)
        both = (builder.and_ if is_most else builder.or_)(
            builder.bitcast(left, bits), builder.bitcast(right, bits)
        )
        are_equal = builder.fcmp_ordered("==", left, right)
        return builder.select(are_equal, builder.bitcast(both, wanted), chosen)

    def _min_(self, instruction: Instruction) -> None:
        self._extreme(instruction, False)

    def _max_(self, instruction: Instruction) -> None:
        self._extreme(instruction, True)

    def _neg_(self, instruction: Instruction) -> None:
        of = self._one_type(instruction)
        (value,) = self._values(instruction, of, 1)
        if of.kind == "f":
            result = self.builder.fneg(value)
        else:
            result = self.builder.sub(ir.Constant(_llvm(of), 0), value)
        self._set(instruction.operands[0], result, of)

    # Bits.

    def _bitwise(self, instruction: Instruction, operation: Callable[..., Any]) -> None:
        of = self._one_type(instruction)
        left, right = self._values(instruction, of, 2)
        self._set(instruction.operands[0], operation(left, right), of)

    def _and_(self, instruction: Instruction) -> None:
        self._bitwise(instruction, self.builder.and_)

    def _or_(self, instruction: Instruction) -> None:
        self._bitwise(instruction, self.builder.or_)

    def _xor_(self, instruction: Instruction) -> None:
        self._bitwise(instruction, self.builder.xor)

    def _not_(self, instruction: Instruction) -> None:
        of = self._one_type(instruction)
        (value,) = self._values(instruction, of, 1)
        ones = ir.Constant(_llvm(of), -1 if of.bits > 1 else 1)
        self._set(instruction.operands[0], self.builder.xor(value, ones), of)

    def _shl_(self, instruction: Instruction) -> None:
        self._shift(instruction, self.builder.shl)

    def _shr_(self, instruction: Instruction) -> None:
        is_signed = bool(instruction.types) and instruction.types[0].kind == "s"
        self._shift(instruction, self.builder.ashr if is_signed else self.builder.lshr)

    def _shift(self, instruction: Instruction, operation: Callable[..., Any]) -> None:
        """A shift; by as many bits as there are, or more, it leaves none of them."""
        of = self._one_type(instruction)
        if len(instruction.operands) != 3 or of.kind == "f":
            self._refuse()
        target, shifted, by = instruction.operands
        value, distance = self._value(shifted, of), self._value(by, Type("u", 32))
        builder, wanted = self.builder, _llvm(of)
        most = ir.Constant(WORD, of.bits - 1)
        is_too_far = builder.icmp_unsigned(">", distance, most)
        near = builder.select(is_too_far, most, distance)
        if of.bits != 32:
            near = (builder.zext if of.bits > 32 else builder.trunc)(near, wanted)
        result = operation(value, near)
        if not (instruction.opcode == "shr" and of.kind == "s"):
            result = builder.select(is_too_far, ir.Constant(wanted, 0), result)
        self._set(target, result, of)

    def _bfi_(self, instruction: Instruction) -> None:
        """Put the lowest bits of one number into another one."""
        of = self._one_type(instruction)
        if len(instruction.operands) != 5:
            self._refuse()
        target, put, into, at, length = instruction.operands
        if not isinstance(at, Number) or not isinstance(length, Number):
            self._refuse()
        if at.value + length.value > of.bits:
            self._refuse()
        builder, wanted = self.builder, _llvm(of)
        mask = ((1 << length.value) - 1) << at.value
        moved = builder.shl(self._value(put, of), ir.Constant(wanted, at.value))
        kept = builder.and_(self._value(into, of), ir.Constant(wanted, ~mask % (1 << of.bits)))
        moved = builder.and_(moved, ir.Constant(wanted, mask))
        self._set(target, builder.or_(kept, moved), of)
