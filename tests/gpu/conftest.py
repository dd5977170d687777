"""These tests run where kernels can: on a GPU, or in the simulator, in a process of its own.

``NUMBA_ENABLE_CUDASIM=1 pytest tests/gpu`` and, on a GPU, ``SPDNN_TEST_GPU=1 pytest tests/gpu``;
`tests/test_simulator.py` does the first in every run of all tests. Tests of the emulated GPU
(``test_emulated*.py``) need neither, only the compiler; they are not for the simulator.
"""

import importlib.util
import os
from pathlib import Path

EMULATED = "test_emulated*.py"

if "NUMBA_ENABLE_CUDASIM" in os.environ:
    collect_ignore_glob = [EMULATED]
elif "SPDNN_TEST_GPU" not in os.environ:
    here = Path(__file__).parent
    others = {file.name for file in here.glob("test_*.py")}
    if importlib.util.find_spec("numba_cuda") is not None:
        others -= {file.name for file in here.glob(EMULATED)}
    collect_ignore_glob = sorted(others)
