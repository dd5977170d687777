"""The order in which the engine gives its work, with compiled kernels on the emulated device."""

import pytest

from spdnn.engines.cuda.emulated.device import EmulatedDevice
from spdnn.engines.cuda.kernels import gpu
from tests.gpu.makers import IN_SHARED, NOT_IN_SHARED
from tests.gpu.order_checks import (
    assert_batches_agree,
    assert_launched_on,
    assert_windows_overlap,
)

pytestmark = pytest.mark.skipif(not gpu.has_compiler(), reason="libNVVM is not installed")


@pytest.mark.parametrize("mode", ["edges", "merge"])
@pytest.mark.parametrize("shared_bytes", [NOT_IN_SHARED, IN_SHARED])
def test_the_next_segment_is_launched_before_a_count_is_read(mode: str, shared_bytes: int) -> None:
    assert_launched_on(EmulatedDevice(), mode, shared_bytes)


@pytest.mark.parametrize(("mode", "shared_bytes"), [("edges", NOT_IN_SHARED), ("merge", IN_SHARED)])
def test_windows_are_copied_while_others_are_used(
    mode: str, shared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_windows_overlap(EmulatedDevice(36_000), mode, shared_bytes, monkeypatch)


@pytest.mark.parametrize("mode", ["edges", "merge"])
@pytest.mark.parametrize("shared_bytes", [NOT_IN_SHARED, IN_SHARED])
def test_batches_through_windows_give_the_same_however_late(
    mode: str, shared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_batches_agree(EmulatedDevice(9000), mode, shared_bytes, monkeypatch)
