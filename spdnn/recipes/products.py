"""Matrix products of float32 numbers whose sums stay in vector registers.

numba's plain loops do not keep a block of sums in registers. A tile of sums is therefore written in
LLVM's vector types. LLVM splits vectors that a CPU does not have, so the code runs on any CPU.
"""

from typing import Any

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


def _has_avx512() -> bool:
    if numba.config.CPU_NAME not in (None, "host"):
        return False  # the user lets numba compile for another CPU than this one
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))


WIDTH = 16 if _has_avx512() else 8
"""Numbers of a vector."""

VECTORS = 2
"""Vectors of a row of a tile."""

ROWS = 8 if WIDTH == 16 else 4
"""Rows of a tile: 16 sums of 32 registers (AVX-512), or 8 of 16."""

ROWS_MULTIPLE, COLUMNS_MULTIPLE = 8, 32
"""Rows and columns are padded to multiples of these, on every CPU."""


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def product_tile(
    typing_context: Any,
    constants: Any,
    left: Any,
    left_start: Any,
    left_row: Any,
    left_step: Any,
    right: Any,
    right_start: Any,
    right_step: Any,
    n_terms: Any,
    out: Any,
    out_start: Any,
    out_row: Any,
) -> Any:
    """Compute one tile of a matrix product.

    With flat arrays, ``out[out_start + r * out_row + c]`` becomes the sum over k below `n_terms`
    of ``left[left_start + r * left_row + k * left_step] * right[right_start + k * right_step + c]``
    for all r below `rows` and c below ``vectors * width``.

    Parameters
    ----------
    constants : tuple of literal int
        `rows`, `vectors`, `width`.
    left, right, out : ndarray, float32, contiguous
        The matrices.
    left_start, left_row, left_step, right_start, right_step, out_start, out_row : int
        Where the tile begins, and how far it is to the next row and to the next term.
    n_terms : int
        Number of terms of a sum, at least 1.
    """
    if not all(isinstance(constant, types.IntegerLiteral) for constant in constants):
        return None
    rows, vectors, width = (constant.literal_value for constant in constants)
    i64 = types.int64
    signature = types.void(
        constants, left, i64, i64, i64, right, i64, i64, i64, out, i64, i64
    )  # fmt: skip

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_F32, width)
        kind = ir.FunctionType(vector, [vector] * 3)
        fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{width}f32")
        _, left, l_start, l_row, l_step, right, r_start, r_step, n_terms, out, o_start, o_row = (
            arguments
        )

        def number(value: int) -> Any:
            return ir.Constant(_I64, value)

        def start(array: Any, which: int, offset: Any) -> Any:
            data = context.make_array(signature.args[which])(context, builder, array).data
            return builder.add(builder.ptrtoint(data, _I64), builder.mul(offset, number(4)))

        def place(address: Any, offset: Any, kind: Any) -> Any:
            return builder.inttoptr(builder.add(address, offset), kind.as_pointer())

        def splat(value: Any) -> Any:
            undefined = ir.Constant(vector, ir.Undefined)
            first = builder.insert_element(undefined, value, ir.Constant(_I32, 0))
            zeros = ir.Constant(ir.VectorType(_I32, width), [0] * width)
            return builder.shuffle_vector(first, undefined, zeros)

        l_row, l_step, r_step, o_row = (
            builder.mul(step, number(4)) for step in (l_row, l_step, r_step, o_row)
        )
        l_first, r_first = start(left, 1, l_start), start(right, 5, r_start)
        row_offsets = [builder.mul(l_row, number(r)) for r in range(rows)]
        before = builder.block
        loop = builder.function.append_basic_block("terms")
        after = builder.function.append_basic_block("summed")
        builder.branch(loop)
        builder.position_at_end(loop)
        k, l_place, r_place = (builder.phi(_I64) for _ in range(3))
        places = [(r, v) for r in range(rows) for v in range(vectors)]
        sums = {where: builder.phi(vector) for where in places}
        factors = [
            builder.load(place(r_place, number(4 * width * v), vector), align=4)
            for v in range(vectors)
        ]
        following = {}
        for r in range(rows):
            factor = splat(builder.load(place(l_place, row_offsets[r], _F32), align=4))
            for v in range(vectors):
                following[r, v] = builder.call(fused, [factor, factors[v], sums[r, v]])
        next_k = builder.add(k, number(1))
        for phi, first, next_value in (
            (k, number(0), next_k),
            (l_place, l_first, builder.add(l_place, l_step)),
            (r_place, r_first, builder.add(r_place, r_step)),
            *((sums[at], ir.Constant(vector, [0.0] * width), following[at]) for at in places),
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(next_value, loop)
        builder.cbranch(builder.icmp_signed("<", next_k, n_terms), loop, after)
        builder.position_at_end(after)
        end = start(out, 9, o_start)
        for r, v in places:
            offset = builder.add(builder.mul(o_row, number(r)), number(4 * width * v))
            builder.store(following[r, v], place(end, offset, vector), align=4)
        return context.get_dummy_value()

    return signature, codegen
