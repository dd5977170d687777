"""What the GPU kernels become: PTX, machine code, and what can be read from it without a GPU.

Kernels are compiled for the types with which the engine launches them. To find these, the engine
runs on a device that launches nothing and notes what it was asked to launch. NVIDIA's assembler and
disassembler come from PyPI (``nvidia-cuda-nvcc``, ``nvidia-cuda-cuobjdump``,
``nvidia-cuda-nvdisasm``).
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import typeof

from spdnn.engines.cuda.device import DeviceArray, SimulatedDevice, view_of
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.kernels import gpu
from spdnn.engines.cuda.sizes import CudaSizes
from spdnn.engines.cuda.titles import title_of
from spdnn.errors import DeviceError
from spdnn.features import Features
from spdnn.network import Layer, Network
from spdnn.plan.cuda.sizes import PlanSizes


class Architecture(NamedTuple):
    """Limits of a multiprocessor (CUDA C++ Programming Guide, technical specifications)."""

    capability: tuple[int, int]
    threads: int
    registers: int
    shared_bytes: int
    block_shared_bytes: int
    blocks: int

    @property
    def name(self) -> str:
        """As the assembler calls it."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


ARCHITECTURES = (
    Architecture((8, 0), 2048, 65536, 164 << 10, 163 << 10, 32),  # A100
    Architecture((9, 0), 2048, 65536, 228 << 10, 227 << 10, 32),  # H100, H200
    Architecture((10, 0), 2048, 65536, 228 << 10, 227 << 10, 32),  # B200
)

REGISTER_UNIT = 256
"""Registers are given to a warp in such units."""

SHARED_UNIT = 128
"""Bytes in which shared memory is given to a block."""

SYSTEM_SHARED_BYTES = 1 << 10
"""Shared memory of each thread block that the system keeps."""


@dataclass(frozen=True, eq=False)
class Variant:
    """A kernel as the engine launches it."""

    name: str
    function: Any
    signature: tuple[Any, ...]
    max_registers: int | None
    n_threads: int
    dynamic_bytes: int


class Recorder(SimulatedDevice):
    """A device that launches nothing, and notes what it should launch; one feature lives on."""

    n_multiprocessors = 0  # so that a resident block carries as many features as fit
    shared_bytes = 163 << 10

    def __init__(self) -> None:
        super().__init__()
        self.launched: dict[Any, tuple[tuple[Any, ...], int, int]] = {}

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """An array of ones: wherever a number of features is read, it is one."""
        array = super().empty(shape, dtype)
        array.memory.fill(1)
        return array

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Note the kernel and the types of its arguments."""
        types = tuple(typeof(view_of(argument)) for argument in arguments)
        self.launched[kernel] = types, n_threads, shared


def variants() -> list[Variant]:
    """All kernels, in all the variants that the engine launches on official networks."""
    found: dict[str, Variant] = {}

    def run(sizes: CudaSizes, width: int, has_groups: bool, mode: str) -> None:
        device = Recorder()
        engine = CudaEngine(device=device, sizes=sizes)
        eye = sp.eye_array(width, dtype=np.float32).tolil()
        if has_groups:
            # Weights that differ, or merging would leave nothing to share.
            eye[:4, :4] = np.arange(1, 17).reshape(4, 4)
        layers = [Layer(eye.tocsr(), -0.5)] * 3
        networks = [Network(layers)]
        if mode == "merge":
            # Inputs with equal weights are added up while they are loaded: 8 of them, or 300.
            of_outputs = np.arange(1, 9, dtype=np.float32)
            networks += [Network([Layer(np.ones((n, 1)) * of_outputs)]) for n in (8, 300)]
        # More features than one thread block lists, where this takes little memory.
        n_features = sizes.listed + 1 if width < 1024 else 2
        for values in (None, np.ones(n_features, np.float32)):
            for network in networks:
                plan = engine.plan(network, mode)
                indptr, indices = np.arange(n_features + 1), np.arange(n_features) % 2
                features = Features(network.n_inputs, indptr, indices, values)
                engine.run(plan, engine.load(plan, features))
        for kernel, (signature, n_threads, shared) in device.launched.items():
            function = kernel.py_func
            options = kernel.targetoptions
            title = title_of(kernel)
            variant = Variant(
                title, function, signature, options.get("max_registers"), n_threads, shared
            )
            found.setdefault(title, variant)

    layered = PlanSizes(shared_bytes=0)
    run(CudaSizes(layered), 8, True, "merge")
    in_chunks = replace(layered, chunk=1, skew=0)  # an output of four inputs is long
    run(CudaSizes(in_chunks), 8, True, "edges")
    run(replace(CudaSizes(layered), thread_features=2), 8, True, "edges")
    resident = PlanSizes(shared_bytes=Recorder.shared_bytes)
    for width in (1024, 1700, 5000):  # 16, 8 and 4 features of a thread block
        run(CudaSizes(resident), width, True, "edges")
        run(CudaSizes(resident), width, False, "edges")
    return list(found.values())


class Assembled(NamedTuple):
    """What the assembler says of a kernel, and its machine code as text."""

    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    sass: str


@cache
def tool(name: str) -> str:
    """Path of one of NVIDIA's tools: from PyPI, else from the system.

    Raises
    ------
    DeviceError
        If it is not installed.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for file in sorted(Path(folder).glob(f"cu*/bin/{name}")):
            if os.access(file, os.X_OK):
                return str(file)
    found = shutil.which(name)
    if found is None:
        raise DeviceError(f"{name} is not installed: pip install 'spdnn[gpu-proof]'")
    return found


