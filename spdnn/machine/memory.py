"""How much memory there is, asked for before work starts, and how much was taken."""

import resource
from contextlib import suppress
from functools import cache
from pathlib import Path

from spdnn.errors import DeviceError

USUAL_L2_BYTES = 1 << 20
"""A core's L2 cache, where the machine does not say."""

_L2 = Path("/sys/devices/system/cpu/cpu0/cache")
_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that this process may still take, in bytes: the machine's, or its control group's."""
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
        pass  # not Linux with cgroup v2: the machine's own figure, or none, has to do
    return available


def peak_bytes() -> int:
    """The most memory that this process has had so far, in bytes.

    The kernel's `ru_maxrss` is only taken where there is nothing else: it counts what the program
    had that started this one, such as a shell's Python.
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


def require_bytes(n_bytes: int, what: str, hint: str) -> None:
    """Refuse work that does not fit.

    Raises
    ------
    DeviceError
        If fewer than `n_bytes` are available; `what` needs them, `hint` says what to do.
    """
    available = available_bytes()
    if n_bytes > available:
        raise DeviceError(
            f"{what} needs {n_bytes / 2**30:.1f} GiB of memory, "
            f"{available / 2**30:.1f} GiB are available: {hint}"
        )
