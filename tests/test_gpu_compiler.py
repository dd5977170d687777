"""What the GPU kernels' compiler needs of an installation: found, or refused in one line."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("numba_cuda")

from spdnn import DeviceError
from spdnn.engines.cuda import gpu_device
from spdnn.engines.cuda.kernels import gpu

ROOT = Path(__file__).parent.parent
OTHERS = sysconfig.get_path("purelib")
"""Where all else is installed; with -S Python reads no .pth files there."""


def tell(code: str, *folders: Path | str) -> str:
    """What a Python says that finds packages in such folders of PYTHONPATH only."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, *folders, OTHERS]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WHICH = "from spdnn.engines.cuda.kernels.gpu import cuda; print(cuda.__file__)"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """numba-cuda as `pip install --target` leaves it: a folder in which no .pth file is read."""
    folder = tmp_path / "target"
    folder.mkdir()
    for file in importlib.metadata.files("numba-cuda") or []:
        place = Path(str(file.locate()))
        if len(file.parts) == 1:
            shutil.copy(place, folder)
    (folder / "numba_cuda").symlink_to(Path(OTHERS) / "numba_cuda")
    return folder


def test_a_folder_of_pythonpath_may_have_the_compiler(target: Path) -> None:
    assert tell(WHICH, target) == str(target / "numba_cuda" / "numba" / "cuda" / "__init__.py")


@pytest.mark.slow
def test_a_folder_that_pip_has_filled_may_have_the_compiler(tmp_path: Path) -> None:
    version = importlib.metadata.version("numba-cuda")
    wanted = ["--no-deps", "--only-binary", ":all:", f"numba-cuda=={version}"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--target", tmp_path, *wanted], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"pip cannot install numba-cuda here: {done.stderr.strip()[-200:]}")
    assert tell(WHICH, tmp_path) == str(tmp_path / "numba_cuda" / "numba" / "cuda" / "__init__.py")


def test_numbas_own_compiler_imported_first_is_one_line(target: Path) -> None:
    code = (
        "import numba.cuda; from spdnn.engines import make_engine\n"
        "try: make_engine('cuda')\n"
        "except Exception as error: print(error)"
    )
    said = tell(code, target)
    assert "Numba's own: import _numba_cuda_redirector before it" in said
    assert "\n" not in said


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What CuPy tells of a GPU; the real compiler is asked all else."""
    facts = {
        "name": b"Stand-in", "major": 9, "minor": 0, "multiProcessorCount": 2,
        "sharedMemPerBlockOptin": 48 << 10,
    }  # fmt: skip
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda number: facts,
        CUDARuntimeError=LookupError,
    )
    of_cuda = SimpleNamespace(
        runtime=runtime,
        driver=SimpleNamespace(CUDADriverError=LookupError),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        Device=lambda number: SimpleNamespace(use=lambda: None),
        Stream=lambda non_blocking: SimpleNamespace(ptr=1),
    )
    monkeypatch.setattr(gpu_device, "_import_cupy", lambda: SimpleNamespace(cuda=of_cuda))
    monkeypatch.setattr(gpu.cuda, "select_device", lambda number: None)
    monkeypatch.setattr(gpu.cuda, "external_stream", lambda pointer: None)
    return facts


PTX = """.version {version}
.target sm_90
.address_size 64
.visible .entry k() {{ ret; }}
"""


def link(version: str) -> None:
    """Link PTX of some version as numba-cuda does."""
    core = pytest.importorskip("cuda.core")
    pytest.importorskip("cuda.bindings.nvjitlink")
    code = core.ObjectCode.from_ptx(PTX.format(version=version).encode(), name="k")
    core.Linker(code, options=core.LinkerOptions(arch="sm_90")).link("cubin")


def test_code_too_new_for_the_linker_is_one_line_that_says_what_fits(facts: Any) -> None:
    link("9.0")
    with pytest.raises(DeviceError) as raised, gpu_device.open_gpu().errors():
        link("99.0")
    said = str(raised.value)
    assert said.startswith("GPU 0 (Stand-in) failed: Unsupported .version 99.0; current version")
    assert said.endswith(
        ": libNVVM must not be newer than nvJitLink or the driver: "
        "pip install --upgrade nvidia-nvjitlink"
    )
    assert "\n" not in said
    assert "\0" not in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "RuntimeError"),
        ("out of memory\nat some place", "out of memory"),
        ("ERROR_PTX_COMPILE (4)\nLinker error log: ptxas; fatal   : too many\nmore", "too many"),
        ("ERROR_INTERNAL (6)\nLinker error log: ERROR 4 in nvvmAdd", "ERROR 4 in nvvmAdd"),
    ],
)
def test_what_has_nothing_to_do_with_versions_gets_no_such_advice(text: str, expected: str) -> None:
    assert gpu.what_failed(RuntimeError(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "ERROR_INTERNAL (6)\nLinker error log: ERROR 4 in nvvmAddNVVMContainerToProgram, may need "
        "newer version of nvJitLink library",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX was compiled with an unsupported "
        "toolchain.",
    ],
)
def test_versions_that_do_not_fit_are_told_by_linker_and_driver(text: str) -> None:
    said = gpu.what_failed(RuntimeError(text))
    assert "pip install --upgrade nvidia-nvjitlink" in said
    assert "\n" not in said


def test_a_gpu_too_old_for_the_compiler_is_told_what_would_work(
    facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "least_capability", lambda: (7, 5))
    facts |= {"name": b"Tesla V100", "major": 7, "minor": 0}
    with pytest.raises(DeviceError) as raised:
        gpu_device.open_gpu()
    assert str(raised.value) == (
        "GPU 0 (Tesla V100) has compute capability 7.0; the compiler that is installed needs 7.5: "
        "pip install 'spdnn[cuda12]' in a fresh environment"
    )
    facts |= {"minor": 5}
    assert gpu_device.open_gpu().name == "Tesla V100"


@pytest.mark.skipif(not gpu.has_compiler(), reason="libNVVM is not installed")
def test_what_the_compiler_says_is_too_old_for_it_really_is() -> None:
    least = gpu.least_capability()
    assert least is not None

    def nothing(array: Any) -> None:
        array[0] = 1.0

    signature = (gpu.float32[::1],)
    assert f".target sm_{least[0]}{least[1]}" in gpu.compile_ptx(nothing, signature, least)
    with pytest.raises(gpu.launch_errors(), match="is not supported"):
        gpu.compile_ptx(nothing, signature, (least[0] - 1, least[1]))


def test_what_a_version_of_the_compiler_does_not_have_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = gpu.launch_errors()
    assert len(every) == len(gpu._ERRORS)
    monkeypatch.setattr(
        gpu, "_ERRORS", (*gpu._ERRORS, ("cuda.core.elsewhere", "X"), ("cuda.core", "NoSuchError"))
    )
    assert gpu.launch_errors() == every
