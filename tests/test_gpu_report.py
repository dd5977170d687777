"""The tables of docs/gpu.md: where they are put, and what the estimates rest on."""

from pathlib import Path

import numpy as np
import pytest

from spdnn import Layer, Network

pytest.importorskip("numba_cuda")

from spdnn.plan.cuda.plan import plan_cuda
from spdnn.plan.cuda.sizes import PlanSizes
from spdnn.recipes.power_law import power_law_layer
from tools import gpu_report as report
from tools.gpu_bounds import FIRST_LIVE
from tools.machine_code import Loop

PAGE = "a\n<!-- loops -->\nold\n<!-- end of loops -->\nb\n"


def test_tables_replace_what_stands_between_their_marks() -> None:
    page = report.with_tables(PAGE, {"loops": "new"})
    assert page == "a\n<!-- loops -->\n\nnew\n\n<!-- end of loops -->\nb\n"
    assert report.with_tables(page, {"loops": "new"}) == page
    with pytest.raises(ValueError, match="kernels"):
        report.with_tables(PAGE, {"kernels": "new"})


def test_the_page_has_a_place_for_every_table() -> None:
    page = (Path(__file__).parent.parent / "docs" / "gpu.md").read_text()
    names = ("kernels", "loops", "estimates", "skew", "counts", "bounds")
    assert report.with_tables(page, dict.fromkeys(names, "here")).count("here\n") == 6


def test_multiply_adds_are_limited_by_issue_or_by_loads() -> None:
    # 100 instructions of 4 schedulers take 25 clocks; 30 words take 30.
    assert report.fma_share(Loop(80, 1, 4, 1, 4, 0, 18)) == pytest.approx(80 / 100)
    assert report.fma_share(Loop(80, 8, 26, 4, 4, 0, 8)) == pytest.approx(20 / 30)


def test_an_estimate_is_the_slower_of_computing_and_moving() -> None:
    shares = {"grouped 16 x 4": 0.5, "resident 16, groups": 0.5}
    gpu = report.Gpu("any", 0, 1e12, 1e12, 1e12, 163 << 10, 1e9)
    fast = gpu._replace(multiply_adds=1e20)
    slow = gpu._replace(multiply_adds=1e9)
    entering = 60000 + sum(FIRST_LIVE[:3])
    moved = 12 * 16384 * entering / gpu.memory
    assert report.seconds_at_best(fast, 16384, 4, shares) == pytest.approx(moved)
    computed = 32 * 16384 * entering / (0.5 * slow.multiply_adds)
    assert report.seconds_at_best(slow, 16384, 4, shares) == pytest.approx(computed)


def test_a_power_law_layer_has_one_output_of_all_inputs_and_the_mean_asked_for() -> None:
    degrees = np.diff(power_law_layer(300, 200, 8).tocsc().indptr)
    assert degrees[0] == 300
    assert (np.diff(degrees) <= 0).all()
    assert degrees.min() >= 1
    assert degrees.mean() == pytest.approx(8, abs=0.5)


def test_the_longest_thread_is_what_its_block_stages_and_goes_through() -> None:
    # 300 inputs of one output, and of it alone: two stages, of 240 and 60 entries.
    weights = np.zeros((300, 200))
    weights[:, 7] = 1.0
    network = Network([Layer(weights)])
    whole = plan_cuda(network, "edges", PlanSizes(shared_bytes=0, skew=1000))
    staged, steps = report.work_of_blocks(whole)
    assert (staged.tolist(), steps.tolist()) == ([300, 0], [300, 0])
    assert report.most_partial_sums(whole) == 0
    in_chunks = plan_cuda(network, "edges", PlanSizes(shared_bytes=0))
    staged, steps = report.work_of_blocks(in_chunks)
    assert staged.tolist() == [300, 0, 0]
    # Five chunks of 64, the last of 44: 48 rounds fill a buffer, and 16 the next.
    assert 64 <= steps[0] <= 66
    assert report.most_partial_sums(in_chunks) == 5


def test_a_launch_is_bound_by_its_longest_thread_or_by_what_all_do() -> None:
    plan = plan_cuda(Network([Layer(np.ones((300, 1)))]), "edges", PlanSizes(shared_bytes=0))
    loop = Loop(32, 8, 32, 4, 4, 0, 20)  # 64 instructions for two edges
    gpu = report.Gpu("any", 0, 1e20, 1e20, 1e20, 163 << 10, 1e9)
    longest = 3 * 300 * 16 / 128 + 300 * 32
    assert report.seconds_of_staged(gpu, plan, loop, 1) == pytest.approx(longest / gpu.clock)
    assert report.seconds_of_staged(gpu, plan, loop, 10**6) == pytest.approx(longest / gpu.clock)
    slow = gpu._replace(l2=1e9)
    moved = 300 * (16 * 4 + 32 * 6)  # a thread has entries, its slice 32 times as many
    assert report.seconds_of_staged(slow, plan, loop, 32) == pytest.approx(2 * moved / slow.l2)
    slow = gpu._replace(multiply_adds=1e9)
    entries = 300 * 32 * 16 / report.fma_share(loop)
    assert report.seconds_of_staged(slow, plan, loop, 16) == pytest.approx(entries / 1e9)
