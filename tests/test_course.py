"""From stop to stop: checkpoints, evening out, merging across ranks; nothing changes a result."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from spdnn import Features, Layer, Network, Result, infer
from spdnn.cli.main import main
from spdnn.engines import ENGINES
from spdnn.engines.base import DeviceSeconds, Output
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.engines.state import State
from spdnn.errors import DataError, SpdnnError
from spdnn.plan.cpu.plan import plan_edges
from spdnn.run import checkpoint as io
from spdnn.run import course, exchange
from spdnn.run.digest import inputs_digest, plan_digest
from spdnn.run.options import PARTITIONS, Options, Partition
from tests.local_team import infer_by_threads
from tests.makers import dyadic_cases, dyadic_features, dyadic_network, small_network
from tests.test_engines_agree import tiny_cpu_engine
from tests.test_state import dense, random_state

MODES = ("edges", "merge")

EVERY_LAYER = Options(mode="merge", checkpoint=Path("ck"), checkpoint_every=1)


@contextmanager
def eager_ranks() -> Iterator[None]:
    """Have ranks look for equal features after layers 1, 2, 4, ..."""
    with pytest.MonkeyPatch.context() as patch, tiny_cpu_engine():
        patch.setattr(course, "FIRST_MERGE", 1)
        yield


class StoppedEngine(CpuEngine):
    """Fails when it is to go on from layer `fails_at`."""

    fails_at = 0

    def run_part(self, plan: Any, start: Any, **named: Any) -> Output:
        if isinstance(start, State) and start.layer >= self.fails_at:
            raise SpdnnError("stopped")
        return super().run_part(plan, start, **named)


class TimedEngine(CpuEngine):
    """As on a device of its own, which takes a second a feature in each part of a run."""

    def run_part(self, plan: Any, start: Any, **named: Any) -> Output:
        n_features = start.n_carried if isinstance(start, State) else start.n_features
        seconds = DeviceSeconds(float(n_features), 1.0)
        return replace(super().run_part(plan, start, **named), device_seconds=seconds)


def run_stopped(fails_at: int, *arguments: Any, **named: Any) -> None:
    """A run that ends as it is to go on from layer `fails_at`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoppedEngine, "fails_at", fails_at)
        patch.setitem(ENGINES, "stopped", "tests.test_course:StoppedEngine")
        patch.setattr(StoppedEngine, "name", "cpu")
        with pytest.raises(SpdnnError, match="stopped"):
            infer_by_threads(*arguments, **named, engines=("stopped",))


def assert_same(result: Result, network: Network, features: Features, mode: str) -> None:
    expected = infer(network, features, engine="cpu", mode=mode)
    np.testing.assert_array_equal(result.live, expected.live)
    assert [layer.live for layer in result.layers] == [layer.live for layer in expected.layers]
    if mode == "edges":
        assert result.layers == expected.layers


def skewed_case(n_layers: int = 6) -> tuple[Network, Features]:
    """Only the first third of the features lives, and they are all different."""
    rng = np.random.default_rng(0)
    matrix = np.zeros((60, 24))
    matrix[:20] = rng.choice([0.0, 1.0, 2.0], size=(20, 24))
    return Network([Layer(sp.eye_array(24))] * n_layers), Features.from_matrix(matrix)


def features_alive(features: Features) -> list[int]:
    return np.flatnonzero(np.diff(features.indptr)).tolist()


# Exact, whatever is done


@settings(max_examples=15)
@given(
    dyadic_cases(always=True, max_layers=9),
    st.sampled_from([2, 3]),
    st.sampled_from(PARTITIONS),
    st.sampled_from(MODES),
)
def test_ranks_that_merge_find_what_one_finds(
    case: tuple[Network, Features], size: int, partition: Partition, mode: str
) -> None:
    network, features = case
    with eager_ranks():
        result = infer_by_threads(size, network, features, Options(mode=mode, partition=partition))
        assert_same(result, network, features, mode)


@settings(max_examples=15)
@given(
    dyadic_cases(always=True, max_layers=9),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(MODES),
    st.integers(1, 4),
    st.data(),
)
def test_a_checkpoint_of_some_ranks_is_resumed_by_others(
    case: tuple[Network, Features],
    size: int,
    later_size: int,
    mode: str,
    every: int,
    data: st.DataObject,
) -> None:
    network, features = case
    written = range(every, network.n_layers, every)
    with eager_ranks(), TemporaryDirectory() as name:
        options = Options(mode=mode, checkpoint=Path(name), checkpoint_every=every)
        if written:
            fails_at = data.draw(st.sampled_from(list(written)))
            run_stopped(fails_at, size, network, features, options)
        result = infer_by_threads(
            later_size, network, features, replace(options, partition="interleaved")
        )
        assert result.resumed_after == (fails_at if written else 0)
        assert_same(result, network, features, mode)


