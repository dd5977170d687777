"""The GPU engine in the simulator, in a process of its own: numba reads once, when it is imported,
whether to simulate.

The emulated GPU runs the tests of the engine faster, and what the compiler has made of the kernels.
The simulator keeps what it shows better: that kernels are right as they are written in Python,
without libNVVM, with threads that take turns anywhere and Python's own errors of indices; and what
is asked of CuPy, for which a stand-in has arrays that only the simulator's kernels take.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param("simulator", id="what it shows better"),
        pytest.param("not simulator", id="all else", marks=pytest.mark.slow),
    ],
)
def test_the_gpu_engine_passes_in_the_simulator(choice: str) -> None:
    pytest.importorskip("numba_cuda")
    chosen = ["-m", choice, TESTS / "gpu"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        cwd=TESTS.parent,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
