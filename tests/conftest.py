"""What all tests share: where the published data is, and how hypothesis behaves."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from spdnn.machine.launcher import RANK_VARIABLES, SIZE_VARIABLES

# A first example may compile kernels, so no example has a deadline; the same examples come
# on every machine, so that a failure is one for everybody.
settings.register_profile(
    "quick",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("quick"), max_examples=1000)
settings.load_profile(os.environ.get("SPDNN_HYPOTHESIS", "quick"))


LONG_FILES = (
    "test_production",
    "test_engine",
    "test_emulated_checks",
    "test_emulated",
    "test_kernels",
    "test_distributed",
    "test_gpu_check",
)
"""Files of half a minute and more: begun first, so that at the end no process waits for one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first, in their order."""
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the published files; a test that needs it is skipped where it is not."""
    default = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    folder = Path(os.environ.get("SPDNN_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no published data in {folder}: set SPDNN_TEST_DATA to a folder that has it")
    return folder


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test starts in a folder of its own, without settings of the caller's shell."""
    monkeypatch.chdir(tmp_path)
    for variable in ("OMP_NUM_THREADS", *SIZE_VARIABLES, *RANK_VARIABLES):
        monkeypatch.delenv(variable, raising=False)
