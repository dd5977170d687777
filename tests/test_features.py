"""Features check themselves when they are made, and hold no dense matrix."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spdnn import DataError, Features
from spdnn.features import index_dtype

matrices = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=12),
    elements=st.sampled_from([0.0, 0.0, -0.0, 1.0, 0.25, -3.0]),
)


@given(matrices)
def test_a_matrix_comes_back_as_it_went_in(matrix: np.ndarray) -> None:
    for given_ in (matrix, sp.csr_array(matrix), sp.coo_array(matrix)):
        features = Features.from_matrix(given_)
        np.testing.assert_array_equal(features.to_csr(np.float32).toarray(), matrix)
        assert features.n_nonzeros == np.count_nonzero(matrix)
        assert (len(features), features.n_neurons) == matrix.shape


@given(matrices, st.integers(0, 14), st.integers(0, 14), st.integers(0, 5))
def test_a_part_is_what_the_rows_of_the_matrix_are(
    matrix: np.ndarray, start: int, stop: int, offset: int
) -> None:
    part = Features.from_matrix(matrix).part(start, stop)
    np.testing.assert_array_equal(part.to_csr(np.float32).toarray(), matrix[start:stop])
    assert part.n_features == len(matrix[start:stop])
    assert part.n_nonzeros == np.count_nonzero(matrix[start:stop])
    inner = matrix[start:stop][offset:]
    np.testing.assert_array_equal(part.part(offset, 99).to_csr(np.float32).toarray(), inner)


def test_values_are_left_out_where_all_are_one() -> None:
    assert Features.from_matrix([[0, 1], [1, 1]]).values is None
    assert Features.from_matrix([[0, 2]]).values.tolist() == [2.0]


@pytest.mark.parametrize(
    ("n_neurons", "dtype"), [(1, np.uint16), (65536, np.uint16), (65537, np.int32)]
)
def test_indices_take_16_bits_where_these_can_name_every_neuron(
    n_neurons: int, dtype: type
) -> None:
    assert index_dtype(n_neurons) is dtype
    features = Features(n_neurons, [0, 1], [n_neurons - 1])
    assert features.indices.dtype == dtype
    assert features.to_csr().indices.tolist() == [n_neurons - 1]


@pytest.mark.parametrize(
    ("indptr", "indices", "values", "message"),
    [
        ([], [], None, "indptr must be one ascending row"),
        ([[0, 1]], [0], None, "indptr must be one ascending row"),
        ([0, 2, 1], [0, 1], None, "indptr must be one ascending row"),
        ([0, 3], [0, 1], None, "points outside of the indices"),
        ([-1, 1], [0, 1], None, "points outside of the indices"),
        ([0, 1], [4], None, r"outside of 0\.\.3"),
        ([0, 1], [-1], None, r"outside of 0\.\.3"),
        ([0, 1], [70000], None, r"outside of 0\.\.3"),
        ([0, 2], [1, 1], None, "must ascend, each named once"),
        ([0, 1, 3], [3, 2, 1], None, "must ascend, each named once"),
        ([0, 1], [1.5], None, "one row of whole numbers"),
        ([0, 1], [[1]], None, "one row of whole numbers"),
        ([0, 1], [1], [1.0, 2.0], "one value an index"),
        ([0, 1], [1], [np.nan], "NaN or infinite"),
        ([0, 1], [1], [np.inf], "NaN or infinite"),
    ],
)
def test_what_is_no_feature_map_is_refused(
    indptr: list, indices: list, values: list | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Features(4, np.array(indptr, dtype=np.int64), np.array(indices), values)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([1, 0, 1], r"not of shape \(3,\)"),
        ([[1e300]], "NaN or infinite"),
        ([[np.nan]], "NaN or infinite"),
        ([["x"]], "matrix of numbers"),
    ],
)
def test_what_is_no_matrix_of_features_is_refused(matrix: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Features.from_matrix(matrix)


def test_indices_may_fall_from_one_feature_to_the_next() -> None:
    assert Features(4, [0, 2, 2, 4], [2, 3, 0, 1]).n_features == 3


def test_a_feature_map_that_starts_at_an_offset_is_whole() -> None:
    features = Features(4, [1, 2, 4], [9, 3, 0, 2][:4], [5.0, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(features.to_csr().toarray(), [[0, 0, 0, 1], [2, 0, 3, 0]])


def test_the_repr_tells_the_sizes() -> None:
    assert repr(Features.from_matrix([[0, 1]])) == "Features(1 features, 2 neurons, 1 non-zeros)"


@given(st.integers(1, 4), st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=6))
def test_indices_are_checked_by_blocks_as_they_are_one_by_one(
    block: int, rows: list[list[int]]
) -> None:
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.array([index for row in rows for index in row], dtype=np.uint16)
    are_inside = all(index < 4 for row in rows for index in row)
    do_ascend = all(row == sorted(set(row)) for row in rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spdnn.features.CHECKED_AT_ONCE", block)
        if are_inside and do_ascend:
            assert Features(4, indptr, indices).n_nonzeros == indices.size
            return
        with pytest.raises(DataError, match="must ascend" if are_inside else "is outside of 0"):
            Features(4, indptr, indices)
