"""Prints, under pytest-benchmark's own table, the ratios that the benchmarks are about."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import pytest

ROUNDS = 5
SPIN_SECONDS = 0.5
"""OpenBLAS and OpenMP threads go on spinning after their work: MKL's for 0.2 s by default."""

_LINES: list[tuple[str, str, str]] = []


@dataclass
class Pair:
    """Two things timed in turn, so that a drifting machine slows both."""

    benchmark: Any
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    our_processor: list[float] = field(default_factory=list)
    their_processor: list[float] = field(default_factory=list)

    def time(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
        def timed(
            run: Callable[[], Any], seconds: list[float], processor_seconds: list[float]
        ) -> None:
            start, processor_start = perf_counter(), process_time()
            run()
            seconds.append(perf_counter() - start)
            processor_seconds.append(process_time() - processor_start)

        def setup() -> tuple[Any, Any]:
            timed(theirs, self.theirs, self.their_processor)
            sleep(SPIN_SECONDS)
            return (ours, self.ours, self.our_processor), {}

        self.benchmark.pedantic(timed, setup=setup, rounds=ROUNDS)

    @property
    def speedup(self) -> float:
        """Median of theirs over median of ours."""
        return median(self.theirs) / median(self.ours)

    @property
    def slowdown(self) -> tuple[float, float]:
        """Median of ours over median of theirs, by the clock and in processor time."""
        by_processor = median(self.our_processor) / median(self.their_processor)
        return 1 / self.speedup, by_processor


@pytest.fixture
def pair(benchmark: Any) -> Pair:
    return Pair(benchmark)


@pytest.fixture
def report() -> Callable[[str, str, str], None]:
    """Keep a line for the end: what, the figure measured, the goal."""

    def keep(what: str, figure: str, goal: str) -> None:
        _LINES.append((what, figure, goal))

    return keep


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _LINES:
        return
    terminalreporter.section("ratios (medians of five, in turn)")
    for what, figure, goal in _LINES:
        terminalreporter.write_line(f"{what:<66}{figure:>12}   goal {goal}")
