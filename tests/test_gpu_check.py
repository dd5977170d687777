"""jobs/gpu_check.py, in the simulator: what it will do on a GPU, at a tiny size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "jobs" / "gpu_check.py"


def check(folder: Path, *options: str, simulates: bool = True) -> subprocess.CompletedProcess[str]:
    simulator = {"NUMBA_ENABLE_CUDASIM": "1"} if simulates else {}
    return subprocess.run(
        [sys.executable, SCRIPT, folder, *options],
        env=os.environ | simulator,
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_result_is_written_and_all_agree(tmp_path: Path) -> None:
    pytest.importorskip("numba_cuda")
    done = check(tmp_path, "--tiny", "--what", "64x2", "64x1 skewed", "--features", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "gpu_check.json").read_text())
    runs = {result["run"]: result for result in record["results"] if result["what"] == "64x2"}
    assert {"GPU", "edges", "merge", "against engine cpu", "cuSPARSE"} <= set(runs)
    assert all(result["ok"] for result in record["results"])
    assert runs["edges"]["live"] == runs["merge"]["live"] > 0
    assert runs["edges"]["kernels"] > 0
    skewed = [result["run"] for result in record["results"] if result["what"] == "64x1 skewed"]
    assert {"edges", "edges, whole outputs", "against engine cpu"} <= set(skewed)
    table = (tmp_path / "gpu_check.md").read_text()
    assert "| 64x2 | edges | yes |" in table


def test_a_check_cut_short_says_what_was_left_out(tmp_path: Path) -> None:
    done = check(tmp_path, "--what", "64x2", "1024x120", "--seconds", "1")
    assert done.returncode == 1
    record = json.loads((tmp_path / "gpu_check.json").read_text())
    assert record["left_out"] == ["64x2", "1024x120"]


def test_without_a_gpu_it_says_so_at_once(tmp_path: Path) -> None:
    done = check(tmp_path, simulates=False)
    assert done.returncode == 2
    [result] = json.loads((tmp_path / "gpu_check.json").read_text())["results"]
    assert result["no_gpu"]
    assert result["said"]
