"""The GPU engine's plans in files: the same run from there, on kernels of the same sizes only."""

from pathlib import Path

import numpy as np
import pytest

from spdnn import DataError
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.run.plan_files import plan_for
from tests.gpu.makers import (
    IN_SHARED,
    NOT_IN_SHARED,
    TWO_WARPS,
    assert_as_reference,
    device_with,
    many_layers,
    sizes_with,
)


@pytest.mark.parametrize("mode", ["edges", "merge"])
@pytest.mark.parametrize("shared_bytes", [NOT_IN_SHARED, IN_SHARED])
def test_a_kept_plan_is_mapped_and_gives_the_same(
    mode: str, shared_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, features = many_layers()
    engine = CudaEngine(device=device_with(), sizes=sizes_with(shared_bytes))
    made = plan_for(engine, network, mode, tmp_path / "plan")

    def plan_again(*given: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(CudaEngine, "plan", plan_again)
    plan = plan_for(engine, network, mode, tmp_path / "plan")
    assert (plan.work, plan.sizes, plan.is_resident) == (made.work, made.sizes, made.is_resident)
    assert not plan.arrays.steps.flags.owndata
    for kept, array in zip(plan.arrays, made.arrays, strict=True):
        assert kept.dtype == array.dtype
        np.testing.assert_array_equal(kept, array)
    output = engine.run(plan, engine.load(plan, features), activations=True)
    assert_as_reference(output, network, features, mode)


def test_a_plan_for_kernels_of_other_sizes_is_refused(tmp_path: Path) -> None:
    network, _ = many_layers()
    own, others = (
        CudaEngine(device=device_with(), sizes=sizes)
        for sizes in (sizes_with(IN_SHARED), sizes_with(IN_SHARED, TWO_WARPS))
    )
    plan_for(own, network, "merge", tmp_path / "plan")
    before = (tmp_path / "plan").read_bytes()
    with pytest.raises(DataError, match=r"this plan is another one's .bundle: 1, not 2.: name"):
        plan_for(others, network, "merge", tmp_path / "plan")
    less = CudaEngine(device=device_with(), sizes=sizes_with(NOT_IN_SHARED))
    with pytest.raises(DataError, match=r"another one's .shared_bytes: 49152, not 0."):
        plan_for(less, network, "merge", tmp_path / "plan")
    assert (tmp_path / "plan").read_bytes() == before


def test_a_plan_of_another_layout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, _ = many_layers()
    with monkeypatch.context() as earlier:
        earlier.setattr("spdnn.engines.cuda.engine.LAYOUT", 1)
        before = CudaEngine(device=device_with(), sizes=sizes_with(IN_SHARED))
        plan_for(before, network, "edges", tmp_path / "plan")
    engine = CudaEngine(device=device_with(), sizes=sizes_with(IN_SHARED))
    with pytest.raises(DataError, match=r"this plan is another one's .layout: 1, not 2."):
        plan_for(engine, network, "edges", tmp_path / "plan")
