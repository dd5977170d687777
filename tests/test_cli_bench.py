"""``spdnn bench`` from the command line: records, resuming, mistakes and missing libraries."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spdnn import infer
from spdnn.bench import contestants, machine, sweep
from spdnn.bench.records import Case, unvaried
from spdnn.cli.main import main
from spdnn.engines import MODES
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.engines.reference import ReferenceEngine
from spdnn.recipes.radixnet import official_network
from spdnn.run.session import Session
from tests.makers import dyadic_features, triples_text

FEATURES = dyadic_features(3, 40, 64, "binary")
BASE = ["bench", "--neurons", "64", "--bias", "-0.3", "--data", ".", "--out", "out", "--runs", "2"]
QUICK = [*BASE, "--layers", "3", "--engines", "scipy", "--modes", "edges"]
PER_NETWORK = 4
"""Sessions of two modes and two numbers of threads."""

TRUE = infer(official_network(64, 3, bias=-0.3), FEATURES, engine="scipy").live.size


@pytest.fixture(autouse=True)
def files(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data folder with a few inputs; the machine is measured at a tiny size."""
    Path("sparse-images-64.tsv").write_bytes(triples_text(FEATURES.to_csr()))
    monkeypatch.setattr(machine, "SGEMM_SIDE", 32)
    monkeypatch.setattr(machine, "COPY_BYTES", 1 << 12)
    monkeypatch.setattr(sweep, "SETTLE_SECONDS", 0.0)


def read(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(Path(name).read_text())
    return facts


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a wrong command; returns the one line that it prints."""
    try:
        status = main(arguments)
    except SystemExit as exit_:  # argparse exits
        status = exit_.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    return printed.err


def test_the_inputs_make_a_case_in_which_some_features_live() -> None:
    assert 0 < TRUE < 40


def test_a_sweep_measures_all_pairs_and_says_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*BASE, "--layers", "3,6", "--engines", "cpu,scipy", "--threads", "1,2"]
    assert main([*arguments, "--features", "10,40"]) == 0
    names = set(contents("out"))
    assert "64-l6-cpu-merge-r1-t2-f10.json" in names
    assert "64-l3-scipy-edges-r1-t1-f40.json" in names
    # Two networks and two numbers of features: cpu with two modes and threads, scipy with one.
    assert len(names) == 2 * 2 * (4 + 1)
    printed = capsys.readouterr().out
    assert printed.count("passed by reference") == len(names)
    assert printed.count("TeraEdges/s") == len(names)
    assert "mode merge: the rate counts every edge" in printed


def test_what_ran_is_what_was_asked_for_and_what_the_record_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For every axis of the sweep, and in every run of a case."""
    ran: list[tuple[str, str, int, int]] = []

    def watch(engine: type, name: str, mode_of: Any) -> None:
        run = engine.run  # type: ignore[attr-defined]

        def watched(self: Any, plan: Any, start: Any, **given: Any) -> Any:
            ran.append((name, mode_of(plan), self.threads, start.n_features))
            return run(self, plan, start, **given)

        monkeypatch.setattr(engine, "run", watched)

    monkeypatch.setattr(CpuEngine, "compile", lambda *_: None)  # it runs tiny networks
    watch(CpuEngine, "cpu", lambda plan: plan.mode)
    watch(ReferenceEngine, "scipy", lambda plan: "edges")
    arguments = [*BASE, "--layers", "3", "--engines", "cpu,scipy", "--threads", "1,2"]
    assert main([*arguments, "--features", "10,40"]) == 0
    cpu = [("cpu", mode, n, count) for mode in MODES for n in (1, 2) for count in (10, 40)]
    wanted = [*cpu, ("scipy", "edges", 1, 10), ("scipy", "edges", 1, 40)]
    assert sorted(ran) == sorted(3 * wanted)  # one to warm up, and two runs
    written = [read(f"out/{name}") for name in contents("out")]
    axes = "engine", "mode", "threads", "features"
    assert sorted(tuple(facts[axis] for axis in axes) for facts in written) == sorted(wanted)
    for name in contents("out"):
        facts = read(f"out/{name}")
        assert Case(*(facts[field] for field in Case._fields)).file_name == name
        assert len(facts["runs"]) == 2
    # Nothing is left to measure, and the records that are there are read.
    ran.clear()
    assert main([*arguments, "--features", "10,40"]) == 0
    assert ran == []


def test_a_run_of_another_case_than_was_asked_for_is_no_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Session, "with_threads", lambda self, *_: self)
    assert main([*BASE, "--layers", "3", "--modes", "edges", "--threads", "1,2"]) == 70
    assert re.search(r"threads=2.* was to be measured, but .*threads=1", capsys.readouterr().err)
    assert not Path("out").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_sessions_are_closed_when_their_network_is_done(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Session] = []
    load = Session.load

    def keep(session: Session, features: Any) -> Any:
        assert [each._is_open for each in opened].count(True) == len(opened) % PER_NETWORK
        opened.append(session)
        if fails:
            raise RuntimeError("in the middle")
        return load(session, features)

    monkeypatch.setattr(Session, "load", keep)
    arguments = [*BASE, "--layers", "3,6", "--threads", "1,2"]
    assert main(arguments) == (70 if fails else 0)
    assert len(opened) == (1 if fails else 2 * PER_NETWORK)
    assert not any(session._is_open for session in opened)


