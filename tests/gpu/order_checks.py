"""What must hold of the order in which the GPU engine gives its work, on any simulated device."""

from typing import Any

import pytest

from spdnn import Features, Network
from spdnn.engines.base import Output
from spdnn.engines.cuda.device import SimulatedDevice
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.placing import ORIGINS
from spdnn.plan.cuda.plan import WINDOWED
from tests.gpu.late import LateDevice
from tests.gpu.makers import assert_as_reference, many_layers, sizes_with

COPIES = len({*WINDOWED, ORIGINS})
"""Copies of a window."""


def run_late(
    device: LateDevice, case: tuple[Network, Features], mode: str, shared_bytes: int, **options: Any
) -> Output:
    """Run on a late device, and compare with the reference."""
    engine = CudaEngine(device=device, sizes=sizes_with(shared_bytes))
    plan = engine.plan(case[0], mode)
    loaded = engine.load(plan, case[1])
    device.windows.clear()
    device.waits.clear()
    device.n_launched = device.n_awaited = device.n_copied = 0
    output = engine.run(plan, loaded, activations=True, **options)
    assert_as_reference(output, *case, mode)
    return output


def assert_launched_on(inner: SimulatedDevice, mode: str, shared_bytes: int) -> None:
    """The host waits for no number before it has launched what comes behind it."""
    device = LateDevice(inner)
    fractions: list[float] = []
    run_late(device, many_layers(), mode, shared_bytes, progress=fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)
    assert len(device.waits) > 4
    for n_launched, n_to_run in device.waits:
        assert n_to_run > 0 or n_launched == device.n_launched
    # The engine does wait, for the number before: it is never further ahead.
    assert {n_to_run for _, n_to_run in device.waits} != {0}


def assert_windows_overlap(
    inner: SimulatedDevice, mode: str, shared_bytes: int, patch: pytest.MonkeyPatch
) -> None:
    """A window's kernels wait for its copy alone, and its slot is free when it is copied."""
    patch.setattr("spdnn.engines.cuda.placing.IN_CORE_SHARE", 0.0)
    patch.setattr("spdnn.engines.cuda.placing.WINDOW_SHARE", 0.0625)
    for copies_first in (False, True):
        device = LateDevice(inner, copies_first)
        run_late(device, many_layers(n_features=40), mode, shared_bytes)
        n_windows = device.n_awaited
        assert n_windows > 3
        # Loading comes before any window.
        of_windows = [(window - 1, n_copied) for window, n_copied in device.windows if window]
        assert {window for window, _ in of_windows} == set(range(n_windows))
        for window, n_copied in of_windows:
            most = min(window + 2, n_windows) if copies_first else window + 1
            assert n_copied == COPIES * most


def assert_batches_agree(
    inner: SimulatedDevice, mode: str, shared_bytes: int, patch: pytest.MonkeyPatch
) -> None:
    """Batches through streamed windows give the reference's result, however late work is done."""
    patch.setattr("spdnn.engines.cuda.run.HEAD_END", 3)
    patch.setattr("spdnn.engines.cuda.placing.IN_CORE_SHARE", 0.0)
    patch.setattr("spdnn.engines.cuda.placing.WINDOW_SHARE", 0.25)
    patch.setattr("spdnn.engines.cuda.engine.INPUT_SHARE", 0.0)
    for copies_first in (False, True):
        run_late(LateDevice(inner, copies_first), many_layers(n_features=40), mode, shared_bytes)
