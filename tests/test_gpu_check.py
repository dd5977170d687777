"""jobs/gpu_check.py, rehearsed on the emulated GPU: what it will do on a GPU, at a tiny size."""

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

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "jobs" / "gpu_check.py"

SANITIZER = """#!/bin/sh
echo "========= $*"
echo "========= ERROR SUMMARY: 0 errors"
case "$*" in *racecheck*) exit 9;; esac
"""
"""A stand-in for compute-sanitizer, for which racecheck has found something."""


def check(
    folder: Path, *options: str, path: str = os.environ.get("PATH", "")
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, folder, *options],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def written(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "gpu_check.json").read_text())
    return record


def rehearsed(folder: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    """A check of a few features without a GPU, with the sanitizer's stand-in."""
    pytest.importorskip("numba_cuda")
    (folder / "data").mkdir()
    tool = folder / "compute-sanitizer"
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    options = ["--rehearse", "--features", "60", "--data", str(folder / "data")]
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return check(folder, *options, "--what", *parts, path=path)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a check of tiny networks."""
    folder = tmp_path_factory.mktemp("check")
    done = rehearsed(folder, "sanitizer memcheck", "sanitizer racecheck", "bench 1024x2")
    assert done.returncode == 1, done.stdout + done.stderr  # racecheck
    return folder


def found(folder: Path, what: str) -> dict[str, dict[str, Any]]:
    """What was found in a part, by the names of the runs, in their order."""
    results = written(folder)["results"]
    return {each["run"]: each for each in results if each["what"] == what}


def test_what_the_sanitizer_finds_is_told(rehearsal: Path) -> None:
    assert found(rehearsal, "sanitizer memcheck")["sanitizer"]["ok"]
    race = found(rehearsal, "sanitizer racecheck")["sanitizer"]
    assert not race["ok"]
    asked, summary, status = race["said"]
    assert "--tool racecheck --error-exitcode 9" in asked
    assert "tests/gpu/test_production.py" in asked
    assert (summary, status) == ("========= ERROR SUMMARY: 0 errors", "exit status 9")


def test_all_else_is_right(rehearsal: Path) -> None:
    results = written(rehearsal)["results"]
    assert [each["what"] for each in results if not each["ok"]] == ["sanitizer racecheck"]
    assert written(rehearsal)["left_out"] == []


def test_the_benchmarks_records_are_kept_and_read(rehearsal: Path) -> None:
    runs = found(rehearsal, "bench 1024x2")
    assert list(runs) == ["edges", "merge"]
    assert runs["edges"]["teraedges"] > 0
    assert runs["edges"]["took"] > 0
    assert len(runs["edges"]["runs"]) == 3
    assert "| bench 1024x2 | edges | yes |" in (rehearsal / "gpu_check.md").read_text()


@pytest.mark.slow
def test_other_parts_run_with_a_plan_made_ahead_and_variants(tmp_path: Path) -> None:
    done = rehearsed(tmp_path, "run 1024x2 merge", "skewed 1024x1", "wide 1024x2")
    assert done.returncode == 0, done.stdout + done.stderr
    run = found(tmp_path, "run 1024x2 merge")["merge"]
    assert run["ok"]
    assert "teraedges" not in run  # no time of an emulated GPU is a GPU's
    assert (tmp_path / "records" / "1024x2-merge.json").exists()
    assert list(found(tmp_path, "skewed 1024x1")) == ["edges", "edges, whole outputs"]
    wide = found(tmp_path, "wide 1024x2")
    assert list(wide) == ["edges, 2 features a thread", "edges, 4 features a thread"]
    lives = {each["live"] for each in wide.values()}
    assert len(lives) == 1
    assert lives.pop() > 0


@pytest.mark.slow
def test_kernels_are_timed_and_counted(tmp_path: Path) -> None:
    pytest.importorskip("numba_cuda")
    done = rehearsed(tmp_path, "kernels 1024x120")
    assert done.returncode == 0, done.stdout + done.stderr
    # An emulated GPU tells no times, so that there is nothing to compare.
    assert found(tmp_path, "kernels 1024x120")["times by kernel"]["times"] == {}


def test_records_of_another_check_are_not_taken_for_this_one_s(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "1024-l2.json").write_text("{}")
    done = check(tmp_path, "--rehearse")
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path} has the records of another check: name another folder\n"


def test_a_check_cut_short_says_what_was_left_out(tmp_path: Path) -> None:
    done = check(tmp_path, "--what", "tests", "bench 1024x120", "--seconds", "1")
    assert done.returncode == 1
    assert written(tmp_path)["left_out"] == ["tests", "bench 1024x120"]


def test_a_check_that_is_ended_has_written_what_it_found(tmp_path: Path) -> None:
    pytest.importorskip("numba_cuda")
    command = [sys.executable, SCRIPT, tmp_path, "--rehearse", "--what", "wide 1024x2", "tests"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        path = tmp_path / "gpu_check.json"
        while process.poll() is None and not (path.exists() and written(tmp_path)["results"]):
            time.sleep(0.1)
        process.terminate()
    assert process.returncode == 1
    record = written(tmp_path)
    assert record["results"][0]["run"] == "GPU"
    assert "tests" in record["left_out"]


@pytest.mark.skipif("SPDNN_TEST_GPU" in os.environ, reason="there is a GPU")
def test_without_a_gpu_it_says_so_at_once(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert done.returncode == 2
    [result] = written(tmp_path)["results"]
    assert result["no_gpu"]
    [said] = result["said"]
    assert said in done.stdout


@pytest.fixture
def script() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def one_check(script: Any, tmp_path: Path) -> Iterator[Any]:
    """A check of the script's, with a plan that is being made."""
    arguments = argparse.Namespace(
        folder=tmp_path / "out", data=None, features=None, rehearse=True, seconds=script.SHORTEST,
        what=["run 64x2 merge"],
    )  # fmt: skip
    (tmp_path / "kept").mkdir()
    one = script.Check(arguments, tmp_path / "kept")
    sleeping = [sys.executable, "-c", "print('planning', flush=True); import time; time.sleep(600)"]
    job = one.jobs["plan 64x2 merge"] = script.Job(sleeping, tmp_path / "plan.log")
    yield one
    job.end()
    assert job.process.poll() is not None


def test_a_plan_that_is_not_ready_in_time_is_told(one_check: Any, tmp_path: Path) -> None:
    assert not one_check.is_ready("run 64x2 merge", "plan 64x2 merge")
    [result] = written(tmp_path / "out")["results"]
    assert result["run"] == "ahead: plan 64x2 merge"
    assert (result["ok"], result["said"][-1]) == (False, "out of time")
    assert written(tmp_path / "out")["left_out"] == ["run 64x2 merge"]


def test_what_was_made_ahead_is_waited_for(one_check: Any, script: Any, tmp_path: Path) -> None:
    one_check.jobs["inputs 64"] = script.Job([sys.executable, "-c", ""], tmp_path / "inputs.log")
    one_check.arguments.seconds = 600
    assert one_check.is_ready("run 64x2 merge", "inputs 64")
    assert one_check.is_ready("run 64x2 merge", "what nobody has begun")


def test_times_of_kernels_stand_beside_their_counts(script: Any) -> None:
    times = {"grouped 16 x 4": [120, 0.004], "load ones 1 bit": [1, 0.001]}
    least = {"grouped 16 x 4": [120, 0.002, "issue"], "load ones 1 bit": [1, 0.002, "L2"]}
    result = script.comparison(times, least)
    first, last = result["said"][0], result["said"][-1]
    assert first.startswith("grouped 16 x 4: 120 launches, 4.000 ms; 120 counted, 2.000 ms at")
    assert last == "not as counted: load ones 1 bit"
    line = script.row({"what": "kernels 4096x120", **result})
    assert "| kernels 4096x120 | kernels and counts | yes |" in line
    assert "2.00 times that" in line


def test_parts_are_commands_that_are_understood(one_check: Any, script: Any) -> None:
    from spdnn.cli.main import make_parser
    from tools import on_gpu

    one_check.arguments.rehearse = False
    for what in [*script.PARTS, *(name for part in script.PARTS for name in script.needs(part))]:
        words = [str(word) for word in one_check.command(what)]
        if "spdnn.cli.main" in words[2]:
            make_parser().parse_args(words[3:])
        elif "tools.on_gpu" in words:
            assert words[3] in on_gpu.PARTS
        else:
            assert "pytest" in words
    sizes = {word for what in script.PARTS for word in what.split(" ")[1:2]}
    assert {size for size, _ in script.GOALS} <= sizes