@cache
def ptx_of(variant: Variant) -> str:
    """The kernel's PTX, for the oldest of the architectures: the assembler takes it for all."""
    return gpu.compile_ptx(variant.function, variant.signature, ARCHITECTURES[0].capability)


@cache
def assembled(variant: Variant, architecture: Architecture) -> Assembled:
    """The kernel's machine code for an architecture."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx_of(variant))
        limit = variant.max_registers
        options = [f"--maxrregcount={limit}"] if limit else []
        log = _run("ptxas", "-v", f"-arch={architecture.name}", *options, "-o", target, source)
        sass = _run("cuobjdump", "-sass", target)

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found.group(1)) if found else 0

    return Assembled(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        number(r"(\d+) bytes smem"),
        sass,
    )


def _run(name: str, *arguments: Any) -> str:
    environment = os.environ | {"PATH": f"{Path(tool('nvdisasm')).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [tool(name), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise DeviceError(f"{name}: {(done.stderr or done.stdout).strip()}")
    return done.stdout + done.stderr


def occupancy(variant: Variant, code: Assembled, architecture: Architecture) -> float:
    """Share of a multiprocessor's threads that can run at once."""
    warps = variant.n_threads // gpu.WARP
    per_warp = -(-code.registers * gpu.WARP // REGISTER_UNIT) * REGISTER_UNIT
    shared = code.shared_bytes + variant.dynamic_bytes + SYSTEM_SHARED_BYTES
    shared = -(-shared // SHARED_UNIT) * SHARED_UNIT
    n_blocks = min(
        architecture.registers // (per_warp * warps),
        architecture.shared_bytes // shared,
        architecture.threads // variant.n_threads,
        architecture.blocks,
    )
    return n_blocks * variant.n_threads / architecture.threads


class Loop(NamedTuple):
    """Instructions of a loop's body, by what matters.

    Attributes
    ----------
    ffma : int
        Fused multiply-adds.
    shared_loads, shared_words : int
        Loads from shared memory, and 32-bit words that they give a thread.
    global_loads, global_words : int
    local : int
        Loads and stores of local memory.
    others : int
    """

    ffma: int
    shared_loads: int
    shared_words: int
    global_loads: int
    global_words: int
    local: int
    others: int

    @property
    def instructions(self) -> int:
        """All of them."""
        return self.ffma + self.shared_loads + self.global_loads + self.local + self.others


_INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?);"
)


def loops(sass: str) -> list[Loop]:
    """All loops of a kernel that have no other one inside, the most multiply-adds first."""
    code = [
        (int(found.group(1), 16), found.group(2), found.group(3))
        for found in map(_INSTRUCTION.match, sass.splitlines())
        if found
    ]
    spans = []
    for address, name, operands in code:
        if name.split(".")[0] == "BRA" and (found := re.search(r"0x([0-9a-f]+)", operands)):
            target = int(found.group(1), 16)
            if target < address:  # a branch to itself ends every kernel
                spans.append((target, address))
    inner = [
        span
        for span in set(spans)
        if not any(span != other and span[0] <= other[0] and other[1] <= span[1] for other in spans)
    ]
    bodies = [
        _counted([name for address, name, _ in code if first <= address <= last])
        for first, last in sorted(inner)
    ]
    return sorted(bodies, key=lambda loop: -loop.ffma)


def _counted(names: list[str]) -> Loop:
    def words(kind: str) -> list[int]:
        found = [name for name in names if name.split(".")[0] == kind]
        return [4 if ".128" in name else 2 if ".64" in name else 1 for name in found]

    ffma = sum(name.split(".")[0] in ("FFMA", "FFMA2") for name in names)
    shared, of_global = words("LDS"), words("LDG")
    local = len(words("LDL")) + len(words("STL"))
    others = len(names) - ffma - len(shared) - len(of_global) - local
    return Loop(ffma, len(shared), sum(shared), len(of_global), sum(of_global), local, others)
