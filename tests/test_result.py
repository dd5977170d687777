"""Results: categories, the rate, and the comparison with the truth."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spdnn import Result
from spdnn.run.result import Seconds, categories_sha256, categories_text, compare

sets = st.sets(st.integers(1, 60000))


def as_array(numbers: set[int]) -> np.ndarray:
    return np.array(sorted(numbers), dtype=np.int64)


def result(live: list[int], inference: float = 2.0) -> Result:
    return Result(
        live=np.array(live, dtype=np.int64),
        activations=None,
        layers=(),
        seconds=Seconds(compile=1.0, plan=0.5, inference=inference, total=4.0),
        engine="cpu",
        mode="edges",
        threads=1,
        ranks=1,
        n_features=60000,
        n_edges=1920 * 65536 * 32,
    )


def test_categories_count_from_one() -> None:
    assert result([0, 4]).categories.tolist() == [1, 5]


def test_the_rate_counts_every_edge_and_every_input_feature() -> None:
    assert result([]).edges_per_second == 1920 * 65536 * 32 * 60000 / 2.0
    assert result([], inference=0.0).edges_per_second == 0.0


def test_reading_is_added_and_the_other_phases_stay() -> None:
    before = Seconds(plan=0.25, total=0.25)
    seconds = result([]).after(before, read=3.0, total=9.0).seconds
    assert seconds == Seconds(read=3.0, compile=1.0, plan=0.75, inference=2.0, total=9.0)
    assert result([]).after(before, read=3.0).seconds.total == 7.25


def test_what_was_read_while_planning_counts_once_in_the_total() -> None:
    before = Seconds(plan=2.0, overlap=1.5, total=2.0)
    seconds = result([]).after(before, read=3.0).seconds
    assert (seconds.read, seconds.plan, seconds.overlap) == (3.0, 2.5, 1.5)
    assert seconds.total == 4.0 + 2.0 + 3.0 - 1.5


@given(sets.filter(bool))
def test_the_categories_file_is_one_number_a_line(numbers: set[int]) -> None:
    text = categories_text(as_array(numbers))
    assert text.decode() == "".join(f"{number}\n" for number in sorted(numbers))
    assert categories_sha256(as_array(numbers)) == hashlib.sha256(text).hexdigest()


def test_no_categories_are_one_newline_as_no_bytes_would_be_no_file() -> None:
    assert categories_text([]) == b"\n"
    assert categories_sha256([]) == hashlib.sha256(b"\n").hexdigest()


@given(sets, sets)
def test_a_comparison_names_all_that_is_missing_and_extra(found: set[int], truth: set[int]) -> None:
    check = compare(as_array(found), as_array(truth))
    assert check.missing.tolist() == sorted(truth - found)
    assert check.extra.tolist() == sorted(found - truth)
    assert check.is_equal is (found == truth)


@pytest.mark.parametrize("field", ["live", "seconds", "n_edges"])
def test_a_result_stays_as_it_is(field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(result([]), field, None)
