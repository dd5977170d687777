"""The model of one process on many cores, and what measures its terms."""

import json
from dataclasses import astuple
from pathlib import Path

import pytest

from spdnn import DataError, Features
from tests.makers import dyadic_features, dyadic_network
from tools.cores import (
    HANDING_OUT,
    INTERPRETER_PER_LAYER,
    LEAST_WORK,
    Spent,
    Terms,
    bandwidth_at,
    main,
    measure,
    read_spent,
    table,
    terms_of,
)

FAST = 1e12


def spent(terms: Terms, threads: int, phase: str = "run merge") -> Spent:
    """What a phase of these terms takes."""
    serial = terms.serial + threads * terms.handing_out
    caller = serial + (terms.parallel if threads == 1 else 0)
    total = serial + terms.parallel
    return Spent(phase, threads, terms.seconds(threads, FAST), total, caller, terms.n_bytes)


def test_terms_are_found_again_in_what_they_say() -> None:
    true = Terms(0.5, 8.0, 0.0, 1e9, False, HANDING_OUT)
    found = terms_of([spent(true, 1), spent(true, 2), spent(true, 4)], 10)
    assert astuple(found)[:-1] == pytest.approx(astuple(true)[:-1])


def test_one_thread_tells_no_serial_part() -> None:
    true = Terms(0.5, 8.0, 0.0, 1e9, False)
    assert terms_of([spent(true, 1, "load")], 10) == Terms(0.0, 8.5, 0.0, 1e9, False)
    with pytest.raises(DataError, match="what a phase took"):
        terms_of([], 10)


def test_planning_is_bound_by_its_slowest_part() -> None:
    terms = Terms(1.0, 24.0, 0.5, 60e9, True)
    assert terms.seconds(2, FAST) == 12
    assert terms.seconds(64, FAST) == 1.0  # the thread that hands out the work
    assert terms.seconds(64, 20e9) == 3.0  # memory
    assert Terms(0.1, 24.0, 0.5, 0.0, True).seconds(192, FAST) == 0.5  # the interpreter
    waits = Terms(1.0, 24.0, 0.0, 0.0, False)
    assert waits.seconds(24, FAST) == 2.0


def test_only_planning_waits_for_the_interpreter() -> None:
    terms = Terms(0.5, 8.0, 0.0, 0.0, True)
    for mode, per_layer in INTERPRETER_PER_LAYER.items():
        found = terms_of([spent(terms, 2, f"plan {mode}")], 100)
        assert found.interpreter == pytest.approx(100 * per_layer)
        assert terms_of([spent(terms, 2, f"run {mode}")], 100).interpreter == 0


def test_more_threads_than_the_work_is_worth_are_not_used() -> None:
    terms = Terms(0.0, 16 * LEAST_WORK, 0.0, 0.0, False, HANDING_OUT)
    assert terms.seconds(4, FAST) == pytest.approx(4 * LEAST_WORK + 4 * HANDING_OUT)
    assert terms.seconds(64, FAST) == terms.seconds(16, FAST)


def test_threads_without_a_vector_are_idle() -> None:
    terms = Terms(0.0, 8.0, 0.0, 0.0, False, vectors=[(0.75, 1000), (0.25, 6)])
    assert terms.divided(2) == pytest.approx(4.0)
    assert terms.divided(4) == pytest.approx(8 * (0.75 / 4 + 0.25 / 3))
    assert terms.divided(1000) == pytest.approx(8 * (0.75 / 1000 + 0.25 / 6))


def test_ranks_have_the_serial_part_each_and_differ() -> None:
    terms = Terms(0.5, 8.0, 0.0, 0.0, False)
    assert terms.over_ranks(1, 4, 0.1, 0.0) == pytest.approx(terms.seconds(4, FAST))
    assert terms.over_ranks(2, 2, 0.0, 0.1) == pytest.approx(2.5 + 0.1)
    assert terms.over_ranks(2, 2, 0.1, 0.0) > 2.5


def test_bandwidth_is_that_of_the_next_numbers_of_threads() -> None:
    assert bandwidth_at({}, 3) == float("inf")
    assert bandwidth_at({4: 10.0}, 1) == bandwidth_at({4: 10.0}, 9) == 10.0
    assert bandwidth_at({2: 10.0, 4: 20.0}, 3) == 15.0


def test_all_phases_are_measured() -> None:
    network = dyadic_network(1, [30] * 4, ["shared"] * 3)
    features = dyadic_features(1, 40, 30)

    def read(threads: object) -> Features:
        return features

    found = measure(network, read, 2)
    names = ["inputs", "plan edges", "load", "run edges", "plan merge", "load", "run merge"]
    assert [each.phase for each in found] == names
    for each in found:
        assert each.threads == 2
        assert each.seconds >= 0
        assert each.processor >= each.caller - 0.01
        assert each.n_bytes > 0
        if each.phase.startswith("run "):
            assert sum(share for share, _ in each.vectors) == pytest.approx(1)
            assert {n for _, n in each.vectors} <= {1, 2, 3}  # 40 features
    assert table(found, 3, {2: 1e9}, [64]).count("\n") == 1 + len(set(names))


def test_what_was_measured_is_written_and_tabled(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = str(tmp_path / "cores.json")
    small = ["1024", "3", "--threads", "2", "--inputs", "digits", "--features", "32"]
    assert main(["measure", *small, "--modes", "merge", "--json", target]) == 0
    capsys.readouterr()
    assert main(["table", target, "--bandwidth", "2:20,64:300"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("| measured s | 2 | 16 | 64 | 192 |")
    assert len(read_spent(json.loads(Path(target).read_text()))) == 4


def test_a_file_of_something_else_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "other.json").write_text("{}")
    assert main(["table", str(tmp_path / "other.json")]) == 2
    assert "not what `tools.cores measure` writes" in capsys.readouterr().err
    assert main(["table", str(tmp_path / "missing.json")]) == 2
