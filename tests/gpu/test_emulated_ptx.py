"""What single instructions do on the emulated GPU, against Python's whole numbers and NumPy."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spdnn import DeviceError
from spdnn.engines.cuda.emulated.launch import Order, Program
from spdnn.engines.cuda.emulated.liveness import live_at_barriers
from spdnn.engines.cuda.emulated.ptx import Address, Instruction, Name, Register, parse

REGISTERS = ".reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>"

_programs: dict[str, Program] = {}


def kernel_text(body: str, n_parameters: int = 4) -> str:
    """PTX of a kernel of 64-bit parameters."""
    parameters = ",\n".join(f".param .u64 k_param_{number}" for number in range(n_parameters))
    return f".visible .entry k(\n{parameters}\n)\n{{\n{REGISTERS};\n{body}\nret;\n}}\n"


def computed(statements: str, *numbers: int, bits: int = 64) -> int:
    """What statements leave in ``%rd0``, where ``%rd1`` and so on hold the numbers."""
    if statements not in _programs:
        loads = "".join(f"ld.param.u64 %rd{n}, [k_param_{n}];\n" for n in range(4))
        end = "st.global.u64 [%rd8], %rd0;"
        body = f"{loads} mov.u64 %rd8, %rd0;\n{statements};\n{end}"
        _programs[statements] = Program(parse(kernel_text(body), "k"))
    result = np.zeros(1, np.uint64)
    given_numbers = [result.ctypes.data, *numbers, *[0] * (3 - len(numbers))]
    order = Order(np.arange(1), np.arange(1))
    _programs[statements].launch((1,), 1, given_numbers, 0, order)
    return int(result[0]) % (1 << bits)


def signed(number: int, bits: int) -> int:
    """The signed number of some bits."""
    number %= 1 << bits
    return number - (1 << bits) if number >> (bits - 1) else number


WHOLE = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 70),
    st.sampled_from([2**63, 2**64 - 1, 2**31, 2**32 - 1, 2**32]),
)


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else -1


WHOLE_CASES = {
    "add.s64": lambda a, b: a + b,
    "sub.s64": lambda a, b: a - b,
    "mul.lo.s64": lambda a, b: a * b,
    "div.u64": lambda a, b: a // b if b else -1,
    "div.s64": lambda a, b: quotient(signed(a, 64), signed(b, 64)),
    "rem.u64": lambda a, b: a % b if b else a,
    "min.s64": lambda a, b: min(signed(a, 64), signed(b, 64)),
    "max.u64": max,
    "and.b64": lambda a, b: a & b,
    "or.b64": lambda a, b: a | b,
    "xor.b64": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("opcode", WHOLE_CASES)
@given(WHOLE, WHOLE)
def test_whole_numbers_wrap_around(opcode: str, a: int, b: int) -> None:
    expected = WHOLE_CASES[opcode](a, b) % 2**64
    if opcode == "rem.u64" and b == 0:
        return  # the GPU leaves it open
    assert computed(f"{opcode} %rd0, %rd1, %rd2", a, b) == expected


@given(WHOLE, st.integers(0, 200))
def test_shifts_that_are_too_far_leave_nothing(number: int, distance: int) -> None:
    by = "cvt.u32.u64 %r1, %rd2;"
    left = computed(f"{by} shl.b64 %rd0, %rd1, %r1", number, distance)
    assert left == (number << distance) % 2**64
    assert computed(f"{by} shr.u64 %rd0, %rd1, %r1", number, distance) == number >> distance
    right = computed(f"{by} shr.s64 %rd0, %rd1, %r1", number, distance)
    assert signed(right, 64) == signed(number, 64) >> distance
    narrow = "cvt.u32.u64 %r2, %rd1; shr.s32 %r3, %r2, %r1; cvt.s64.s32 %rd0, %r3"
    right = computed(f"{by} {narrow}", number, distance)
    assert signed(right, 64) == signed(number, 32) >> distance


@given(WHOLE, WHOLE)
def test_numbers_are_widened_by_their_types(a: int, b: int) -> None:
    narrow = "cvt.u32.u64 %r1, %rd1; cvt.u32.u64 %r2, %rd2;"
    product = computed(f"{narrow} mul.wide.s32 %rd0, %r1, %r2", a, b)
    assert signed(product, 64) == signed(a, 32) * signed(b, 32)
    product = computed(f"{narrow} mul.wide.u32 %rd0, %r1, %r2", a, b)
    assert product == (a % 2**32) * (b % 2**32)
    product = computed(f"{narrow} mad.lo.s32 %r3, %r1, %r2, %r1; cvt.u64.u32 %rd0, %r3", a, b)
    assert product == (a * b + a) % 2**32
    put = computed("bfi.b64 %rd0, %rd1, %rd2, 8, 20", a, b)
    mask = ((1 << 20) - 1) << 8
    assert put == (b & ~mask) | (a << 8 & mask)


@pytest.mark.parametrize(("word", "compare"), [
    ("lt", lambda a, b: a < b), ("ge", lambda a, b: a >= b), ("eq", lambda a, b: a == b),
    ("ne", lambda a, b: a != b),
])  # fmt: skip
@given(WHOLE, WHOLE)
def test_comparisons_know_signs(word: str, compare: Any, a: int, b: int) -> None:
    for kind, of in (("s", lambda number: signed(number, 64)), ("u", lambda number: number)):
        statements = f"setp.{word}.{kind}64 %p1, %rd1, %rd2; selp.u64 %rd0, 1, 0, %p1"
        assert computed(statements, a, b) == compare(of(a), of(b))


FLOATS = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45])
)


def bits_of(number: Any) -> int:
    return int(np.float32(number).view(np.uint32))


def computed_float(statement: str, *numbers: float) -> np.float32:
    """What an instruction leaves in ``%f0`` of ``%f1`` and so on."""
    moves = "".join(
        f"cvt.u32.u64 %r{n}, %rd{n}; mov.b32 %f{n}, %r{n};" for n in range(1, len(numbers) + 1)
    )
    end = "mov.b32 %r0, %f0; cvt.u64.u32 %rd0, %r0"
    bits = computed(f"{moves} {statement}; {end}", *map(bits_of, numbers))
    return np.uint32(bits).view(np.float32)


def same(a: Any, b: Any) -> bool:
    return bool(np.isnan(a) and np.isnan(b)) or bits_of(a) == bits_of(b)


@settings(max_examples=200)
@given(FLOATS, FLOATS, FLOATS)
def test_floats_are_rounded_once(a: float, b: float, c: float) -> None:
    x, y = np.float32(a), np.float32(b)
    with np.errstate(all="ignore"):
        assert same(computed_float("add.f32 %f0, %f1, %f2", a, b), x + y)
        assert same(computed_float("sub.f32 %f0, %f1, %f2", a, b), x - y)
        assert same(computed_float("mul.f32 %f0, %f1, %f2", a, b), x * y)
        assert same(computed_float("div.rn.f32 %f0, %f1, %f2", a, b), x / y)
        assert same(computed_float("neg.f32 %f0, %f1", a), -x)
    assert np.isnan(computed_float("fma.rn.f32 %f0, %f1, %f2, %f3", math.nan, b, c))


def test_fma_rounds_once() -> None:
    a, b = 1 + 2**-23, 1 - 2**-23
    assert computed_float("fma.rn.f32 %f0, %f1, %f2, %f3", a, b, -1.0) == -(2**-46)


@settings(max_examples=200)
@given(FLOATS, FLOATS)
def test_extremes_prefer_numbers_and_order_zeros(a: float, b: float) -> None:
    for opcode, choose in (("min", min), ("max", max)):
        found = computed_float(f"{opcode}.f32 %f0, %f1, %f2", a, b)
        if math.isnan(a) or math.isnan(b):
            assert same(found, b if math.isnan(a) else a)
        else:
            expected = choose((a, b), key=lambda number: (number, math.copysign(1, number)))
            assert same(found, expected)


@given(FLOATS, FLOATS)
def test_comparisons_with_nan_are_as_written(a: float, b: float) -> None:
    moves = "cvt.u32.u64 %r1, %rd1; mov.b32 %f1, %r1; cvt.u32.u64 %r2, %rd2; mov.b32 %f2, %r2;"
    has_nan = math.isnan(a) or math.isnan(b)
    for word, expected in (
        ("lt", not has_nan and a < b),
        ("ne", not has_nan and a != b),
        ("neu", has_nan or a != b),
        ("geu", has_nan or a >= b),
    ):
        statements = f"{moves} setp.{word}.f32 %p1, %f1, %f2; selp.u64 %rd0, 1, 0, %p1"
        assert computed(statements, bits_of(a), bits_of(b)) == expected


def test_a_guard_skips_an_instruction_or_branches() -> None:
    text = "setp.gt.s64 %p1, %rd1, 5; mov.u64 %rd0, 1; {} %rd0, 2"
    assert computed(text.format("@%p1 mov.u64"), 6) == 2
    assert computed(text.format("@%p1 mov.u64"), 5) == 1
    assert computed(text.format("@!%p1 mov.u64"), 5) == 2
    loop = """mov.u64 %rd0, 0; mov.u64 %rd3, 0;
    $L__BB0_1: add.s64 %rd0, %rd0, %rd3; add.s64 %rd3, %rd3, 1; setp.lt.s64 %p1, %rd3, %rd1;
    @%p1 bra $L__BB0_1"""
    assert computed(loop, 10) == 45


def test_threads_wait_for_one_another_and_keep_what_they_need() -> None:
    n = 64
    body = """
    .shared .align 4 .b8 _cudapy_smem_1[256];
    ld.param.u64 %rd1, [k_param_0];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mov.u64 %rd2, _cudapy_smem_1; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd2, %rd3;
    add.s32 %r4, %r1, %r2; st.shared.u32 [%rd4], %r4;
    bar.sync 0;
    sub.s32 %r5, %r3, %r1; add.s32 %r5, %r5, -1; mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd2, %rd5; ld.shared.u32 %r6, [%rd6];
    mad.lo.s32 %r7, %r2, %r3, %r1; mul.wide.u32 %rd7, %r7, 4; add.s64 %rd8, %rd1, %rd7;
    st.global.u32 [%rd8], %r6"""
    kernel = parse(kernel_text(body, 1), "k")
    (live,) = live_at_barriers(kernel).values()
    assert live == ["%r1", "%r2", "%r3", "%rd1", "%rd2"]
    program = Program(kernel)
    expected = np.arange(n)[::-1] + np.arange(3)[:, np.newaxis]
    rng = np.random.default_rng(0)
    for n_workers in (1, 2):
        out = np.zeros((3, n), np.int32)
        order = Order(rng.permutation(n), rng.permutation(3))
        reached = program.launch((3,), n, [out.ctypes.data], 0, order, n_workers)
        assert reached == (0, 0)
        np.testing.assert_array_equal(out, expected)


def test_a_kernel_is_parsed_into_typed_instructions() -> None:
    body = "@!%p1 ld.global.v2.f32 {%f1, %f2}, [%rd1+-8]; // why\nld.param.u64 %rd2, [k_param_3]"
    kernel = parse(kernel_text(body), "k")
    first, second, *_ = kernel.code
    assert isinstance(first, Instruction)
    assert (first.guard, first.is_negated) == (Register("%p1"), True)
    assert (first.opcode, first.modifiers) == ("ld", ("global", "v2"))
    assert first.operands[1] == Address(Register("%rd1"), -8)
    assert isinstance(second, Instruction)
    assert second.operands[1] == Address(Name("k_param_3"), 0)
    assert second.text == "ld.param.u64 %rd2, [param_3]"


def test_a_module_of_another_form_is_one_line() -> None:
    with pytest.raises(DeviceError, match="kernel k: its PTX is not one kernel without calls"):
        parse(".visible .func f() {}" + kernel_text("ret"), "k")
    with pytest.raises(DeviceError, match=r"kernel k: unknown PTX: \.reg \.b128 %x<3>"):
        parse(kernel_text(".reg .b128 %x<3>"), "k")
