"""Long outputs: cut into chunks, summed by many threads, finished by whichever comes last."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spdnn.engines.cuda.run as cuda_run
from spdnn import Features, Layer, Network
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.sizes import CudaSizes
from spdnn.plan.cuda.plan import plan_cuda
from tests.gpu.makers import (
    IN_CHUNKS,
    IN_SHARED,
    TINY,
    TWO_WARPS,
    WHERE,
    assert_as_reference,
    device_with,
    examples,
    run,
)
from tests.makers import FEATURE_KINDS, dyadic_features, dyadic_network

MODES = ("edges", "merge")
ITS_INDICES = np.ndindex


def cut(chunk: int, skew: int, sizes: CudaSizes = TINY) -> CudaSizes:
    """CudaSizes with such chunks."""
    return replace(sizes, plan=replace(sizes.plan, chunk=chunk, skew=skew))


def n_chunks(network: Network, sizes: CudaSizes, mode: str = "edges") -> int:
    """The most chunks of a step."""
    return plan_cuda(network, mode, sizes.plan).max_chunks


@st.composite
def skewed_cases(draw: st.DrawFn) -> tuple[Network, Features]:
    """A dyadic network of a layer or two, of which some outputs have most edges."""
    widths = [draw(st.integers(1, 40)), draw(st.integers(1, 10)), draw(st.integers(1, 4))]
    kinds = draw(
        st.lists(st.sampled_from(["power law", "dense column", "full"]), min_size=1, max_size=2)
    )
    seed = draw(st.integers(0, 2**32 - 1))
    network = dyadic_network(
        seed, widths[: len(kinds) + 1], kinds, always=True, linear_end=draw(st.booleans())
    )
    n_features = draw(st.sampled_from([1, 5, 9]))
    return network, dyadic_features(
        seed, n_features, widths[0], draw(st.sampled_from(FEATURE_KINDS))
    )


@settings(max_examples=examples(simulator=8, emulated=100, on_gpu=200))
@given(
    skewed_cases(),
    st.sampled_from(MODES),
    st.sampled_from([cut(2, 0), cut(3, 2), cut(7, 1), cut(3, 0, TWO_WARPS)]),
    st.integers(0, 2**32 - 1),
)
def test_skewed_layers_give_the_references_result(case, mode, sizes, seed) -> None:
    output = run(*case, mode, sizes=sizes, device=device_with(seed=seed))
    assert_as_reference(output, *case, mode)


@pytest.mark.simulator
def test_one_output_with_all_inputs_among_outputs_without_any() -> None:
    weights = np.zeros((100, 5))
    weights[:, 3] = np.tile([-1.0, 0.5, 1.0, 0.5], 25)
    network = Network([Layer(weights, [0.5, 0, -1, -0.5, 0], 8.0, bias_rule="always")])
    assert n_chunks(network, IN_CHUNKS) == 34  # of 3 edges, the last of one; two blocks
    case = network, dyadic_features(0, 6, 100)
    assert_as_reference(run(*case, "edges", sizes=IN_CHUNKS), *case, "edges")


@pytest.mark.parametrize(("degree", "expected"), [(6, 0), (7, 3)])
def test_outputs_on_both_sides_of_the_threshold(degree: int, expected: int) -> None:
    network = Network([Layer(np.arange(9)[:, None] < [degree, *[1] * 8], -0.5)])
    assert n_chunks(network, IN_CHUNKS) == expected
    case = network, dyadic_features(1, 4, 9)
    assert_as_reference(run(*case, "edges", sizes=IN_CHUNKS), *case, "edges")


@pytest.mark.parametrize("mode", MODES)
def test_every_output_may_be_long_and_the_last_layer_linear(mode: str) -> None:
    rng = np.random.default_rng(3)
    first = rng.choice([-1.0, 0.5, 1.0], size=(12, 5))
    last = rng.choice([-1.0, 0.5], size=(5, 3))
    network = Network(
        [Layer(first, rng.choice([-0.5, 0.5], size=5), 4.0), Layer(last, -0.5, activation="linear")]
    )
    sizes = cut(2, 0)
    assert n_chunks(network, sizes, mode) == 5 * 6
    case = network, dyadic_features(3, 6, 12)
    assert_as_reference(run(*case, mode, sizes=sizes), *case, mode)


def reversed_indices(*shape: int) -> Iterator[tuple[int, ...]]:
    """All places of an array, the last one first."""
    return iter(list(ITS_INDICES(*shape))[::-1])


def test_whoever_comes_last_the_sums_are_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    weights = np.zeros((120, 3), dtype=np.float32)
    weights[:, 1] = rng.normal(size=120) * 10 ** rng.uniform(-3, 3, 120)
    weights[:2, 2] = 1.0
    one_way, other_way = (np.add.accumulate(w)[-1] for w in (weights[:, 1], weights[::-1, 1]))
    assert one_way != other_way
    network = Network([Layer(weights, 0.0, activation="linear")])
    assert n_chunks(network, IN_CHUNKS) == 40
    features = Features.from_matrix(np.ones((3, 120)))
    first = run(network, features, "edges", sizes=IN_CHUNKS).activations
    # In the simulator blocks and threads come in the order of their numbers; on a GPU in any.
    monkeypatch.setattr(np, "ndindex", reversed_indices)
    for seed in range(1 if WHERE == "simulator" else 20):
        device = device_with(seed=seed)
        again = run(network, features, "edges", sizes=IN_CHUNKS, device=device).activations
        np.testing.assert_array_equal(again.view(np.uint32), first.view(np.uint32))


def skewed_layers(n_features: int = 5) -> tuple[Network, Features]:
    """Six layers, every other one with a long output."""
    network = dyadic_network(8, [9] * 7, ["power law", "random"] * 3)
    return network, dyadic_features(8, n_features, 9)


def test_steps_with_and_without_chunks_follow_each_other() -> None:
    case = skewed_layers()
    has_chunks = [
        of_step.has_chunks
        for of_step in cuda_run.launches_of(
            plan_cuda(case[0], "edges", IN_CHUNKS.plan).arrays.steps
        )
    ]
    assert set(has_chunks) == {True, False}
    assert_as_reference(run(*case, "edges", sizes=IN_CHUNKS), *case, "edges")


def test_batches_and_windows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_run, "HEAD_END", 3)
    monkeypatch.setattr("spdnn.engines.cuda.placing.IN_CORE_SHARE", 0.0)
    monkeypatch.setattr("spdnn.engines.cuda.placing.WINDOW_SHARE", 0.25)
    monkeypatch.setattr("spdnn.engines.cuda.engine.INPUT_SHARE", 0.0)
    case = skewed_layers(n_features=40)
    engine = CudaEngine(device=device_with(9000), sizes=IN_CHUNKS)
    plan = engine.plan(case[0], "edges")
    loaded = engine.load(plan, case[1])
    assert plan.max_chunks > 0
    assert len(loaded.weights.windows) > 2
    assert_as_reference(engine.run(plan, loaded, activations=True), *case, "edges")


@pytest.mark.parametrize("mode", MODES)
def test_a_network_with_a_long_output_is_not_resident(mode: str) -> None:
    network, _ = skewed_layers()
    sizes = replace(IN_CHUNKS.plan, shared_bytes=IN_SHARED)
    assert not plan_cuda(network, mode, sizes).is_resident
    assert plan_cuda(network, mode, replace(sizes, skew=100)).is_resident
