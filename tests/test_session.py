"""A Session: prepared once, run often, from several threads, after a fork, with kept plans."""

import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spdnn import (
    DataError,
    Features,
    Layer,
    Network,
    PlanError,
    Session,
    SparseMLP,
    infer,
    predict,
)
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.run.options import Options
from spdnn.run.team import Team
from tests.makers import dyadic_cases, dyadic_features, small_network

NETWORK = small_network(64, 3)
FEATURES = dyadic_features(3, 40, 64)
FORMS: dict[str, Callable[[Features], Any]] = {
    "features": lambda features: features,
    "sparse": lambda features: features.to_csr(),
    "array": lambda features: features.to_csr().toarray(),
    "list": lambda features: features.to_csr().toarray().tolist(),
}


@given(dyadic_cases(always=True), st.sampled_from(["edges", "merge"]), st.sampled_from([1, 2, 3]))
def test_every_form_and_size_gives_the_bits_of_infer(
    case: tuple[Network, Features], mode: str, threads: int
) -> None:
    network, features = case
    with Session(network, engine="cpu", mode=mode, threads=threads) as session:
        for n_features in (features.n_features, 1, 0, features.n_features):
            part = features.part(0, n_features)
            expected = infer(network, part, engine="cpu", mode=mode, activations=True)
            assert expected.activations is not None
            for as_form in list(FORMS.values())[: 4 if part.n_features else 3]:
                found = session.run(as_form(part), activations=True)
                np.testing.assert_array_equal(found.live, expected.live)
                assert found.activations is not None
                assert found.activations.tobytes() == expected.activations.tobytes()
                assert found.layers == expected.layers


@given(dyadic_cases(always=True), st.sampled_from(["cpu", "scipy"]), st.sampled_from(list(FORMS)))
def test_scores_are_the_activations_of_every_feature(
    case: tuple[Network, Features], engine: str, form: str
) -> None:
    network, features = case
    result = infer(network, features, engine=engine, activations=True)
    assert result.activations is not None
    with Session(network, engine=engine) as session:
        given_form = FORMS[form](features) if features.n_features else features
        scores = session.scores(given_form)
        classes = session.predict(given_form).classes
    assert scores.shape == (features.n_features, network.n_outputs)
    np.testing.assert_array_equal(scores[result.live], result.activations)
    assert not np.delete(scores, result.live, axis=0).any()
    np.testing.assert_array_equal(classes, predict(network, features, engine=engine).classes)


def test_what_was_prepared_once_is_not_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("compile", "plan", "load"):
        original = getattr(CpuEngine, name)

        def counted(*given: Any, name: str = name, original: Any = original) -> Any:
            calls.append(name)
            return original(*given)

        monkeypatch.setattr(CpuEngine, name, counted)
    with Session(NETWORK) as session:
        prepared = len(calls)
        batch = session.load(FEATURES)
        found = [session.run_batch(batch) for _ in range(3)]
        assert calls[prepared:] == ["load"]
    assert all(each.layers == found[0].layers for each in found)
    seconds = found[0].seconds
    assert (seconds.compile, seconds.plan) == (0, 0)
    assert seconds.load > 0
    assert session.seconds.plan > 0
    whole = found[0].after(session.seconds).seconds
    assert whole.plan == session.seconds.plan
    assert whole.total == pytest.approx(session.seconds.total + seconds.total)


def test_calls_of_several_threads_wait_for_one_another() -> None:
    parts = [FEATURES.part(k, k + 17) for k in range(12)]
    with Session(NETWORK, threads=2) as session, ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda part: session.run(part, activations=True), parts * 4))
        scores = list(pool.map(lambda part: session.scores(part.to_csr().toarray()), parts))
    for number, result in enumerate(found):
        expected = infer(NETWORK, parts[number % 12], activations=True)
        np.testing.assert_array_equal(result.live, expected.live)
        np.testing.assert_array_equal(result.activations, expected.activations)
    for part, each in zip(parts, scores, strict=True):
        np.testing.assert_array_equal(each, predict(NETWORK, part).scores)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_runs_it_though_another_thread_was_in_a_call() -> None:
    expected = infer(NETWORK, FEATURES).live.tolist()
    with Session(NETWORK, threads=2) as session:
        session.run(FEATURES)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(session._lock.acquire).result()  # as in the middle of a call
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                os._exit(session.run(FEATURES).live.tolist() != expected)
            pool.submit(session._lock.release).result()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert session.run(FEATURES).live.tolist() == expected


