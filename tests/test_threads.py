"""How many threads are used where nobody says so."""

import os

import pytest

from spdnn import DeviceError
from spdnn.machine.threads import checked_threads, default_threads, fair_share


@pytest.fixture
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 4, 6})


@pytest.mark.usefixtures("four_processors")
@pytest.mark.parametrize(
    ("setting", "threads"),
    [
        (None, 4),
        ("", 4),
        ("1", 1),
        ("3", 3),
        ("3,2", 3),
        ("99", 4),
        ("0", 4),
        ("-2", 4),
        ("many", 4),
    ],
)
def test_threads_follow_the_affinity_and_openmps_variable(
    setting: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert default_threads() == threads
    assert checked_threads(None) == threads


def test_a_number_that_is_given_is_taken_whatever_the_machine_has() -> None:
    assert checked_threads(7) == 7


@pytest.mark.parametrize("threads", [0, -1])
def test_no_threads_are_refused(threads: int) -> None:
    with pytest.raises(DeviceError, match="at least one thread is needed"):
        checked_threads(threads)


def test_the_real_affinity_mask_is_obeyed() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert default_threads() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("masks", "shares"),
    [
        ([{0, 1, 2, 3}], [4]),
        ([{0, 1, 2, 3}] * 2, [2, 2]),  # not bound: they share
        ([{0, 1}, {2, 3}], [2, 2]),  # bound: each has its own
        ([{0, 1, 2, 3}] * 3, [1, 1, 1]),
        ([{0, 1}] * 5, [1] * 5),  # more than processors
        ([{0, 1, 2}, {2}], [2, 1]),
    ],
)
def test_processes_of_a_machine_share_its_processors(
    masks: list[set[int]], shares: list[int]
) -> None:
    assert [fair_share(masks, number) for number in range(len(masks))] == shares
