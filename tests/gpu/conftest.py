"""Where these tests run. `tests/gpu/makers.py` chooses the device by the same variables.

==================================  ================================================
``pytest tests/gpu``                the emulated GPU, which needs only the compiler
``SPDNN_TEST_GPU=1 pytest ...``     the GPU
``NUMBA_ENABLE_CUDASIM=1 pytest``   the simulator; `tests/test_simulator.py` does this
==================================  ================================================

Tests of the emulated GPU itself (``test_emulated*.py``) are for the first only. The simulator
makes a thread of Python of each thread, and is too slow for kernels of the sizes that users run
(``test_production.py``). Its kernels alone take the arrays of a stand-in for CuPy
(``test_gpu_device.py``).
"""

import importlib.util
import os

import pytest

EMULATED = "test_emulated*.py"
SIMULATED = "test_gpu_device.py"
PRODUCTION = "test_production.py"

if importlib.util.find_spec("numba_cuda") is None:
    collect_ignore_glob = ["test_*.py"]
elif "NUMBA_ENABLE_CUDASIM" in os.environ:
    collect_ignore_glob = [EMULATED, PRODUCTION]
elif "SPDNN_TEST_GPU" in os.environ:
    collect_ignore_glob = [EMULATED, SIMULATED]
else:
    collect_ignore_glob = [SIMULATED]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a compiler that is not there."""
    from spdnn.engines.cuda.kernels import gpu
    from tests.gpu.makers import WHERE

    if WHERE == "emulated GPU" and not gpu.has_compiler():
        pytest.skip("libNVVM is not installed")
