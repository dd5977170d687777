"""``spdnn run --keep``: plan and inputs stay in the data folder, and later runs read them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from spdnn import infer
from spdnn.cli.main import main
from spdnn.io import store
from spdnn.run import plan_files
from spdnn.run.result import categories_text
from spdnn.sources.features import SourcedFeatures
from tests.makers import dyadic_features, layer_files, small_network, write_folder

NETWORK = small_network(64, 3)
FEATURES = dyadic_features(3, 40, 64, "binary")
TRUE = infer(NETWORK, FEATURES, engine="scipy").categories

BASE = [
    "run", "--neurons", "64", "--layers", "3", "--bias", "-0.5", "--weights", "weights",
    "--inputs", "inputs.spdnn", "--data", "kept", "--save-categories", "found", "--check", "none",
]  # fmt: skip


@pytest.fixture(autouse=True)
def files(alone: None) -> None:
    """Weights and inputs in the working folder."""
    write_folder(Path("weights"), layer_files(NETWORK))
    store.write_features(Path("inputs.spdnn"), FEATURES)


def notes(printed: str) -> list[str]:
    """What a run says that it kept, or did not."""
    lines = printed.splitlines()
    rows = [number for number, line in enumerate(lines) if line.startswith("kept ")]
    if not rows:
        return []
    found = [lines[rows[0]].removeprefix("kept").strip()]
    for line in lines[rows[0] + 1 :]:
        if not line.startswith(" "):
            break
        found.append(line.strip())
    return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Run with more options; returns what is said of kept files. The categories are checked."""

    def run_and_read(*more: str) -> list[str]:
        assert main([*BASE, *more]) == 0
        assert Path("found").read_bytes() == categories_text(TRUE)
        return notes(capsys.readouterr().out)

    return run_and_read


def plans() -> list[Path]:
    return sorted(Path("kept").glob("*.plan.spdnn"))


def test_nothing_is_kept_unless_asked_for(run: Callable[..., list[str]]) -> None:
    Path("kept").mkdir()
    assert run() == []
    assert not list(Path("kept").iterdir())


def test_a_kept_plan_is_read_by_later_runs_without_a_word(
    run: Callable[..., list[str]],
) -> None:
    said = run("--keep")
    [plan] = plans()
    assert plan.name.startswith("neuron64-l3-cpu-merge-")
    assert said == [f"plan kept: {plan}"]
    before = plan.read_bytes()
    for more in ((), ("--keep",)):
        assert run(*more) == [f"plan read: {plan}"]
    assert plan.read_bytes() == before


def test_modes_and_networks_have_plans_of_their_own(
    run: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    [first] = run("--keep")
    [edges] = run("--keep", "--mode", "edges")
    assert "-edges-" in edges
    assert main([*BASE, "--keep", "--bias", "-0.25"]) == 0
    capsys.readouterr()
    names = [plan.name.rpartition("-")[0] for plan in plans()]
    assert names == ["neuron64-l3-cpu-edges", *["neuron64-l3-cpu-merge"] * 2]
    assert run() == [first.replace("kept:", "read:")]
    assert run("--mode", "edges") == [edges.replace("kept:", "read:")]


def damaged(path: Path) -> str:
    whole = path.read_bytes()
    middle = whole.index(b"arrays/weights.npy") + 200
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    return "damaged store: checksum of"


def cut(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-30])
    return "not a store, or one that was cut short"


def of_another_version(path: Path) -> str:
    return "made by: spdnn 0.0, not spdnn"


def of_another_processor(path: Path) -> str:
    return "processor: a slower one, not"


