"""The GPU kernels' machine code, read without a GPU: nothing spills, sums stay in registers."""

import ctypes
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from numba import types
from numba.cuda.cudadrv.devicearray import DeviceNDArray
from numba.cuda.dispatcher import _Kernel
from numba.np.numpy_support import as_dtype

from spdnn import DeviceError
from spdnn.engines.cuda.emulated.liveness import taken_together
from spdnn.engines.cuda.emulated.ptx import Instruction, Kernel, parse
from spdnn.engines.cuda.kernels import gpu
from tools import machine_code as proof

VARIANTS = {variant.name: variant for variant in proof.variants()}

REGISTER_BLOCKED = {name for name in VARIANTS if name == "grouped 16 x 4" or "groups" in name}
"""64 sums a thread and a load in flight for each of 16 to 36 numbers: these need fewer warps."""


def test_every_kernel_is_among_them() -> None:
    kinds = {re.split(r" \d| with", name)[0] for name in VARIANTS}
    assert kinds == {
        "grouped", "staged", "resident", "load ones", "load values",
        "list carried", "count carried", "list counted",
        "hash features", "propose", "confirm", "unite", "look for overflow",
    }  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_spills_and_no_number_is_in_local_memory(name: str) -> None:
    for architecture in proof.ARCHITECTURES:
        code = proof.assembled(VARIANTS[name], architecture)
        assert (code.stack_bytes, code.spill_bytes) == (0, 0)
        assert not re.search(r"\b(LDL|STL)\b", code.sass)


def device_array(kind: types.Array) -> DeviceNDArray:
    """What CuPy's memory becomes for a launch: an array of one number, wherever it is."""
    host = np.empty((1,) * kind.ndim, as_dtype(kind.dtype))
    memory = SimpleNamespace(device_ctypes_pointer=ctypes.c_void_p(4096), device_pointer_value=4096)
    return DeviceNDArray(host.shape, host.strides, host.dtype, gpu_data=memory)


def argument(kind: types.Type) -> Any:
    """An argument of a launch, of a type."""
    if isinstance(kind, (types.NamedTuple, types.NamedUniTuple)):
        return kind.instance_class(*map(argument, kind.types))
    return device_array(kind) if isinstance(kind, types.Array) else 1


@pytest.mark.parametrize("name", VARIANTS)
def test_a_launch_gives_a_kernel_the_numbers_that_it_takes(name: str) -> None:
    """The launcher's part that needs no GPU: it spreads records out as the compiler does."""
    variant = VARIANTS[name]
    arguments = tuple(map(argument, variant.signature))
    dispatcher = gpu.kernel(variant.function)
    assert tuple(map(dispatcher.typeof_pyval, arguments)) == variant.signature
    launcher = SimpleNamespace(extensions=[])
    launcher._prepare_args = partial(_Kernel._prepare_args, launcher)
    numbers: list[Any] = []
    for kind, each in zip(variant.signature, arguments, strict=True):
        launcher._prepare_args(kind, each, 0, [], numbers)
    entry = proof.ptx_of(variant).partition(".entry")[2].partition(")")[0]
    assert len(numbers) == len(re.findall(r"\.param ", entry)) > 0


@pytest.mark.parametrize("name", VARIANTS)
def test_half_of_the_threads_fit_or_a_block_has_all_that_it_needs(name: str) -> None:
    variant = VARIANTS[name]
    for architecture in proof.ARCHITECTURES:
        code = proof.assembled(variant, architecture)
        share = proof.occupancy(variant, code, architecture)
        assert share >= (0.125 if name in REGISTER_BLOCKED else 0.5), architecture.name
        needed = code.shared_bytes + variant.dynamic_bytes + proof.SYSTEM_SHARED_BYTES
        assert needed <= architecture.block_shared_bytes + proof.SYSTEM_SHARED_BYTES


@pytest.mark.parametrize("features", [2, 4])
def test_a_group_loads_an_input_once_for_16_outputs(features: int) -> None:
    for architecture in proof.ARCHITECTURES:
        code = proof.assembled(VARIANTS[f"grouped 16 x {features}"], architecture)
        loop = proof.loops(code.sass)[0]
        n_inputs = loop.ffma // (16 * features)
        assert n_inputs * 16 * features == loop.ffma
        assert loop.global_loads == features * n_inputs
        # 16 weights, four a load, and which input it is.
        assert loop.shared_loads <= 5 * n_inputs
        assert loop.ffma >= 0.7 * loop.instructions


@pytest.mark.parametrize("name", ["staged without chunks", "staged with chunks"])
def test_a_weight_is_loaded_once_for_all_features_of_the_minibatch(name: str) -> None:
    for architecture in proof.ARCHITECTURES:
        loop = proof.loops(proof.assembled(VARIANTS[name], architecture).sass)[0]
        n_edges = loop.ffma // 16
        assert loop.global_loads == 2 * n_edges  # its weight, its index
        assert loop.shared_loads == 4 * n_edges  # four features a load