# Nodes


def test_nodes_that_have_read_the_same_network_agree() -> None:
    network, features = small_network(), dyadic_features(3, 40, 64)
    result = infer_by_threads(2, [network, small_network()], features)
    assert_same(result, network, features, "merge")


def test_nodes_that_have_read_different_networks_stop() -> None:
    networks = [small_network(), small_network(seed=1)]
    with pytest.raises(DataError, match="the nodes have read different networks"):
        infer_by_threads(2, networks, dyadic_features(3, 40, 64))


# Merging across ranks


def test_equal_features_of_all_ranks_are_carried_by_one() -> None:
    network = Network([Layer(sp.eye_array(5))] * 6)
    rows = np.array([[1.0, 2, 0, 0, 0], [0, 0, 0, 3, 0]])
    features = Features.from_matrix(np.tile(rows, (12, 1)))
    with eager_ranks():
        result = infer_by_threads(3, network, features)
    assert result.live.tolist() == list(range(24))
    assert [layer.distinct for layer in result.layers] == [2] * 6
    # Ranks keep or lose all of a kind: 12 features.
    assert sorted(rank.live for rank in result.by_rank) in ([0, 0, 24], [0, 12, 12])


def test_equal_hashes_of_different_features_merge_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "row_codes", lambda state: [b"same"] * state.n_carried)
    network, features = skewed_case()
    with eager_ranks():
        result = infer_by_threads(2, network, features)
    assert result.live.tolist() == features_alive(features)
    assert result.layers[-1].distinct == infer(network, features, mode="merge").layers[-1].distinct


def test_many_features_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FEW_ROWS", 3)
    network = Network([Layer(sp.eye_array(5))] * 6)
    features = Features.from_matrix(np.tile(np.eye(5)[:4], (2, 1)))
    with eager_ranks():
        result = infer_by_threads(2, network, features)
    assert [rank.live for rank in result.by_rank] == [4, 4]


# Checkpoints


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_any_number_of_processes_reads_what_others_wrote(seed: int, carried: list[int]) -> None:
    rng = np.random.default_rng(seed)
    states = [random_state(rng, n + 2, n) for n in carried]
    states = [replace(state, ids=state.ids + 1000 * k) for k, state in enumerate(states)]
    with TemporaryDirectory() as name:
        folder = Path(name) / "new"
        for number, state in enumerate(states):
            io.write_state(folder, state, number, len(states))
        counts = np.arange(15).reshape(3, 5)
        found = io.Checkpoint(4, {"mode": "edges"}, None, 1.5, counts, carried)
        io.write_checkpoint(folder, found)
        read = io.read_checkpoint(folder)
        assert read is not None
        np.testing.assert_array_equal(read.counts, counts)
        assert (read.layer, read.seconds, read.carried) == (4, 1.5, carried)
        for size in (1, 2, 7):
            parts = [io.read_state(folder, read, number, size) for number in range(size)]
            values: dict[int, list[float]] = {}
            for part in parts:
                assert part.activations.shape[1] == 3
                values |= dense(part)
            assert values == {k: v for state in states for k, v in dense(state).items()}


def test_a_complete_checkpoint_replaces_the_older_one() -> None:
    folder = Path("ck")
    state = random_state(np.random.default_rng(0), 4, 2)
    for layer, size in ((4, 3), (8, 2)):
        for number in range(size):
            io.write_state(folder, replace(state, layer=layer), number, size)
        io.write_checkpoint(folder, io.Checkpoint(layer, {}, None, 0, np.zeros((3, 9)), [2] * size))
    Path("ck/mine").touch()
    assert len(list(folder.iterdir())) == 4
    io.remove_checkpoint(folder)
    assert list(folder.iterdir()) == [Path("ck/mine")]


def test_states_without_the_list_are_no_checkpoint() -> None:
    io.write_state(Path("ck"), random_state(np.random.default_rng(0), 4, 2), 0, 1)
    assert io.read_checkpoint(Path("ck")) is None
    assert io.read_checkpoint(Path("nowhere")) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"spdnn": "checkpoint", "version": 99}'])
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    Path(io.MANIFEST).write_text(text)
    with pytest.raises(DataError, match="not a checkpoint of this version"):
        io.read_checkpoint(Path())


