import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    default = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("SPDNN_TEST_DATA") or default)
    if not folder.is_dir():
        pytest.skip(f"no reference data in {folder}; SPDNN_TEST_DATA names another folder")
    return folder
