"""The tables of the time to answer."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tools.answer_times import PHASES, Rates, Run, floors, main, table

RATE = Rates(threads=2, multiply_adds=1e11, copied=2e10, transformed=1e8)


def run(commit: str, seconds: float, mode: str = "merge", layers: int = 120) -> Run:
    return Run(
        neurons=1024,
        layers=layers,
        mode=mode,
        commit=commit,
        seconds=dict.fromkeys(PHASES, seconds),
        processor=2 * seconds,
        peak=3 << 20,
        evaluated=10**10,
    )


def test_table_shows_medians_of_each_commit_and_the_least() -> None:
    runs = [run("before", s) for s in (4.0, 9.0, 5.0)] + [run("after", s) for s in (3.0, 1.0, 2.0)]
    rows = [line.strip("| ").split(" | ") for line in table(runs, RATE).splitlines()]
    assert [row[2] for row in rows] == ["commit", "---", "before", "after", "at least"]
    assert rows[2][3:] == ["5"] * len(PHASES) + ["10", "3"]
    assert rows[3][3:] == ["2"] * len(PHASES) + ["4", "3"]


def test_planning_takes_longer_with_more_layers_and_nothing_else_does() -> None:
    few, many = floors(run("after", 1.0), RATE), floors(run("after", 1.0, layers=1920), RATE)
    assert many["plan"] == pytest.approx(16 * few["plan"])
    assert many["read"] == few["read"]
    assert many["inference"] == few["inference"]


def test_each_evaluated_edge_is_a_multiply_add_in_mode_edges() -> None:
    assert floors(run("after", 1.0, "edges"), RATE)["inference"] == pytest.approx(0.1)


def test_a_file_is_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run("before", 4.0), run("after", 2.0)]
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"rates": RATE._asdict(), "runs": [asdict(r) for r in runs]}))
    assert main(["table", str(path)]) == 0
    assert capsys.readouterr().out == table(runs, RATE) + "\n"


def test_a_damaged_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "times.json"
    path.write_text('{"rates": {}')
    assert main(["table", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["table", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
