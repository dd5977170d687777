"""The GPU engine against the reference: every kernel, every way through a plan."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import spdnn.engines.cuda.run as cuda_run
from spdnn import DataError, DeviceError, Features, Layer, Network, infer
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.kernels import gpu
from spdnn.engines.cuda.placing import place_weights
from spdnn.engines.cuda.sizes import Kernels, kernels_of
from spdnn.plan.cuda.plan import plan_cuda
from tests.gpu.makers import (
    DEVICE,
    IN_CHUNKS,
    IN_SHARED,
    NOT_IN_SHARED,
    TINY,
    TWO_WARPS,
    WHERE,
    assert_as_reference,
    assert_modes_agree,
    device_with,
    examples,
    many_layers,
    run,
    sizes_with,
    tiny_cases,
)
from tests.makers import dyadic_features

MODES = ("edges", "merge")
SIZES = {"one warp": TINY, "two warps": TWO_WARPS, "in chunks": IN_CHUNKS}


@pytest.mark.simulator
@settings(max_examples=examples(simulator=20, emulated=200, on_gpu=300))
@given(
    tiny_cases(),
    st.sampled_from(MODES),
    st.sampled_from([NOT_IN_SHARED, IN_SHARED]),
    st.sampled_from(sorted(SIZES)),
    st.integers(0, 2**32 - 1),
)
def test_any_network_gives_the_references_result(case, mode, shared_bytes, sizes, seed) -> None:
    device = device_with(seed=seed)
    output = run(*case, mode, shared_bytes, sizes=SIZES[sizes], device=device)
    assert_as_reference(output, *case, mode)


def test_groups_of_any_size_fill_bundles() -> None:
    # Groups of 4, 5, 8 and 11 outputs, and single ones, of 1 to 9 inputs.
    rng = np.random.default_rng(0)
    sizes, degrees = [4, 5, 8, 11, 1, 1], [1, 3, 9, 4, 6, 2]
    mask = np.zeros((12, sum(sizes)), dtype=bool)
    for first, size, degree in zip(np.cumsum(sizes) - sizes, sizes, degrees, strict=True):
        mask[rng.permutation(12)[:degree], first : first + size] = True
    mask = mask[:, rng.permutation(mask.shape[1])]
    weights = mask * rng.choice([-1.0, 0.5, 1.0], size=mask.shape)
    network = Network([Layer(weights, -0.5, 4.0), Layer(np.ones((sum(sizes), 2)), 0.5)])
    assert_modes_agree(network, dyadic_features(1, 5, 12))


def test_outputs_with_more_inputs_than_a_buffer_take_several_stages() -> None:
    rng = np.random.default_rng(2)
    weights = np.where(rng.random((40, 3)) < 0.8, rng.choice([-1.0, 0.5, 1.0], size=(40, 3)), 0)
    features = dyadic_features(3, 6, 40)
    output = run(Network([Layer(weights, -0.5)]), features, "edges")
    assert_as_reference(output, Network([Layer(weights, -0.5)]), features, "edges")


@pytest.mark.parametrize("shared_bytes", [NOT_IN_SHARED, IN_SHARED])
def test_dead_features_count_where_a_later_bias_can_revive_them(shared_bytes: int) -> None:
    layers = [
        Layer(np.eye(2), -1.0),
        Layer(np.eye(2), 0.5, bias_rule="always"),
        Layer(np.eye(2), -0.25),
    ]
    features = Features.from_matrix([[3, 0], [1, 1]])
    output = run(Network(layers), features, "edges", shared_bytes)
    assert output.n_live.tolist() == [1, 2, 2]
    assert output.edges_evaluated.tolist() == [4, 4, 4]


def test_when_all_are_dead_nothing_more_is_evaluated() -> None:
    network = Network([Layer(np.eye(2), -9.0), Layer(np.eye(2)), Layer(np.eye(2))])
    for shared_bytes in (NOT_IN_SHARED, IN_SHARED):
        output = run(network, Features.from_matrix(np.eye(2)), "edges", shared_bytes)
        assert output.live.size == 0
        assert output.edges_evaluated.tolist() == [4, 0, 0]


def test_a_layer_without_outputs_leaves_nothing_live() -> None:
    network = Network([Layer(np.eye(3)), Layer(sp.csr_array((3, 0)))])
    assert_modes_agree(network, Features.from_matrix([[1, 0, 1]]))


@pytest.mark.parametrize("n_features", [6, 100])  # of the latter, several thread blocks list
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shared_bytes", [NOT_IN_SHARED, IN_SHARED])
def test_segments_that_are_joined_give_the_same(
    mode: str, shared_bytes: int, n_features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if few features had gone in every segment: 1, 1, 2 and 4 of them at a time.
    monkeypatch.setattr(cuda_run, "SEGMENT_ENDS", range(1, 10))
    monkeypatch.setattr(cuda_run, "QUIET", 1.0)
    case = many_layers(n_features)
    assert_as_reference(run(*case, mode, shared_bytes), *case, mode)


def noting(device: Any) -> tuple[Any, set[Any]]:
    """A device, and the kernels that it has launched, or prepared for launches."""
    kernels: set[Any] = set()

    def noted(method: Any) -> Any:
        def call(kernel: Any, *how: Any, **named: Any) -> Any:
            kernels.add(kernel)
            return method(kernel, *how, **named)

        return call

    for name in ("launch", "prepared"):
        setattr(device, name, noted(getattr(device, name)))
    return device, kernels


@pytest.mark.parametrize("shared_bytes", [NOT_IN_SHARED, IN_SHARED])
def test_no_kernel_is_left_to_be_compiled_within_a_run(shared_bytes: int) -> None:
    network = Network([Layer(np.ones((9, 9)), -0.5), Layer(np.eye(9))])
    device, launched = noting(device_with())
    engine = CudaEngine(device=device, sizes=sizes_with(shared_bytes))
    engine.compile(network)
    compiled = set(launched)
    launched.clear()
    for n_features, kind in ((16, "binary"), (9, "random")):
        features = dyadic_features(1, n_features, 9, kind)
        for mode in MODES:
            plan = engine.plan(network, mode)
            engine.run(plan, engine.load(plan, features))
    assert launched
    assert launched <= compiled


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shared_bytes", [NOT_IN_SHARED, IN_SHARED])
def test_batches_and_windows_give_the_same(
    mode: str, shared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_run, "HEAD_END", 3)
    monkeypatch.setattr("spdnn.engines.cuda.placing.IN_CORE_SHARE", 0.0)
    monkeypatch.setattr("spdnn.engines.cuda.placing.WINDOW_SHARE", 0.25)
    monkeypatch.setattr("spdnn.engines.cuda.engine.INPUT_SHARE", 0.0)
    case = many_layers(n_features=40)
    engine = CudaEngine(device=device_with(9000), sizes=sizes_with(shared_bytes))
    plan = engine.plan(case[0], mode)
    loaded = engine.load(plan, case[1])
    assert len(loaded.weights.windows) > 2
    assert loaded.weights.is_streamed
    assert loaded.inputs is None
    output = engine.run(plan, loaded, activations=True)
    assert_as_reference(output, *case, mode)


def test_plans_of_other_chunks_or_shared_memory_have_the_same_kernels() -> None:
    assert kernels_of(sizes_with(IN_SHARED)) is kernels_of(TINY) is kernels_of(IN_CHUNKS)
    assert kernels_of(TINY) is not kernels_of(TWO_WARPS)
    assert kernels_of(TINY) is not kernels_of(replace(TINY, threads=64))


def equal_features() -> tuple[Network, Features]:
    rows = np.array([[1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    features = Features.from_matrix(rows[[0, 1, 0, 2, 3, 1, 4, 0]])
    return Network([Layer(np.eye(4) * 2, -0.5), Layer(np.ones((4, 2)), -2.0, 4.0)]), features


@pytest.mark.parametrize("shared_bytes", [NOT_IN_SHARED, IN_SHARED])
def test_equal_features_are_carried_once(shared_bytes: int) -> None:
    case = equal_features()
    output = run(*case, "merge", shared_bytes)
    assert_as_reference(output, *case, "merge")
    # Behind layer 1: seven are live, and four of them differ.
    assert (output.n_live[0], output.n_distinct[0]) == (7, 4)
    # Layer 2 has equal columns: four edges are left of it.
    assert output.edges_evaluated[1] == 4 * 4


@pytest.mark.parametrize(("mode", "shared_bytes"), [("edges", NOT_IN_SHARED), ("merge", IN_SHARED)])
def test_runs_leave_nothing_to_later_ones(mode: str, shared_bytes: int) -> None:
    network, features = many_layers(n_layers=3)
    other = many_layers(n_features=7, n_layers=3)[1]
    largest = np.full(features.n_nonzeros, 3e38, np.float32)
    too_large = Features(9, features.indptr, features.indices, largest)
    engine = CudaEngine(device=device_with(None), sizes=sizes_with(shared_bytes))
    plan = engine.plan(network, mode)
    batches = [(each, engine.load(plan, each)) for each in (features, other)]
    for each, loaded in (*batches, batches[0]):
        output = engine.run(plan, loaded, activations=True)
        assert_as_reference(output, network, each, mode)
    with pytest.raises(DataError, match="activations beyond"):
        engine.run(plan, engine.load(plan, too_large))
    output = engine.run(plan, batches[0][1], activations=True)
    assert_as_reference(output, network, features, mode)


def test_features_are_never_merged_by_hash_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_hash(y_bits, n_neurons, features, hashes) -> None:
        """Leave all codes as they are: equal."""

    case = equal_features()
    kernels = Kernels(TINY)
    kernels.hash_features = gpu.kernel(no_hash)
    monkeypatch.setattr("spdnn.engines.cuda.engine.kernels_of", lambda sizes: kernels)
    output = run(*case, "merge")
    assert_as_reference(output, *case, "merge")
    # All but the first propose the first, and only its equals become it.
    assert output.n_distinct[0] == 5


def test_progress_ends_with_all_work_done() -> None:
    network, features = many_layers()
    for shared_bytes in (NOT_IN_SHARED, IN_SHARED):
        fractions: list[float] = []
        run(network, features, "merge", shared_bytes, progress=fractions.append)
        assert fractions == sorted(fractions)
        assert fractions[-1] == pytest.approx(1.0)


def test_infer_runs_it_and_tells_the_devices_time(monkeypatch: pytest.MonkeyPatch) -> None:
    if WHERE != "GPU":
        monkeypatch.setattr("spdnn.engines.cuda.engine.sizes_for", lambda _: sizes_with(IN_SHARED))
    network = Network([Layer(np.arange(1.0, 17.0).reshape(4, 4), -1.5, 32.0), Layer(np.eye(4))])
    features = Features.from_matrix([[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]])
    expected = infer(network, features, engine="scipy", activations=True)
    result = infer(network, features, engine="cuda", device=DEVICE, mode="edges", activations=True)
    np.testing.assert_array_equal(result.activations, expected.activations)
    assert result.layers == expected.layers
    assert result.device is not None
    assert 0 < result.device.stream <= result.seconds.inference


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    network, _ = many_layers()
    plan = plan_cuda(network, "edges", TINY.plan)
    with pytest.raises(DeviceError, match=r"layer's weights need .* twice, .* are free"):
        place_weights(device_with(500), plan)
    wide = Network([Layer(sp.eye_array(500))])
    with pytest.raises(DeviceError, match=r"32 features of 500 neurons need .*`features`"):
        run(wide, dyadic_features(0, 3, 500), "edges", device=device_with(40_000))
