"""The kernels around the layers, on the emulated device: listing live features, and loading."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from spdnn import Features, Layer, Network
from spdnn.engines.cpu.kernels.inputs import load_features
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.engines.cuda.carried import Carried
from spdnn.engines.cuda.device import DeviceArray
from spdnn.engines.cuda.emulated.device import CheckedDevice, EmulatedDevice
from spdnn.engines.cuda.kernels import gpu
from spdnn.engines.cuda.kernels.carried import window_of
from spdnn.engines.cuda.kernels.gpu import WARP
from spdnn.engines.cuda.kernels.records import FeatureList, Rows
from spdnn.engines.cuda.placing import copied, place_inputs
from spdnn.engines.cuda.sizes import CudaSizes, Kernels, kernels_of
from spdnn.plan.cuda.plan import plan_cuda
from spdnn.plan.cuda.sizes import PlanSizes
from spdnn.plan.steps import LAYER, MAY_DROP, NO_LAYER
from tests.gpu.makers import TINY, TWO_WARPS

pytestmark = pytest.mark.skipif(not gpu.has_compiler(), reason="libNVVM is not installed")

REAL = CudaSizes(PlanSizes(shared_bytes=0))
SIZES = {"one warp": TINY, "two warps": TWO_WARPS, "512 threads": REAL}

Numbers = npt.NDArray[Any]


class Listing(NamedTuple):
    """What is to be listed: features of which some are flagged, after the second of three steps."""

    flags: Numbers
    live: Numbers
    ids: Numbers
    stands_for: Numbers
    after_step: bool
    layer: int
    may_drop: bool


class Listed(NamedTuple):
    """What the kernels have made of it."""

    live: Numbers
    ids: Numbers
    stands_for: Numbers
    flags: Numbers
    cursor: int
    counts: Numbers


def make_listing(
    seed: int, n: int, share: float, after_step: bool, layer: int, may_drop: bool
) -> Listing:
    """Random features: a share of them is flagged."""
    rng = np.random.default_rng(seed)
    flags = (rng.random(n) < share).astype(np.int32)
    live = np.sort(rng.permutation(2 * n)[:n]).astype(np.int32)
    ids = np.sort(rng.permutation(3 * n)[:n]).astype(np.int64)
    stands_for = rng.integers(1, 1 << 34, n)
    return Listing(flags, live, ids, stands_for, after_step, layer, may_drop)


def expected_of(listing: Listing) -> Listed:
    """The same in NumPy."""
    flags, live, ids, stands_for, after_step, layer, may_drop = listing
    kept = flags != 0
    counts = np.zeros((3, 2), np.int64)
    if after_step and layer != NO_LAYER:
        counts[:, layer] = stands_for[kept].sum(), kept.sum(), flags.size
    if after_step:
        live = np.arange(flags.size, dtype=np.int32)
        kept |= not may_drop
    return Listed(live[kept], ids[kept], stands_for[kept], 0 * flags, 1 + after_step, counts)


def list_on(device: EmulatedDevice, kernels: Kernels, listing: Listing, n_blocks: int) -> Listed:
    """Launch the kernels for one thread block, or for several."""
    n = listing.flags.size
    room = max(n, 1)

    def array(numbers: Numbers) -> DeviceArray:
        return copied(device, numbers) if numbers.size else device.empty(1, numbers.dtype)

    flags = array(listing.flags)
    if not n:
        device.write(flags, np.zeros(1, np.int32))
    n_live = copied(device, np.array([n], np.int32))
    features = FeatureList(
        array(listing.live), n_live, array(listing.ids), array(listing.stands_for)
    )
    following = FeatureList(
        device.empty(room, np.int32),
        device.empty(1, np.int32),
        device.empty(room, np.int64),
        device.empty(room, np.int64),
    )
    table = np.zeros((3, 12), np.int64)
    table[1, LAYER], table[1, MAY_DROP] = listing.layer, listing.may_drop
    cursor, steps = copied(device, np.array([1])), copied(device, table)
    counts, kept = copied(device, np.zeros((3, 2), np.int64)), device.empty(n_blocks, np.int32)
    after_step, threads = int(listing.after_step), kernels.sizes.list_threads
    lists = flags, features, following, after_step, cursor
    if n_blocks == 1:
        device.launch(kernels.list_carried, (1,), threads, (*lists, steps, counts))
    else:
        counting = flags, features, after_step, cursor, steps, counts, kept
        device.launch(kernels.count_carried, (n_blocks,), threads, counting)
        device.launch(kernels.list_counted, (n_blocks,), threads, (*lists, kept))
    n_kept = int(device.read(following.n_live)[0])
    live, ids, stands_for = (
        device.read(getattr(following, name), n_kept) for name in ("live", "ids", "stands_for")
    )
    moved = int(device.read(cursor)[0])
    return Listed(live, ids, stands_for, device.read(flags, n), moved, device.read(counts))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(SIZES)),
    st.booleans(),
    st.floats(0, 1),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from([NO_LAYER, 0, 1]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_any_features_are_listed_in_order_and_counted(
    sizes, is_one_block, filled, share, after_step, layer, may_drop, seed
) -> None:
    kernels = kernels_of(SIZES[sizes])
    most = kernels.sizes.listed * (1 if is_one_block else 3)
    n = round(filled * most)
    listing = make_listing(seed, n, share, after_step, layer, may_drop)
    # Up to three thread blocks too many: the grid is for the last number that the host knows.
    n_blocks = 1 if is_one_block else 3 + seed % 4
    for device in (CheckedDevice(seed=seed), EmulatedDevice(seed=seed)):
        listed = list_on(device, kernels, listing, n_blocks)
        for found, expected in zip(listed, expected_of(listing), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("n", [0, 1, 2047, 2048])
def test_a_full_or_empty_thread_block(n: int) -> None:
    for share in (0.0, 1.0):
        listing = make_listing(5, n, share, True, 1, True)
        for n_blocks in (1, 2):
            listed = list_on(CheckedDevice(), kernels_of(REAL), listing, n_blocks)
            for found, expected in zip(listed, expected_of(listing), strict=True):
                np.testing.assert_array_equal(found, expected)


def test_more_thread_blocks_than_a_warp_has_threads() -> None:
    kernels = kernels_of(TINY)
    listing = make_listing(6, 40 * kernels.sizes.listed - 3, 0.5, True, 0, True)
    listed = list_on(CheckedDevice(seed=1), kernels, listing, 40)
    for found, expected in zip(listed, expected_of(listing), strict=True):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([1, 8, 32]),
    st.sampled_from([0.01, 0.1, 1, 1.1]),
    st.integers(1, 300),
    st.sampled_from(sorted(SIZES)),
    st.integers(0, 2**32 - 1),
)
def test_ones_are_counted_at_their_positions(bits, windows, most_added, sizes, seed) -> None:
    rng = np.random.default_rng(seed)
    n_loaded = max(1, round(windows * window_of(bits)))
    most_added = min(most_added, {1: 1, 8: 255, 32: 300}[bits])
    # The first inputs meet, each other one has a place of its own, or none.
    position = np.r_[np.zeros(most_added, int), np.arange(1, n_loaded), [n_loaded] * 3]
    position = rng.permutation(position).astype(np.int32)
    rows = sp.random_array((40, position.size), density=0.2, format="csr", rng=rng)
    rows.data[:] = 1
    features = Features.from_matrix(sp.vstack([rows, np.ones((1, position.size))]))
    n, first = 38, 3
    adding = sp.csr_array((np.ones(position.size), (np.arange(position.size), position)))
    expected = np.zeros((2 * WARP, n_loaded + 1), np.float32)
    expected[:n] = (features.to_csr()[first : first + n] @ adding).toarray()
    checked = [CheckedDevice(seed=seed)] if n_loaded < 2000 else []
    for device in (*checked, EmulatedDevice(seed=seed)):
        inputs = place_inputs(device, features, 1, 41)
        y = device.empty(2 * WARP * n_loaded, np.float32)
        kernels = kernels_of(SIZES[sizes])
        device.launch(
            kernels.load_ones(bits),
            (2, -(-n_loaded // window_of(bits))),
            kernels.sizes.threads,
            (
                Rows(inputs.indptr, inputs.indices, inputs.values, copied(device, position)),
                *(n_loaded, first - inputs.first, n, inputs.origin, y),
            ),
        )
        loaded = device.read(y).reshape(2, n_loaded, WARP).transpose(0, 2, 1)
        loaded = loaded.reshape(2 * WARP, n_loaded)
        np.testing.assert_array_equal(loaded, expected[:, :n_loaded])


N_INPUTS = 64


def adding_network() -> Network:
    """Inputs that only matter through four sums, and some that do not matter."""
    rng = np.random.default_rng(8)
    weights = rng.random((5, 24)).astype(np.float32)
    weights[4] = 0
    return Network([Layer(weights[rng.integers(0, 5, N_INPUTS)], 0.0)])


def inexact_features(n_features: int) -> Features:
    """Values whose sums depend upon the order."""
    rng = np.random.default_rng(9)
    rows = rng.random((n_features, N_INPUTS)) * 10.0 ** rng.integers(-6, 6, (n_features, N_INPUTS))
    return Features.from_matrix(np.where(rng.random(rows.shape) < 0.7, rows, 0))


def sums_in_order(features: Features, position: Numbers, n_loaded: int, step: int = 1) -> Numbers:
    """What is loaded: float32 sums in the order of the inputs, or in the opposite one."""
    loaded = np.zeros((features.n_features, n_loaded + 1), np.float32)
    assert features.values is not None
    for f in range(features.n_features):
        for k in range(features.indptr[f], features.indptr[f + 1])[::step]:
            place = position[features.indices[k]]
            loaded[f, place] = loaded[f, place] + features.values[k]
    return loaded[:, :n_loaded]


@pytest.mark.parametrize("device", [EmulatedDevice, CheckedDevice])
def test_values_that_meet_are_added_in_the_order_of_the_inputs(device: Any) -> None:
    network, features = adding_network(), inexact_features(70)
    plan = plan_cuda(network, "merge", TWO_WARPS.plan)
    expected = sums_in_order(features, plan.load_position, plan.n_loaded)
    opposite = sums_in_order(features, plan.load_position, plan.n_loaded, -1)
    assert opposite.tobytes() != expected.tobytes()
    for seed in range(6):
        order = device(seed=seed)
        carried = Carried(order, kernels_of(TWO_WARPS), plan, features.n_features)
        assert carried.most_added > 1
        carried.load(place_inputs(order, features, 0, features.n_features), 0, features.n_features)
        assert carried.download(whole=True).activations.tobytes() == expected.tobytes()


def test_the_cpu_engine_adds_values_in_the_same_order() -> None:
    network, features = adding_network(), inexact_features(LANES)
    plan = plan_cuda(network, "merge", TWO_WARPS.plan)
    n_loaded = plan.n_loaded
    tile = np.empty((n_loaded + 1) * LANES, np.float32)
    position = plan.load_position.astype(np.uint16)
    load_features(
        features.indptr, features.indices, features.values, position, n_loaded, tile, LANES
    )
    expected = sums_in_order(features, plan.load_position, n_loaded)
    assert tile.reshape(-1, LANES).T[:, :n_loaded].tobytes() == expected.tobytes()


def test_a_negative_zero_is_loaded_as_the_sum_that_it_would_be() -> None:
    features = Features(2, np.arange(3), np.arange(2), np.array([-0.0, 2.0], np.float32))
    network = Network([Layer(np.eye(2), 0.0)])
    plan = plan_cuda(network, "edges", TWO_WARPS.plan)
    device = CheckedDevice()
    carried = Carried(device, kernels_of(TWO_WARPS), plan, 2)
    assert carried.most_added == 1
    carried.load(place_inputs(device, features, 0, 2), 0, 2)
    loaded = carried.download(whole=True).activations
    assert loaded.tobytes() == np.array([[0.0, 0.0], [0.0, 2.0]], np.float32).tobytes()
