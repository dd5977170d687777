"""Every engine against the reference, and the reference against the definition."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import spdnn.engines.cpu.engine as cpu_engine
from spdnn import Features, Layer, Network, Result, infer
from spdnn.plan.cpu import split
from tests.makers import dyadic_cases, dyadic_features, dyadic_network, float_cases
from tests.oracle import dense_inference


@contextmanager
def tiny_chunks() -> Iterator[None]:
    """Cut outputs of a handful of inputs into chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "CPU_CHUNK", 3)
        patch.setattr(split, "LONGEST", 4)
        yield


@contextmanager
def tiny_cpu_engine(
    stage_ends: tuple[int, ...] = (1, 2, 4), pool_bytes: int = 4096, max_tile: int = 16
) -> Iterator[None]:
    """Shrink the CPU engine's sizes, so that small cases reach every seam between its parts.

    Long outputs are cut, few features are dealt out to all threads, and fewer share a tile.
    """
    with pytest.MonkeyPatch.context() as patch, tiny_chunks():
        patch.setattr(cpu_engine, "STAGE_ENDS", stage_ends)
        patch.setattr(cpu_engine, "LOOK_ENDS", (1, 2, 3, 5, 6, 9))
        patch.setattr(cpu_engine, "POOL_BYTES", pool_bytes)
        patch.setattr(cpu_engine, "MAX_TILE", max_tile)
        for limit in ("WORTH_WAKING", "WORTH_MEETING", "WORTH_FETCHING"):
            patch.setattr(cpu_engine, limit, 0)
        yield


def assert_same(result: Result, expected: Result, **tolerance: Any) -> None:
    """Live features, counters and activations of two results are equal."""
    np.testing.assert_array_equal(result.live, expected.live)
    assert [layer.live for layer in result.layers] == [layer.live for layer in expected.layers]
    assert result.activations.shape == expected.activations.shape
    if tolerance:
        np.testing.assert_allclose(result.activations, expected.activations, **tolerance)
    else:
        np.testing.assert_array_equal(result.activations, expected.activations)


def assert_modes_agree(network: Network, features: Features, **tolerance: Any) -> None:
    """Both modes of the CPU engine give the reference's result."""
    expected = infer(network, features, engine="scipy", activations=True)
    for mode in ("edges", "merge"):
        result = infer(network, features, engine="cpu", mode=mode, threads=2, activations=True)
        assert_same(result, expected, **tolerance)


@given(dyadic_cases(always=True))
def test_the_reference_follows_the_definition(case: tuple[Network, Features]) -> None:
    network, features = case
    maps = dense_inference(network, features)
    result = infer(network, features, engine="scipy", activations=True)
    is_live = [(Y != 0).any(axis=1) for Y in maps]
    assert [layer.live for layer in result.layers] == [np.count_nonzero(live) for live in is_live]
    np.testing.assert_array_equal(result.live, np.flatnonzero(is_live[-1]))
    np.testing.assert_array_equal(result.activations, maps[-1][is_live[-1]])


@given(dyadic_cases(always=True))
def test_cpu_equals_the_reference_exactly_where_sums_are_exact(
    case: tuple[Network, Features],
) -> None:
    assert_modes_agree(*case)


@given(
    dyadic_cases(always=True, max_layers=12),
    st.sampled_from([(1,), (1, 2, 3, 4, 5, 6, 7), (2, 5), (3, 100)]),
    st.sampled_from([1, 2048, 1 << 20]),
    st.sampled_from([16, 32]),
)
def test_cpu_equals_the_reference_across_stages_pools_and_tiles(
    case: tuple[Network, Features], stage_ends: tuple[int, ...], pool_bytes: int, max_tile: int
) -> None:
    with tiny_cpu_engine(stage_ends, pool_bytes, max_tile):
        assert_modes_agree(*case)


@given(float_cases())
def test_cpu_equals_the_reference_up_to_rounding(case: tuple[Network, Features]) -> None:
    assert_modes_agree(*case, rtol=2e-4, atol=2e-5)


@given(dyadic_cases())
def test_cpu_evaluates_as_many_edges_as_the_reference(case: tuple[Network, Features]) -> None:
    network, features = case
    result = infer(network, features, engine="cpu", mode="edges")
    assert result.layers == infer(network, features, engine="scipy").layers


@given(dyadic_cases())
def test_edges_are_counted_for_the_features_that_enter_a_layer(
    case: tuple[Network, Features],
) -> None:
    network, features = case
    result = infer(network, features, engine="cpu", mode="edges")
    entering = [features.n_features, *(layer.live for layer in result.layers[:-1])]
    counted = [layer.edges_evaluated for layer in result.layers]
    expected = [n * edges for n, edges in zip(entering, network.layer_edges, strict=True)]
    assert counted == expected


@pytest.mark.parametrize("engine", ["cpu", "scipy"])
def test_dead_features_count_where_a_later_bias_can_revive_them(engine: str) -> None:
    # Layer 1 kills feature 2; layer 2 gives every feature an activation again.
    layers = [
        Layer(np.eye(2), -1.0),
        Layer(np.eye(2), 0.5, bias_rule="always"),
        Layer(np.eye(2), -0.25),
    ]
    features = Features.from_matrix([[3, 0], [1, 1]])
    result = infer(Network(layers), features, engine=engine, mode="edges")
    assert [layer[:2] for layer in result.layers] == [(1, 4), (2, 4), (2, 4)]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("max_tile", [16, 64])
