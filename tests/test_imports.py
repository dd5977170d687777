"""Imports run one way, and importing the package needs no device, MPI or demo library."""

import ast
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import spdnn
from spdnn.machine import provenance

PACKAGE = Path(spdnn.__file__).parent

ROOMS = {
    "spdnn.__main__": 10,
    "spdnn.cli": 9,
    "spdnn.bench": 8,
    "spdnn.distributed": 7,
    "spdnn": 7,  # the package itself: the public names
    "spdnn.models": 6,
    "spdnn.checks": 6,
    "spdnn.run": 5,
    "spdnn.engines": 4,
    "spdnn.sources": 3,
    "spdnn.plan": 3,
    "spdnn.recipes": 2,
    "spdnn.io": 1,
    "spdnn.network": 0,
    "spdnn.features": 0,
}
"""How high each room stands; a module may import from its own room and from lower ones."""

KEEPS_OUT = {
    "spdnn.sources": ("spdnn.plan",),
    "spdnn.plan": ("spdnn.io", "spdnn.recipes", "spdnn.sources"),
    "spdnn.engines": ("spdnn.io", "spdnn.recipes", "spdnn.sources"),
    "spdnn.run": ("spdnn.recipes", "spdnn.sources"),
    "spdnn.models": ("spdnn.recipes", "spdnn.sources"),
}
"""What stands lower, but is another branch: plans and engines know no files."""

TOOLS = {"spdnn.challenge", "spdnn.errors", "spdnn.machine"}
"""What everything may use; they import each other at most."""

SHARED = {"spdnn.plan.cpu": "spdnn.plan.cuda", "spdnn.engines.cpu": "spdnn.engines.cuda"}
"""What belongs to one engine and to the other: neither side imports the other's."""

MODULES = {
    ".".join(("spdnn", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports(path: Path) -> set[str]:
    """Names of the modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports name their module in full"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else str(node.module))
    return {name for name in found if name == "spdnn" or name.startswith("spdnn.")}


def room(module: str) -> str:
    """The room of a module, or the module itself for a tool."""
    return module if module.count(".") < 2 else ".".join(module.split(".")[:2])


def test_every_module_has_its_room() -> None:
    assert {room(module) for module in MODULES} <= set(ROOMS) | TOOLS


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    for other in imports(MODULES[module]):
        if room(other) in TOOLS or room(other) == room(module):
            continue
        assert room(module) not in TOOLS, f"{module}, which everything may use, imports {other}"
        assert ROOMS[room(other)] <= ROOMS[room(module)], f"{module} imports upward: {other}"
        assert room(other) not in KEEPS_OUT.get(room(module), ()), f"{module} imports {other}"


@pytest.mark.parametrize("pair", [*SHARED.items(), *((b, a) for a, b in SHARED.items())])
def test_engines_stand_side_by_side(pair: tuple[str, str]) -> None:
    one, other = pair
    for module in (name for name in MODULES if name.startswith(f"{one}.")):
        assert not any(name.startswith(other) for name in imports(MODULES[module])), module


@pytest.mark.parametrize("module", [name for name in MODULES if ".kernels." in name])
def test_kernels_import_no_orchestration(module: str) -> None:
    own = module.rpartition(".")[0]
    for other in imports(MODULES[module]):
        assert other == "spdnn.machine.jit" or other.startswith(("spdnn.plan.", own))


@pytest.mark.parametrize(
    "module", ["spdnn", "spdnn.cli.main", "spdnn.engines.cpu.engine", "spdnn.engines"]
)
def test_importing_needs_no_device_mpi_or_demo_library(module: str) -> None:
    program = (
        f"import {module}, sys; heavy = ('mpi4py', 'cupy', 'numba.cuda', 'numba_cuda', 'sklearn',"
        " 'matplotlib', 'rich', 'torch', 'onnx', 'safetensors', 'pyarrow');"
        " print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_checkout_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(provenance, "version", missing)
    assert provenance.own_version() == "from source"


def test_the_commit_is_looked_for_where_the_package_lies() -> None:
    assert PACKAGE.parent == provenance._SOURCE


def test_all_public_names_are_there() -> None:
    assert all(hasattr(spdnn, name) for name in spdnn.__all__)
