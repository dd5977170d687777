"""Comparing records: the ratio of rates, and whether it is beyond the spread of the runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spdnn.bench.compare import compare
from spdnn.bench.records import Record
from spdnn.cli.main import main
from tests.makers import record_facts, write_record

OLD = (1.0, 1.1, 1.2)


def record(times: Sequence[float], **given: Any) -> Record:
    return Record(record_facts(times=times, **given), Path("r.json"))


@pytest.mark.parametrize(
    ("new", "verdict", "is_worse"),
    [
        ((0.8, 0.9, 0.99), "faster", False),
        ((0.8, 0.9, 1.0), "within the spread", False),
        ((1.2, 1.5, 1.6), "within the spread", False),
        ((1.21, 1.5, 1.6), "slower", True),
        ((5.0, 6.0), "too few runs", False),
    ],
)
def test_beyond_the_spread_is_where_the_ranges_do_not_meet(
    new: tuple[float, ...], verdict: str, is_worse: bool
) -> None:
    changes = compare([record(OLD)], [record(new)])
    (change,) = changes.both
    assert change.verdict == verdict
    assert change.ratio == pytest.approx(1.1 / sorted(new)[(len(new) - 1) // 2])
    assert changes.is_worse == is_worse


@pytest.mark.parametrize(
    ("old", "new", "is_worse"), [("passed", "failed", True), ("failed", "passed", False)]
)
def test_a_failed_check_has_no_ratio(old: str, new: str, is_worse: bool) -> None:
    changes = compare([record(OLD, truth=old)], [record(OLD, truth=new)])
    assert changes.both[0].ratio is None
    assert changes.both[0].verdict == "FAILED"
    assert changes.is_worse == is_worse


def test_cases_are_matched_and_the_others_named() -> None:
    old = [record(OLD, layers=120), record(OLD, layers=480)]
    new = [record(OLD, layers=480), record(OLD, layers=480, threads=1)]
    changes = compare(old, new)
    assert [change.new.case.layers for change in changes.both] == [480]
    assert [each.case.layers for each in changes.only_old] == [120]
    assert [each.case.threads for each in changes.only_new] == [1]


def write(folder: str, **facts: dict[str, Any]) -> str:
    Path(folder).mkdir()
    for name, given in facts.items():
        write_record(Path(folder, f"{name}.json"), record_facts(**given))
    return folder


def test_the_command_tells_ratios_and_fails_on_what_is_slower(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow, same = {"times": (2.0, 2.2, 2.4)}, {"times": OLD, "layers": 480}
    old = write("old", a={"times": OLD}, b=same, c={"layers": 1920})
    new = write("new", a=slow, b=same, d={"neurons": 4096})
    assert main(["compare", old, new]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert "0.500  slower" in next(line for line in printed if "1024 x 120" in line)
    assert "1.000  within the spread" in next(line for line in printed if "1024 x 480" in line)
    assert "only in OLD" in next(line for line in printed if "1024 x 1920" in line)
    assert "only in NEW" in next(line for line in printed if "4096 x 120" in line)
    assert main(["compare", old, old]) == 0
    assert main(["compare", f"{new}/a.json", f"{old}/a.json"]) == 0
    assert "2.000  faster" in capsys.readouterr().out


def test_other_machines_and_other_inputs_are_pointed_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = record_facts()
    facts["provenance"]["cpu"]["model"] = "another CPU"
    facts["data"]["inputs_sha256"] = "other"
    write_record(Path("other.json"), facts)
    write_record(Path("one.json"), record_facts())
    assert main(["compare", "one.json", "other.json"]) == 0
    printed = capsys.readouterr().out
    assert "note: different machines: a CPU, 2 processors; another CPU" in printed
    assert "note: different weights or inputs" in printed


def test_a_failed_record_shows_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    write_record(Path("one.json"), record_facts())
    write_record(Path("other.json"), record_facts(truth="failed", times=(0.001,) * 3))
    assert main(["compare", "one.json", "other.json"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "235.9" not in printed  # the rate of 1 ms


def test_what_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "one.json", "nowhere"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
