"""Seconds of kernels on a GPU beside what they take at least by counts.

`spdnn.engines.cuda.gpu_device` times kernels, and `tools.gpu_bounds` has a bound for each launch.
Both name a kernel by its title, which names its variant, too: `staged without chunks`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Bounded(Protocol):
    """A launch with its bounds."""

    @property
    def kernel(self) -> str:
        """The kernel's title."""

    @property
    def seconds(self) -> Sequence[float]:
        """Least seconds by each resource."""


class Least(NamedTuple):
    """What all launches of a kernel take at least.

    Attributes
    ----------
    launches : int
        Launches that were counted.
    seconds : float
        The sum of their bounds.
    resource : str
        The resource that binds them for the most seconds.
    """

    launches: int
    seconds: float
    resource: str


class Compared(NamedTuple):
    """A kernel as it was timed, and as it was counted.

    Attributes
    ----------
    kernel : str
        Its title.
    launches : int
        Launches that were timed.
    seconds : float
        Their seconds.
    least : Least or None
        What they take at least; None where the kernel was not counted.
    """

    kernel: str
    launches: int
    seconds: float
    least: Least | None

    @property
    def times_least(self) -> float | None:
        """How many times as long as at least it took; None where that is not known."""
        return self.seconds / self.least.seconds if self.least and self.least.seconds else None

    @property
    def text(self) -> str:
        """A line of it."""
        head = f"{self.kernel}: {self.launches} launches, {self.seconds * 1e3:.3f} ms"
        if self.least is None:
            return f"{head}, not counted"
        factor = f", {self.times_least:.2f} times that" if self.times_least is not None else ""
        counted = f"{self.least.launches} counted, {self.least.seconds * 1e3:.3f} ms at least"
        return f"{head}; {counted} ({self.least.resource}){factor}"


def least_by_kernel(launches: Iterable[Bounded], resources: Sequence[str]) -> dict[str, Least]:
    """Add up the bounds of a run's launches by kernel.

    Parameters
    ----------
    launches : iterable of Bounded
        All launches of the run.
    resources : sequence of str
        Names of the resources, in the order of each launch's seconds.
    """
    counts: dict[str, int] = {}
    bound: dict[str, dict[str, float]] = {}
    for launch in launches:
        seconds = max(launch.seconds)
        resource = resources[list(launch.seconds).index(seconds)]
        counts[launch.kernel] = counts.get(launch.kernel, 0) + 1
        of_kernel = bound.setdefault(launch.kernel, {})
        of_kernel[resource] = of_kernel.get(resource, 0.0) + seconds
    return {
        kernel: Least(counts[kernel], sum(by.values()), max(by, key=lambda name: by[name]))
        for kernel, by in bound.items()
    }


def compared(times: Mapping[str, tuple[int, float]], least: Mapping[str, Least]) -> list[Compared]:
    """Put the times of a run's kernels beside their bounds, the longest first.

    Parameters
    ----------
    times : mapping of str to (int, float)
        Launches and seconds of each kernel, by its title.
    least : mapping of str to Least
        The bounds of the same run, by the kernels' titles.
    """
    found = [
        Compared(kernel, launches, seconds, least.get(kernel))
        for kernel, (launches, seconds) in times.items()
    ]
    return sorted(found, key=lambda each: -each.seconds)


def beyond(several: Iterable[Compared]) -> list[str]:
    """Kernels that were faster than at least, or launched another number of times: wrong counts.

    Parameters
    ----------
    several : iterable of Compared
    """
    return [
        each.kernel
        for each in several
        if each.least is not None
        and (each.seconds < each.least.seconds or each.launches != each.least.launches)
    ]
