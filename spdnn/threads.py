"""How many threads to use."""

import os

from spdnn.errors import DeviceError


def default_threads() -> int:
    """Threads to use unless told otherwise.

    The processors that this process may run on (its affinity mask), fewer if
    ``OMP_NUM_THREADS`` says so.
    """
    n_allowed = len(os.sched_getaffinity(0))
    try:
        asked = int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])
    except ValueError:
        return n_allowed
    return min(n_allowed, asked) if asked > 0 else n_allowed


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
