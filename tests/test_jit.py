"""Compiled kernels are kept on disk where that is possible, and work where it is not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import spdnn
from spdnn.machine.jit import jit

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import numpy as np
from spdnn import Layer, Network
from spdnn.plan.cpu.plan import plan_edges
print(plan_edges(Network([Layer(np.eye(3), -0.5)])).layer_edges)
"""
"""Planning is compiled as all else is, and sooner."""


def run(program: str = PROGRAM, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def read_only_installation(tmp_path: Path) -> dict[str, str]:
    """A copy of the package, and no place beside it or at home where a cache could be.

    Files stand where folders are wanted, which stops the superuser, too.
    """
    package = tmp_path / "installed" / "spdnn"
    source = Path(spdnn.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (package, *(path for path in package.rglob("*") if path.is_dir())):
        (folder / "__pycache__").touch()
    (tmp_path / "home").touch()
    home = str(tmp_path / "home")
    return {"PYTHONPATH": str(package.parent), "HOME": home, "XDG_CACHE_HOME": home}


def test_no_place_for_a_cache_is_one_warning_and_no_failure(
    read_only_installation: dict[str, str],
) -> None:
    cache = str(Path("home/cache").absolute())
    done = run(NUMBA_CACHE_DIR=cache, **read_only_installation)
    assert (done.returncode, done.stdout) == (0, "(3,)\n"), done.stderr
    assert done.stderr.count("\n") == 1
    assert "compiled kernels are not kept on disk" in done.stderr


@pytest.mark.parametrize("cache", ["home/cache", "/proc/cache"])
def test_a_named_cache_folder_that_cannot_be_made_is_no_failure(cache: str) -> None:
    Path("home").touch()
    done = run(NUMBA_CACHE_DIR=str(Path(cache).absolute()))
    assert (done.returncode, done.stdout) == (0, "(3,)\n"), done.stderr


def test_a_disk_that_is_full_is_one_warning_and_no_failure() -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (999, 999))\n"
    done = run(limit + PROGRAM, NUMBA_CACHE_DIR=str(Path("cache").absolute()))
    assert (done.returncode, done.stdout) == (0, "(3,)\n"), done.stderr
    assert done.stderr == "compiled kernels are not kept on disk: [Errno 27] File too large\n"


def test_machine_code_is_kept_on_disk() -> None:
    done = run(NUMBA_CACHE_DIR=str(Path("cache").absolute()))
    assert (done.returncode, done.stdout, done.stderr) == (0, "(3,)\n", "")
    assert list(Path("cache").rglob("*.nbc"))


def test_a_change_of_any_module_of_the_package_makes_a_new_cache_folder(tmp_path: Path) -> None:
    shutil.copytree(Path(spdnn.__file__).parent, tmp_path / "spdnn")
    program = "from spdnn.machine.code_cache import CACHE_FOLDER; print(CACHE_FOLDER)"
    before = run(program, PYTHONPATH=str(tmp_path)).stdout
    kernel = tmp_path / "spdnn" / "engines" / "cpu" / "kernels" / "step.py"
    kernel.write_text(kernel.read_text() + "# changed\n")
    after = run(program, PYTHONPATH=str(tmp_path)).stdout
    assert before
    assert after
    assert before != after


SLOW_TO_SAVE = """
import sys, time
from numba.core.caching import IndexDataCacheFile
from spdnn.machine.jit import jit

save_index = IndexDataCacheFile._save_index

def save_index_later(self, overloads):
    time.sleep(1.0)
    save_index(self, overloads)

IndexDataCacheFile._save_index = save_index_later

@jit
def doubled(value):
    return value + value

print("ready", flush=True)
sys.stdin.readline()
print(doubled(eval(sys.argv[1])))
"""


def test_two_processes_that_compile_at_once_do_not_overwrite_each_others_code() -> None:
    Path("program.py").write_text(SLOW_TO_SAVE)
    changes = {"NUMBA_CACHE_DIR": str(Path("cache").absolute()), "PYTHONPATH": str(ROOT)}
    jobs = [
        subprocess.Popen(
            [sys.executable, "program.py", value],
            env=os.environ | changes,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for value in ("21", "1.5")
    ]
    for job in jobs:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
    assert [job.communicate()[0] for job in jobs] == ["42\n", "3.0\n"]
    assert len(list(Path("cache").rglob("*.nbc"))) == 2


def test_a_compiled_function_gives_what_python_gives() -> None:
    def weighted(values: np.ndarray, weight: float) -> float:
        total = 0.0
        for value in values:
            total += weight * value
        return total

    values = np.arange(10.0)
    assert jit(weighted)(values, 0.5) == weighted(values, 0.5) == 22.5


def test_division_by_zero_follows_numpy_and_not_python() -> None:
    def quotient(a: float, b: float) -> float:
        return a / b

    assert jit(quotient)(1.0, 0.0) == np.inf
