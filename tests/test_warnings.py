"""Warnings of our own code are errors in tests, those of other packages are not."""

import warnings

import numpy as np
import pytest

from spdnn.machine.jit import jit


def warn(module: str, category: type[Warning] = UserWarning) -> None:
    warnings.warn_explicit("a warning", category, "somewhere.py", 1, module=module)


@pytest.mark.parametrize(
    "module",
    [
        "spdnn",
        "spdnn.plan.cuda.ell",
        "tests.test_warnings",
        "/home/me/sparse/spdnn/engines/cpu/kernels/tile",
    ],
)
def test_a_warning_of_ours_is_an_error(module: str) -> None:
    with pytest.raises(UserWarning, match="a warning"):
        warn(module)


@pytest.mark.parametrize(
    "module",
    [
        "numba.cuda.np.npdatetime_helpers",
        "scipy.tests.data",
        "spdnn_of_others",
        "testslide",
        "/home/me/spdnn/.venv/lib/python3.13/site-packages/numba/core/typing",
    ],
)
def test_a_warning_of_another_package_is_listed_and_no_error(module: str) -> None:
    with warnings.catch_warnings(record=True) as listed:
        warn(module)
    assert [str(warning.message) for warning in listed] == ["a warning"]


def test_a_warning_that_is_given_for_our_call_is_an_error() -> None:
    with pytest.raises(RuntimeWarning, match="divide by zero"):
        np.ones(3) / np.zeros(3)


@pytest.mark.parametrize(
    "category",
    [
        pytest.PytestUnhandledThreadExceptionWarning,
        pytest.PytestUnraisableExceptionWarning,
        pytest.PytestReturnNotNoneWarning,
    ],
)
def test_what_pytest_finds_wrong_with_a_test_is_an_error(category: type[Warning]) -> None:
    with pytest.raises(category):
        warn("_pytest.somewhere", category)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left @ right


def test_a_warning_of_numba_about_a_kernel_of_ours_is_an_error() -> None:
    with pytest.raises(Warning, match="faster on contiguous arrays"):
        jit(_product)(np.ones((4, 4))[:, ::2], np.ones((2, 4)))
