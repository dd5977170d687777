"""The kernels by themselves: every register tile, every kind of block."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spdnn.engines.cpu.calibrate import measured_costs
from spdnn.engines.cpu.columns import aligned_empty
from spdnn.engines.cpu.kernels.equal import confirm, propose
from spdnn.engines.cpu.kernels.inputs import (
    DIGITS,
    MOST_COUNTED,
    load_features,
    load_masks,
    pack_features,
)
from spdnn.engines.cpu.kernels.tile import keep_lanes
from spdnn.engines.cpu.kernels.vectors import LANES, MASKS, REGISTER_TILE, REGISTER_TILES
from spdnn.plan.cpu.blocks import MAX_ROWS, BlockCosts, cut_layer
from tests.makers import dyadic_weights

PROGRAM = """
from spdnn.engines.cpu.kernels.vectors import REGISTER_TILE
from tests.makers import dyadic_features, dyadic_network
from tests.test_engines_agree import assert_modes_agree, tiny_cpu_engine

assert REGISTER_TILE == {name!r}
for seed in range(30):
    widths = [33, 40, 17, 8, 25, 9]
    kinds = ["shared", "random", "holes", "dense column", "cancel"]
    network = dyadic_network(seed, widths, kinds, always=True, linear_end=seed % 2 == 0)
    with tiny_cpu_engine(widest_tile=48):
        assert_modes_agree(network, dyadic_features(seed, 5 + 11 * seed % 97, 33))
print("equal")
"""


@pytest.mark.parametrize("name", REGISTER_TILES)
def test_every_register_tile_equals_the_reference_on_this_machine(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)],
        env=os.environ | {"SPDNN_VECTORS": name},
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "equal\n", done.stderr


def test_this_machine_has_a_register_tile() -> None:
    assert REGISTER_TILE in REGISTER_TILES
    for tile in REGISTER_TILES.values():
        assert MAX_ROWS % tile.rows == 0
        assert tile.width == 0 or LANES % tile.width == 0


def test_costs_are_measured_for_all_kinds_of_blocks() -> None:
    costs = measured_costs()
    assert (costs.fixed >= 0).all()
    assert (costs.per_input >= 0).all()
    assert (costs.fixed + 32 * costs.per_input > 0).all()


def test_a_group_shares_its_inputs_only_where_that_is_cheaper() -> None:
    weights = dyadic_weights(np.random.default_rng(0), "full", 12, 24)
    position = np.arange(12, dtype=np.int32)
    cheap, dear = np.ones((2, 3)), np.ones((2, 3))
    dear[1] = 100
    shared = cut_layer(weights, position, BlockCosts(cheap, cheap))
    alone = cut_layer(weights, position, BlockCosts(dear, dear))
    assert shared.indices.size == 12
    assert alone.indices.size == 12 * 24


def test_lanes_are_kept_in_order_and_the_others_cleared() -> None:
    rng = np.random.default_rng(1)
    n_neurons, stride = 7, 48
    tile = aligned_empty(n_neurons * stride + LANES)
    tile[:] = rng.random(tile.size)
    before = tile[: n_neurons * stride].reshape(n_neurons, stride).copy()
    lanes = np.array([0, 3, 15, 16, 30, 47], dtype=np.int32)
    keep_lanes(tile, n_neurons, stride, lanes, tile, 16, np.empty(0, np.uint64))
    after = tile[: n_neurons * 16].reshape(n_neurons, 16)
    np.testing.assert_array_equal(after[:, : lanes.size], before[:, lanes])
    assert not after[:, lanes.size :].any()


def test_equal_lanes_have_equal_hashes_and_others_do_not() -> None:
    tile = aligned_empty(3 * LANES + LANES)
    tile[:] = 0
    matrix = tile[: 3 * LANES].reshape(3, LANES)
    matrix[:, :4] = [[1, 1, 1, 2], [0, -0.0, 2, 0], [5, 5, 5, 5]]
    kept, codes = np.empty(3 * 4 + LANES, np.float32), np.empty(LANES, np.uint64)
    keep_lanes(tile, 3, LANES, np.arange(4, dtype=np.int32), kept, 4, codes)
    assert codes[0] == codes[1]
    assert len(set(codes[:4].tolist())) == 3


def test_equal_hashes_alone_make_no_features_equal() -> None:
    matrix = np.array([[1, 2, 1, 2], [3, 3, 3, 4]], dtype=np.float32)
    addresses = matrix.ctypes.data + 4 * np.arange(4)
    same_codes = np.zeros(4, dtype=np.uint64)
    first = propose(same_codes)
    assert first.tolist() == [0, 0, 0, 0]
    is_equal = confirm(np.arange(4), first, addresses, np.full(4, 4 * 4), 2)
    assert is_equal.tolist() == [True, False, True, False]


def test_inputs_are_added_where_the_plan_says() -> None:
    indptr = np.array([0, 3, 3, 5])
    indices = np.array([0, 1, 3, 1, 2], dtype=np.uint16)
    position = np.array([1, 1, 2, 0], dtype=np.uint16)
    tile = aligned_empty(3 * LANES)
    tile[:] = 7
    load_features(indptr, indices, np.empty(0, np.float32), position, 2, tile, LANES)
    loaded = tile[: 2 * LANES].reshape(2, LANES)
    np.testing.assert_array_equal(loaded[:, :4], [[1, 0, 0, 0], [2, 0, 1, 0]])
    assert not loaded[:, 4:].any()


@pytest.mark.parametrize(
    ("n_loaded", "n_repeats"),
    [(35, 0), (32, 1), (77, 1), (64, 3), (50, MOST_COUNTED + 1), (40, 31)],
)
def test_masks_are_added_where_the_plan_says(n_loaded: int, n_repeats: int) -> None:
    rng = np.random.default_rng(n_loaded)
    n_features, stride = 37, 48
    n_inputs = n_loaded * n_repeats or 200
    dense = rng.random((n_features, n_inputs)) < 0.6
    position = np.arange(n_inputs) % n_loaded
    if n_repeats == 0:
        position = rng.integers(n_loaded + 1, size=n_inputs)  # n_loaded: needed nowhere
    indptr = np.concatenate([[0], np.cumsum(dense.sum(axis=1))])
    masks = np.empty((stride // LANES, n_inputs), np.uint16)
    pack_features(indptr, np.nonzero(dense)[1].astype(np.uint16), 0, len(masks), masks)
    tile = aligned_empty((n_loaded + 1) * stride)
    tile[:] = 7
    planes = np.empty(DIGITS * MASKS, np.uint16)
    load_masks(masks, position.astype(np.uint16), n_loaded, n_repeats, tile, stride, planes)
    expected = np.zeros((n_loaded + 1, stride))
    np.add.at(expected[:, :n_features], position, dense.T)
    found = tile[: n_loaded * stride].reshape(n_loaded, stride)
    np.testing.assert_array_equal(found, expected[:-1])
