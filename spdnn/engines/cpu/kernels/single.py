"""One feature through a plan laid out for it: vectors of 16 outputs, inputs gathered.

See `spdnn.plan.cpu.slices` for the layout. An output adds its inputs in the same order, by the same
instruction, as in a tile: its activation has the same bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spdnn.engines.cpu.kernels.barrier import Party, wait
from spdnn.engines.cpu.kernels.vectors import REGISTER_TILE, data_address
from spdnn.machine.jit import jit_part
from spdnn.plan.cpu.plan import CHUNKS, PART, ROWS, PlanArrays
from spdnn.plan.cpu.slices import (
    PART_INDEX,
    PART_INPUTS,
    PART_OUTPUTS,
    PART_POSITION,
    PART_WEIGHT,
    SLICE,
    VECTORS,
    Slices,
)
from spdnn.plan.rules import FINITE, NONZERO
from spdnn.plan.steps import BIAS_START, IS_RELU, TESTS

_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_F32, SLICE)
_NUMBERS = ir.VectorType(_I32, SLICE)
_FLAGS = ir.VectorType(ir.IntType(1), SLICE)

Vector = npt.NDArray[np.float32]


class _Emitter:
    """What the two kernels have in common."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder = builder
        self.values = [
            data_address(context, builder, kind, value) if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, arguments, strict=True)
        ]

    def at(self, base: Any, index: Any, n_bytes: int) -> Any:
        return self.builder.add(base, self.builder.mul(index, ir.Constant(_I64, n_bytes)))

    def load(self, address: Any, kind: Any, align: int) -> Any:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def call(self, name: str, result: Any, arguments: list[Any]) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)

    def splat(self, value: Any, kind: Any) -> Any:
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(_I32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(_NUMBERS, [0] * SLICE))

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        return self.call(f"llvm.fma.v{SLICE}f32", _VECTOR, [a, b, c])

    def gather(self, base: Any, indices: Any) -> Any:
        """The numbers at 16 indices, int32."""
        builder = self.builder
        nothing = ir.Constant(_VECTOR, [0.0] * SLICE)
        every = ir.Constant(_FLAGS, [1] * SLICE)
        if REGISTER_TILE == "avx512":
            pointer = builder.inttoptr(base, ir.IntType(8).as_pointer())
            four = ir.Constant(_I32, 4)
            name = "llvm.x86.avx512.mask.gather.dps.512"
            return self.call(name, _VECTOR, [nothing, pointer, indices, every, four])
        gathered = nothing
        for lane in range(SLICE):
            index = builder.extract_element(indices, ir.Constant(_I32, lane))
            number = self.load(self.at(base, builder.zext(index, _I64), 4), _F32, 4)
            gathered = builder.insert_element(gathered, number, ir.Constant(_I32, lane))
        return gathered

    def store(self, value: Any, address: Any, n_wanted: Any) -> None:
        """Store the first `n_wanted` of 16 numbers."""
        lanes = ir.Constant(_NUMBERS, list(range(SLICE)))
        wanted = self.splat(self.builder.trunc(n_wanted, _I32), _NUMBERS)
        flags = self.builder.icmp_signed("<", lanes, wanted)
        pointer = self.builder.inttoptr(address, _VECTOR.as_pointer())
        name = f"llvm.masked.store.v{SLICE}f32.p0"
        self.call(name, ir.VoidType(), [value, pointer, ir.Constant(_I32, 4), flags])

    def loop(self, count: Any, n_sums: int, body: Any) -> list[Any]:
        """``sums = body(k, sums)`` for k below `count`, from zeros on."""
        builder = self.builder
        before = builder.block
        loop = builder.function.append_basic_block("inputs")
        after = builder.function.append_basic_block("sums")
        nothing, zero = ir.Constant(_I64, 0), ir.Constant(_VECTOR, [0.0] * SLICE)
        builder.cbranch(builder.icmp_signed(">", count, nothing), loop, after)
        builder.position_at_end(loop)
        k = builder.phi(_I64)
        so_far = [builder.phi(_VECTOR) for _ in range(n_sums)]
        summed = body(k, so_far)
        next_k = builder.add(k, ir.Constant(_I64, 1))
        k.add_incoming(nothing, before)
        k.add_incoming(next_k, loop)
        for one, following in zip(so_far, summed, strict=True):
            one.add_incoming(zero, before)
            one.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", next_k, count), loop, after)
        builder.position_at_end(after)
        result = [builder.phi(_VECTOR) for _ in range(n_sums)]
        for one, following in zip(result, summed, strict=True):
            one.add_incoming(zero, before)
            one.add_incoming(following, loop)
        return result


