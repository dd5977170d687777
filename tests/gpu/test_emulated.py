"""The emulated device itself: its checks, orders of blocks and threads, how users ask for it.

All other tests of the engine run on it, too, without checks.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spdnn.engines.cuda.run as cuda_run
from spdnn import DeviceError, Features, Layer, Network, Session, infer
from spdnn.cli.main import main
from spdnn.engines.cuda.emulated.device import CheckedDevice, EmulatedDevice
from spdnn.engines.cuda.emulated.launch import Program
from spdnn.engines.cuda.emulated.ptx import parse
from spdnn.engines.cuda.kernels import gpu
from spdnn.engines.cuda.sizes import CudaSizes
from spdnn.plan.cuda.sizes import PlanSizes
from tests.gpu.makers import (
    IN_CHUNKS,
    IN_SHARED,
    NOT_IN_SHARED,
    TINY,
    TWO_WARPS,
    assert_as_reference,
    many_layers,
    run,
    tiny_cases,
)
from tests.makers import dyadic_features

pytestmark = pytest.mark.skipif(not gpu.has_compiler(), reason="libNVVM is not installed")

MODES = ("edges", "merge")
SIZES = {"one warp": TINY, "two warps": TWO_WARPS, "in chunks": IN_CHUNKS}
PLACES = (NOT_IN_SHARED, IN_SHARED)


@settings(max_examples=30)
@given(
    tiny_cases(),
    st.sampled_from(MODES),
    st.sampled_from(PLACES),
    st.sampled_from(sorted(SIZES)),
    st.integers(0, 2**32 - 1),
)
def test_any_network_passes_the_checks(case, mode, shared_bytes, sizes, seed) -> None:
    device = CheckedDevice(seed=seed)
    output = run(*case, mode, shared_bytes, sizes=SIZES[sizes], device=device)
    assert_as_reference(output, *case, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shared_bytes", PLACES)
def test_every_order_of_blocks_and_threads_gives_the_same_bits(mode, shared_bytes) -> None:
    network, features = many_layers(n_features=40)
    for sizes in (TINY, IN_CHUNKS):
        outputs = [
            run(network, features, mode, shared_bytes, sizes=sizes, device=device)
            for device in (EmulatedDevice(), *(EmulatedDevice(seed=seed) for seed in range(4)))
        ]
        for output in outputs:
            assert output.activations is not None
            assert output.activations.tobytes() == outputs[0].activations.tobytes()
            np.testing.assert_array_equal(output.live, outputs[0].live)
            np.testing.assert_array_equal(output.n_distinct, outputs[0].n_distinct)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shared_bytes", PLACES)
def test_batches_and_windows_pass_the_checks(
    mode: str, shared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_run, "HEAD_END", 3)
    monkeypatch.setattr("spdnn.engines.cuda.placing.IN_CORE_SHARE", 0.0)
    monkeypatch.setattr("spdnn.engines.cuda.placing.WINDOW_SHARE", 0.25)
    monkeypatch.setattr("spdnn.engines.cuda.engine.INPUT_SHARE", 0.0)
    case = many_layers(n_features=40)
    output = run(*case, mode, shared_bytes, device=CheckedDevice(9000))
    assert_as_reference(output, *case, mode)


def test_inputs_with_values_pass_the_checks() -> None:
    network, _ = many_layers()
    features = dyadic_features(3, 40, 9, "random")
    assert features.values is not None
    output = run(network, features, "merge", IN_SHARED, device=CheckedDevice())
    assert_as_reference(output, network, features, "merge")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[Network, Features]:
    """A case, and kernels of small sizes for whoever asks for an engine."""
    monkeypatch.setattr("spdnn.engines.cuda.engine.sizes_for", lambda _: TINY)
    return many_layers()


@pytest.mark.parametrize("device", ["emulated", "emulated-checked"])
def test_users_can_ask_for_it(device: Any, small: tuple[Network, Features]) -> None:
    network, features = small
    expected = infer(network, features, engine="scipy", activations=True)
    result = infer(network, features, engine="cuda", device=device, activations=True)
    np.testing.assert_array_equal(result.activations, expected.activations)
    assert result.is_emulated
    with Session(network, engine="cuda", device=device, mode="edges") as session:
        assert session.run(features).layers == expected.layers


def test_output_and_records_say_that_it_is_no_gpu(
    small: tuple[Network, Features], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--neurons", "1024", "--layers", "2", "--features", "40", "--data", "."]
    asked = ["run", *arguments, "--engine", "cuda", "--device", "emulated", "--check", "reference"]
    assert main([*asked, "--json", "r.json"]) == 0
    printed = capsys.readouterr().out
    assert "EMULATED: a GPU's instructions, executed on the CPU" in printed
    assert "TeraEdges" not in printed
    facts = json.loads(Path("r.json").read_text())
    assert facts["emulated"].endswith("no time of it is a GPU's")
    assert facts["edges_per_second"] is None
    facts["categories"] |= {"truth": "passed", "check": "all"}
    Path("r.json").write_text(json.dumps(facts))
    assert main(["report", "r.json"]) == 2
    assert "nothing to report" in capsys.readouterr().err
    assert main(["compare", "r.json", "r.json"]) == 0
    assert "no case is in both" in capsys.readouterr().out


def test_a_device_that_is_not_known_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DeviceError, match="unknown device 'gpu': a GPU's number, emulated, "):
        infer(Network([Layer(np.eye(2))]), np.eye(2), engine="cuda", device="gpu")  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        main(["run", "--engine", "cuda", "--device", "gpu"])
    message = "'gpu' is neither a GPU's number from 0 nor emulated, emulated-checked"
    assert message in capsys.readouterr().err


def test_without_the_compiler_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "has_compiler", lambda: False)
    with pytest.raises(DeviceError) as raised:
        EmulatedDevice()
    assert str(raised.value) == (
        "an emulated GPU needs libNVVM, which is not there: pip install 'spdnn[gpu-proof]'"
    )


def kernel_of(*statements: str) -> str:
    """PTX of a kernel that does some things with registers."""
    body = "\n".join(f"\t{statement};" for statement in statements)
    registers = ".reg .pred %p<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;"
    return f".visible .entry k(\n.param .u64 k_param_0\n)\n{{\n{registers}\n{body}\nret;\n}}\n"


@pytest.mark.parametrize(
    "statement",
    [
        "shfl.sync.idx.b32 %r1, %r2, %r3, 31, -1",
        "add.ftz.f32 %f1, %f2, %f3",
        "fma.rz.f32 %f1, %f2, %f3, %f4",
        "ld.global.v8.f32 %f1, [%rd1]",
        "mov.u32 %r1, %clock",
        "bar.sync 1",
        "atom.global.inc.u32 %r1, [%rd1], %r2",
        "cvt.rzi.s32.f32 %r1, %f1",
        "setp.lt.and.s32 %p1, %r1, %r2, %p2",
    ],
)
def test_an_instruction_that_is_not_known_is_one_line_with_it(statement: str) -> None:
    with pytest.raises(DeviceError) as raised:
        Program(parse(kernel_of(statement), "k"))
    assert str(raised.value) == (
        f"kernel k: the emulated device does not know the instruction {statement!r}"
    )


@pytest.fixture(params=[True, False], ids=["resident", "a launch a step"])
def official(
    request: pytest.FixtureRequest, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """What runs the official network, with the resident kernel or without."""
    if not request.param:
        sizes = CudaSizes(PlanSizes(shared_bytes=NOT_IN_SHARED))
        monkeypatch.setattr("spdnn.engines.cuda.engine.sizes_for", lambda _: sizes)
    network = ["--neurons", "1024", "--layers", "120", "--data", str(shared_data)]
    return ["run", *network, "--engine", "cuda"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_some_features_of_the_official_network_pass_the_checks(
    mode: str, official: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*official, "--device", "emulated-checked", "--mode", mode, "--features", "600"]
    assert main(asked) == 0
    assert "CHALLENGE PASSED: 7 categories" in capsys.readouterr().out
