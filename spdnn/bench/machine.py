"""What the machine does by itself: its peaks, who else is at work, the energy it takes."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np

from spdnn.bench.optional import optional

SGEMM_SIDE = 2048
COPY_BYTES = 1 << 28
"""Beyond every cache, for the bandwidth of memory."""

REPEATS = 5

POWERCAP = Path("/sys/class/powercap")
STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Columns of ``/proc/stat`` in which a processor does nothing: idle, iowait."""

_GUEST = 8
"""From this column on, time that is in another column, too."""

_MICRO = 1e-6
_MILLI = 1e-3


def peaks(threads: int) -> dict[str, float]:
    """Measure NumPy's float32 matrix product and a copy through memory, the best of several.

    Parameters
    ----------
    threads : int

    Returns
    -------
    dict
        "threads"; "sgemm_per_second", multiply-adds (that is, edges) a second;
        "copied_bytes_per_second", read and written bytes together.
    """
    limits = optional("threadpoolctl", "bench").threadpool_limits
    matrix = np.ones((SGEMM_SIDE, SGEMM_SIDE), dtype=np.float32)
    product = np.empty_like(matrix)
    source = np.ones(COPY_BYTES // 4, dtype=np.float32)
    target = np.empty_like(source)
    pieces = [
        (target[part], source[part])
        for part in (
            slice(i * source.size // threads, (i + 1) * source.size // threads)
            for i in range(threads)
        )
    ]
    with ThreadPoolExecutor(threads) as pool, limits(threads):
        sgemm = _best(lambda: np.matmul(matrix, matrix, out=product))
        copy = _best(lambda: list(pool.map(lambda pair: np.copyto(*pair), pieces)))
    return {
        "threads": threads,
        "sgemm_per_second": SGEMM_SIDE**3 / sgemm,
        "copied_bytes_per_second": 2 * COPY_BYTES / copy,
    }


def _best(work: Callable[[], Any]) -> float:
    work()
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


class Watch:
    """Adds up, while it is entered, wall time, others' work and energy."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.others = 0.0
        self.joules: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._begun = time.perf_counter(), busy_seconds() - time.process_time(), energy()
        return self

    def __exit__(self, *_: object) -> None:
        started, others, counters = self._begun
        self.seconds += time.perf_counter() - started
        self.others += busy_seconds() - time.process_time() - others
        now = energy()
        for name in counters.keys() & now.keys():
            used, wraps_at = now[name][0] - counters[name][0], now[name][1]
            used += wraps_at if used < 0 else 0.0
            self.joules[name] = self.joules.get(name, 0.0) + used

    @property
    def others_busy(self) -> float:
        """Processors, on average, that were at work for other processes or stolen by the host."""
        return max(0.0, self.others / self.seconds) if self.seconds else 0.0


def busy_seconds() -> float:
    """Processor seconds since the machine was started in which any of them was not idle."""
    try:
        columns = STAT.read_text().splitlines()[0].split()[1:]
        ticks = [int(column) for column in columns[:_GUEST]]
    except (OSError, ValueError, IndexError):
        return 0.0
    busy = sum(ticks) - sum(ticks[column] for column in _IDLE)
    return busy / os.sysconf("SC_CLK_TCK")


def energy() -> dict[str, tuple[float, float]]:
    """Energy counters that can be read, in joules, and at how many joules they start anew.

    Processor packages by RAPL (root's only on many machines), NVIDIA GPUs by NVML if pynvml is
    installed.
    """
    return {**_rapl(), **_nvml()}


def _rapl() -> dict[str, tuple[float, float]]:
    counters = {}
    for folder in sorted(POWERCAP.glob("intel-rapl:[0-9]*")):
        try:
            name = (folder / "name").read_text().strip()
            if name.startswith("package"):  # its parts are counted in it
                used = int((folder / "energy_uj").read_text())
                wraps_at = int((folder / "max_energy_range_uj").read_text())
                counters[name] = used * _MICRO, wraps_at * _MICRO
        except (OSError, ValueError):
            continue
    return counters


def _nvml() -> dict[str, tuple[float, float]]:
    try:
        import pynvml
    except ImportError:
        return {}
    counters = {}
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            used = pynvml.nvmlDeviceGetTotalEnergyConsumption(device)
            counters[f"gpu-{index}"] = used * _MILLI, float("inf")
    except pynvml.NVMLError:
        pass  # no driver, or a GPU that does not count
    return counters
