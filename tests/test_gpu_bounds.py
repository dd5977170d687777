"""Bounds of whole runs by counts: what is played back, and what is made of it."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from spdnn import infer
from spdnn.challenge import EDGES_PER_NEURON, FEATURES
from spdnn.engines.cuda.emulated.counts import Counted, Counts, HostCounts
from spdnn.engines.cuda.sizes import sizes_for
from spdnn.plan.cuda.plan import plan_cuda
from spdnn.plan.cuda.sizes import PlanSizes
from spdnn.plan.steps import LAYER
from spdnn.recipes.radixnet import official_network
from tools import gpu_bounds as bounds
from tools.gpu_counts import CountedRun
from tools.playback import Asked, repeated


def of_kind(asked: tuple[Asked, ...], kind: str, kernel: str = "") -> list[Asked]:
    """What was asked for of some kind."""
    return [each for each in asked if each.kind == kind and each.kernel.startswith(kernel)]


def test_a_run_of_many_layers_is_played_back_with_a_launch_a_step() -> None:
    asked = bounds.asked_for(4096, 120)
    grouped = of_kind(asked, "launch", "grouped")
    assert [each.first for each in grouped] == list(range(120))
    lists = of_kind(asked, "launch", "list")
    assert [each.end for each in lists] == list(range(1, 121))
    assert {each.grid[0] for each in grouped} == {4096 // 16 // 8}
    # The first launch is for all features, the last one for those that are left.
    assert grouped[0].grid[1] == -(-FEATURES // 128)
    assert grouped[-1].grid[1] == -(-1801 // 128)
    assert len(of_kind(asked, "launch", "load")) == 1
    # Each number for which the host waits has been asked for before.
    waits = [each.number for each in of_kind(asked, "wait")]
    assert waits == [each.number for each in of_kind(asked, "read later")][: len(waits)]


def test_a_resident_run_is_played_back_with_a_launch_a_segment() -> None:
    asked = bounds.asked_for(1024, 1920)
    resident = of_kind(asked, "launch", "resident")
    ends = [each.end for each in resident]
    assert [each.first for each in resident] == [0, *ends[:-1]]
    assert ends[-1] == 1920
    assert resident[-1].grid == (-(-1812 // 16),)


def test_a_plan_is_repeated_for_more_layers() -> None:
    plan = plan_cuda(official_network(64, 3, bias=-0.25), "edges", PlanSizes(shared_bytes=0))
    longer = repeated(plan, 8)
    assert (longer.n_layers, longer.n_steps) == (8, 8)
    assert longer.arrays.steps[:, LAYER].tolist() == list(range(8))
    np.testing.assert_array_equal(longer.arrays.steps[3:6, :LAYER], plan.arrays.steps[:, :LAYER])
    np.testing.assert_array_equal(longer.step_bytes()[:3], plan.step_bytes())
    assert longer.work.edges == 8 * 64 * EDGES_PER_NEURON


@pytest.mark.parametrize("bias", [-0.3, -0.45])
def test_features_die_after_the_layers_asked_for(bias: float) -> None:
    dies_after = np.array([0, 1, 2, 3, 4, 0, 2])
    features = bounds.uniform_features(128, dies_after, bias)
    network = official_network(128, 6, bias=bias)
    live = infer(network, features, engine="scipy")
    assert [layer.live for layer in live.layers] == [6, 4, 3, 2, 2, 2]
    assert live.live.tolist() == [0, 5]


def counted(kernel: str, n_steps: int = 1, n_blocks: int = 1, **numbers: float) -> Counted:
    """A launch whose blocks cost some numbers each."""
    sampled = Counts.none()._replace(blocks=1.0, **numbers)
    return Counted(kernel, (n_blocks,), 256, sampled, [], [], n_steps)


def costs_with(*steady: Counted, around: Any = (), loading: Any = ()) -> bounds.Costs:
    """Costs of kernels of 1024 neurons of which all launches are alike."""

    def run(*launches: Counted) -> CountedRun:
        return CountedRun(list(launches), HostCounts(), [100])

    sizes = sizes_for(0)
    of_around = [(count, list(launches)) for count, launches in around]
    return bounds.Costs(1024, run(*loading), run(), run(*steady), of_around, sizes)


def test_a_step_costs_what_longer_launches_have_more() -> None:
    costs = costs_with(counted("resident", 4, barriers=9.0), counted("resident", 2, barriers=5.0))
    assert costs.of_step("resident").barriers == 2
    assert costs.of_block("resident", 20, 28).barriers == 17
    with pytest.raises(ValueError, match="kernel staged is launched and has not been counted"):
        costs.of_block("staged", 20, 21)


def test_launches_around_the_layers_cost_more_with_more_features() -> None:
    numbers = ((100, 7.0), (1100, 17.0), (2100, 37.0))
    around = [(count, [counted("list", barriers=barriers)]) for count, barriers in numbers]
    around[1][1].append(counted("count", barriers=11.0))
    costs = costs_with(around=around)
    found = [costs.of_launch("list", n).barriers for n in (0, 100, 600, 1100, 1600, 3100)]
    assert found == pytest.approx([6, 7, 12, 17, 27, 57])
    assert costs.of_launch("count", 550).barriers == pytest.approx(5.5)
    assert costs.names_around("") == ["list", "count"]
    with pytest.raises(ValueError, match="kernel unite is launched"):
        costs.of_launch("unite", 600)


def test_the_multiprocessor_with_most_blocks_bounds_a_launch() -> None:
    machine = bounds.Machine(multiprocessors=2, clock=1.0, l2_bytes=0.0)
    costs = costs_with(
        counted(
            "grouped", warp_instructions=40.0, warp_multiply_adds=8.0,
            shared_load_wavefronts=6.0, global_load_wavefronts=5.0, new_sectors=4.0,
        )
    )  # fmt: skip
    # Three blocks on two multiprocessors; the grid of six is for features that have died.
    asked = Asked("launch", "grouped", (3, 2), 9, 10)
    bound = bounds.bound_of(asked, 64, costs, machine)
    assert bound.n_blocks == 3
    assert bound.seconds[:4] == (2 * 8 / 4, 2 * 40 / 4, 2 * 11, 2 * 4 * 32 / 64)
    moved = 4 * EDGES_PER_NEURON * 1024 + 2 * 4 * 1024 * 64
    assert bound.seconds[4] == pytest.approx(moved / machine.memory)
    assert bound.least == 22
    cached = bounds.bound_of(asked, 64, costs, machine._replace(l2_bytes=1e9))
    assert cached.seconds[4] == pytest.approx(4 * EDGES_PER_NEURON * 1024 / machine.memory)


def test_the_host_and_its_waits_are_part_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (
        Asked("launch", "list", (1,), 0, 0),
        Asked("launch", "list", (1,), 0, 0),
        Asked("read", n_bytes=0),
        Asked("launch", "list", (1,), 0, 0),
    )
    monkeypatch.setattr(bounds, "asked_for", lambda *_: asked)
    a_second = bounds.H200.clock * bounds.H200.schedulers
    around = [(count, [counted("list", warp_instructions=a_second)]) for count in (1, 2)]
    costs = costs_with(around=around)
    run = bounds.played_by_bounds(1024, 120, costs, lambda _: 4.0)
    # The second launch is asked for while the first one runs; the third one behind the wait.
    assert run.seconds == pytest.approx(8 + 1 + 4 + 1, abs=1e-3)
    assert (run.kernels, run.n_waits) == (pytest.approx(3), 1)
    assert run.host == pytest.approx(12)
    shares = run.shares()
    assert shares["issue"] == pytest.approx(3 / 14, abs=1e-3)
    assert sum(shares.values()) == pytest.approx(1)
    fast = bounds.played_by_bounds(1024, 120, costs, lambda _: 0.0)
    assert fast.seconds == pytest.approx(3, abs=1e-3)
    assert run.rate(1.0) == pytest.approx(FEATURES * 1024 * EDGES_PER_NEURON * 120 / 1e12)
    assert "3 waits" not in bounds.printed(run)
    assert "host 12000.000 ms and 1 waits" in bounds.printed(run)


def test_what_is_launched_before_the_host_waits_hides_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = Asked("launch", "list", (1,), 0, 0)
    asked = (launch, Asked("read later"), launch, Asked("wait"), launch)
    monkeypatch.setattr(bounds, "asked_for", lambda *_: asked)
    a_second = bounds.H200.clock * bounds.H200.schedulers
    around = [(count, [counted("list", warp_instructions=a_second)]) for count in (1, 2)]
    run = bounds.played_by_bounds(1024, 120, costs_with(around=around), lambda _: 0.1)
    # The host waits for the first launch while the second one runs.
    assert run.seconds == pytest.approx(0.1 + 3, abs=1e-3)
    assert run.n_waits == 1
