"""These tests run where kernels can: on a GPU, or in the simulator, in a process of its own.

``NUMBA_ENABLE_CUDASIM=1 pytest tests/gpu`` and, on a GPU, ``SPDNN_TEST_GPU=1 pytest tests/gpu``;
`tests/test_simulator.py` does the first in every run of all tests.
"""

import os

if not {"NUMBA_ENABLE_CUDASIM", "SPDNN_TEST_GPU"} & set(os.environ):
    collect_ignore_glob = ["test_*.py"]
