"""Between rows of numbers, a feature each, and tiles, which are neuron-major: transposed copies.

See `spdnn.engines.cpu.kernels.tile` for what a tile is. 16 features of 16 neurons are turned in
registers at a time.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spdnn.engines.cpu.kernels.step import Tile
from spdnn.engines.cpu.kernels.vectors import LANES, data_address
from spdnn.machine.jit import jit_part

NUMBER = 4
"""Bytes of a float32."""

LARGEST = np.finfo(np.float32).max

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()

Addresses = npt.NDArray[np.int64]


@intrinsic  # type: ignore[untyped-decorator]
def address_of(typing_context: Any, array: Any) -> Any:
    """Address of an array's first element."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return data_address(context, builder, signature.args[0], arguments[0])

    return types.int64(array), codegen


@intrinsic  # type: ignore[untyped-decorator]
def _turn(
    typing_context: Any, sources: Any, source_offset: Any, targets: Any, target_offset: Any
) -> Any:
    """Copy 16 x 16 numbers: number j of row i becomes number i of row j.

    Row i begins at address ``sources[i] + source_offset``, in bytes, or at ``targets[i] +
    target_offset``.
    """
    signature = types.void(sources, types.int64, targets, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sources, source_offset, targets, target_offset = arguments
        vector = ir.VectorType(_F32, LANES)

        def pointers(kind: Any, table: Any, offset: Any) -> list[Any]:
            first = data_address(context, builder, kind, table)
            found = []
            for row in range(LANES):
                place = builder.add(first, ir.Constant(_I64, 8 * row))
                start = builder.load(builder.inttoptr(place, _I64.as_pointer()), align=8)
                found.append(builder.inttoptr(builder.add(start, offset), vector.as_pointer()))
            return found

        def pick(one: Any, other: Any, lanes: list[int]) -> Any:
            mask = ir.Constant(ir.VectorType(_I32, LANES), lanes)
            return builder.shuffle_vector(one, other, mask)

        starts = pointers(signature.args[0], sources, source_offset)
        rows = [builder.load(start, align=NUMBER) for start in starts]
        step = 1
        while step < LANES:
            # Blocks of `step` numbers change places between rows that are `step` apart.
            low = [n if not n & step else LANES + n - step for n in range(LANES)]
            high = [n + step if not n & step else LANES + n for n in range(LANES)]
            turned: list[Any] = [None] * LANES
            for row in range(LANES):
                if not row & step:
                    turned[row] = pick(rows[row], rows[row + step], low)
                    turned[row + step] = pick(rows[row], rows[row + step], high)
            rows = turned
            step *= 2
        ends = pointers(signature.args[2], targets, target_offset)
        for row, end in zip(rows, ends, strict=True):
            builder.store(row, end, align=NUMBER)
        return context.get_dummy_value()

    return signature, codegen


@jit_part
def first_not_finite_row(rows: npt.NDArray[np.float32], first: int, end: int) -> int:
    """The first of the rows `first` to `end` with a number that is NaN or infinite; -1 if none."""
    for row in range(first, end):
        is_wrong = False
        for column in range(rows.shape[1]):
            is_wrong |= not abs(rows[row, column]) <= LARGEST
        if is_wrong:
            return row
    return -1


@jit_part
def load_rows(
    inputs: npt.NDArray[np.float32],
    first: int,
    end: int,
    position: npt.NDArray[Any],
    n_loaded: int,
    in_place: bool,
    tile: Tile,
    stride: int,
) -> None:
    """Add the inputs of features `first` to `end`, each at its position, into a tile.

    Parameters
    ----------
    inputs : ndarray, shape (n_features, n_inputs), float32
        C order.
    first, end : int
        At least one feature; the lanes behind them get the numbers of the last one.
    position : ndarray, unsigned
        Neuron of the tile of each input; `n_loaded` for none.
    n_loaded : int
        Neurons of the tile, which is one row longer.
    in_place : bool
        Whether each input stands at its own number.
    tile : ndarray
        What it holds is overwritten.
    stride : int
        Lanes of a neuron.
    """
    n_inputs = inputs.shape[1]
    sources = np.empty(LANES, dtype=np.int64)
    targets = np.empty(LANES, dtype=np.int64)
    corner = np.empty(LANES * LANES, dtype=np.float32)
    if not in_place:
        for place in range((n_loaded + 1) * stride):
            tile[place] = 0
    whole = n_inputs // LANES * LANES
    if in_place and whole:
        whole = n_inputs
    for lane in range(0, stride, LANES):
        for i in range(LANES):
            feature = min(first + lane + i, end - 1)
            sources[i] = address_of(inputs) + NUMBER * n_inputs * feature
        if in_place:
            for i in range(LANES):
                targets[i] = address_of(tile) + NUMBER * (i * stride + lane)
        else:
            for i in range(LANES):
                targets[i] = address_of(corner) + NUMBER * LANES * i
        for start in range(0, whole, LANES):
            if in_place:
                # The last 16 may overlap those before.
                p = min(start, n_inputs - LANES)
                _turn(sources, NUMBER * p, targets, NUMBER * p * stride)
                continue
            _turn(sources, NUMBER * start, targets, 0)
            for i in range(LANES):
                place = int(position[start + i]) * stride + lane
                for f in range(LANES):
                    tile[place + f] += corner[i * LANES + f]
        for p in range(whole, n_inputs):
            place = int(position[p]) * stride + lane
            for f in range(LANES):
                value = inputs[min(first + lane + f, end - 1), p]
                tile[place + f] = value if in_place else tile[place + f] + value


@jit_part
def store_rows(
    tile: Tile,
    stride: int,
    lanes: npt.NDArray[np.int32],
    features: npt.NDArray[np.int64],
    position: npt.NDArray[np.int32],
    rows: npt.NDArray[np.float32],
) -> None:
    """Copy some lanes of a tile to rows, of each the neurons at some positions.

    Parameters
    ----------
    tile : ndarray
        What is copied from.
    stride : int
        Lanes of a neuron.
    lanes : ndarray, int32
        The lanes that are copied, ascending.
    features : ndarray, int64
        The row of each lane of the tile.
    position : ndarray, shape (n_outputs,), int32
        The neuron of each output.
    rows : ndarray, shape (n_features, n_outputs), float32
        C order.
    """
    n_outputs = rows.shape[1]
    sources = np.empty(LANES, dtype=np.int64)
    targets = np.empty(LANES, dtype=np.int64)
    corner = np.empty(LANES * LANES, dtype=np.float32)
    some = 0
    while some < lanes.size:
        lane = lanes[some] // LANES * LANES
        behind = some
        while behind < lanes.size and lanes[behind] < lane + LANES:
            behind += 1
        # A block of 16 of which all are wanted goes straight to the rows.
        is_full = behind - some == LANES and n_outputs >= LANES
        for i in range(LANES):
            targets[i] = address_of(corner) + NUMBER * LANES * i
            if is_full:
                targets[i] = address_of(rows) + NUMBER * n_outputs * features[lane + i]
        for start in range(0, n_outputs, LANES):
            o = max(0, min(start, n_outputs - LANES))
            for i in range(LANES):
                p = np.int64(position[min(o + i, n_outputs - 1)])
                sources[i] = address_of(tile) + NUMBER * (p * stride + lane)
            if is_full:
                _turn(sources, 0, targets, NUMBER * o)
                continue
            _turn(sources, 0, targets, 0)
            for which in range(some, behind):
                row = features[lanes[which]]
                turned = (lanes[which] - lane) * LANES
                for i in range(min(LANES, n_outputs)):
                    rows[row, o + i] = corner[turned + i]
        some = behind
