"""jobs/gpu_check.py, in the simulator: what it will do on a GPU, at a tiny size."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def whole_check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a check of three tiny networks."""
    pytest.importorskip("numba_cuda")
    folder = tmp_path_factory.mktemp("check")
    networks = "64x2", "64x1 skewed", "64x2:merge"
    done = check(folder, "--tiny", "--features", "3", "--what", *networks)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_each_result_is_written_and_all_agree(whole_check: Path) -> None:
    results = written(whole_check)["results"]
    assert all(result["ok"] for result in results)
    runs = {result["run"]: result for result in results if result["what"] == "64x2"}
    assert {"inputs", "edges", "merge", "against engine cpu", "cuSPARSE"} <= set(runs)
    assert runs["edges"]["live"] == runs["merge"]["live"] > 0
    assert runs["edges"]["kernels"] > 0
    assert "| 64x2 | edges | yes |" in (whole_check / "gpu_check.md").read_text()


def told(folder: Path, what: str) -> list[str]:
    """What was done about a network, in order."""
    return [each["run"] for each in written(folder)["results"] if each["what"] == what]


def test_a_skewed_network_is_run_with_long_outputs_in_chunks_and_whole(whole_check: Path) -> None:
    runs = set(told(whole_check, "64x1 skewed"))
    assert {"edges", "edges, whole outputs", "against engine cpu"} <= runs


def test_a_network_in_mode_merge_only_is_planned_ahead(whole_check: Path) -> None:
    runs = told(whole_check, "64x2:merge")
    assert [run for run in runs if run != "inputs"] == ["plan ahead", "merge", "against engine cpu"]


def test_a_check_cut_short_says_what_was_left_out(tmp_path: Path) -> None:
    done = check(tmp_path, "--what", "64x2", "1024x120", "--seconds", "1")
    assert done.returncode == 1
    record = json.loads((tmp_path / "gpu_check.json").read_text())
    assert record["left_out"] == ["64x2", "1024x120"]


@pytest.fixture
def one_check(tmp_path: Path) -> Iterator[Any]:
    """A check of the script's, with two networks to run, of which one is being planned."""
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    arguments = argparse.Namespace(
        folder=tmp_path, kept=tmp_path, seconds=script.SHORTEST, what=["64x2:merge", "64x2"]
    )
    one = script.Check(arguments)
    one.planner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield one
    one.end()
    assert one.planner.poll() is not None


def written(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "gpu_check.json").read_text())
    return record


def test_others_go_before_what_is_still_being_planned(one_check: Any) -> None:
    assert one_check.next() == "64x2"
    assert one_check.next() == "64x2:merge"


def test_what_was_planned_goes_first(one_check: Any) -> None:
    one_check.end()
    assert [one_check.next(), one_check.next()] == ["64x2:merge", "64x2"]


def test_a_plan_that_is_not_ready_in_time_is_told(one_check: Any, tmp_path: Path) -> None:
    assert one_check.next() == "64x2"
    assert not one_check.is_planned("64x2:merge")
    [result] = written(tmp_path)["results"]
    assert (result["ok"], result["said"]) == (False, ["the plan was not ready in time"])
    assert written(tmp_path)["left_out"] == ["64x2:merge"]


def test_a_planning_that_fails_is_told_with_what_it_said(one_check: Any, tmp_path: Path) -> None:
    one_check.end()
    (tmp_path / "plans.log").write_text("Traceback\nno memory\n")
    assert not one_check.is_planned("64x2:merge")
    [result] = written(tmp_path)["results"]
    assert (result["ok"], result["said"]) == (False, ["Traceback", "no memory"])


def test_a_check_that_is_ended_has_written_what_it_found(tmp_path: Path) -> None:
    pytest.importorskip("numba_cuda")
    command = [sys.executable, SCRIPT, tmp_path, "--tiny", "--what", "64x2", "1024x120"]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        path = tmp_path / "gpu_check.json"
        while process.poll() is None and not (path.exists() and written(tmp_path)["results"]):
            time.sleep(0.1)
        process.terminate()
    assert process.returncode == 1
    record = written(tmp_path)
    assert record["results"][0]["run"] == "GPU"
    assert "1024x120" in record["left_out"]


def test_without_a_gpu_it_says_so_at_once(tmp_path: Path) -> None:
    done = check(tmp_path, simulates=False)
    assert done.returncode == 2
    [result] = json.loads((tmp_path / "gpu_check.json").read_text())["results"]
    assert result["no_gpu"]
    assert result["said"]
