"""Measure the machine: its peaks, the work of other processes, and energy."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np

from spdnn.bench.optional import optional

SGEMM_SIDE = 2048
"""Rows and columns of the matrices that are multiplied."""

COPY_BYTES = 1 << 28
"""Bytes that are copied: more than every cache holds, for the bandwidth of memory."""

REPEATS = 5
"""Measurements of each peak; the best one counts."""

POWERCAP = Path("/sys/class/powercap")
STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Columns of ``/proc/stat`` that count idle time: idle, iowait."""

_GUEST = 8
"""From this column on, ``/proc/stat`` counts time that another column counts, too."""

_MICRO = 1e-6
_MILLI = 1e-3


def peaks(threads: int) -> dict[str, float]:
    """Measure NumPy's float32 matrix product and a copy through memory, the best of several runs.

    Parameters
    ----------
    threads : int
        Threads of both.

    Returns
    -------
    dict
        "threads"; "sgemm_per_second", multiply-adds a second; "copied_bytes_per_second", the
        sum of bytes that are read and bytes that are written.

    Raises
    ------
    DeviceError
        If threadpoolctl is not installed.
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


def _best(work: Callable[[], object]) -> float:
    """The shortest time of several runs, after one that is not measured."""
    work()
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


class Watch:
    """A context that adds up wall time, the work of other processes, and energy."""

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
        """Average number of processors that others used: other processes, or the host."""
        return max(0.0, self.others / self.seconds) if self.seconds else 0.0


def busy_seconds() -> float:
    """Seconds that processors have been busy since the machine was started, summed over all."""
    try:
        columns = STAT.read_text().splitlines()[0].split()[1:]
        ticks = [int(column) for column in columns[:_GUEST]]
    except (OSError, ValueError, IndexError):
        return 0.0
    busy = sum(ticks) - sum(ticks[column] for column in _IDLE)
    return busy / os.sysconf("SC_CLK_TCK")


def energy() -> dict[str, tuple[float, float]]:
    """Read the energy counters of processors and GPUs, as far as they can be read.

    Processor packages are read by RAPL, which only root may do on many machines. NVIDIA GPUs are
    read by NVML if pynvml is installed.

    Returns
    -------
    dict of str to tuple of float
        By name, joules, and the number of joules at which the counter starts again from 0.
    """
    return {**_rapl(), **_nvml()}


def _rapl() -> dict[str, tuple[float, float]]:
    counters = {}
    for folder in sorted(POWERCAP.glob("intel-rapl:[0-9]*")):
        try:
            name = (folder / "name").read_text().strip()
            if name.startswith("package"):  # the other counters are parts of packages
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