def test_a_damaged_state_is_refused() -> None:
    network, features = small_network(), dyadic_features(3, 40, 64)
    run_stopped(1, 1, network, features, EVERY_LAYER)
    (path,) = Path("ck").glob("*.spdnn")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged store"):
        infer_by_threads(1, network, features, EVERY_LAYER)
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        infer_by_threads(2, network, features, EVERY_LAYER)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": replace(EVERY_LAYER, mode="edges")}, "mode merge, not edges"),
        ({"network": small_network(64, 4)}, "layers 3, not 4"),
        ({"network": small_network(seed=1)}, "plan"),
        ({"network": small_network(bias=-0.25)}, "plan"),
        ({"features": dyadic_features(3, 39, 64)}, "features 40, not 39"),
        ({"features": dyadic_features(4, 40, 64)}, "inputs"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(changes: dict[str, Any], message: str) -> None:
    run: dict[str, Any] = {"network": small_network(), "features": dyadic_features(3, 40, 64)}
    run |= {"options": EVERY_LAYER}
    run_stopped(2, 2, **run)
    with pytest.raises(DataError, match=f"checkpoint there is of another run .*{message}"):
        infer_by_threads(2, **run | changes)


def test_counts_and_seconds_are_those_of_both_runs() -> None:
    network, features = small_network(), dyadic_features(3, 40, 64)
    options = replace(EVERY_LAYER, mode="edges", checkpoint_every=2)
    run_stopped(2, 2, network, features, options)
    facts = json.loads((Path("ck") / io.MANIFEST).read_text())
    assert facts["seconds"] > 0
    facts["seconds"] = 1000.0
    (Path("ck") / io.MANIFEST).write_text(json.dumps(facts))
    result = infer_by_threads(1, network, features, options)
    assert 1000 < result.seconds.inference < 2000
    assert result.layers == infer(network, features, mode="edges").layers


def test_a_complete_run_leaves_no_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--neurons", "1024", "--layers", "12", "--inputs", "digits"]
    arguments += ["--features", "50", "--checkpoint", "ck"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoppedEngine, "fails_at", 4)
        patch.setitem(ENGINES, "cpu", "tests.test_course:StoppedEngine")
        assert main(arguments) == 2
    assert (Path("ck") / io.MANIFEST).exists()
    assert main(arguments) == 0
    assert "resumed after layer 4" in capsys.readouterr().out
    assert not Path("ck").exists()


def test_an_engine_that_cannot_stop_refuses_checkpoints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(CpuEngine, "run_part")
    arguments = ["run", "--neurons", "1024", "--layers", "2", "--checkpoint", "ck"]
    assert main(arguments) == 2
    assert "cannot stop between layers" in capsys.readouterr().err
    assert not Path("ck").exists()


# Digests


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_digest_of_inputs_does_not_depend_on_who_has_them(seed: int, size: int) -> None:
    features = dyadic_features(seed, 30, 20)
    whole = inputs_digest(features, range(30))
    parts = [(features.every(k, 30, size), range(k, 30, size)) for k in range(size)]
    assert sum(inputs_digest(*part) for part in parts) % 2**64 == whole
    other = features.to_csr().toarray()
    other[seed % 30, seed % 20] += 1
    assert inputs_digest(Features.from_matrix(other), range(30)) != whole
    swapped = features.to_csr()[np.roll(np.arange(30), 1)]
    assert inputs_digest(Features.from_matrix(swapped), range(30)) != whole


def test_the_digest_of_a_plan_sees_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    network = dyadic_network(1, [30] * 4, ["shared"] * 3)
    monkeypatch.setattr("spdnn.run.digest.PIECE_BYTES", 100)
    plan = plan_edges(network)
    digest = plan_digest(plan, 2)
    assert digest == plan_digest(plan_edges(network), 1)
    for array in (plan.arrays.weights, plan.arrays.bias, plan.output_position):
        array[-1] += 1
        assert plan_digest(plan, 2) != digest
        array[-1] -= 1


# Devices


def test_the_devices_time_is_that_of_the_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "timed", "tests.test_course:TimedEngine")
    network, features = small_network(64, 4), dyadic_features(3, 7, 64, "binary")
    result = infer_by_threads(2, network, features, Options(mode="edges"), engines=("timed",))
    slowest = max(result.by_rank, key=lambda rank: rank.seconds)
    assert slowest.features in (3, 4)
    assert result.device == (float(slowest.features), 1.0)
    without = infer_by_threads(2, network, features, Options(mode="edges"))
    assert without.device is None


def test_the_devices_times_of_all_parts_of_a_run_are_added_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ENGINES, "timed", "tests.test_course:TimedEngine")
    network, features = small_network(64, 16), dyadic_features(3, 7, 64, "binary")
    options = replace(EVERY_LAYER, mode="edges", checkpoint_every=8)
    result = infer_by_threads(2, network, features, options, engines=("timed",))
    assert result.device is not None
    assert result.device.copies == 2.0  # a stop after layer 8
