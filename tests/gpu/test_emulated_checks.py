"""The checks of the emulated GPU can fail: kernels with one thing changed are found out."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from spdnn import DeviceError, Features, Layer, Network
from spdnn.engines.cuda.emulated.device import CheckedDevice
from spdnn.engines.cuda.emulated.ptx import Address, Instruction, Kernel
from spdnn.engines.cuda.kernels import gpu
from spdnn.engines.cuda.sizes import CudaSizes
from spdnn.engines.cuda.titles import title_of
from spdnn.plan.cuda.sizes import PlanSizes
from tests.gpu.makers import (
    IN_CHUNKS,
    IN_SHARED,
    NOT_IN_SHARED,
    TWO_WARPS,
    assert_as_reference,
    run,
)
from tests.gpu.mutants import MutantDevice, NotingDevice, changed, places_of, without
from tests.makers import dyadic_features

pytestmark = pytest.mark.skipif(not gpu.has_compiler(), reason="libNVVM is not installed")

REAL = CudaSizes(PlanSizes(shared_bytes=NOT_IN_SHARED))
# In blocks of one warp, no barrier is needed where features are counted.
SMALL_IN_CHUNKS = replace(IN_CHUNKS, list_threads=TWO_WARPS.list_threads)
REAL_IN_CHUNKS = replace(REAL, plan=replace(REAL.plan, chunk=3, skew=2))

N_INPUTS = 300


def mixed_network() -> Network:
    """Groups of more inputs than are staged at a time, and single outputs of many inputs."""
    rng = np.random.default_rng(5)
    mask = rng.random((N_INPUTS, 160)) < 0.02
    mask[:40, :16] = True
    values = rng.choice([-1.0, 0.5, 1.0], size=mask.shape)
    again = np.zeros((160, 160))
    again[:40, :16] = rng.choice([-1.0, 0.5, 1.0], size=(40, 16))
    again += np.diag(np.full(160, 0.5))
    again[0] = 0.5
    first, others = sp.csr_array(mask * values), sp.csr_array(again)
    # The resident kernel takes several layers at a time from the fifth on.
    return Network([Layer(first, -0.25), *[Layer(others, 0.5, 4.0)] * 5])


def single_network() -> Network:
    """Outputs with inputs of their own: no groups."""
    eye = sp.eye_array(160, format="csr")
    return Network([Layer(eye * 0.5, 0.25, 4.0)] * 6)


Case = tuple[Network, Features, str, int, CudaSizes]


@cache
def cases(kind: str) -> tuple[Case, ...]:
    """Runs that launch every kernel that has barriers."""
    small, chunked = (TWO_WARPS, SMALL_IN_CHUNKS) if kind == "small" else (REAL, REAL_IN_CHUNKS)
    mixed, single = mixed_network(), single_network()
    # More than one thread block lists; a step of which no feature may be dropped.
    few_neurons = Network([Layer(np.eye(2), -0.5), Layer(np.eye(2), 0.5, bias_rule="always")] * 2)
    many = dyadic_features(3, small.listed + 100, 2, "binary")
    # In mode merge these inputs are added up while they are loaded.
    of_sums = np.random.default_rng(6).integers(1, 9, (16, 24))
    added = Network([Layer(of_sums.repeat(8, axis=0), -99.0)])
    binary, valued = (dyadic_features(3, 70, 128, kind) for kind in ("binary", "random"))
    features, of_single = dyadic_features(2, 70, N_INPUTS), dyadic_features(2, 70, 160, "random")
    return (
        (mixed, features, "edges", NOT_IN_SHARED, small),
        (mixed, features, "edges", NOT_IN_SHARED, chunked),
        (mixed, features, "edges", IN_SHARED, small),
        (single, of_single, "edges", IN_SHARED, small),
        (few_neurons, many, "edges", NOT_IN_SHARED, small),
        (added, binary, "merge", NOT_IN_SHARED, small),
        (added, valued, "merge", NOT_IN_SHARED, small),
    )


def run_case(case: Case, device: Any) -> None:
    """Run a case, and compare with the reference."""
    network, features, mode, shared_bytes, sizes = case
    output = run(network, features, mode, shared_bytes, sizes=sizes, device=device)
    assert_as_reference(output, network, features, mode)


@cache
def launched(kind: str) -> dict[Any, tuple[Kernel, list[Case]]]:
    """Every kernel that has barriers, and the cases that launch it, which pass the checks."""
    found: dict[Any, tuple[Kernel, list[Case]]] = {}
    for case in cases(kind):
        device = NotingDevice()
        run_case(case, device)
        for kernel, code in device.launched.items():
            if places_of(code, "bar"):
                found.setdefault(kernel, (code, []))[1].append(case)
    return found


def finds(kernel: Any, places: list[int], cases_of: list[Case]) -> list[bool]:
    """Whether the checks of any case find each instruction that is left out."""

    def is_found(place: int) -> bool:
        for case in cases_of:
            device = MutantDevice(kernel, without(place))
            try:
                run_case(case, device)
            except DeviceError as error:
                return f"kernel {kernel.py_func.__name__}" in str(error)
            except AssertionError:
                pass  # a wrong result, which the checks should have found
        return False

    return [is_found(place) for place in places]


@pytest.mark.parametrize("kind", ["small", pytest.param("real", marks=pytest.mark.slow)])
def test_every_barrier_and_fence_that_is_left_out_is_found(kind: str) -> None:
    kernels = launched(kind)
    names = {kernel.py_func.__name__ for kernel in kernels}
    lists = {"list_carried", "count_carried", "list_counted"}
    assert names == {"load_ones", "load_values", "grouped", "staged", "resident", *lists}
    assert len(kernels) >= 10
    n_fences = 0
    for kernel, (code, cases_of) in kernels.items():
        places = places_of(code, "bar", "membar")
        n_fences += len(places_of(code, "membar"))
        found = finds(kernel, places, cases_of)
        assert all(found), (title_of(kernel), found)
    assert n_fences == 2


def fault_of(name: str, opcode: str, spaces: tuple[str, ...], further: int) -> str:
    """What is said where the first such instruction of a kernel goes so many bytes further."""
    kernel, (code, cases_of) = next(
        (kernel, found)
        for kernel, found in launched("small").items()
        if kernel.py_func.__name__ == name
    )
    for place in places_of(code, opcode):
        instruction = code.code[place]
        assert isinstance(instruction, Instruction)
        if instruction.modifiers == spaces:
            operands = tuple(
                Address(each.base, each.offset + further) if isinstance(each, Address) else each
                for each in instruction.operands
            )
            device = MutantDevice(kernel, changed(place, operands=operands))
            with pytest.raises(DeviceError) as raised:
                run_case(cases_of[0], device)
            return str(raised.value)
    raise AssertionError("no such instruction")


def test_an_access_that_is_not_aligned_is_found() -> None:
    message = fault_of("staged", "ld", ("shared", "v4"), 4)
    assert "of rows" in message
    assert "is not aligned to its size" in message


@pytest.mark.parametrize(("name", "opcode"), [("grouped", "st"), ("staged", "ld")])
def test_an_access_far_out_of_bounds_is_found(name: str, opcode: str) -> None:
    assert "is out of bounds" in fault_of(name, opcode, ("global",), 1 << 40)


def launch(function: Any, *arguments: Any, n_blocks: int = 1, n_threads: int = 8) -> CheckedDevice:
    """Launch a kernel on the checked device; arrays are written first, but for those of 0 bytes."""
    device = CheckedDevice()
    given = []
    for argument in arguments:
        array = device.empty(argument.shape, argument.dtype)
        if not np.isnan(argument).all():
            device.write(array, argument)
        given.append(array)
    device.launch(gpu.kernel(function), (n_blocks,), n_threads, tuple(given))
    return device


ZEROS, NOTHING = np.zeros(8, np.float32), np.full(8, np.nan, np.float32)


def test_an_offset_one_too_far_is_found() -> None:
    def copy(source: Any, target: Any) -> None:
        i = gpu.cuda.threadIdx.x
        if i <= target.size:
            target[i] = source[i % source.size]

    launch(copy, ZEROS, NOTHING)
    with pytest.raises(DeviceError, match=r"kernel copy, block 0, thread 8: 'st.* out of bounds"):
        launch(copy, ZEROS, NOTHING, n_threads=9)


def test_a_read_of_what_nobody_has_written_is_found() -> None:
    def copy(source: Any, target: Any) -> None:
        target[gpu.cuda.threadIdx.x] = source[gpu.cuda.threadIdx.x]

    with pytest.raises(DeviceError, match=r"'ld.* of source, byte 0 reads what nobody has written"):
        launch(copy, NOTHING, NOTHING)


def test_blocks_that_write_the_same_place_are_found_and_equal_values_are_told() -> None:
    def same(target: Any) -> None:
        target[gpu.cuda.threadIdx.x] = 1.0

    def other(target: Any) -> None:
        target[gpu.cuda.threadIdx.x] = gpu.cuda.blockIdx.x

    launch(same, NOTHING)
    with pytest.raises(DeviceError, match="of target, byte 0 races with a write of the same value"):
        launch(same, NOTHING, n_blocks=2)
    with pytest.raises(DeviceError, match=r"of target, byte 0 races with a write \("):
        launch(other, NOTHING, n_blocks=2)


def test_a_write_that_a_thread_of_another_block_has_read_is_found() -> None:
    def shift(target: Any) -> None:
        i = gpu.cuda.blockIdx.x
        target[i] = target[(i + 1) % target.size]

    with pytest.raises(DeviceError, match="of target, byte 4 writes while another thread reads"):
        launch(shift, ZEROS, n_blocks=2, n_threads=1)


def test_a_barrier_that_not_all_threads_reach_is_found() -> None:
    def some(target: Any) -> None:
        if gpu.cuda.threadIdx.x < 4:
            gpu.cuda.syncthreads()
        target[gpu.cuda.threadIdx.x] = 1.0

    with pytest.raises(DeviceError, match=r"threads wait at a barrier, others .* have ended"):
        launch(some, NOTHING)


def test_races_that_are_allowed_are_named_with_their_reasons() -> None:
    allowed = set()
    for case in cases("small"):
        device = CheckedDevice()
        run_case(case, device)
        allowed |= {(each.kernel, each.array.rpartition(".")[2]) for each in device.allowed}
        assert all(each.reason for each in device.allowed)
    assert {("staged", "is_live"), ("resident", "is_live")} <= allowed
    assert allowed <= {("staged", "is_live"), ("resident", "is_live"), ("grouped", "flags")}
