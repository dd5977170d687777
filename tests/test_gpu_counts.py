"""The table of counts that is printed for an official network."""

import pytest

pytest.importorskip("numba_cuda")

from spdnn.engines.cuda.kernels import gpu
from tools import gpu_counts

pytestmark = pytest.mark.skipif(
    gpu.SIMULATED or not gpu.has_compiler(), reason="libNVVM is not installed"
)


def test_counts_are_printed_for_each_kernel_and_its_instructions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("sklearn")
    gpu_counts.main(
        ["--layers", "1", "--features", "32", "--sample", "1", "--instructions", "--launches"]
    )
    printed = capsys.readouterr().out
    instructions, _, kernels = printed.partition("kernel         ")
    assert "ld.shared.f32" in instructions
    lines = {line.split("  ")[0]: line.split()[-15:] for line in kernels.splitlines()}
    assert lines["resident 16, groups (2,)"][-1] == "2.0"  # barriers of a block
    assert lines["resident 16, groups"][:3] == ["1", "2", "0"]
    assert "live features after each layer: 3" in printed
    assert "host: " in printed


def test_columns_are_as_wide_as_their_widest_number() -> None:
    assert gpu_counts.table([["a", "10"], ["kernel", "2"]]) == "a       10\nkernel   2"