def test_a_record_holds_runs_phases_checks_and_origin() -> None:
    assert main([*BASE, "--layers", "3", "--threads", "2", "--runs", "3"]) == 0
    facts = read("out/64-l3-cpu-merge-r1-t2-f40.json")
    times = sorted(run["inference"] for run in facts["runs"])
    assert len(times) == 3
    assert facts["seconds"]["inference"] == times[1]
    assert facts["edges_per_second"] == facts["edges"] * 40 / times[1]
    assert {"read", "compile", "plan", "inference", "total"} <= set(facts["seconds"])
    assert facts["categories"]["truth"] == "passed"
    assert facts["categories"]["count"] == TRUE
    assert len(facts["layers_log"]["distinct"]) == 3
    assert len(facts["data"]["inputs_sha256"]) == 64
    assert facts["machine_peak"]["threads"] == 2
    assert set(facts["load"]) == {"average", "others_busy"}
    assert facts["in_turn_with"] == [
        "64-l3-cpu-edges-r1-t2-f40.json", "64-l3-cpu-merge-r1-t2-f40.json"
    ]  # fmt: skip
    assert {"command", "cpu", "git", "date", "versions", "memory"} <= set(facts["provenance"])


def test_a_record_made_twice_differs_only_in_times_and_dates() -> None:
    arguments = [*BASE, "--layers", "3", "--rivals", "scipy-csr,scipy-dense"]
    assert main(arguments) == 0
    Path("out").rename("first")
    assert main(arguments) == 0
    first, second = contents("first"), contents("out")
    assert set(first) == set(second)
    assert len(first) == 4
    for name, content in first.items():
        assert content != second[name]
        assert unvaried(json.loads(content)) == unvaried(json.loads(second[name]))


def test_what_has_a_record_is_not_measured_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*QUICK, "--features", "10,20,40"]
    assert main(arguments) == 0
    printed, written = capsys.readouterr().out, contents("out")
    gone = "64-l3-scipy-edges-r1-t1-f20.json"
    Path("out", gone).unlink()  # as if it had been interrupted
    ran = []
    run = ReferenceEngine.run

    def counted(self: Any, plan: Any, features: Any, **given: Any) -> Any:
        ran.append(features.n_features)
        return run(self, plan, features, **given)

    monkeypatch.setattr(ReferenceEngine, "run", counted)
    assert main(arguments) == 0
    assert ran == [20, 20, 20]  # to warm up, and two runs
    again = contents("out")
    assert set(again) == set(written)
    assert all(again[name] == written[name] for name in written if name != gone)
    assert capsys.readouterr().out.count("passed") == printed.count("passed") == 3


def test_a_wrong_result_prints_failed_and_no_rate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ReferenceEngine.run
    calls = []

    def wrong_at_last(self: Any, *given: Any, **named: Any) -> Any:
        output = run(self, *given, **named)
        calls.append(1)
        return replace(output, live=output.live[:-1]) if len(calls) == 3 else output

    monkeypatch.setattr(ReferenceEngine, "run", wrong_at_last)
    assert main(QUICK) == 1
    printed = capsys.readouterr().out
    assert f"FAILED: CHALLENGE FAILED: {TRUE - 1} categories, {TRUE} in the float64" in printed
    assert "TeraEdges/s" not in printed
    facts = read("out/64-l3-scipy-edges-r1-t1-f40.json")
    assert facts["categories"]["truth"] == "failed"
    assert facts["edges_per_second"] is None
    # The record still says that it has failed, and no table shows it.
    assert main(QUICK) == 1
    assert "FAILED" in capsys.readouterr().out
    assert "nothing to report" in failure(["report", "out"], capsys)


