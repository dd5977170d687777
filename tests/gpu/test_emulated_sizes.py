"""Offsets that no test can fill memory up to: a few features with high numbers, on reserved pages.

Arrays of activations take tens of gigabytes of addresses. Only the last thread blocks of each
launch run, and the first, so that few pages are ever touched. A number or an offset that was cut to
32 bits would lead to others, where all is zero.
"""

import mmap
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from spdnn import Features, Layer, Network, infer
from spdnn.engines.cuda.device import DeviceArray, at_least_one, in_memory
from spdnn.engines.cuda.emulated.device import EmulatedDevice
from spdnn.engines.cuda.emulated.launch import Order, Program
from spdnn.engines.cuda.emulated.ptx import Instruction, Type
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.kernels import gpu
from spdnn.engines.cuda.sizes import CudaSizes
from spdnn.plan.cuda.sizes import PlanSizes
from tests.gpu.mutants import places_of

pytestmark = [
    pytest.mark.skipif(not gpu.has_compiler(), reason="libNVVM is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="reserves addresses as Linux does"),
]

NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux: addresses without memory. Python has a name for it since 3.13."""

RUN = 4
"""Features that are run: the last ones, all within the last block of any kernel."""

RESERVED = 1 << 26
"""Bytes from which an array is only reserved."""


class HighDevice(EmulatedDevice):
    """Has memory without end, and runs the blocks of the first and of the last features only.

    Attributes
    ----------
    most_bytes : int
        Size of the largest array.
    """

    def __init__(self) -> None:
        super().__init__(1 << 40)
        self.most_bytes = 0
        self.axis: int | None = None

    def free_bytes(self) -> int:
        return self.n_bytes

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        sizes = at_least_one(shape)
        n_bytes = int(np.prod(sizes, dtype=np.int64)) * np.dtype(dtype).itemsize
        self.most_bytes = max(self.most_bytes, n_bytes)
        if n_bytes < RESERVED:
            return super().empty(shape, dtype)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        array = np.frombuffer(mmap.mmap(-1, n_bytes, flags=flags), dtype).reshape(sizes)
        return in_memory(array)

    def launch(self, kernel: Any, *how: Any, **named: Any) -> None:
        axes = {"load_ones": 0, "resident": 0, "grouped": 1, "staged": 1}
        self.axis = axes.get(kernel.py_func.__name__)
        super().launch(kernel, *how, **named)

    def _order(self, grid: tuple[int, ...], n_threads: int) -> Order:
        order = super()._order(grid, n_threads)
        if self.axis is None:
            return order
        number = order.blocks // (1 if self.axis == 0 else grid[0])
        if self.axis == 0:
            number = order.blocks % grid[0]
        # The first block, too: where the last features have moved up while the host does not know
        # yet how few there are.
        is_run = (number == 0) | (number == grid[self.axis] - 1)
        return Order(order.threads, order.blocks[is_run])


def network_of(width: int) -> Network:
    """Three layers: a group of outputs that share their inputs, and outputs of one input each."""
    rng = np.random.default_rng(width)
    # By outputs: a row is what one of them takes.
    outputs = sp.eye_array(width, format="csr")[rng.permutation(width)].tolil()
    outputs[100:116] = 0
    # The last inputs, the farthest in a tile.
    outputs[100:116, width - 16 :] = rng.choice([-0.5, 0.5, 1.0], size=(16, 16))
    weights = outputs.T.tocsr()
    return Network([Layer(weights, 0.25, 8.0), Layer(weights, -0.125, 8.0), Layer(weights, 0.5)])


def last_of(n_features: int, width: int) -> tuple[Features, Features]:
    """Features of which only the last have inputs, and those alone."""
    rng = np.random.default_rng(1)
    # Ascending, each named once; the last ones are the farthest in a tile.
    starts = np.arange(48) * ((width - 16) // 48)
    few = np.concatenate([starts, np.arange(width - 16, width)])
    few = np.tile(few, (RUN, 1))
    few[:, :48] += rng.integers(0, (width - 16) // 48, (RUN, 48))
    ends = np.arange(RUN + 1) * few.shape[1]
    alone = Features(width, ends, few.ravel())
    indptr = np.concatenate([np.zeros(n_features - RUN, np.int64), ends])
    return Features(width, indptr, few.ravel()), alone


@pytest.mark.parametrize("mode", ["edges", "merge"])
@pytest.mark.parametrize(
    ("width", "n_features", "shared_bytes"),
    [
        (65536, 60000, 0),  # past 2**31 numbers
        (65536, 70000, 0),  # past 2**32
        (4200, 1_040_000, EmulatedDevice.shared_bytes),  # the resident kernel, past 2**32
    ],
)
def test_features_beyond_32_bits_are_where_they_belong(
    width: int, n_features: int, shared_bytes: int, mode: str
) -> None:
    network = network_of(width)
    features, alone = last_of(n_features, width)
    device = HighDevice()
    engine = CudaEngine(device=device, sizes=CudaSizes(PlanSizes(shared_bytes=shared_bytes)))
    plan = engine.plan(network, mode)
    assert plan.is_resident == (shared_bytes > 0)
    assert mode == "merge" or len(plan.arrays.bundles) > 0
    output = engine.run(plan, engine.load(plan, features), activations=True)
    expected = infer(network, alone, engine="scipy", activations=True)
    np.testing.assert_array_equal(output.live, expected.live + n_features - RUN)
    np.testing.assert_array_equal(output.activations, expected.activations)
    assert [layer.live for layer in expected.layers] == output.n_live.tolist()
    assert output.live.size > 0
    assert device.most_bytes > 4 * 2 ** (31 if n_features == 60000 else 32)


class CuttingDevice(HighDevice):
    """Cuts what one shift of a kernel gives to 32 bits.

    Attributes
    ----------
    n_shifts : int
        Shifts of 64 bits that the kernel has.
    """

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.name_of_cut, self.number, self.n_shifts = name, number, 0
        self._cut: dict[Any, Program] = {}

    def _program(self, kernel: Any, views: tuple[Any, ...]) -> Program:
        if kernel.py_func.__name__ != self.name_of_cut:
            return super()._program(kernel, views)
        if kernel not in self._cut:
            code = super()._program(kernel, views).kernel
            shifts = [
                place
                for place in places_of(code, "shl")
                if isinstance(each := code.code[place], Instruction) and each.types[0].bits == 64
            ]
            self.n_shifts = len(shifts)
            place = shifts[self.number]
            shift = code.code[place]
            assert isinstance(shift, Instruction)
            types = (Type("u", 64), Type("u", 32))
            target = shift.operands[0]
            cut = replace(shift, opcode="cvt", types=types, operands=(target, target))
            rest = code.code[place + 1 :]
            self._cut[kernel] = self.compiled(
                replace(code, code=(*code.code[: place + 1], cut, *rest))
            )
        return self._cut[kernel]


@pytest.mark.parametrize(
    "name",
    ["load_ones", *(pytest.param(name, marks=pytest.mark.slow) for name in ("grouped", "staged"))],
)
def test_an_offset_that_is_cut_to_32_bits_is_found(name: str) -> None:
    network = network_of(65536)
    features, alone = last_of(70000, 65536)
    expected = infer(network, alone, engine="scipy", activations=True)
    number, n_shifts = 0, 1
    while number < n_shifts:
        device = CuttingDevice(name, number)
        engine = CudaEngine(device=device, sizes=CudaSizes(PlanSizes(shared_bytes=0)))
        plan = engine.plan(network, "edges")
        output = engine.run(plan, engine.load(plan, features), activations=True)
        if not np.array_equal(output.activations, expected.activations):
            return
        number, n_shifts = number + 1, device.n_shifts
    raise AssertionError(f"none of {n_shifts} cuts has changed the result")
