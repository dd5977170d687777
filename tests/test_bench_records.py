"""Records: their form, that they are written whole, and that damaged ones are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from spdnn.bench import records
from spdnn.bench.records import SCHEMA, Case, Record, read, read_all, unvaried, write_new
from spdnn.errors import DataError
from tests.makers import record_facts, write_record


def test_a_record_says_what_was_measured_and_how_fast() -> None:
    record = Record(record_facts(times=(3.0, 1.0, 2.0)), Path("r.json"))
    assert record.case == Case(1024, 120, "cpu", "edges", 1, 2, 60000)
    assert record.case.file_name == "1024-l120-cpu-edges-r1-t2-f60000.json"
    assert record.times == [1.0, 2.0, 3.0]
    assert record.seconds == 2.0
    assert record.rate == 3932160 * 60000 / 2.0
    assert record.passed


def test_what_is_written_is_read_again_and_lists_take_a_line() -> None:
    record = write_new(Path(), record_facts())
    assert record.path.name == record.case.file_name
    assert read(record.path).facts == record_facts()
    text = record.path.read_text()
    assert '"live": [50000, 1812, 1812]' in text
    assert len(text.splitlines()) < 100


def test_a_sample_that_is_right_proves_nothing() -> None:
    facts = record_facts()
    facts["categories"]["check"] = "sample"
    assert not Record(facts, Path("r.json")).passed


def test_a_record_is_never_overwritten() -> None:
    record = write_new(Path(), record_facts())
    with pytest.raises(DataError, match=r"-f60000\.json: there is a record already"):
        write_new(Path(), record_facts(times=(9.0,)))
    assert read(record.path).seconds == 2.0


def test_nothing_is_left_of_a_record_that_cannot_be_written() -> None:
    with pytest.raises(TypeError):
        write_new(Path(), record_facts() | {"odd": object()})
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a record"),
        (b'{"a": 1}', "not a record"),
        (b'{"schema": 1}', f"form 1; this version reads form {SCHEMA}"),
        (b'{"schema": 2}', "a damaged record"),
        (json.dumps(record_facts(times=())).encode(), "a damaged record"),
        (json.dumps(record_facts(times=(0.0,))).encode(), "a damaged record"),
        (json.dumps(record_facts() | {"threads": None}).encode(), "a damaged record"),
        (json.dumps(record_facts() | {"categories": 3}).encode(), "a damaged record"),
    ],
)
def test_what_is_no_record_is_refused(content: bytes, message: str) -> None:
    Path("r.json").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_all(Path())
    assert "r.json" in str(caught.value)


def test_an_empty_or_missing_folder_is_refused() -> None:
    Path("empty").mkdir()
    for name in ("empty", "nowhere"):
        with pytest.raises(DataError, match=name):
            read_all(Path(name))


def test_a_folder_is_read_in_the_order_of_cases() -> None:
    for number, neurons in enumerate((4096, 1024)):
        write_record(Path(f"{number}.json"), record_facts(neurons=neurons))
    assert [record.case.neurons for record in read_all(Path())] == [1024, 4096]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"git": "other"}, ["git"]),
        ({"cpu": {"model": "other", "cores": 2, "allowed": 2}}, ["cpu"]),
        ({"versions": {"spdnn": "9"}}, ["versions"]),
        ({"versions": {"spdnn": "0.1.0", "mkl": "2026"}}, []),  # a package of a rival
        ({"date": "2030-01-01"}, []),
    ],
)
def test_records_of_other_machines_and_versions_are_told_apart(
    change: dict[str, Any], named: list[str]
) -> None:
    old, new = record_facts(), record_facts()
    new["provenance"] |= change
    assert records.different_origin(old, new) == named


def test_records_of_other_data_are_told_apart() -> None:
    old, new = record_facts(), record_facts()
    new["data"] = new["data"] | {"inputs_sha256": "other"}
    assert records.different_origin(old, new) == ["inputs_sha256"]


def test_times_and_dates_are_what_varies() -> None:
    one, other = record_facts(), record_facts(times=(5.0, 6.0))
    other["provenance"]["date"] = "2030-01-01"
    assert one != other
    assert unvaried(one) == unvaried(other)
    assert unvaried(one) != unvaried(record_facts(truth="failed"))
