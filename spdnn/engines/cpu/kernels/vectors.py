"""The explicit-vector micro-kernel: a block of outputs for a few vectors of features.

It is written in LLVM's vector types, since numba's plain loops do not keep a block of sums in
registers. `rows` x `vectors` sums stay in registers over all inputs. The vectors of an input are
loaded once for all rows of a shared block, and weights are broadcast. Bias, ReLU and cap are
applied in registers, and each number that is stored is also tested for being live.

LLVM splits or scalarises vectors that a CPU does not have, so every register tile runs everywhere.
`register_tile` picks the one whose sums fit into the registers of this CPU.
"""

import os
import platform
from typing import Any, NamedTuple

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spdnn.plan.rules import FINITE, NONZERO

LANES = 16
"""Features that are computed together. The width of a tile is a multiple of it."""

_LINE_BYTES = 64
"""Bytes of a line of the cache."""

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


class RegisterTile(NamedTuple):
    """How many sums are held in registers.

    Attributes
    ----------
    width : int
        Float32 numbers of a vector; 0 for plain loops without explicit vectors.
    rows : int
        Rows that are computed at a time. A block with more rows is computed in parts.
    shared_sums, own_sums : int
        Vectors of sums that are held at a time, if the rows share their inputs, and if each row
        has its own inputs. Fewer rows leave space for more features.
    """

    width: int
    rows: int
    shared_sums: int
    own_sums: int


REGISTER_TILES = {
    "avx512": RegisterTile(16, 8, 24, 16),  # of 32 registers
    "avx2": RegisterTile(8, 4, 8, 8),  # of 16 registers
    "neon": RegisterTile(4, 4, 16, 16),  # of 32 registers
    "plain": RegisterTile(0, 1, 1, 1),
}
"""By instruction set. ``SPDNN_VECTORS`` picks one by name; any of them runs on any CPU."""


def register_tile() -> str:
    """Name in `REGISTER_TILES` for this CPU, or the name in ``SPDNN_VECTORS``."""
    asked = os.environ.get("SPDNN_VECTORS", "")
    if asked in REGISTER_TILES:
        return asked
    if platform.machine() in ("aarch64", "arm64"):
        return "neon"
    features = llvmlite.binding.get_host_cpu_features()
    if numba.config.CPU_NAME not in (None, "host"):
        return "plain"  # the user lets numba compile for another CPU than this one
    if features.get("avx512f"):
        return "avx512"
    return "avx2" if features.get("avx2") and features.get("fma") else "plain"


REGISTER_TILE = register_tile()
"""The name that this process uses."""

MASKS = 32
"""Masks of `LANES` features that are counted together: a vector of 64 bytes."""


class Rows(NamedTuple):
    """The rows of a block that are computed together: where they read and where they write.

    Attributes
    ----------
    weight_start, weight_step : int
        Where in the plan's weights the first row's first one is, and how far it is to its next one.
        The weights of the other rows are next to those of the first row.
    index_start, index_step : int
        The same for the plan's indices. Rows that share their inputs have one index for all.
    ahead : int
        How far it is from the indices of these rows to those whose inputs are fetched into the
        nearest cache meanwhile; 0 for none. Only rows that share their inputs fetch.
    n_inputs : int
        Inputs of each row.
    position : int
        The neuron of the target tile that the first row writes.
    bias_start : int
        Where in the plan's bias the first row's is.
    """

    weight_start: int
    weight_step: int
    index_start: int
    index_step: int
    ahead: int
    n_inputs: int
    position: int
    bias_start: int