@pytest.mark.parametrize("mode", ["edges", "merge"])
def test_cpu_gives_the_same_bits_for_any_threads_and_tiles(
    threads: int, max_tile: int, mode: str
) -> None:
    rng = np.random.default_rng(5)
    layers = [
        Layer(sp.random_array((96, 96), density=0.1, rng=rng), rng.normal(size=96) * 0.1, 2.0)
        for _ in range(9)
    ]
    features = Features.from_matrix(sp.random_array((500, 96), density=0.1, rng=rng))
    wanted: dict[str, Any] = {"engine": "cpu", "mode": mode, "activations": True}
    expected = infer(Network(layers), features, threads=1, **wanted)
    with tiny_cpu_engine(max_tile=max_tile):
        result = infer(Network(layers), features, threads=threads, **wanted)
    assert result.activations.tobytes() == expected.activations.tobytes()
    assert_same(result, expected)
    assert expected.live.size > 100  # or this would show nothing


@pytest.mark.parametrize("kind", ["full", "dense column", "cancel"])
def test_cpu_takes_thousands_of_edges_a_neuron(kind: str) -> None:
    network = dyadic_network(3, [3000, 24, 7], [kind, "full"])
    assert_modes_agree(network, dyadic_features(4, 20, 3000))


@pytest.mark.parametrize("size", range(1, 21))
def test_cpu_takes_groups_of_any_size_that_share_their_inputs(size: int) -> None:
    rng = np.random.default_rng(size)
    pattern = np.zeros((30, 2 * size), dtype=bool)
    pattern[:7, :size] = True
    pattern[5:20:2, size:] = True
    shuffled = pattern[:, rng.permutation(2 * size)]
    weights = shuffled * rng.choice([-1.0, 0.5, 1.0], size=shuffled.shape)
    network = Network([Layer(weights, -0.5, 4.0), Layer(np.ones((2 * size, 3)), 0.5)])
    assert_modes_agree(network, dyadic_features(size, 18, 30))


def test_a_sum_that_cancels_exactly_gets_no_bias_by_the_challenges_rule() -> None:
    weights = np.array([[1.0, 1.0], [-1.0, 1.0]])
    features = Features.from_matrix([[1, 1]])
    for engine in ("cpu", "scipy"):
        nonzero = infer(Network([Layer(weights, 0.5)]), features, engine=engine, activations=True)
        always = infer(
            Network([Layer(weights, 0.5, bias_rule="always")]),
            features,
            engine=engine,
            activations=True,
        )
        assert nonzero.activations.tolist() == [[0.0, 2.5]]
        assert always.activations.tolist() == [[0.5, 2.5]]


@pytest.mark.parametrize("engine", ["cpu", "scipy"])
def test_a_linear_layer_keeps_negative_sums_and_calls_them_live(engine: str) -> None:
    network = Network([Layer(-np.eye(2), activation="linear")])
    features = Features.from_matrix([[2, 0], [0, 0]])
    result = infer(network, features, engine=engine, activations=True)
    assert result.live.tolist() == [0]
    assert result.activations.tolist() == [[-2.0, 0.0]]


@pytest.mark.parametrize("engine", ["cpu", "scipy"])
def test_no_features_give_an_empty_result(engine: str) -> None:
    network = dyadic_network(1, [5, 4, 3], ["full", "full"])
    result = infer(network, dyadic_features(1, 0, 5), engine=engine, activations=True)
    assert result.live.size == 0
    assert result.activations.shape == (0, 3)
    assert [tuple(layer) for layer in result.layers] == [(0, 0, 0), (0, 0, 0)]


@pytest.mark.parametrize("engine", ["cpu", "scipy"])
def test_a_layer_without_outputs_leaves_nothing_live(engine: str) -> None:
    network = Network([Layer(np.eye(3)), Layer(sp.csr_array((3, 0)))])
    result = infer(network, Features.from_matrix([[1, 0, 1]]), engine=engine, activations=True)
    assert [layer.live for layer in result.layers] == [1, 0]
    assert result.activations.shape == (0, 0)


def test_progress_ends_with_all_work_done() -> None:
    network = dyadic_network(2, [20] * 9, ["shared"] * 8)
    features = dyadic_features(2, 70, 20)
    for engine in ("cpu", "scipy"):
        fractions: list[float] = []
        with tiny_cpu_engine():
            infer(network, features, engine=engine, threads=1, progress=fractions.append)
        assert fractions == sorted(fractions)
        assert fractions[-1] == pytest.approx(1.0)


def test_features_of_another_width_are_refused() -> None:
    from spdnn import DataError

    with pytest.raises(DataError, match=r"features have 3 neurons.*takes 2 inputs"):
        infer(Network([Layer(np.eye(2))]), Features.from_matrix(np.eye(3)))


def test_a_plan_beyond_the_memory_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from spdnn import DeviceError

    network = Network([Layer(np.ones((40, 40)))])
    monkeypatch.setattr("spdnn.machine.memory.available_bytes", lambda: 1000)
    with pytest.raises(DeviceError, match="of memory"):
        infer(network, Features.from_matrix(np.eye(40)), engine="cpu")


def test_nothing_is_compiled_in_a_run() -> None:
    engine = cpu_engine.CpuEngine(2)
    network = Network([Layer(np.eye(40) + np.eye(40)[::-1], -0.25, 1.0)] * 20)
    engine.compile(network)
    kernels = {
        name: value
        for module_name, module in sys.modules.items()
        if module_name.startswith("spdnn.engines.")
        for name, value in vars(module).items()
        if hasattr(value, "signatures")
    }
    before = {name: len(kernel.signatures) for name, kernel in kernels.items()}
    for mode in engine.modes:
        plan = engine.plan(network, mode)
        for kind in ("binary", "random"):
            engine.run(plan, engine.load(plan, dyadic_features(1, 50, 40, kind)), activations=True)
    assert {name: len(kernel.signatures) for name, kernel in kernels.items()} == before
