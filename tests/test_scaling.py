"""The model of strong scaling, and the program that makes its tables."""

import json
from pathlib import Path

import pytest

from spdnn.errors import DataError
from spdnn.io import store
from tests.makers import dyadic_features
from tools.scaling import Model, Point, fit, main, read_record

TRUE = Model(work=2.0, fixed=0.01, spread=0.004, gather=0.001)
RANKS = (1, 2, 8, 64)


def points(model: Model = TRUE) -> list[Point]:
    return [Point(n, model.mean(n), model.slowest(n), model.inference(n)) for n in RANKS]


def test_a_model_is_found_again_in_what_it_says() -> None:
    found = fit(points())
    for name, value in vars(TRUE).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-6), name


def test_more_ranks_take_less_time_until_what_is_fixed_counts() -> None:
    seconds = [TRUE.inference(n) for n in (1, 2, 4, 64, 4096)]
    assert seconds[:4] == sorted(seconds[:4], reverse=True)
    assert seconds[4] > TRUE.fixed
    assert TRUE.inference(1) == pytest.approx(TRUE.work + TRUE.fixed)


def test_one_number_of_ranks_is_no_model() -> None:
    with pytest.raises(DataError, match="two numbers of ranks"):
        fit(points()[:1] * 3)


def test_a_record_of_one_process_is_a_point() -> None:
    assert read_record({"ranks": 1, "seconds": {"inference": 2}}) == Point(1, 2, 2, 2)
    with pytest.raises(DataError, match="not a record"):
        read_record({"seconds": {}})


def record(n: int, **changes: object) -> dict[str, object]:
    log = [{"seconds": TRUE.slowest(n)}, *([{"seconds": TRUE.mean(n)}] * (n - 1))]
    facts = {"neurons": 8, "layers": 2, "mode": "edges", "engine": "cpu", "features": 100}
    more = {
        "edges": 1000,
        "ranks": n,
        "ranks_log": log,
        "seconds": {"inference": TRUE.inference(n)},
    }
    return {**facts, **more, **changes}


def test_the_table_has_what_was_measured_and_what_was_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for n in RANKS:
        Path(f"{n}.json").write_text(json.dumps(record(n)))
    assert main(["table", *(f"{n}.json" for n in RANKS)]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[4:]]
    of = {int(row[0]): [cell.strip() for cell in row[1:]] for row in rows}
    assert of[8][2] == f"{TRUE.inference(8):.4f}"
    assert of[768][:3] == ["", "", ""]
    assert float(of[768][3]) > 0


def test_records_of_different_runs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("both.json").write_text(json.dumps([record(1), record(2, mode="merge")]))
    assert main(["table", "both.json"]) == 2
    assert "of one network" in capsys.readouterr().err
    assert main(["table", "nowhere.json"]) == 2


def test_parts_are_measured_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    store.write_features(Path("sparse-images-1024.spdnn"), dyadic_features(0, 40, 1024, "binary"))
    arguments = ["measure", "1024", "2", "--ranks", "1,3", "--json", "parts.json", "--data", "."]
    assert main([*arguments, "--mode", "edges"]) == 0
    records = json.loads(Path("parts.json").read_text())
    assert [len(each["ranks_log"]) for each in records] == [1, 3]
    assert capsys.readouterr().out.startswith("work ")
    assert main(["table", "parts.json"]) == 0