@pytest.mark.parametrize("spoil", [damaged, cut, of_another_version, of_another_processor])
def test_a_plan_that_does_not_fit_is_made_anew_and_replaced_if_asked_for(
    spoil: Callable[[Path], str], run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        if spoil is of_another_version:
            patch.setattr("spdnn.run.plan_files.own_version", lambda: "0.0")
        if spoil is of_another_processor:
            patch.setattr("spdnn.cli.keep.cpu_model", lambda: "a slower one")
        run("--keep")
    [plan] = plans()
    reason = spoil(plan)
    spoilt = plan.read_bytes()
    [said] = run()
    assert said.startswith(f"plan made anew: {plan}: ")
    assert reason in said
    assert plan.read_bytes() == spoilt
    made, kept = run("--keep")
    assert made == said
    assert kept == f"plan kept: {plan}"
    assert run() == [f"plan read: {plan}"]


def test_a_full_disk_costs_one_line_and_leaves_nothing(
    run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr("spdnn.io.files.os.fsync", is_full)
        patch.setattr("spdnn.cli.run.whole_file", lambda path: path.open("wb"))
        [said] = run("--keep")
    assert said.startswith("plan not kept: cannot write kept/neuron64-l3-cpu-merge-")
    assert said.endswith(": No space left on device")
    assert not list(Path("kept").iterdir())


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("kept").mkdir()
    monkeypatch.setattr("spdnn.sources.folder.os.access", lambda *_: False)
    assert main([*BASE, "--keep"]) == 2
    assert capsys.readouterr() == (
        "",
        "spdnn: error: cannot write into the folder kept: no permission\n",
    )
    Path("file").touch()
    assert main([*BASE, "--keep", "--data", "file/kept"]) == 2
    assert capsys.readouterr().err == (
        "spdnn: error: cannot make the folder file/kept: Not a directory\n"
    )


def test_keep_and_a_file_for_the_plan_exclude_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*BASE, "--keep", "--plan", "plan"]) == 2
    assert "--keep and --plan FILE would both keep the plan" in capsys.readouterr().err


def test_the_reference_keeps_no_plan(run: Callable[..., list[str]]) -> None:
    said = run("--keep", "--engine", "scipy")
    assert said == ["plan not kept: engine scipy has no plan that could be kept in a file"]
    assert not plans()


def official_inputs(source: str) -> SourcedFeatures:
    return SourcedFeatures(FEATURES, source, is_official=True)


def test_official_inputs_are_kept_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [part for part in BASE if part not in ("--inputs", "inputs.spdnn")]
    monkeypatch.setattr("spdnn.cli.keep.FEATURES", 40)
    with monkeypatch.context() as patch:
        patch.setattr(
            "spdnn.cli.sources.open_features", lambda source, *_, **__: official_inputs(source)
        )
        assert main([*arguments, "--keep"]) == 0
    path = Path("kept/sparse-images-64.spdnn")
    assert f"inputs kept: {path}" in notes(capsys.readouterr().out)
    found, is_official = store.read_features(path)
    assert is_official
    np.testing.assert_array_equal(found.indices, FEATURES.indices)
    before = path.stat()
    assert main([*arguments, "--keep"]) == 0  # finds them there
    printed = capsys.readouterr().out
    assert f"{path} (official)" in printed
    assert "inputs kept" not in printed
    assert path.stat() == before
    path.unlink()
    assert main([*arguments, "--keep", "--features", "30"]) == 0  # digits
    said = notes(capsys.readouterr().out)
    assert "inputs not kept: they are not the official ones, or not all of them" in said
    assert not path.exists()


def test_jobs_that_keep_at_once_are_all_right() -> None:
    def job(number: int) -> subprocess.CompletedProcess[str]:
        command = [*BASE, "--keep", "--json", f"{number}.json", "--threads", "1"]
        command[command.index("found")] = f"found{number}"
        return subprocess.run(
            [sys.executable, "-m", "spdnn", *command], capture_output=True, text=True, check=False
        )

    with ThreadPoolExecutor(3) as pool:
        jobs = list(pool.map(job, range(3)))
    assert [done.returncode for done in jobs] == [0] * 3, jobs
    [plan] = plans()
    assert not list(Path("kept").glob(".*"))
    texts = {Path(f"found{number}").read_bytes() for number in range(3)}
    assert len(texts) == 1
    live = {json.loads(Path(f"{n}.json").read_text())["categories"]["count"] for n in range(3)}
    assert len(live) == 1
    plan_files.Store(plan, "plan")
