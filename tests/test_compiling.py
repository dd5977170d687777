"""A mode's functions are compiled before a run, at the first call with a second process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spdnn.engines.cpu import compiling
from spdnn.engines.cpu.compiling import compile_ahead
from spdnn.engines.cpu.engine import CpuEngine
from tests.makers import dyadic_network

FIRST_CALL = """
import os
os.sched_getaffinity = lambda _: {0, 1}
from spdnn.engines.cpu import compiling
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.engines.cpu.kernels.segment import fill_tile, take_tiles
from spdnn.engines.cpu.kernels.step import evaluate_step
from spdnn.plan.merge import _without_sums
from tests.makers import dyadic_network

CpuEngine(2).compile(dyadic_network(1, [30] * 4, ["shared"] * 3), "edges")
print([helper.returncode for helper in compiling._helpers])
for function in (take_tiles, evaluate_step, _without_sums):
    hits, misses = function.stats.cache_hits, function.stats.cache_misses
    print(sum(hits.values()), sum(misses.values()))
"""


def test_a_second_process_compiles_the_kernels_of_a_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    # Loaded, not compiled; and nothing of mode "merge" in mode "edges".
    assert done.stdout.split("\n") == ["[0]", "1 0", "1 0", "0 0", ""]
    assert done.stderr == ""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if there were two processors, and nothing were compiled yet."""
    monkeypatch.setattr(compiling, "_helpers", [])
    monkeypatch.setattr(compiling, "keeps_code", lambda _: True)
    monkeypatch.setattr(compiling, "is_kept", lambda _: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(compiling, "launched_size", lambda: 1)
    for name in [name for name in sys.modules if name.startswith("mpi4py")]:
        monkeypatch.delitem(sys.modules, name)
    return monkeypatch


def program(folder: Path, line: str) -> str:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("line", ["exit 1", "exec sleep 60"])
def test_a_second_process_that_fails_is_done_without(
    fresh: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    fresh.setattr(sys, "executable", program(tmp_path, line))
    fresh.setattr(compiling, "PATIENCE", 0.2)
    network = dyadic_network(1, [30] * 4, ["shared"] * 3)
    engine = CpuEngine(2)
    engine.compile(network, "merge")
    (helper,) = compiling._helpers
    assert helper.returncode != 0
    assert engine.plan(network, "merge").n_layers == 3
    engine.close()


def test_an_interpreter_that_cannot_be_started_is_no_failure(
    fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fresh.setattr(sys, "executable", str(tmp_path / "none"))
    compile_ahead(2)
    assert not compiling._helpers


def test_it_is_started_once(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.setattr(sys, "executable", program(tmp_path, "exit 0"))
    compile_ahead(2)
    compile_ahead(2, np.int32)
    assert len(compiling._helpers) == 1
    compiling._wait_for_helper()


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (compiling, "launched_size", lambda: 2),
        (compiling, "is_kept", lambda _: True),
        (compiling, "keeps_code", lambda _: False),
        (os, "sched_getaffinity", lambda _: {3}),
        (sys, "executable", ""),
    ],
)
def test_no_process_is_started_where_it_cannot_help(
    fresh: pytest.MonkeyPatch, place: object, name: str, value: object
) -> None:
    fresh.setattr(place, name, value)
    compile_ahead(2)
    assert not compiling._helpers


def test_no_process_is_started_for_one_thread(fresh: pytest.MonkeyPatch) -> None:
    compile_ahead(1)
    assert not compiling._helpers


def test_no_process_is_started_once_mpi_is_there(fresh: pytest.MonkeyPatch) -> None:
    fresh.setitem(sys.modules, "mpi4py.MPI", sys)
    compile_ahead(2)
    assert not compiling._helpers
