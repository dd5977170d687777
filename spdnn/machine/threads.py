"""The number of threads to use."""

import os
from collections.abc import Collection, Sequence
from fractions import Fraction

from spdnn.errors import DeviceError


def default_threads() -> int:
    """Number of threads to use where the user names none.

    It is the number of processors that this process may run on (its affinity mask), or the number
    in ``OMP_NUM_THREADS`` if that is smaller.
    """
    return at_most_asked(len(os.sched_getaffinity(0)))


def at_most_asked(n_allowed: int) -> int:
    """The smaller of `n_allowed` and the number in ``OMP_NUM_THREADS``, if that is set."""
    try:
        asked = int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])
    except ValueError:
        return n_allowed
    return min(n_allowed, asked) if asked > 0 else n_allowed


def fair_share(masks: Sequence[Collection[int]], number: int) -> int:
    """Number of processors for one of several processes of a machine.

    Parameters
    ----------
    masks : sequence of collections of int
        The processors that each process may run on.
    number : int
        Index of the process in `masks`.

    Returns
    -------
    int
        At least 1. Processors that several processes may use are shared among them.
    """
    users = [sum(processor in mask for mask in masks) for processor in masks[number]]
    return max(1, int(sum(Fraction(1, n) for n in users)))


def checked_threads(threads: int | None) -> int:
    """Check a number of threads.

    Parameters
    ----------
    threads : int or None
        The number that the user names; None for `default_threads`.

    Returns
    -------
    int
        The number of threads to use.

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