@intrinsic  # type: ignore[untyped-decorator]
def _slice_sums(
    typing_context: Any,
    indices: Any,
    index_start: Any,
    weights: Any,
    weight_start: Any,
    n_inputs: Any,
    source: Any,
    target: Any,
    position: Any,
    n_outputs: Any,
) -> Any:
    """Sums of a slice's outputs, to ``target[position : position + n_outputs]``."""
    signature = types.void(
        indices, types.int64, weights, types.int64, types.int64, source, target, types.int64,
        types.int64,
    )  # fmt: skip

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emitter = _Emitter(context, builder, signature, arguments)
        indices, index_start, weights, weight_start, n_inputs, source, target, position, n = (
            emitter.values
        )
        first_index = emitter.at(indices, index_start, 2)
        first_weight = emitter.at(weights, weight_start, 4)

        def add_input(k: Any, sums: list[Any]) -> list[Any]:
            short = emitter.load(
                emitter.at(first_index, k, 2 * SLICE), ir.VectorType(_I16, SLICE), 2
            )
            inputs = emitter.gather(source, builder.zext(short, _NUMBERS))
            weight = emitter.load(emitter.at(first_weight, k, 4 * SLICE), _VECTOR, 4)
            return [emitter.fused(weight, inputs, sums[0])]

        sums = emitter.loop(n_inputs, 1, add_input)
        emitter.store(sums[0], emitter.at(target, position, 4), n)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _panel_sums(
    typing_context: Any,
    n_vectors: Any,
    rows: Any,
    values: Any,
    n_live: Any,
    weights: Any,
    weight_start: Any,
    target: Any,
    position: Any,
    n_outputs: Any,
) -> Any:
    """Sums of a panel's outputs, to ``target[position : position + n_outputs]``.

    Input ``rows[k]`` of the panel is ``values[k]``, k below `n_live`; `n_vectors` is a constant.
    """
    if not isinstance(n_vectors, types.IntegerLiteral):
        return None
    count = n_vectors.literal_value
    signature = types.void(
        n_vectors, rows, values, types.int64, weights, types.int64, target, types.int64, types.int64
    )

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emitter = _Emitter(context, builder, signature, arguments)
        _, rows, values, n_live, weights, weight_start, target, position, n_outputs = emitter.values
        first_weight = emitter.at(weights, weight_start, 4)

        def add_input(k: Any, sums: list[Any]) -> list[Any]:
            row = builder.zext(emitter.load(emitter.at(rows, k, 4), _I32, 4), _I64)
            value = emitter.splat(emitter.load(emitter.at(values, k, 4), _F32, 4), _VECTOR)
            start = emitter.at(first_weight, row, 4 * SLICE * count)
            added = []
            for number, total in enumerate(sums):
                place = builder.add(start, ir.Constant(_I64, 4 * SLICE * number))
                added.append(emitter.fused(emitter.load(place, _VECTOR, 4), value, total))
            return added

        for number, total in enumerate(emitter.loop(n_live, count, add_input)):
            behind = ir.Constant(_I64, SLICE * number)
            place = emitter.at(target, builder.add(position, behind), 4)
            emitter.store(total, place, builder.sub(n_outputs, behind))
        return context.get_dummy_value()

    return signature, codegen


