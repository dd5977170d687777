"""The tables of docs/gpu.md: where they are put, and what the estimates rest on."""

from pathlib import Path

import pytest

pytest.importorskip("numba_cuda")

from spdnn.bench import gpu_report as report
from spdnn.bench.machine_code import Loop

PAGE = "a\n<!-- loops -->\nold\n<!-- end of loops -->\nb\n"


def test_tables_replace_what_stands_between_their_marks() -> None:
    page = report.with_tables(PAGE, {"loops": "new"})
    assert page == "a\n<!-- loops -->\n\nnew\n\n<!-- end of loops -->\nb\n"
    assert report.with_tables(page, {"loops": "new"}) == page
    with pytest.raises(ValueError, match="kernels"):
        report.with_tables(PAGE, {"kernels": "new"})


def test_the_page_has_a_place_for_every_table() -> None:
    page = (Path(__file__).parent.parent / "docs" / "gpu.md").read_text()
    tables = dict.fromkeys(("kernels", "loops", "estimates"), "here")
    assert report.with_tables(page, tables).count("here\n") == 3


def test_multiply_adds_are_limited_by_issue_or_by_loads() -> None:
    # 100 instructions of 4 schedulers take 25 clocks; 30 words take 30.
    assert report.fma_share(Loop(80, 1, 4, 1, 4, 0, 18)) == pytest.approx(80 / 100)
    assert report.fma_share(Loop(80, 8, 26, 4, 4, 0, 8)) == pytest.approx(20 / 30)


def test_an_estimate_is_the_slower_of_computing_and_moving() -> None:
    shares = {"grouped 16 x 2": 0.5, "resident 16, groups": 0.5}
    gpu = report.Gpu("any", 0, 1e12, 1e12, 1e12, 163 << 10)
    fast = gpu._replace(multiply_adds=1e20)
    slow = gpu._replace(multiply_adds=1e9)
    entering = 60000 + sum(report.FIRST_LIVE[:3])
    moved = 12 * 16384 * entering / gpu.memory
    assert report.seconds_at_best(fast, 16384, 4, shares) == pytest.approx(moved)
    computed = 32 * 16384 * entering / (0.5 * slow.multiply_adds)
    assert report.seconds_at_best(slow, 16384, 4, shares) == pytest.approx(computed)
