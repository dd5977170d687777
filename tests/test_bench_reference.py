"""The reference for many features finds what the reference engine finds."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spdnn import Features, Network, infer
from spdnn.bench import reference
from spdnn.bench.reference import live_after
from spdnn.recipes.radixnet import official_network
from tests.makers import dyadic_cases


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """Make parts small and gather them after two layers, so that tiny cases test everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "CHUNK_VALUES", 200)
        patch.setattr(reference, "GATHERED", 2)
        patch.setattr(reference, "FOLD_EVERY", 1)
        yield


@given(dyadic_cases(always=True), st.data())
def test_live_features_are_those_of_the_engine(
    case: tuple[Network, Features], data: st.DataObject
) -> None:
    network, features = case
    depths = data.draw(st.sets(st.integers(1, network.n_layers), min_size=1))
    found = live_after(network, features, depths)
    assert set(found) == depths
    for depth, live in found.items():
        shorter = Network(network.layers[:depth])
        assert np.array_equal(live, infer(shorter, features, engine="scipy").live)


def test_equal_features_are_all_found() -> None:
    network = official_network(64, 6, bias=-0.3)
    one = np.zeros((1, 64))
    one[0, ::2] = 1
    features = Features.from_matrix(np.repeat(one, 30, axis=0))
    (expected,) = {infer(network, features, engine="scipy").live.size}
    assert expected == 30
    assert np.array_equal(live_after(network, features, [6])[6], np.arange(30))