class Rules(NamedTuple):
    """What happens to the sums of a step.

    Attributes
    ----------
    cap : float32
        The largest activation; infinite for none.
    is_relu : int
        Whether negative sums become zero.
    tests : int
        Bits `NONZERO` (the bias is added only to sums that are not zero) and `FINITE` (a sum that
        is not finite becomes NaN). NaN stays NaN.
    """

    cap: np.float32
    is_relu: int
    tests: int


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def block_sums(
    typing_context: Any,
    constants: Any,
    plan: Any,
    rows: Any,
    rules: Any,
    source: Any,
    target: Any,
    lane: Any,
    stride: Any,
) -> Any:
    """Compute some rows of a block for ``vectors * width`` features of a tile.

    Parameters
    ----------
    constants : tuple of literal int
        Number of rows, `vectors`, `width`, and whether the rows share their inputs (1 or 0).
        ``vectors * width`` is at most 64.
    plan : PlanArrays
        Its indices, weights and bias are read.
    rows : Rows
        Which of them.
    rules : Rules
        What happens to the sums.
    source, target : ndarray, float32
        The tiles that are read and written. Their rows begin at multiples of 64 bytes.
    lane : int
        The first of the lanes that are computed.
    stride : int
        Lanes of a neuron.

    Returns
    -------
    uint64
        Bit f is set if one of the outputs of feature ``lane + f`` is not zero.
    """
    if not all(isinstance(constant, types.IntegerLiteral) for constant in constants):
        return None
    shape = tuple(constant.literal_value for constant in constants)
    signature = types.uint64(constants, plan, rows, rules, source, target, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, plan_type, rows_type, rules_type, source_type, target_type, _, _ = signature.args
        _, plan, rows, rules, source, target, lane, stride = arguments

        def parts(kind: Any, value: Any) -> dict[str, Any]:
            """The parts of a named tuple by name; arrays as the addresses of their data."""
            return {
                name: _scalar(context, builder, part, builder.extract_value(value, number))
                for number, (name, part) in enumerate(zip(kind.fields, kind.types, strict=True))
            }

        index_bytes = plan_type[plan_type.fields.index("indices")].dtype.bitwidth // 8
        emitter = _Emitter(builder, shape, index_bytes)
        return emitter.block(
            parts(plan_type, plan),
            parts(rows_type, rows),
            parts(rules_type, rules),
            _scalar(context, builder, source_type, source),
            _scalar(context, builder, target_type, target),
            lane,
            stride,
        )

    return signature, codegen


def _scalar(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The address of an array's data, or a number itself; whole numbers have 64 bits."""
    if isinstance(kind, types.Array):
        return data_address(context, builder, kind, value)
    if isinstance(kind, types.Integer):
        return context.cast(builder, value, kind, types.int64)
    return value


def data_address(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Address of an array's first element, as a 64-bit number."""
    return builder.ptrtoint(context.make_array(kind)(context, builder, array).data, _I64)


@intrinsic  # type: ignore[untyped-decorator]
def float_at(typing_context: Any, address: Any) -> Any:
    """The float32 number at an address. Kernels that read many arrays take their addresses."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _F32.as_pointer()), align=4)

    return types.float32(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(typing_context: Any, number: Any) -> Any:
    """The bits of a float32 number as a whole number, int32."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _I32)

    return types.int32(types.float32), codegen


@intrinsic  # type: ignore[untyped-decorator]
def copy_lanes(typing_context: Any, address: Any, target: Any, start: Any) -> Any:
    """Copy the 16 numbers from an address on to ``target[start : start + 16]``."""
    signature = types.void(types.int64, target, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, target, start = arguments
        pointer = ir.VectorType(_F32, LANES).as_pointer()
        values = builder.load(builder.inttoptr(address, pointer), align=4)
        end = data_address(context, builder, signature.args[1], target)
        end = builder.add(end, builder.mul(start, ir.Constant(_I64, 4)))
        builder.store(values, builder.inttoptr(end, pointer), align=4)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic  # type: ignore[untyped-decorator]
def compress_lanes(
    typing_context: Any, source: Any, source_start: Any, bits: Any, target: Any, target_start: Any
) -> Any:
    """Copy those of 16 numbers whose bit is set, side by side, from one array to another.

    Reads ``source[source_start : source_start + 16]`` before it writes, and may write as many from
    ``target[target_start]`` on, those beyond the copied numbers being of no meaning.
    """
    signature = types.void(source, types.int64, types.uint64, target, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, source_start, bits, target, target_start = arguments
        vector = ir.VectorType(_F32, LANES)
        flags = ir.VectorType(ir.IntType(1), LANES)

        def place(array: Any, kind: Any, start: Any) -> Any:
            offset = builder.mul(start, ir.Constant(_I64, 4))
            return builder.add(data_address(context, builder, kind, array), offset)

        start = builder.inttoptr(
            place(source, signature.args[0], source_start), vector.as_pointer()
        )
        values = builder.load(start, align=4)
        mask = builder.bitcast(builder.trunc(bits, ir.IntType(LANES)), flags)
        end = place(target, signature.args[3], target_start)
        if REGISTER_TILE == "avx512":
            # The instruction that compresses into a register; the one into memory is far slower.
            kind = ir.FunctionType(vector, [vector, vector, flags])
            name = f"llvm.x86.avx512.mask.compress.v{LANES}f32"
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            packed = builder.call(function, [values, ir.Constant(vector, [0.0] * LANES), mask])
            builder.store(packed, builder.inttoptr(end, vector.as_pointer()), align=4)
        else:
            kind = ir.FunctionType(ir.VoidType(), [vector, _F32.as_pointer(), flags])
            name = f"llvm.masked.compressstore.v{LANES}f32"
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            builder.call(function, [values, builder.inttoptr(end, _F32.as_pointer()), mask])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic  # type: ignore[untyped-decorator]
def hash_lanes(
    typing_context: Any, codes: Any, code_start: Any, source: Any, source_start: Any
) -> Any:
    """Take 16 more numbers, ``source[source_start : source_start + 16]``, into 16 hashes.

    FNV-1a's step (G. Fowler, L. C. Noll, P. Vo, 1991), a number at a time, with a larger odd factor
    and a shift that brings high bits down. -0.0 counts as 0.0.
    """
    signature = types.void(codes, types.int64, source, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, code_start, source, source_start = arguments
        numbers, hashes = ir.VectorType(_I32, LANES), ir.VectorType(_I64, LANES)

        def place(array: Any, which: int, start: Any, kind: Any, n_bytes: int) -> Any:
            offset = builder.mul(start, ir.Constant(_I64, n_bytes))
            base = data_address(context, builder, signature.args[which], array)
            return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

        bits = builder.load(place(source, 2, source_start, numbers, 4), align=4)
        minus_zero = ir.Constant(numbers, [0x80000000] * LANES)
        is_zero = builder.icmp_unsigned("==", bits, minus_zero)
        bits = builder.select(is_zero, ir.Constant(numbers, [0] * LANES), bits)
        there = place(codes, 0, code_start, hashes, 8)
        code = builder.xor(builder.load(there, align=8), builder.zext(bits, hashes))
        code = builder.mul(code, ir.Constant(hashes, [0x9E3779B97F4A7C15] * LANES))
        shifted = builder.lshr(code, ir.Constant(hashes, [29] * LANES))
        builder.store(builder.xor(code, shifted), there, align=8)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def count_planes(
    typing_context: Any,
    n_planes: Any,
    masks: Any,
    start: Any,
    step: Any,
    n_masks: Any,
    planes: Any,
) -> Any:
    """Add up `n_masks` vectors of 32 masks, bit by bit, as binary numbers in planes.

    Bit i of ``planes[32 * q + p]`` becomes digit q of the number of masks ``masks[start + s * step
    + p]``, s below `n_masks`, that have bit i set. `n_planes`, a constant, is the number of digits.
    """
    if not isinstance(n_planes, types.IntegerLiteral):
        return None
    digits = n_planes.literal_value
    signature = types.void(n_planes, masks, types.int64, types.int64, types.int64, planes)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, masks, start, step, n_masks, planes = arguments
        vector = ir.VectorType(ir.IntType(16), MASKS)
        masks = data_address(context, builder, signature.args[1], masks)
        planes = data_address(context, builder, signature.args[5], planes)
        two, nothing = ir.Constant(_I64, 2), ir.Constant(_I64, 0)
        first, n_bytes = builder.add(masks, builder.mul(start, two)), builder.mul(step, two)
        before = builder.block
        loop = builder.function.append_basic_block("masks")
        after = builder.function.append_basic_block("counted")
        builder.branch(loop)
        builder.position_at_end(loop)
        s, place = builder.phi(_I64), builder.phi(_I64)
        counted = [builder.phi(vector) for _ in range(digits)]
        carry = builder.load(builder.inttoptr(place, vector.as_pointer()), align=2)
        following = []
        for digit in counted:
            following.append(builder.xor(digit, carry))
            carry = builder.and_(digit, carry)
        next_s = builder.add(s, ir.Constant(_I64, 1))
        for phi, initial, next_value in (
            (s, nothing, next_s),
            (place, first, builder.add(place, n_bytes)),
            *zip(counted, [ir.Constant(vector, [0] * MASKS)] * digits, following, strict=True),
        ):
            phi.add_incoming(initial, before)
            phi.add_incoming(next_value, loop)
        builder.cbranch(builder.icmp_signed("<", next_s, n_masks), loop, after)
        builder.position_at_end(after)
        for q, digit in enumerate(following):
            end = builder.add(planes, ir.Constant(_I64, 2 * MASKS * q))
            builder.store(digit, builder.inttoptr(end, vector.as_pointer()), align=2)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def spread_planes(
    typing_context: Any,
    n_planes: Any,
    adds: Any,
    planes: Any,
    start: Any,
    step: Any,
    tile: Any,
    place: Any,
) -> Any:
    """Turn binary numbers that lie in bit planes into 16 float32 numbers, side by side.

    ``tile[place + i]`` becomes (with the constant `adds` 0), or grows by (with 1), the number whose
    digit q is bit i of ``planes[start + q * step]``, q below the constant `n_planes`.
    """
    if not all(isinstance(constant, types.IntegerLiteral) for constant in (n_planes, adds)):
        return None
    digits, is_sum = n_planes.literal_value, adds.literal_value
    signature = types.void(n_planes, adds, planes, types.int64, types.int64, tile, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, planes, start, step, tile, place = arguments
        numbers, floats = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
        flags = ir.VectorType(ir.IntType(1), LANES)
        planes = data_address(context, builder, signature.args[2], planes)
        tile = data_address(context, builder, signature.args[5], tile)
        number = ir.Constant(numbers, [0] * LANES)
        for q in range(digits):
            index = builder.add(start, builder.mul(step, ir.Constant(_I64, q)))
            address = builder.add(planes, builder.mul(index, ir.Constant(_I64, 2)))
            mask = builder.load(builder.inttoptr(address, ir.IntType(16).as_pointer()), align=2)
            with_digit = builder.or_(number, ir.Constant(numbers, [1 << q] * LANES))
            number = builder.select(builder.bitcast(mask, flags), with_digit, number)
        value = builder.sitofp(number, floats)
        address = builder.add(tile, builder.mul(place, ir.Constant(_I64, 4)))
        pointer = builder.inttoptr(address, floats.as_pointer())
        if is_sum:
            value = builder.fadd(builder.load(pointer, align=4), value)
        builder.store(value, pointer, align=4)
        return context.get_dummy_value()

    return signature, codegen


class _Emitter:
    """Writes the LLVM code of one `block_sums`; addresses are 64-bit numbers, in bytes."""

    def __init__(self, builder: Any, shape: tuple[int, int, int, int], index_bytes: int) -> None:
        self.builder = builder
        self.rows, self.vectors, self.width, self.is_shared = shape
        self.index_type = ir.IntType(8 * index_bytes)
        self.index_bytes = index_bytes
        self.vector = ir.VectorType(_F32, self.width)
        self.zero = ir.Constant(self.vector, [0.0] * self.width)

    def number(self, value: int) -> Any:
        return ir.Constant(_I64, value)

    def address(self, base: Any, index: Any, n_bytes: int) -> Any:
        return self.builder.add(base, self.builder.mul(index, self.number(n_bytes)))

    def load(self, address: Any, kind: Any, align: int) -> Any:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def splat(self, value: Any) -> Any:
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(_I32, 0))
        mask = ir.Constant(ir.VectorType(_I32, self.width), [0] * self.width)
        return self.builder.shuffle_vector(first, undefined, mask)

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        name = f"llvm.fma.v{self.width}f32"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [a, b, c])

    def block(
        self,
        plan: dict[str, Any],
        rows: dict[str, Any],
        rules: dict[str, Any],
        source: Any,
        target: Any,
        lane: Any,
        stride: Any,
    ) -> Any:
        builder = self.builder
        row_bytes = builder.mul(stride, self.number(4))
        sums = self.sums(
            rows["n_inputs"],
            self.address(plan["weights"], rows["weight_start"], 4),
            builder.mul(rows["weight_step"], self.number(4)),
            self.address(plan["indices"], rows["index_start"], self.index_bytes),
            builder.mul(rows["index_step"], self.number(self.index_bytes)),
            builder.mul(rows["ahead"], self.number(self.index_bytes)),
            self.address(source, lane, 4),
            row_bytes,
        )
        sums = self.with_bias(
            sums, self.address(plan["bias"], rows["bias_start"], 4), rules["tests"]
        )
        target = builder.add(
            self.address(target, lane, 4), builder.mul(rows["position"], row_bytes)
        )
        return self.store(sums, target, row_bytes, rules["cap"], rules["is_relu"])

    def sums(
        self,
        n_inputs: Any,
        weights: Any,
        weight_step: Any,
        indices: Any,
        index_step: Any,
        ahead: Any,
        source: Any,
        row_bytes: Any,
    ) -> list[list[Any]]:
        """The loop over the inputs: `rows` x `vectors` sums, each in the order of the inputs."""
        builder = self.builder
        before = builder.block
        loop = builder.function.append_basic_block("inputs")
        after = builder.function.append_basic_block("sums")
        nothing = self.number(0)
        builder.cbranch(builder.icmp_signed(">", n_inputs, nothing), loop, after)
        builder.position_at_end(loop)
        k, weight, index = builder.phi(_I64), builder.phi(_I64), builder.phi(_I64)
        places = [(r, v) for r in range(self.rows) for v in range(self.vectors)]
        so_far = {place: builder.phi(self.vector) for place in places}
        summed = {}
        positions = self.positions(index)
        inputs = self.inputs(positions[0], source, row_bytes)
        if self.is_shared:
            with builder.if_then(builder.icmp_signed("!=", ahead, nothing)):
                self.fetch(self.positions(builder.add(index, ahead))[0], source, row_bytes)
        for r in range(self.rows):
            if r and not self.is_shared:
                inputs = self.inputs(positions[r], source, row_bytes)
            w = self.splat(self.load(builder.add(weight, self.number(4 * r)), _F32, 4))
            for v in range(self.vectors):
                summed[r, v] = self.fused(w, inputs[v], so_far[r, v])
        next_k = builder.add(k, self.number(1))
        loop_end = builder.block
        for phi, start, following in (
            (k, nothing, next_k),
            (weight, weights, builder.add(weight, weight_step)),
            (index, indices, builder.add(index, index_step)),
            *((so_far[place], self.zero, summed[place]) for place in places),
        ):
            phi.add_incoming(start, before)
            phi.add_incoming(following, loop_end)
        builder.cbranch(builder.icmp_signed("<", next_k, n_inputs), loop, after)
        builder.position_at_end(after)
        result = {place: builder.phi(self.vector) for place in places}
        for place in places:
            result[place].add_incoming(self.zero, before)
            result[place].add_incoming(summed[place], loop_end)
        return [[result[r, v] for v in range(self.vectors)] for r in range(self.rows)]

    def positions(self, index: Any) -> list[Any]:
        """Load the positions of the inputs from address `index`: one for all rows, or one a row.

        Positions of several rows are loaded eight bytes at a time, since loads limit the speed
        of ELL blocks.
        """
        builder = self.builder
        n_positions = 1 if self.is_shared else self.rows
        n_together = min(n_positions, 8 // self.index_bytes)
        kind = ir.IntType(8 * self.index_bytes * n_together)
        positions = []
        for first in range(0, n_positions, n_together):
            place = builder.add(index, self.number(self.index_bytes * first))
            word = self.load(place, kind, self.index_bytes)
            for r in range(n_together):
                shift = ir.Constant(kind, 8 * self.index_bytes * r)
                part = builder.lshr(word, shift)
                if n_together > 1:
                    part = builder.trunc(part, self.index_type)
                positions.append(builder.zext(part, _I64))
        return positions

    def inputs(self, position: Any, source: Any, row_bytes: Any) -> list[Any]:
        """Load the vectors of the input at a position."""
        builder = self.builder
        start = builder.add(source, builder.mul(position, row_bytes))
        n_bytes = 4 * self.width
        return [
            self.load(builder.add(start, self.number(n_bytes * v)), self.vector, n_bytes)
            for v in range(self.vectors)
        ]

    def fetch(self, position: Any, source: Any, row_bytes: Any) -> None:
        """Fetch the vectors of the input at a position into the nearest cache."""
        builder = self.builder
        start = builder.add(source, builder.mul(position, row_bytes))
        address = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [address, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        to_read_soon_as_data = [ir.Constant(_I32, number) for number in (0, 3, 1)]
        for n_bytes in range(0, 4 * self.width * self.vectors, _LINE_BYTES):
            place = builder.inttoptr(builder.add(start, self.number(n_bytes)), address)
            builder.call(function, [place, *to_read_soon_as_data])

    def with_bias(self, sums: list[list[Any]], bias: Any, tests: Any) -> list[list[Any]]:
        """Add each row's bias, and make the tests that `tests` asks for, if there are any."""
        builder = self.builder
        biases = [
            self.splat(self.load(builder.add(bias, self.number(4 * r)), _F32, 4))
            for r in range(self.rows)
        ]
        added = [[builder.fadd(s, b) for s in row] for row, b in zip(sums, biases, strict=True)]
        before = builder.block
        test = builder.function.append_basic_block("tests")
        after = builder.function.append_basic_block("biased")
        builder.cbranch(builder.icmp_signed("!=", tests, self.number(0)), test, after)
        builder.position_at_end(test)
        at_zero, at_infinity = (
            builder.icmp_signed("!=", builder.and_(tests, self.number(bit)), self.number(0))
            for bit in (NONZERO, FINITE)
        )

        def of_one(s: Any, a: Any) -> Any:
            is_zero = builder.fcmp_ordered("==", s, self.zero)
            a = builder.select(at_zero, builder.select(is_zero, self.zero, a), a)
            # Zero times a number that is not finite is NaN.
            return builder.select(at_infinity, self.fused(a, self.zero, a), a)

        tested = [
            [of_one(s, a) for s, a in zip(*rows, strict=True)]
            for rows in zip(sums, added, strict=True)
        ]
        builder.branch(after)
        builder.position_at_end(after)
        result = [[builder.phi(self.vector) for _ in row] for row in sums]
        for phis, plain, with_test in zip(result, added, tested, strict=True):
            for phi, a, t in zip(phis, plain, with_test, strict=True):
                phi.add_incoming(a, before)
                phi.add_incoming(t, test)
        return result

    def store(
        self, sums: list[list[Any]], target: Any, row_bytes: Any, cap: Any, is_relu: Any
    ) -> Any:
        """Cut off below and above, store, and return the bits of the live features."""
        builder = self.builder
        lowest = ir.Constant(_F32, float("-inf"))
        is_relu = builder.icmp_signed("!=", is_relu, self.number(0))
        floor = self.splat(builder.select(is_relu, ir.Constant(_F32, 0.0), lowest))
        ceiling = self.splat(cap)
        numbers = ir.VectorType(_I32, self.width)
        live: list[Any] = [None] * self.vectors
        for r, row in enumerate(sums):
            start = builder.add(target, builder.mul(row_bytes, self.number(r)))
            for v, value in enumerate(row):
                # Written so that each becomes one maximum or minimum instruction, and NaN stays.
                is_below = builder.fcmp_ordered(">", floor, value)
                value = builder.select(is_below, floor, value)
                is_above = builder.fcmp_ordered("<", ceiling, value)
                value = builder.select(is_above, ceiling, value)
                n_bytes = 4 * self.width
                place = builder.add(start, self.number(n_bytes * v))
                pointer = builder.inttoptr(place, self.vector.as_pointer())
                builder.store(value, pointer, align=n_bytes)
                number = builder.bitcast(value, numbers)
                live[v] = number if r == 0 else builder.or_(live[v], number)
        bits = self.number(0)
        for v, number in enumerate(live):
            # A number whose only set bit is the sign is a zero, too.
            magnitude = builder.shl(number, ir.Constant(numbers, [1] * self.width))
            is_live = builder.icmp_unsigned("!=", magnitude, ir.Constant(numbers, [0] * self.width))
            mask = builder.zext(builder.bitcast(is_live, ir.IntType(self.width)), _I64)
            bits = builder.or_(bits, builder.shl(mask, self.number(self.width * v)))
        return bits
