"""Reading while planning: both are done, errors of either end both, and the times are honest."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

import numpy as np
import pytest

from spdnn import DataError, Layer, Network
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.machine.thread_pool import KeptThreads
from spdnn.run.options import Options
from spdnn.run.plan_files import plan_for
from spdnn.run.reading import Look, Reading
from spdnn.run.session import Session
from spdnn.run.team import Team

NETWORK = Network([Layer(np.eye(4) + number) for number in range(5)], "five")
LONG = 30.0
"""Seconds after which a test has failed."""


@pytest.fixture
def threads() -> Iterator[KeptThreads]:
    made = KeptThreads(2)
    yield made
    made.close()


def planned(network: Network, before: Callable[[int], None] = lambda number: None) -> list[float]:
    """Ask for all layers in order, as planning does."""
    corners = []
    for number in range(network.n_layers):
        before(number)
        corners.append(float(network.layers[number].weights[0, 1]))
    return corners


def ends(look: Look) -> None:
    """Look until that raises."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        look()
        time.sleep(0.001)


def test_both_are_done_at_the_same_time(threads: KeptThreads) -> None:
    both = threading.Barrier(2, timeout=LONG)

    def read(executor: Executor | None, look: Look) -> str:
        assert executor is not None
        both.wait()
        look()
        return "".join(executor.map(chr, range(97, 117)))

    reading = Reading(read)

    def plan(network: Network) -> list[float]:
        both.wait()
        return planned(network)

    assert reading.beside(plan, NETWORK, threads) == [0, 1, 2, 3, 4]
    assert reading.result == "abcdefghijklmnopqrst"
    assert 0 < reading.overlap <= reading.seconds


@pytest.mark.parametrize("n_threads", [None, 1])
def test_without_several_threads_reading_comes_first(n_threads: int | None) -> None:
    order = []

    def read(executor: Executor | None, look: Look) -> None:
        assert executor is None
        order.append("read")

    reading = Reading(read)
    kept = None if n_threads is None else KeptThreads(n_threads)
    reading.beside(lambda network: order.append("plan"), NETWORK, kept)
    assert order == ["read", "plan"]
    assert reading.overlap == 0
    assert reading.waited == reading.seconds


def test_an_error_of_reading_ends_planning_at_its_next_layer(threads: KeptThreads) -> None:
    has_failed = threading.Event()

    def read(executor: Executor | None, look: Look) -> None:
        has_failed.set()
        raise DataError("no such inputs")

    seen = []

    def before(number: int) -> None:
        seen.append(number)
        if number == 2:
            assert has_failed.wait(LONG)
            time.sleep(0.05)

    with pytest.raises(DataError, match="no such inputs"):
        Reading(read).beside(lambda network: planned(network, before), NETWORK, threads)
    assert max(seen) <= 3


def test_an_error_of_reading_after_planning_is_raised(threads: KeptThreads) -> None:
    is_planned = threading.Event()

    def read(executor: Executor | None, look: Look) -> None:
        assert is_planned.wait(LONG)
        raise DataError("late")

    reading = Reading(read)
    with pytest.raises(DataError, match="late"):
        reading.beside(lambda network: is_planned.set(), NETWORK, threads)


@pytest.mark.parametrize("error", [DataError("no plan"), KeyboardInterrupt()])
def test_an_error_of_planning_ends_reading(error: BaseException, threads: KeptThreads) -> None:
    has_ended, reads = threading.Event(), threading.Event()

    def read(executor: Executor | None, look: Look) -> None:
        try:
            reads.set()
            ends(look)
        finally:
            has_ended.set()

    def plan(network: Network) -> None:
        assert reads.wait(LONG)
        raise error

    with pytest.raises(type(error)):
        Reading(read).beside(plan, NETWORK, threads)
    assert has_ended.wait(LONG)


def test_a_watched_network_is_the_same_network(threads: KeptThreads) -> None:
    def plan(network: Network) -> Network:
        assert network.fingerprint == NETWORK.fingerprint
        assert (network.name, network.shapes) == (NETWORK.name, NETWORK.shapes)
        assert network.layer_edges == NETWORK.layer_edges
        return network

    Reading(lambda executor, look: None).beside(plan, NETWORK, threads)


def test_a_session_has_the_seconds_of_planning_alone() -> None:
    def read(executor: Executor | None, look: Look) -> str:
        time.sleep(0.3)
        return "features"

    reading = Reading(read)
    options = Options(engine="cpu", threads=2)
    with Session.of_team(Team(), NETWORK, options, reading) as session:
        seconds = session.seconds
        engine = session.engine
        assert isinstance(engine, CpuEngine)
        expected = plan_for(engine, NETWORK, session.mode)
        for one, other in zip(session.plan.arrays, expected.arrays, strict=True):
            np.testing.assert_array_equal(one, other)
    assert reading.result == "features"
    assert seconds.overlap <= seconds.plan + 0.01 < 0.3 < reading.seconds
    assert seconds.total >= seconds.compile + seconds.plan + reading.seconds - seconds.overlap
