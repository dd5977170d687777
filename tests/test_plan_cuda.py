"""The GPU engine's plan: read back, it is the network."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spdnn import Features, Layer, Network
from spdnn.plan.cuda.bundles import UNROLL
from spdnn.plan.cuda.plan import (
    END_BUNDLE,
    END_ELL,
    FIRST_BUNDLE,
    FIRST_ELL,
    FIRST_WHOLE,
    N_INPUTS,
    WINDOWED,
    CudaPlan,
    plan_cuda,
)
from spdnn.plan.cuda.sizes import (
    PlanSizes,
    resident_bytes,
    resident_choices,
    row_of,
    suits_resident,
)
from spdnn.plan.steps import LAYER, N_OUTPUTS, NO_LAYER
from spdnn.recipes.radixnet import official_network
from tests.makers import dyadic_cases, dyadic_network

SMALL = PlanSizes(bundle=2, rows=4, warps=2, buffer=8, chunk=3, skew=2, shared_bytes=0)
RESIDENT = PlanSizes(bundle=2, rows=4, warps=2, buffer=8, shared_bytes=48 << 10)


def step_matrix(plan: CudaPlan, step: int) -> np.ndarray:
    """The weights of a step, dense, as a kernel would read them: positions x positions."""
    sizes, arrays = plan.sizes, plan.arrays
    row = arrays.steps[step]
    matrix = np.zeros((row[N_INPUTS], row[N_OUTPUTS]))
    is_written = np.zeros(row[N_OUTPUTS], dtype=int)
    for bundle in range(row[FIRST_BUNDLE], row[END_BUNDLE]):
        n_inputs, input_start = arrays.bundles[bundle]
        assert n_inputs % UNROLL == 0
        for inner in range(sizes.bundle):
            first, n_rows = arrays.groups[bundle * sizes.bundle + inner]
            is_written[first : first + n_rows] += 1
            for k in range(n_inputs):
                source = arrays.group_inputs[input_start + k * sizes.bundle + inner]
                source = row_of(source) if plan.is_resident else source
                for r in range(sizes.rows):
                    quad = (k * sizes.rows // 4 + r // 4) * sizes.bundle + inner
                    weight = arrays.group_weights[input_start * sizes.rows + 4 * quad + r % 4]
                    assert r < n_rows or weight == 0
                    if weight != 0:
                        matrix[source, first + r] += weight
    chunks = []
    for block in range(row[FIRST_ELL], row[END_ELL]):
        first, n_outputs, first_stage, end_stage = arrays.ell_blocks[block]
        outputs = np.arange(first, first + n_outputs)
        if block < row[FIRST_WHOLE]:
            numbers, firsts, ends, outputs = arrays.chunks[outputs].T
            assert ((firsts <= numbers) & (numbers < ends)).all()
            chunks.extend(numbers)
            is_written[outputs[numbers == firsts]] += 1
        else:
            is_written[outputs] += 1
        for stage in range(first_stage, end_stage):
            map_start, n_staged, first_slice = arrays.stages[stage]
            assert plan.is_resident or n_staged <= sizes.buffer
            staged = arrays.maps[map_start : map_start + n_staged]
            assert np.unique(staged).size == staged.size
            for inner, output in enumerate(outputs):
                start, width = arrays.slices[first_slice + inner // 32]
                for entry in range(start + inner % 32, start + 32 * width, 32):
                    place = arrays.ell_indices[entry]
                    source = row_of(place) if plan.is_resident else (*staged, 0)[place]
                    if arrays.ell_weights[entry] != 0:
                        matrix[source, output] += arrays.ell_weights[entry]
    assert (is_written == 1).all()
    assert sorted(chunks) == list(range(len(chunks)))
    assert len(chunks) <= plan.max_chunks
    return matrix


@given(dyadic_cases(max_layers=1), st.sampled_from([SMALL, RESIDENT]))
def test_a_step_holds_every_weight_of_its_layer(
    case: tuple[Network, Features], sizes: PlanSizes
) -> None:
    network, _ = case
    plan = plan_cuda(network, "edges", sizes)
    weights = network.layers[0].weights.toarray()
    np.testing.assert_array_equal(step_matrix(plan, 0)[:, plan.output_position], weights)
    assert plan.layer_edges == network.layer_edges


@given(dyadic_cases(always=True), st.sampled_from([SMALL, RESIDENT]))
def test_steps_chain_into_the_networks_product(
    case: tuple[Network, Features], sizes: PlanSizes
) -> None:
    network, _ = case
    for mode in ("edges", "merge"):
        plan = plan_cuda(network, mode, sizes)
        product = np.zeros((network.n_inputs, plan.n_loaded + 1))
        product[np.arange(network.n_inputs), plan.load_position] = 1
        product = product[:, : plan.n_loaded]
        expected = np.eye(network.n_inputs)
        for step in range(plan.n_steps):
            product = product @ step_matrix(plan, step)
        for layer in network.layers:
            expected = expected @ layer.weights.toarray().astype(float)
        np.testing.assert_array_equal(product[:, plan.output_position], expected)


@given(dyadic_cases())
def test_extents_are_where_steps_begin_in_the_long_arrays(case: tuple[Network, Features]) -> None:
    plan = plan_cuda(case[0], "merge", SMALL)
    lengths = [len(getattr(plan.arrays, name)) for name in WINDOWED]
    assert plan.extents[0].tolist() == [0] * len(WINDOWED)
    assert plan.extents[-1].tolist() == lengths
    assert plan.step_bytes().sum() == sum(getattr(plan.arrays, name).nbytes for name in WINDOWED)
    assert (plan.arrays.steps[plan.steps_end() - 1, LAYER] != NO_LAYER).all()


@pytest.mark.parametrize("mode", ["edges", "merge"])
def test_the_official_layers_become_groups_or_few_edges(mode: str) -> None:
    network = official_network(1024, 8)
    plan = plan_cuda(network, mode, PlanSizes())
    assert plan.is_resident
    if mode == "edges":
        # 64 groups of 16 outputs with 32 inputs, 8 a bundle; the group's last layer: 32 share.
        assert (plan.arrays.bundles[:, 0] == 32).all()
        assert (plan.arrays.groups[:, 1] == 16).all()
        assert plan.arrays.bundles.shape[0] == 8 * 8
        assert plan.arrays.ell_weights.size == 0
    else:
        assert plan.arrays.bundles.shape[0] == 0
        assert plan.max_width == 64


def test_large_networks_take_a_launch_a_step_and_merged_ones_do_not() -> None:
    widths = lambda n: [n] * 121  # noqa: E731
    for neurons, is_resident in ((1024, True), (4096, False), (65536, False)):
        assert suits_resident(widths(neurons), 120 * neurons * 32, PlanSizes()) == is_resident
        assert suits_resident(widths(neurons // 16), 120 * neurons // 16 * 2, PlanSizes())


def test_as_many_features_are_resident_as_shared_memory_holds() -> None:
    assert resident_choices(1024, 163 << 10) == [16, 8, 4]
    assert resident_choices(4096, 163 << 10) == [4]
    assert resident_choices(8192, 227 << 10) == []
    assert resident_bytes(1023, 16) == 2 * 4 * 1024 * 16


def test_outputs_that_share_too_little_are_not_padded_to_groups() -> None:
    weights = np.zeros((8, 6))
    weights[:2, :3] = 1  # three outputs with the same inputs
    weights[4:, 3:] = np.arange(1, 13).reshape(4, 3)
    plan = plan_cuda(Network([Layer(weights)]), "edges", SMALL)
    assert plan.arrays.groups.size == 0
    assert plan.arrays.ell_blocks[:, 1].tolist() == [6]


def layer_of_degrees(*degrees: int) -> Layer:
    """An output for each number, with so many inputs."""
    return Layer(np.arange(max(degrees))[:, None] < degrees)


def test_outputs_far_above_the_mean_are_cut_into_chunks_of_equal_length() -> None:
    layer = layer_of_degrees(1, 9, 9, 21)  # more than twice the mean of 10, and than two chunks
    plan = plan_cuda(Network([layer]), "edges", SMALL)
    assert plan.max_chunks == 7
    assert plan.arrays.chunks[:, 1:].tolist() == [[0, 7, 0]] * 7
    assert plan.output_position.tolist() == [3, 1, 2, 0]
    assert plan.arrays.slices[:, 1].sum() < 21  # shorter than the output was
    for degrees in ((1, 9, 10, 20), (1, 0, 0, 6)):
        assert plan_cuda(Network([layer_of_degrees(*degrees)]), "edges", SMALL).max_chunks == 0


def test_long_outputs_with_the_same_inputs_are_no_group() -> None:
    layer = layer_of_degrees(*[9] * 4, *[1] * 12)
    plan = plan_cuda(Network([layer]), "edges", SMALL)
    assert plan.arrays.groups[:, 1].tolist() == [4, 4, 4, 0]
    # Chunks of the same inputs lie side by side.
    assert plan.arrays.chunks[:, 0].tolist() == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]
    np.testing.assert_array_equal(
        step_matrix(plan, 0)[:, plan.output_position], layer.weights.toarray()
    )


def test_a_stage_has_about_equally_many_edges_of_every_output() -> None:
    # 128 outputs of 24 inputs that they do not share fill 13 buffers of 240 inputs.
    n_outputs, degree = 128, 24
    weights = sp.csr_array(np.repeat(np.eye(n_outputs), degree, axis=0))
    arrays = plan_cuda(Network([Layer(weights)]), "edges", PlanSizes(shared_bytes=0)).arrays
    assert len(arrays.stages) == 13
    # 240 inputs are the ones of nearly two rounds, so that a slice is two entries wide, or three.
    assert arrays.slices[:, 1].max() <= 3
    assert arrays.ell_weights.size < 1.2 * weights.nnz


def test_a_layer_without_edges_has_outputs_all_the_same() -> None:
    plan = plan_cuda(Network([Layer(sp.csr_array((3, 5)), 1.0)]), "edges", SMALL)
    np.testing.assert_array_equal(step_matrix(plan, 0), np.zeros((3, 5)))


def test_a_plan_beyond_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from spdnn import DeviceError

    monkeypatch.setattr("spdnn.machine.memory.available_bytes", lambda: 1000)
    for mode in ("edges", "merge"):
        with pytest.raises(DeviceError, match="of memory"):
            plan_cuda(dyadic_network(0, [40, 40], ["full"]), mode, SMALL)
