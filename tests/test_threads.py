"""Threads that an engine keeps: started once, ended when told, and safe after a fork."""

import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from spdnn import Features, Layer, Network
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.engines.cpu.sizes import CpuSizes
from spdnn.machine.thread_pool import CALLS_AHEAD, KeptThreads, SharedThreads

SMALL = CpuSizes(worth_waking=0, worth_barrier=0, worth_fetching=0, widest_tile=16)
"""Sizes with which few features are work for several threads, which then share tiles."""


def network() -> Network:
    rng = np.random.default_rng(0)
    layers = [sp.random_array((64, 64), density=0.3, rng=rng) for _ in range(6)]
    return Network([Layer(weights, 0.1, 4.0) for weights in layers])


def features(n_features: int) -> Features:
    return Features.from_matrix(np.random.default_rng(1).random((n_features, 64)))


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name}


def gone(threads: set[threading.Thread]) -> bool:
    """Whether threads end within some time."""
    end = time.monotonic() + 30
    while any(thread.is_alive() for thread in threads) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(thread.is_alive() for thread in threads)


@pytest.fixture
def made() -> Any:
    """An engine of two threads, and a plan; no thread of it stays."""
    engine = CpuEngine(2, sizes=SMALL)
    yield engine, engine.plan(network(), "edges")
    engine.close()


def test_runs_reuse_the_threads(made: Any) -> None:
    engine, plan = made
    before = workers()
    engine.run(plan, features(1))
    engine.run(plan, features(200))
    kept = workers() - before
    assert 1 <= len(kept) <= 2
    for other in (engine, engine.with_widths([16, 16]), engine.with_costs(engine.costs)):
        for n_features in (1, 200, 40):
            other.run(plan, other.load(plan, features(n_features)))
    assert len(workers() - before) <= 2
    assert kept <= workers()


def test_a_closed_engine_has_no_threads_and_starts_them_again(made: Any) -> None:
    engine, plan = made
    before = workers()
    expected = engine.run(plan, features(200), activations=True)
    engine.with_widths([16, 16]).close()  # it has the same threads
    assert workers() <= before
    engine.close()
    again = engine.run(plan, features(200), activations=True)
    assert again.activations.tobytes() == expected.activations.tobytes()
    assert workers() - before
    engine.close()
    engine.close()
    assert workers() <= before


def test_an_engine_that_is_forgotten_leaves_no_threads() -> None:
    before = workers()
    engine = CpuEngine(2, sizes=SMALL)
    engine.run(engine.plan(network(), "edges"), features(200))
    threads = workers() - before
    assert threads
    del engine
    gc.collect()
    assert gone(threads)


def test_python_threads_may_run_at_the_same_time(made: Any) -> None:
    """Also where their tiles are shared, by threads that wait for each other."""
    engine = CpuEngine(3, sizes=SMALL)
    _, plan = made
    inputs = [features(n_features) for n_features in (1, 7, 16, 200)] * 6
    expected = [engine.run(plan, each, activations=True).activations for each in inputs]
    together = Barrier(len(inputs))

    def run(each: Features) -> Any:
        together.wait()
        return engine.run(plan, each, activations=True).activations

    with ThreadPoolExecutor(len(inputs)) as pool:
        found = list(pool.map(run, inputs))
    engine.close()
    for one, other in zip(found, expected, strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_task_that_fails_leaves_none_at_work() -> None:
    done: list[int] = []

    def work(number: int) -> int:
        if number == 1:
            raise ValueError("wrong")
        time.sleep(0.02)
        done.append(number)
        return number

    threads = KeptThreads(2)
    results = threads.run_all(work, range(100))
    assert next(results) == 0
    with pytest.raises(ValueError, match="wrong"):
        list(results)
    n_done = len(done)
    assert n_done < 99
    time.sleep(0.1)
    assert len(done) == n_done
    threads.close()


PROGRAM = """
import os, sys, warnings
from tests.test_threads import CpuEngine, SMALL, features, network
engine = CpuEngine(2, sizes=SMALL)
plan = engine.plan(network(), "edges")

def bits(n):
    return engine.run(plan, features(n), activations=True).activations.tobytes()

expected = [bits(n) for n in (1, 200)]
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", PROGRAM + program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_interpreter_ends_with_an_engine_that_was_not_closed() -> None:
    assert run("print('end')") == "end\n"


def test_a_forked_child_starts_threads_of_its_own() -> None:
    program = """
warnings.simplefilter("ignore")  # that a process of several threads forks
child = os.fork()
same = [bits(n) for n in (1, 200)] == expected
if not child:
    engine.close()
    print("child", same, flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("parent", same, status)
"""
    assert run(program) == "child True\nparent True 0\n"


def test_shared_threads_have_few_calls_waiting_at_a_time() -> None:
    kept = KeptThreads(2)
    begun: list[int] = []

    def call(number: int, other: int) -> int:
        begun.append(number)
        return number + other

    results = SharedThreads(kept).map(call, range(100), range(0, 1000, 10))
    assert [next(results) for _ in range(3)] == [0, 11, 22]
    assert kept.submit(lambda: len(begun)).result() <= 3 + 2 * CALLS_AHEAD
    assert list(results) == [11 * number for number in range(3, 100)]
    kept.close()


def test_shared_threads_leave_out_calls_after_one_that_fails() -> None:
    kept = KeptThreads(2)
    done: list[int] = []

    def call(number: int) -> int:
        if number == 5:
            raise ValueError("five")
        done.append(number)
        return number

    with pytest.raises(ValueError, match="five"):
        list(SharedThreads(kept).map(call, range(100)))
    n_done = len(done)
    assert n_done <= 5 + 2 * CALLS_AHEAD
    kept.close()
    assert len(done) == n_done  # none was still running
