"""What each engine can do is told by protocols; engines are values that do not change."""

from functools import partial

import pytest

from spdnn import PlanError
from spdnn.engines import ENGINES, make_engine
from spdnn.engines.base import (
    Calibrated,
    CompilesAhead,
    Keepable,
    Resumable,
    Scoring,
    Threaded,
    Tunable,
)
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.engines.cpu.sizes import CpuSizes
from tests.makers import dyadic_network

NETWORK = dyadic_network(1, [30] * 4, ["shared"] * 3)


class Plain:
    """An engine that can do nothing but what all can."""

    name, modes, threads = "plain", ("edges",), 1

    def compile(self, network: object, mode: str | None = None) -> None: ...
    def plan(self, network: object, mode: str) -> None: ...
    def load(self, plan: object, features: object) -> None: ...
    def run(self, plan: object, loaded: object) -> None: ...
    def close(self) -> None: ...


def test_engines_have_the_protocols_of_what_they_can_do() -> None:
    cpu, scipy, plain = make_engine("cpu", 1), make_engine("scipy"), Plain()
    for protocol in (Resumable, Calibrated, CompilesAhead, Threaded, Keepable, Tunable):
        assert isinstance(cpu, protocol)
        assert not isinstance(plain, protocol)
    assert isinstance(scipy, Resumable)
    for protocol in (Calibrated, CompilesAhead, Threaded, Keepable, Tunable, Scoring):
        assert not isinstance(scipy, protocol)


@pytest.mark.parametrize(("name", "mode"), [("cpu", "edges"), ("cpu", "merge"), ("scipy", "edges")])
def test_every_plan_tells_its_mode_layers_and_work(name: str, mode: str) -> None:
    plan = make_engine(name, 1).plan(NETWORK, mode)
    assert (plan.mode, plan.n_layers) == (mode, NETWORK.n_layers)
    if mode == "edges" and plan.work is not None:
        assert plan.work.edges == NETWORK.n_edges


def test_another_cost_or_width_is_another_engine() -> None:
    sizes = CpuSizes(widest_tile=64)
    engine = CpuEngine(1, sizes=sizes)
    wide = engine.with_widths([32, 64])
    other = wide.with_costs([[[1.0] * 3] * 2] * 2)
    assert (engine.widths, wide.widths, other.widths) == (None, (32, 64), (32, 64))
    assert engine.costs == wide.costs != other.costs
    assert other.with_widths(None).widths is None
    assert {each.sizes for each in (engine, wide, other)} == {sizes}


def test_an_engine_may_be_registered_by_what_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = CpuSizes(widest_tile=16)
    monkeypatch.setitem(ENGINES, "small", partial(CpuEngine, sizes=sizes))
    engine = make_engine("small", 3)
    assert isinstance(engine, CpuEngine)
    assert (engine.threads, engine.sizes) == (3, sizes)


@pytest.mark.parametrize(
    "sizes",
    [
        {"widest_tile": 24},
        {"widest_tile": 0},
        {"segment_ends": ()},
        {"segment_ends": (4, 2)},
        {"look_ends": (0, 2)},
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: dict[str, object]) -> None:
    with pytest.raises(PlanError, match="expected"):
        CpuSizes(**sizes)