@pytest.mark.parametrize(("features", "of_thread"), [(16, 8), (8, 8), (4, 4)])
def test_a_resident_group_loads_four_numbers_at_a_time(features: int, of_thread: int) -> None:
    for architecture in proof.ARCHITECTURES:
        code = proof.assembled(VARIANTS[f"resident {features}, groups"], architecture)
        loop = proof.loops(code.sass)[0]
        n_inputs = loop.ffma // 64
        assert loop.global_loads == n_inputs * (1 + 64 // of_thread // 4)  # its row, its weights
        assert loop.global_words == n_inputs * (1 + 64 // of_thread)
        assert loop.shared_loads == n_inputs * of_thread // 4
        assert loop.shared_words == n_inputs * of_thread
        assert loop.ffma >= 0.8 * loop.instructions


@pytest.mark.parametrize("features", [16, 8, 4])
def test_half_of_what_comes_next_is_on_its_way_while_the_other_half_is_multiplied(
    features: int,
) -> None:
    for architecture in proof.ARCHITECTURES:
        code = proof.assembled(VARIANTS[f"resident {features}, groups"], architecture)
        names = re.findall(r"\*/\s+(?:@!?U?P\w+\s+)?(FFMA|LDG)\b", code.sass)
        kinds = "".join("m" if name == "FFMA" else "g" for name in names)
        assert re.search(r"m{100,}g{4,}m{100,}g{4,}", kinds), architecture.name


def counted_accesses(kernel: Kernel) -> Counter[tuple[str, int]]:
    """Accesses to shared and global memory, and their bytes, as they are counted."""
    together = taken_together(kernel)
    found: Counter[tuple[str, int]] = Counter()
    for place, each in enumerate(kernel.code):
        if not isinstance(each, Instruction) or each.opcode not in ("ld", "st", "atom", "red"):
            continue
        (space,) = {"shared", "global", "param"} & set(each.modifiers)
        if space == "param" or together.get(place, 1) == 0:
            continue
        letter = {"ld": "LD", "st": "ST"}.get(each.opcode, "ATOM")
        vector = next((int(word[1]) for word in each.modifiers if word in ("v2", "v4")), 1)
        n_bytes = each.types[0].n_bytes * vector * together.get(place, 1)
        found[letter + space[0].upper(), n_bytes] += 1
    return found


def assembled_accesses(sass: str) -> Counter[tuple[str, int]]:
    """The same of machine code."""
    found: Counter[tuple[str, int]] = Counter()
    for words in re.findall(r"\s((?:LD|ST)[SG]|ATOM[SG]|REDG?)((?:\.[A-Z0-9_]+)*)", sass):
        name = "ATOMG" if words[0].startswith("RED") else words[0]
        suffixes = words[1].split(".")
        sizes = {"128": 16, "64": 8, "U16": 2}
        n_bytes = next((sizes[suffix] for suffix in suffixes if suffix in sizes), 4)
        found[name, n_bytes] += 1
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_accesses_are_counted_as_the_assembler_leaves_them(name: str) -> None:
    """Counts are of PTX: its accesses, put together, are those of the machine code."""
    kernel = parse(proof.ptx_of(VARIANTS[name]), name)
    code = proof.assembled(VARIANTS[name], proof.ARCHITECTURES[1])
    counted, there = counted_accesses(kernel), assembled_accesses(code.sass)
    # Atomic operations have their types in other words, and the assembler may load only one half of
    # a number of 64 bits.
    for found in (counted, there):
        for key in list(found):
            if key[0].startswith("ATOM") or (key[0] == "LDG" and key[1] <= 8):
                found[key[0], 0] += found.pop(key)
    assert counted.keys() == there.keys()
    # Loops that the assembler unrolls have them several times in the machine code.
    assert counted <= there
    if name.startswith(("grouped", "staged", "resident", "list")):
        assert counted == there


def test_a_tool_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="no-such-tool is not installed"):
        proof.tool("no-such-tool")


def test_loops_are_found_in_machine_code() -> None:
    sass = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   LDS.128 R4, [R2] ;
        /*0020*/                   FFMA R0, R4, R5, R0 ;
        /*0030*/              @!P0 LDG.E R6, desc[UR4][R8.64] ;
        /*0040*/               @P1 BRA 0x10 ;
        /*0050*/                   BRA 0x0 ;
        /*0060*/                   BRA 0x60;
    """
    assert proof.loops(sass) == [proof.Loop(1, 1, 4, 1, 1, 0, 1)]


def test_kernels_compile_where_numpy_has_lost_what_the_compiler_names() -> None:
    # NumPy 2.5 has no row_stack, which numba-cuda 0.30 registers all the same.
    program = (
        "import numpy, spdnn; vars(numpy).pop('row_stack', None);"
        "from spdnn.engines.cuda.kernels import gpu;"
        "from spdnn.engines.cuda.kernels.carried import unite;"
        "from spdnn.engines.cuda.kernels.records import FeatureList, HashTable;"
        "from numba.types import Array, NamedTuple, int32, int64, uint64;"
        "a, b, c = (Array(of, 1, 'C') for of in (int32, int64, uint64));"
        "records = NamedTuple((a, a, b, b), FeatureList), NamedTuple((c, c, a, c, a), HashTable);"
        "print('.entry' in gpu.compile_ptx(unite, (*records, b, a), (9, 0)));"
        "print('row_stack' in vars(numpy))"
    )
    command = [sys.executable, "-W", "error:::spdnn.engines.cuda.kernels.gpu", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\nFalse\n", 0), done.stderr
