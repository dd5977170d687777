"""Plans in files: the same run from the file, and never another network's plan."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

from spdnn import DataError, Features, Layer, Network, PlanError, infer
from spdnn.engines import make_engine
from spdnn.io.store import read_network, write_network
from spdnn.recipes.radixnet import official_network, radix_network
from spdnn.run.plan_files import plan_for
from tests.makers import dyadic_cases, dyadic_features, dyadic_network

NETWORK = dyadic_network(1, [30] * 4, ["shared"] * 3)
FEATURES = dyadic_features(2, 20, 30)


@pytest.mark.parametrize("mode", ["edges", "merge"])
@given(dyadic_cases(always=True))
def test_a_kept_plan_is_the_plan(
    tmp_path_factory: pytest.TempPathFactory, mode: str, case: tuple[Network, Features]
) -> None:
    network, features = case
    path = tmp_path_factory.mktemp("plans") / "plan"
    made, kept = (
        infer(network, features, engine="cpu", mode=mode, plan=path, activations=True)
        for _ in range(2)
    )
    assert made.activations is not None
    assert kept.activations is not None
    assert kept.activations.tobytes() == made.activations.tobytes()
    assert (kept.layers, kept.work, kept.n_edges) == (made.layers, made.work, made.n_edges)


def test_a_kept_plan_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("cpu", 1)
    plan_for(engine, NETWORK, "merge", tmp_path / "plan")

    def plan_again(*given: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(type(engine), "plan", plan_again)
    plan = plan_for(engine, NETWORK, "merge", tmp_path / "plan")
    output = engine.run(plan, engine.load(plan, FEATURES))
    expected = infer(NETWORK, FEATURES, engine="scipy").live
    np.testing.assert_array_equal(output.live, expected)


def layer(weight: float = 1.0, bias: float = -0.5, ymax: float | None = 4.0) -> Layer:
    return Layer(weight * sp.eye_array(30), bias, ymax)


@pytest.mark.parametrize(
    "other",
    [
        Network([layer(weight=2.0)]),
        Network([layer(bias=-0.25)]),
        Network([layer(ymax=None)]),
        Network([Layer(sp.eye_array(30), -0.5, activation="linear")]),
        Network([Layer(sp.eye_array(30), -0.5, 4.0, bias_rule="always")]),
        Network([layer(), layer()]),
        Network([Layer(np.eye(30)[::-1], -0.5, 4.0)]),
    ],
)
def test_another_networks_plan_is_refused(tmp_path: Path, other: Network) -> None:
    engine = make_engine("cpu", 1)
    plan_for(engine, Network([layer()]), "merge", tmp_path / "plan")
    before = (tmp_path / "plan").read_bytes()
    with pytest.raises(DataError, match=r"this plan is another one.s .network: "):
        plan_for(engine, other, "merge", tmp_path / "plan")
    assert (tmp_path / "plan").read_bytes() == before


def test_another_modes_plan_is_refused(tmp_path: Path) -> None:
    engine = make_engine("cpu", 1)
    plan_for(engine, NETWORK, "merge", tmp_path / "plan")
    with pytest.raises(DataError, match=r"another one's .mode: merge, not edges."):
        plan_for(engine, NETWORK, "edges", tmp_path / "plan")


def test_an_engine_without_plans_keeps_none(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="engine scipy has no plan that could be kept"):
        plan_for(make_engine("scipy"), NETWORK, "edges", tmp_path / "plan")
    assert not list(tmp_path.iterdir())


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    engine, path = make_engine("cpu", 1), tmp_path / "plan"
    plan_for(engine, NETWORK, "merge", path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(DataError, match="cut short"):
        plan_for(engine, NETWORK, "merge", path)
    middle = whole.index(b"arrays/weights.npy") + 200
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(DataError, match="damaged store"):
        plan_for(engine, NETWORK, "merge", path)


def test_a_plan_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    engine = make_engine("cpu", 1)
    with pytest.raises(DataError):
        plan_for(engine, NETWORK, "merge", tmp_path / "nowhere" / "plan")
    assert not list(tmp_path.iterdir())


# Fingerprints


def test_fingerprints_tell_networks_apart(tmp_path: Path) -> None:
    networks = [
        official_network(64, 3, -0.3),
        official_network(64, 4, -0.3),
        official_network(64, 3, -0.4),
        official_network(64, 3, -0.3, None),
        official_network(128, 3, -0.3),
        radix_network([[2, 2], [2, 2]], 16, seed=1),
        radix_network([[2, 2], [2, 2]], 16, seed=2),
        NETWORK,
    ]
    prints = [network.fingerprint for network in networks]
    assert len(set(prints)) == len(prints)
    again = official_network(64, 3, -0.3)
    assert again.fingerprint == prints[0]
    held = [Network(list(network.layers)).fingerprint for network in (networks[0], again)]
    assert held[0] == held[1]
    part = Network(again.layers[:2])
    assert part.fingerprint not in prints
    write_network(tmp_path / "a.spdnn", again)
    write_network(tmp_path / "b.spdnn", networks[2])
    stored = [read_network(tmp_path / name)[0].fingerprint for name in ("a.spdnn", "b.spdnn")]
    assert stored[0] != stored[1]
