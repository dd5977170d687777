"""How many threads to use."""

import os
from collections.abc import Collection, Sequence
from fractions import Fraction

from spdnn.errors import DeviceError


def default_threads() -> int:
    """Threads to use unless told otherwise.

    The processors that this process may run on (its affinity mask), fewer if
    ``OMP_NUM_THREADS`` says so.
    """
    return at_most_asked(len(os.sched_getaffinity(0)))


def at_most_asked(n_allowed: int) -> int:
    """Return `n_allowed`, or the number in ``OMP_NUM_THREADS`` if that is smaller."""
    try:
        asked = int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])
    except ValueError:
        return n_allowed
    return min(n_allowed, asked) if asked > 0 else n_allowed


def fair_share(masks: Sequence[Collection[int]], number: int) -> int:
    """Processors for one of several processes of a machine, at least 1.

    Parameters
    ----------
    masks : sequence of collections of int
        The processors that each process may run on.
    number : int
        Which of the processes is asked for. A processor that several may use is shared.
    """
    users = [sum(processor in mask for mask in masks) for processor in masks[number]]
    return max(1, int(sum(Fraction(1, n) for n in users)))


def checked_threads(threads: int | None) -> int:
    """Return `threads`, or the default for None.

    Raises
    ------
    DeviceError
        If it is not positive.
    """
    if threads is None:
        return default_threads()
    if threads < 1:
        raise DeviceError(f"at least one thread is needed, not {threads}")
    return threads
