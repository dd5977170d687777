"""What float32 cannot hold is said by the GPU engine, too."""

import numpy as np
import pytest

from spdnn import DataError, Features, Network
from tests.gpu.makers import IN_SHARED, NOT_IN_SHARED, run
from tests.test_overflow import BIG, IDENTITY, ONE, OVERFLOWING, network

PATHS = [IN_SHARED, NOT_IN_SHARED]


@pytest.mark.parametrize(("mode", "shared_bytes"), [("edges", PATHS[0]), ("merge", PATHS[1])])
@pytest.mark.parametrize("where", OVERFLOWING)
def test_overflow_is_an_error_that_names_the_feature(
    where: str, mode: str, shared_bytes: int
) -> None:
    with pytest.raises(DataError, match=r"feature [23] has activations beyond .* cap \(ymax\)"):
        run(OVERFLOWING[where], ONE, mode, shared_bytes)


@pytest.mark.parametrize("shared_bytes", PATHS)
def test_groups_that_share_inputs_hide_none(shared_bytes: int) -> None:
    weights = np.full((4, 4), 1e30) * np.arange(1, 17).reshape(4, 4)
    layers = network(BIG).layers
    shared = Network([type(layers[0])(weights, 0.0, None) for _ in range(3)])
    with pytest.raises(DataError, match="feature 1 has activations beyond"):
        run(shared, Features.from_matrix(np.ones((1, 4))), "edges", shared_bytes)


@pytest.mark.parametrize("shared_bytes", PATHS)
def test_numbers_just_within_are_none(shared_bytes: int) -> None:
    within = network((1e19, 0, 0, 1e19), (1e19, 0, 0, 1e19), IDENTITY)
    output = run(within, ONE, "edges", shared_bytes)
    assert output.live.tolist() == [1, 2]
