"""jobs/cpu_check.py, at a tiny size: what it will measure on a whole node."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("threadpoolctl")

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "jobs" / "cpu_check.py"


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "data").mkdir()
    return subprocess.run(
        [sys.executable, SCRIPT, folder, "--data", folder / "data", "--features", "60", *options],
        capture_output=True,
        text=True,
        check=False,
    )


def written(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "cpu_check.json").read_text())
    return record


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a check of one tiny network."""
    folder = tmp_path_factory.mktemp("check")
    done = check(folder, "--networks", "1024x4", "--threads", "1,2")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_everything_is_measured_and_foreseen(checked: Path) -> None:
    record = written(checked)
    names = [result["what"] for result in record["results"]]
    expected = ["peaks 1", "peaks 2", "phases 1024x4 2", "phases 1024x4 1"]
    assert names[:4] == expected
    assert all(result["ok"] for result in record["results"])
    assert not record["left_out"]
    text = (checked / "cpu_check.md").read_text()
    assert "| threads | sgemm G/s | copy GB/s |" in text
    assert "## 1024x4: seconds measured (foreseen)" in text
    for phase in ("inputs", "plan edges", "run edges", "plan merge", "run merge", "load"):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {phase} |")]
        assert row.count("(") == 2


def test_ranks_are_measured_where_there_is_a_launcher(checked: Path) -> None:
    launcher = Path(sys.executable).parent / "mpirun"
    if not launcher.exists() or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no MPI")
    text = (checked / "cpu_check.md").read_text()
    assert "2 ranks of 1 threads, run merge: " in text


def test_what_fails_or_has_no_time_is_told(tmp_path: Path) -> None:
    done = check(tmp_path, "--networks", "1000x4", "--threads", "1")
    assert done.returncode == 1
    text = (tmp_path / "cpu_check.md").read_text()
    assert "* FAILED: phases 1000x4 1: cores: error: " in text
    (tmp_path / "late").mkdir()
    done = check(tmp_path / "late", "--networks", "1024x4", "--threads", "1", "--seconds", "1")
    assert done.returncode == 1
    assert written(tmp_path / "late")["left_out"] == ["peaks 1", "phases 1024x4 1"]


def test_threads_get_one_processor_of_each_core_first_and_node_by_node(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node, cpus in ((0, "0-1,4-5"), (1, "2-3,6-7")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    for cpu in range(8):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        siblings = tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        siblings.write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(script, "NODES", tmp_path)
    monkeypatch.setattr(script, "CPUS", tmp_path)
    assert script.in_order(range(8)) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert script.in_order([0, 2, 4, 6]) == [0, 2, 4, 6]
    (tmp_path / "node0" / "cpulist").write_text("0,2,4,6\n")
    (tmp_path / "node1" / "cpulist").write_text("1,3,5,7\n")
    assert script.in_order(range(8)) == [0, 2, 1, 3, 4, 6, 5, 7]


def test_numbers_of_threads_double_up_to_all(script: ModuleType) -> None:
    assert script.doubling(1) == [1]
    assert script.doubling(48) == [1, 2, 4, 8, 16, 32, 48]
    assert script.numbers_in("0-2,8,10-11") == [0, 1, 2, 8, 10, 11]
    assert script.modes_of("1024x1920") == script.modes_of("16384x120") == "edges,merge"
    assert script.modes_of("65536x120") == "merge"


def test_it_may_be_begun_from_anywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--help"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--launcher" in done.stdout
