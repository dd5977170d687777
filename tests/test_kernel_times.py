"""Times of kernels beside their bounds."""

from typing import NamedTuple

import pytest

from tools.kernel_times import Least, beyond, compared, least_by_kernel


class Launch(NamedTuple):
    kernel: str
    seconds: tuple[float, ...]


RESOURCES = ("issue", "L2")

LAUNCHES = [
    Launch("resident 16, groups", (3e-5, 1e-5)),
    Launch("resident 4, groups", (1e-5, 2e-5)),
    Launch("resident 16, groups", (2e-5, 4e-5)),
    Launch("resident 16, groups", (2e-5, 1e-5)),
    Launch("list carried", (1e-6, 0.0)),
    Launch("list carried", (1e-6, 0.0)),
    Launch("load ones 1 bit", (0.0, 5e-6)),
]


def test_bounds_add_up_by_kernel_with_the_resource_that_binds_longest() -> None:
    least = least_by_kernel(LAUNCHES, RESOURCES)
    assert least["resident 16, groups"] == (3, pytest.approx(9e-5), "issue")
    assert least["resident 4, groups"] == (1, pytest.approx(2e-5), "L2")
    assert list(least) == list(dict.fromkeys(launch.kernel for launch in LAUNCHES))
    assert least_by_kernel([], RESOURCES) == {}


def test_times_stand_beside_the_bounds_the_longest_first() -> None:
    times = {
        "load ones 1 bit": (1, 6e-6),
        "resident 16, groups": (3, 1.8e-4),
        "list carried": (2, 8e-6),
        "unite": (1, 1.0),
    }
    found = compared(times, least_by_kernel(LAUNCHES, RESOURCES))
    assert [each.kernel for each in found] == [
        "unite",
        "resident 16, groups",
        "list carried",
        "load ones 1 bit",
    ]
    unite, resident, listed, load = found
    assert unite.least is None
    assert unite.times_least is None
    assert resident.least == (3, pytest.approx(9e-5), "issue")
    assert resident.times_least == pytest.approx(2.0)
    assert listed.least == (2, pytest.approx(2e-6), "issue")
    assert load.times_least == pytest.approx(1.2)
    assert beyond(found) == []


def test_a_line_has_all_of_it() -> None:
    found = compared({"load": (1, 6e-6), "unite": (2, 1e-3)}, {"load": Least(1, 5e-6, "L2")})
    assert [each.text for each in found] == [
        "unite: 2 launches, 1.000 ms, not counted",
        "load: 1 launches, 0.006 ms; 1 counted, 0.005 ms at least (L2), 1.20 times that",
    ]


def test_a_kernel_faster_than_its_bound_or_launched_otherwise_is_named() -> None:
    least = {"load": Least(1, 5e-6, "L2"), "unite": Least(2, 1e-6, "issue")}
    assert beyond(compared({"load": (1, 4e-6), "unite": (2, 2e-6)}, least)) == ["load"]
    assert beyond(compared({"load": (1, 6e-6), "unite": (3, 2e-6)}, least)) == ["unite"]
