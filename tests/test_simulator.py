"""The tests of the GPU engine in the simulator, in a process of its own: numba reads once, when
it is imported, whether to simulate."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_the_gpu_engine_passes_its_tests_in_the_simulator() -> None:
    pytest.importorskip("numba_cuda")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS / "gpu"],
        cwd=TESTS.parent,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
