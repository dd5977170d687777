"""Measurements of the machine: energy counters, other processes, peaks."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from spdnn.bench import machine
from spdnn.bench.machine import Watch, busy_seconds, energy, peaks


@pytest.fixture
def powercap(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like that of the Linux kernel: two packages, and a part of one."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for zone, name, used in (("0", "package-0", 5), ("1", "package-1", 90), ("0:0", "core", 3)):
        write_zone(Path(f"intel-rapl:{zone}"), name, used)
    monkeypatch.setattr(machine, "POWERCAP", Path())
    return Path()


def write_zone(folder: Path, name: str, joules: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{joules * 10**6}\n")
    (folder / "max_energy_range_uj").write_text(f"{100 * 10**6}\n")


def test_packages_are_counted_and_their_parts_are_not(powercap: Path) -> None:
    assert energy() == {"package-0": (5.0, 100.0), "package-1": (90.0, 100.0)}


def test_a_watch_adds_up_and_knows_that_counters_start_anew(powercap: Path) -> None:
    watch = Watch()
    for joules in (25, 10):
        with watch:
            write_zone(powercap / "intel-rapl:0", "package-0", joules)
    assert watch.joules == {"package-0": 20.0 + 85.0, "package-1": 0.0}


def test_counters_that_cannot_be_read_are_left_out(
    powercap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    assert set(energy()) == {"package-0"}
    monkeypatch.setattr(machine, "POWERCAP", Path("nowhere"))
    assert energy() == {}


def test_gpus_are_counted_where_nvml_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def used(device: int) -> int:
        if device:
            raise NVMLError
        return 1500

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=used,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(machine, "POWERCAP", Path("nowhere"))
    assert energy() == {"gpu-0": (1.5, float("inf"))}


def test_others_at_work_are_what_this_process_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter([100.0, 100.0 + 3.0])
    own = iter([10.0, 10.0 + 1.0])
    now = iter([0.0, 4.0])
    monkeypatch.setattr(machine, "busy_seconds", lambda: next(busy))
    monkeypatch.setattr(time, "process_time", lambda: next(own))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    with (watch := Watch()):
        pass
    assert watch.others_busy == pytest.approx(0.5)


def test_the_kernel_s_counters_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = machine.os.sysconf("SC_CLK_TCK")
    #                                 user nice sys idle wait irq soft stolen guest
    Path("stat").write_text(f"cpu  {ticks} 0 {ticks} 999 99 0 0 {ticks} 77 0\ncpu0 1 2\n")
    monkeypatch.setattr(machine, "STAT", Path("stat"))
    assert busy_seconds() == 3.0
    monkeypatch.setattr(machine, "STAT", Path("nowhere"))
    assert busy_seconds() == 0.0


def test_peaks_are_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SGEMM_SIDE", 64)
    monkeypatch.setattr(machine, "COPY_BYTES", 1 << 16)
    found = peaks(2)
    assert found["threads"] == 2
    assert min(found["sgemm_per_second"], found["copied_bytes_per_second"]) > 1e6
