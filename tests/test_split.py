"""Long outputs cut into chunks, and threads that share a tile."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spdnn import Features, Layer, Network, infer
from spdnn.engines.cpu import engine as cpu_engine
from spdnn.engines.cpu.kernels.team import Team, break_up, gather_team, meet
from spdnn.plan.cpu import split
from spdnn.plan.cpu.plan import CHUNKS, FINISH, PART, ROWS, WHOLE, plan_edges, plan_merge
from spdnn.plan.cpu.split import CPU_CHUNK, LONGEST, split_long
from spdnn.recipes.radixnet import official_network
from tests.test_engines_agree import assert_modes_agree, assert_same, tiny_cpu_engine


def layer_of(degrees: Any, n_inputs: int, seed: int = 0) -> sp.csc_array:
    """Random weights with so many edges an output, wherever they lie."""
    rng = np.random.default_rng(seed)
    rows = [rng.choice(n_inputs, degree, replace=False) for degree in degrees]
    columns = np.repeat(np.arange(len(degrees)), degrees)
    weights = rng.normal(size=columns.size).astype(np.float32)
    layer = sp.csc_array((weights, (np.concatenate(rows), columns)), (n_inputs, len(degrees)))
    layer.sort_indices()
    return layer


def power_law_network(n_layers: int = 4, seed: int = 0) -> Network:
    """Layers of 300 neurons, whose most connected one has all inputs."""
    degrees = np.maximum(300 / np.arange(1, 301), 2).astype(int)
    rng = np.random.default_rng(seed)
    layers = []
    for number in range(n_layers):
        weights = layer_of(rng.permutation(degrees), 300, seed + number)
        bias = rng.normal(size=300) * 0.1
        rule = "always" if number % 2 else "nonzero"
        is_last = number == n_layers - 1
        kind = "linear" if is_last else "relu"
        layers.append(Layer(weights, bias, None if is_last else 4.0, kind, rule))
    return Network(layers)


def some_features(n_features: int, n_inputs: int, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)
    return Features.from_matrix(
        rng.random((n_features, n_inputs)) * (rng.random((n_features, n_inputs)) < 0.3)
    )


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
)
def test_the_parts_make_up_the_layer(degrees: list[int], chunk: int, seed: int) -> None:
    columns = layer_of(degrees, 40, seed)
    position = np.random.default_rng(seed).permutation(40).astype(np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "CPU_CHUNK", chunk)
        patch.setattr(split, "LONGEST", 2 * chunk)
        parts = split_long(columns, position)
    if parts is None:
        return
    whole = np.zeros(columns.shape, np.float32)
    whole[:, parts.short] = parts.rows.toarray()
    whole[:, parts.long] = (parts.chunks @ parts.sums).toarray()[position]
    np.testing.assert_array_equal(whole, columns.toarray())
    assert (np.diff(parts.chunks.indptr) <= chunk).all()
    # All chunks of an output are full but for one, and each is one output's.
    n_full = [
        np.count_nonzero(np.diff(parts.chunks.indptr)[of] == chunk) for of in chunks_of(parts)
    ]
    assert n_full == [degrees[output] // chunk for output in parts.long]
    assert np.bincount(parts.sums.indices).tolist() == [1] * parts.chunks.shape[1]


def chunks_of(parts: split.Split) -> list[np.ndarray]:
    return np.split(parts.sums.indices, parts.sums.indptr[1:-1])


@pytest.mark.parametrize(
    ("degrees", "n_long"),
    [
        ([LONGEST, 5, 5], 1),
        ([LONGEST - 1, 5, 5], 0),
        ([LONGEST + CPU_CHUNK + 1] * 3 + [LONGEST] * 2 + [0], 5),
        ([LONGEST] * 600, 0),  # full blocks, each a small part of the layer
        ([LONGEST] * 600 + [LONGEST + 1], 1),
        ([LONGEST] * 16, 16),  # two blocks would be all of it
        ([], 0),
    ],
)
def test_outputs_are_long_where_it_helps(degrees: list[int], n_long: int) -> None:
    n_inputs = LONGEST + CPU_CHUNK + 50
    columns = layer_of(degrees, n_inputs) if degrees else sp.csc_array((n_inputs, 0))
    parts = split_long(columns, np.arange(n_inputs, dtype=np.int32))
    assert (0 if parts is None else parts.long.size) == n_long


def test_outputs_that_share_their_inputs_stay_whole() -> None:
    pattern = layer_of([LONGEST + 40], LONGEST + 50).toarray()
    columns = sp.csc_array(np.repeat(pattern, 9, axis=1))
    assert split_long(columns, np.arange(LONGEST + 50, dtype=np.int32)) is None


def test_a_layer_with_long_outputs_is_three_steps() -> None:
    network = power_law_network(2)
    assert plan_edges(network).arrays.steps[:, PART].tolist() == [CHUNKS, ROWS, FINISH] * 2
    official = official_network(1024, 12)
    assert (plan_edges(official).arrays.steps[:, PART] == WHOLE).all()
    assert (plan_merge(official).arrays.steps[:, PART] == WHOLE).all()


@pytest.mark.parametrize("n_features", [1, 16, 40, 200])
def test_split_layers_equal_the_reference(n_features: int) -> None:
    network, features = power_law_network(), some_features(n_features, 300)
    assert_modes_agree(network, features, rtol=2e-4, atol=2e-5)
    with tiny_cpu_engine():
        assert_modes_agree(network, features, rtol=2e-4, atol=2e-5)


def test_chunks_may_take_a_tile_beyond_16_bits() -> None:
    degrees = np.ones(65534, dtype=int)
    degrees[7] = 600
    layers = [layer_of(degrees, 600), layer_of([65534, 3], 65534, 1)]
    network = Network([Layer(weights, 0.01, bias_rule="always") for weights in layers])
    plan = plan_edges(network)
    assert plan.max_width > 1 << 16
    assert plan.arrays.indices.dtype == np.int32
    assert_modes_agree(network, some_features(20, 600), rtol=2e-4, atol=2e-5)


@pytest.fixture
def team_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads have come together at each stage's tiles."""
    sizes: list[int] = []

    def gather(size: int) -> list[Team]:
        sizes.append(size)
        return gather_team(size)

    monkeypatch.setattr(cpu_engine, "gather_team", gather)
    return sizes