def test_a_closed_session_says_so() -> None:
    with Session(NETWORK) as session:
        session.run(FEATURES)
    session.close()
    for call in (session.run, session.scores, session.load):
        with pytest.raises(PlanError, match=r"^this session is closed$"):
            call(FEATURES)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.zeros((2, 63)), "the features have 63 neurons, but .* takes 64 inputs"),
        (sp.csr_array((2, 63)), "the features have 63 neurons, but .* takes 64 inputs"),
        (np.zeros(64), "features must be a matrix, not of shape"),
        (np.full((2, 64), np.nan), "a value is NaN or infinite"),
        (np.full((1, 64), np.nan, np.float32), "a value is NaN or infinite"),
        (np.full((70, 64), np.inf, np.float32), "a value is NaN or infinite"),
        (np.full((2, 64), 1e300), "a value is NaN or infinite"),
        (np.full((2, 64), "much"), "features must be a matrix of numbers"),
        (None, "features must be"),
    ],
)
def test_features_that_do_not_fit_are_refused_and_the_session_goes_on(
    features: Any, message: str
) -> None:
    with Session(NETWORK) as session:
        for call in (session.run, session.scores, session.predict):
            with pytest.raises(DataError, match=message):
                call(features)
        assert session.run(FEATURES).live.size == infer(NETWORK, FEATURES).live.size


@pytest.mark.parametrize("mode", ["edges", "merge"])
def test_a_saved_plan_is_taken_from_its_file(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(NETWORK, mode=mode) as session:
        session.save_plan("plan.spdnn")
        session.save_plan("plan.spdnn")  # replaced
        expected = session.run(FEATURES)

    def plan(*_: Any) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(CpuEngine, "plan", plan)
    monkeypatch.setattr(CpuEngine, "compile", lambda *_: None)
    with Session(NETWORK, mode=mode, plan="plan.spdnn") as session:
        assert session.run(FEATURES).layers == expected.layers
    with pytest.raises(DataError, match="this plan is another one's"):
        Session(small_network(64, 4), mode=mode, plan="plan.spdnn")


def test_plans_that_cannot_be_kept_leave_no_file() -> None:
    with (
        Session(NETWORK, engine="scipy") as session,
        pytest.raises(PlanError, match="engine scipy has no plan"),
    ):
        session.save_plan("plan.spdnn")
    with Session(NETWORK) as session, pytest.raises(DataError, match="cannot write"):
        session.save_plan("nowhere/plan.spdnn")
    assert not list(Path().iterdir())


def test_another_number_of_threads_takes_the_same_plan() -> None:
    with Session(NETWORK, threads=1) as session, session.with_threads(3) as other:
        assert other.plan is session.plan
        one, three = session.run(FEATURES, activations=True), other.run(FEATURES, activations=True)
    assert (one.threads, three.threads) == (1, 3)
    np.testing.assert_array_equal(one.activations, three.activations)


def test_ranks_gather_no_activations_and_keep_their_threads() -> None:
    class Two(Team):
        size = 2

    session = Session.of_team(Two(), NETWORK, Options(engine="cpu", threads=1))
    with pytest.raises(PlanError, match="activations are not gathered"):
        session.run(FEATURES, activations=True)
    with pytest.raises(PlanError, match="keeps its threads"):
        session.with_threads(2)


def test_a_classifier_opens_one_session_and_none_in_its_copies() -> None:
    network = Network([Layer(np.eye(4), activation="linear")])
    mlp = SparseMLP(network, list("abcd"), threads=1)
    assert mlp.predict(np.eye(4)).tolist() == list("abcd")
    session = mlp.session
    mlp.predict_proba(np.eye(4))
    assert mlp.session is session
    copied = pickle.loads(pickle.dumps(mlp))
    assert "session" not in vars(copied)
    assert copied.predict(np.eye(4)).tolist() == list("abcd")
