"""What memory there is, and the refusal of work that does not fit."""

import resource
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from spdnn import DeviceError
from spdnn.machine import memory

GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Stand-ins for the kernel's files: 8 GiB available, no control group."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {8 * 2**20} kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    return tmp_path


def limit(machine: Path, most: str, current: int = 0) -> None:
    (machine / "memory.max").write_text(f"{most}\n")
    (machine / "memory.current").write_text(f"{current}\n")


def test_without_a_control_group_it_is_what_the_machine_has(machine: Path) -> None:
    assert memory.available_bytes() == 8 * GIB


@pytest.mark.parametrize(
    ("most", "current", "available"),
    [
        ("max", 5 * GIB, 8 * GIB),
        (str(4 * GIB), GIB, 3 * GIB),
        (str(64 * GIB), GIB, 8 * GIB),
        (str(GIB), 2 * GIB, 0),
        ("nonsense", 0, 8 * GIB),
    ],
)
def test_a_control_groups_limit_counts(
    machine: Path, most: str, current: int, available: int
) -> None:
    limit(machine, most, current)
    assert memory.available_bytes() == available


def test_a_system_without_these_files_does_not_stand_in_the_way(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", machine / "nowhere")
    memory.require_bytes(2**50, "the plan", "take less")


def test_what_does_not_fit_is_refused_with_what_to_do(machine: Path) -> None:
    memory.require_bytes(8 * GIB, "the plan", "take less")
    with pytest.raises(DeviceError) as caught:
        memory.require_bytes(9 * GIB, "the plan", "take less")
    assert str(caught.value) == (
        "the plan needs 9.0 GiB of memory, 8.0 GiB are available: take less"
    )


def test_the_peak_does_not_count_what_the_starting_program_had() -> None:
    held = np.ones(2 * GIB, dtype=np.uint8)
    program = "from spdnn.machine.memory import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert 10e6 < int(done.stdout) < held.nbytes // 2


def test_the_peak_is_the_systems_figure_where_the_kernel_has_no_file_of_it(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_STATUS", machine / "nowhere")
    assert memory.peak_bytes() <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert memory.peak_bytes() > 10e6


def in_thread(work: Callable[[], None]) -> Future[None]:
    """The outcome of a call by a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work)


def test_what_another_thread_was_promised_is_left_to_it(machine: Path) -> None:
    ask = partial(memory.require_bytes, 3 * GIB, "the plan", "take less")
    with memory.promised_bytes(5 * GIB, "inputs", "take fewer"):
        memory.require_bytes(8 * GIB, "more inputs", "take fewer")  # its own does not count
        in_thread(ask).result()
        with pytest.raises(DeviceError, match=r"inputs needs 9\.0 GiB"):
            memory.require_bytes(9 * GIB, "inputs", "take fewer")


def test_what_does_not_fit_beside_a_promise_waits_until_that_work_is_done(machine: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with memory.promised_bytes(6 * GIB, "inputs", "take fewer"):
            asked = pool.submit(memory.require_bytes, 3 * GIB, "the plan", "take less")
            with pytest.raises(TimeoutError):
                asked.result(0.1)
        asked.result(30)
        with memory.promised_bytes(6 * GIB, "inputs", "take fewer"):
            asked = pool.submit(memory.require_bytes, 9 * GIB, "the plan", "take less")
            (machine / "meminfo").write_text(f"MemAvailable: {2 * 2**20} kB\n")
        with pytest.raises(DeviceError, match=r"the plan needs 9\.0 GiB of memory, 2\.0 GiB are"):
            asked.result(30)


def test_threads_do_not_wait_for_each_others_promises(machine: Path) -> None:
    def both_hold() -> None:
        with memory.promised_bytes(3 * GIB, "the plan", "take less"):
            both.wait(30)
            memory.require_bytes(6 * GIB, "the plan", "take less")

    both = Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        errors = [future.exception(30) for future in [pool.submit(both_hold) for _ in range(2)]]
    # One of the two waits, and goes on when the other is refused or done.
    assert sum(error is None for error in errors) >= 1
