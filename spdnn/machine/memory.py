"""Memory of this machine: how much is available, and how much this process has taken."""

import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Condition, get_ident

from spdnn.errors import DeviceError

USUAL_L2_BYTES = 1 << 20
"""Assumed size of a core's L2 cache where the machine does not tell it."""

_L2 = Path("/sys/devices/system/cpu/cpu0/cache")
_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes of memory that this process may still take, by the machine and its control group."""
    available = 1 << 62
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            used = int((_CGROUP / "memory.current").read_text())
            available = min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass  # not Linux with cgroup v2: the machine's own figure, or none, is returned
    return available


def peak_bytes() -> int:
    """Largest memory of this process so far, in bytes.

    The kernel's `ru_maxrss` is the last choice. It includes the memory of the program that started
    this one.
    """
    with suppress(OSError, ValueError, StopIteration):
        lines = _STATUS.read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@cache
def l2_bytes() -> int:
    """Size of a core's L2 cache in bytes."""
    try:
        for level in _L2.glob("index*"):
            if (level / "level").read_text().strip() == "2":
                size = (level / "size").read_text().strip()
                return int(size.removesuffix("K")) << 10
    except (OSError, ValueError):
        pass
    return USUAL_L2_BYTES


class _Promises:
    """Bytes that threads have been promised, and have perhaps not taken yet."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._of_thread: Counter[int] = Counter()
        self._is_waited_for = False

    def of_others(self) -> int:
        """Bytes that other threads than the caller's have been promised."""
        return self._of_thread.total() - self._of_thread[get_ident()]

    def add(self, n_bytes: int) -> None:
        """Promise the caller's thread more bytes, or fewer."""
        with self._changed:
            self._of_thread[get_ident()] += n_bytes
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait until other threads have no promises; False if one of them waits already."""
        with self._changed:
            if self._is_waited_for:
                return False
            self._is_waited_for = True
            try:
                self._changed.wait_for(lambda: not self.of_others())
            finally:
                self._is_waited_for = False
        return True


_promises = _Promises()


@contextmanager
def promised_bytes(n_bytes: int, what: str, hint: str) -> Iterator[None]:
    """Refuse work that does not fit, or do it while other threads leave it the memory.

    Parameters
    ----------
    n_bytes, what, hint
        As for `require_bytes`, which other threads' calls then leave so many bytes to this work.

    Raises
    ------
    DeviceError
        If fewer than `n_bytes` are available.
    """
    require_bytes(n_bytes, what, hint)
    _promises.add(n_bytes)
    try:
        yield
    finally:
        _promises.add(-n_bytes)


def require_bytes(n_bytes: int, what: str, hint: str) -> None:
    """Refuse work that does not fit into memory.

    What other threads have been promised (`promised_bytes`) counts as taken. If the work does not
    fit beside it, the call waits until it is done, and what it has not taken is free again.

    Parameters
    ----------
    n_bytes : int
        Bytes that the work needs.
    what : str
        The work, for the message.
    hint : str
        Advice, for the message.

    Raises
    ------
    DeviceError
        If fewer than `n_bytes` are available.
    """
    others, available = _promises.of_others(), available_bytes()
    if others and n_bytes > available - others and _promises.wait():
        available = available_bytes()
    if n_bytes > available:
        raise DeviceError(
            f"{what} needs {n_bytes / 2**30:.1f} GiB of memory, "
            f"{available / 2**30:.1f} GiB are available: {hint}"
        )