@jit_part
def run_one(
    plan: PlanArrays,
    slices: Slices,
    shares: npt.NDArray[np.int64],
    source: Vector,
    target: Vector,
    rows: npt.NDArray[np.int32],
    values: Vector,
    party: Party,
) -> bool:
    """Take one feature through all steps; all threads of a group call this alike.

    Parameters
    ----------
    plan : PlanArrays
        The whole plan.
    slices : Slices
        The same plan, laid out for one feature.
    shares : ndarray, shape (n_steps, parties + 1), int64
        See `Slices.shares`.
    source, target : ndarray, float32
        The activations are in the first of them; place `max_width` of both is 0.0.
    rows, values : ndarray, int32 and float32
        Scratch of the thread, as long as a tile has neurons.
    party : Party
        This thread of the group.

    Returns
    -------
    bool
        Whether the result is in `target`.
    """
    is_swapped = False
    for step in range(plan.steps.shape[0]):
        part_of_layer = plan.steps[step, PART]
        is_last = part_of_layer != CHUNKS and part_of_layer != ROWS
        first, end = shares[step, party.number], shares[step, party.number + 1]
        # The last step of a layer with long outputs reads what the two before have written.
        sums = target if part_of_layer > ROWS else source
        if first < end:
            _sum_parts(slices, first, end, sums, target, rows, values)
            begin = slices.parts[first, PART_POSITION]
            stop = slices.parts[end - 1, PART_POSITION] + slices.parts[end - 1, PART_OUTPUTS]
            _finish(plan, step, target, begin, stop)
        if part_of_layer != CHUNKS:
            wait(party)
        if is_last:
            source, target = target, source
            is_swapped = not is_swapped
    return is_swapped


@jit_part
def _sum_parts(
    slices: Slices,
    first: int,
    end: int,
    source: Vector,
    target: Vector,
    rows: npt.NDArray[np.int32],
    values: Vector,
) -> None:
    """Sums of some parts of a step, without bias."""
    index_in_hand, inputs_in_hand, n_live = -1, -1, 0
    for part in range(first, end):
        n_vectors = slices.parts[part, VECTORS]
        position, n_outputs = slices.parts[part, PART_POSITION], slices.parts[part, PART_OUTPUTS]
        index_start, n_inputs = slices.parts[part, PART_INDEX], slices.parts[part, PART_INPUTS]
        weight_start = slices.parts[part, PART_WEIGHT]
        if n_vectors == 0:
            _slice_sums(
                slices.indices, index_start, slices.weights, weight_start, n_inputs,
                source, target, position, n_outputs,
            )  # fmt: skip
            continue
        # A group without inputs begins where the next one does.
        if index_start != index_in_hand or n_inputs != inputs_in_hand:
            # Inputs of zero would add nothing: half of them behind relu.
            n_live = 0
            for k in range(n_inputs):
                value = source[slices.indices[index_start + k]]
                rows[n_live], values[n_live] = k, value
                n_live += value != 0
            index_in_hand, inputs_in_hand = index_start, n_inputs
        if n_vectors == 8:
            _panel_sums(
                8, rows, values, n_live, slices.weights, weight_start, target, position, n_outputs
            )
        elif n_vectors == 4:
            _panel_sums(
                4, rows, values, n_live, slices.weights, weight_start, target, position, n_outputs
            )
        elif n_vectors == 2:
            _panel_sums(
                2, rows, values, n_live, slices.weights, weight_start, target, position, n_outputs
            )
        else:
            _panel_sums(
                1, rows, values, n_live, slices.weights, weight_start, target, position, n_outputs
            )


@jit_part
def _finish(plan: PlanArrays, step: int, numbers: Vector, begin: int, stop: int) -> None:
    """Make activations of sums: bias, relu, cap, in the order and manner of the tile's kernel."""
    tests = plan.steps[step, TESTS]
    bias_start = plan.steps[step, BIAS_START]
    cap = plan.caps[step]
    lowest = np.float32(0) if plan.steps[step, IS_RELU] else np.float32(-np.inf)
    some = numbers[begin:stop]
    bias = plan.bias[bias_start + begin : bias_start + stop]
    at_zero, at_infinity = (tests & NONZERO) != 0, (tests & FINITE) != 0
    for p in range(some.size):
        value = some[p] + bias[p]
        if at_zero:
            value = np.float32(0) if some[p] == 0 else value
        if at_infinity:
            value += value * np.float32(0)  # NaN where it is not finite
        # Comparisons, which let NaN be.
        value = lowest if value < lowest else value
        some[p] = cap if value > cap else value