def dense_network(n_layers: int = 4) -> Network:
    rng = np.random.default_rng(5)
    layers = [
        Layer(sp.random_array((400, 400), density=0.5, rng=rng, dtype=np.float32) * 0.2 - 0.0, -0.1)
        for _ in range(n_layers)
    ]
    return Network(layers)


def test_threads_share_the_tile_of_few_features_where_layers_are_dense(
    team_sizes: list[int],
) -> None:
    features = some_features(13, 400)
    expected = infer(dense_network(), features, mode="edges", threads=1, activations=True)
    assert set(team_sizes) == {1}
    team_sizes.clear()
    result = infer(dense_network(), features, mode="edges", threads=3, activations=True)
    assert 3 in team_sizes
    assert_same(result, expected)
    team_sizes.clear()
    sparse = Network([Layer(sp.eye_array(400) * 2) for _ in range(4)])
    infer(sparse, features, mode="edges", threads=3)
    assert set(team_sizes) == {1}


def test_features_are_dealt_out_to_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    take_tiles = cpu_engine.take_tiles

    def take(plan: Any, work: Any, *rest: Any) -> Any:
        widths.append(work.width)
        return take_tiles(plan, work, *rest)

    network, features = dense_network(), some_features(90, 400)
    monkeypatch.setattr(cpu_engine, "take_tiles", take)
    infer(network, features, mode="edges", threads=3)
    assert widths[-3:] == [32, 32, 32]


def test_nobody_waits_in_a_team_that_is_broken_up() -> None:
    leader, member = gather_team(2)
    meet(Team(0, 1, np.zeros(1, np.int64)))
    waiting = threading.Thread(target=meet, args=(member,))
    waiting.start()
    break_up(leader)
    waiting.join(timeout=60)
    assert not waiting.is_alive()
    meet(leader)


def test_a_thread_that_cannot_start_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, team_sizes: list[int]
) -> None:
    submit = ThreadPoolExecutor.submit
    n_started = []

    def submit_once(pool: ThreadPoolExecutor, *given: Any) -> Any:
        n_started.append(given)
        if len(n_started) > 1:
            raise RuntimeError("can't start new thread")
        return submit(pool, *given)

    network, features = dense_network(), some_features(13, 400)
    prepared = cpu_engine.CpuEngine(3)
    prepared.compile(network)
    plan = prepared.plan(network, "edges")
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_once)
    with pytest.raises(RuntimeError, match="new thread"):
        prepared.run(plan, features)
    assert team_sizes[-1] == 3