def test_rivals_run_beside_the_engines_on_a_stated_share(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rival in contestants.RIVALS.values():
        monkeypatch.setattr(rival, "usual_rate", 1e6)
    monkeypatch.setitem(sys.modules, "torch", None)
    arguments = [*BASE, "--layers", "3", "--threads", "2", "--rivals", "scipy-dense,torch"]
    live = infer(official_network(64, 3, bias=-0.3), FEATURES, engine="scipy").layers
    entering = [40, *(layer.live for layer in live[:-1])]
    seconds = sum(entering) * 64 * 32 / 1e6  # all features would take so long
    assert main([*arguments, "--rival-seconds", str(0.6 * seconds)]) == 0
    printed = capsys.readouterr().out
    line = next(line for line in printed.splitlines() if "scipy dense" in line)
    assert "1 thread   20 of 40" in line
    assert "passed by reference" in line
    line = next(line for line in printed.splitlines() if "PyTorch" in line)
    assert "not measured: torch is not installed" in line
    facts = read("out/64-l3-scipy-dense-edges-r1-t1-f20.json")
    assert facts["library"] == "scipy CSR x dense + pruning"
    assert facts["edges_per_second"] == facts["edges"] * 20 / facts["seconds"]["inference"]
    assert "torch is not installed" in str(facts["not_measured"])


def test_an_engine_that_lacks_memory_is_left_out_and_the_rest_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from spdnn.errors import DeviceError

    def refuse(*_: Any, **__: Any) -> None:
        raise DeviceError("the plan needs 900 GiB")

    monkeypatch.setattr(ReferenceEngine, "plan", refuse)
    arguments = [*BASE, "--layers", "3", "--engines", "cpu,scipy", "--modes", "edges"]
    assert main(arguments) == 2
    assert "not measured: the plan needs 900 GiB" in capsys.readouterr().out
    assert len(contents("out")) == 1


def test_records_of_another_machine_or_version_are_not_mixed_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(QUICK) == 0
    capsys.readouterr()
    path = Path("out/64-l3-scipy-edges-r1-t1-f40.json")
    facts = read(str(path))
    facts["provenance"]["git"] = "another"
    path.write_text(json.dumps(facts))
    text = failure(QUICK, capsys)
    assert f"{path} was made with other git" in text
    assert "--out" in text
    Path("sparse-images-64.tsv").write_bytes(triples_text(FEATURES.part(0, 39).to_csr()))
    assert main([*QUICK[:-1], "edges", "--out", "fresh"]) == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--engines", "gpu"], "'gpu' is none of"),
        (["--modes", "fast"], "'fast' is none of"),
        (["--rivals", "numpy"], "'numpy' is none of"),
        (["--modes", "merge"], "engine scipy has no mode merge"),
        (["--features", "10,41"], "41 features asked for, but there are 40"),
        (["--layers", "0"], "not a whole number from 1"),
        (["--rival-seconds", "0"], "not a positive number"),
        (["--out", "sparse-images-64.tsv"], "it is no folder"),
        (["--neurons", "100"], "the recipe has no network of 100 neurons"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    changed: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "100" in changed:
        Path("sparse-images-100.tsv").write_bytes(triples_text(FEATURES.to_csr()))
    assert message in failure([*QUICK, *changed], capsys)
    assert not Path("out").exists()


def test_records_go_to_a_folder_of_the_commit_by_default() -> None:
    arguments = [word for word in QUICK if word not in ("--out", "out")]
    assert main(arguments) == 0
    (folder,) = Path("results").iterdir()
    assert folder.name.startswith("bench-")
    assert len(contents(str(folder))) == 1


@pytest.mark.parametrize(("busy", "is_noted"), [(1.25, True), (0.1, False)])
def test_a_busy_machine_is_noted(
    busy: float, is_noted: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.Watch, "others_busy", busy)
    assert main(QUICK) == 0
    assert ("others kept up to 1.2 processors busy" in capsys.readouterr().out) == is_noted


def test_ranks_are_measured_together() -> None:
    launcher = Path(sys.executable).parent / "mpirun"
    arguments = [*BASE, "--layers", "3", "--modes", "edges", "--threads", "1"]
    done = subprocess.run(
        [str(launcher), "-n", "2", sys.executable, "-m", "spdnn", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("passed by reference") == 1
    facts = read("out/64-l3-cpu-edges-r2-t2-f40.json")
    assert [rank["features"] for rank in facts["ranks_log"]] == [20, 20]
    assert (facts["ranks"], facts["threads"]) == (2, 2)
    assert [rank["threads"] for rank in facts["ranks_log"]] == [1, 1]
    assert facts["categories"]["count"] == TRUE
    assert facts["provenance"]["mpi"]
    assert np.isfinite(facts["imbalance"])
