"""Checks of the categories of a run against the true ones."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from spdnn import challenge
from spdnn.run.result import Comparison, Result, categories_sha256, compare

N_SHOWN = 5
"""Most wrong categories that a message names. For the others it gives their number."""


Kind = Literal[
    "list", "sha256 published", "sha256 computed", "reference", "sample", "count", "none"
]


@dataclass(frozen=True)
class Check:
    """The judgement on a run.

    Attributes
    ----------
    kind : Kind
        What the categories were compared with. "reference" is a run of the float64 reference on all
        features, "sample" a run on some of them.
    outcome : {"passed", "failed", "none"}
        "none" where nothing proves the categories right or wrong. This includes the case that only
        their number is known, and agrees.
    text : str
        The judgement for people. Its first line is the verdict.
    source : str or None
        Path of the list of true categories, where there is one.
    """

    kind: Kind
    outcome: Literal["passed", "failed", "none"]
    text: str
    source: str | None = None


def check_nothing(result: Result, reason: str = "no truth to compare them with") -> Check:
    """Make the judgement where there is nothing to compare with.

    Parameters
    ----------
    result : Result
        The result of the run.
    reason : str
        Why there is nothing, for the text.

    Returns
    -------
    Check
        Its outcome is "none".
    """
    text = f"{'check':<11}none: {result.live.size:,} categories, {reason}"
    return Check("none", "none", text)


def check_list(
    result: Result, truth: npt.NDArray[np.int64], source: str, count: int | None = None
) -> Check:
    """Compare the categories with a list of the true ones.

    Parameters
    ----------
    result : Result
        The result of the run.
    truth : ndarray, shape (n_true,), int64
        The true categories, counted from 1 and ascending.
    source : str
        Path of the list, for the text.
    count : int, optional
        Number of features that were run, from the first, for the text; all where not given.

    Returns
    -------
    Check
        The judgement on the run.
    """
    part = "" if count is None else f" (of the first {count:,} features)"
    comparison = compare(result.categories, truth)
    n = result.live.size
    if comparison.is_equal:
        text = f"CHALLENGE PASSED: {n:,} categories, equal to {source}{part}"
        return Check("list", "passed", text, source)
    head = f"CHALLENGE FAILED: {n:,} categories, {truth.size:,} in {source}{part}"
    return Check("list", "failed", "\n".join([head, *_differences(comparison)]), source)


def _differences(comparison: Comparison) -> list[str]:
    lines = []
    for word, numbers in (("missing", comparison.missing), ("extra", comparison.extra)):
        shown = ", ".join(map(str, numbers[:N_SHOWN]))
        more = ", ..." if numbers.size > N_SHOWN else ""
        lines.append(f"{word:<11}{numbers.size:,}" + (f": {shown}{more}" if numbers.size else ""))
    return lines


def check_official(result: Result, neurons: int, layers: int) -> Check:
    """Judge a run of an official network on all official inputs, without the list of categories.

    The sha256 of the whole list is compared where it is known. Otherwise the number of categories
    is compared, which can show that they are wrong, but not that they are right.

    Parameters
    ----------
    result : Result
        The result of the run.
    neurons : int
        Neurons of each layer.
    layers : int
        Depth of the network.

    Returns
    -------
    Check
        The judgement on the run.
    """
    n, n_true = result.live.size, challenge.SIZES[neurons].categories
    known = challenge.CATEGORIES_SHA256.get((neurons, layers))
    if known is None:
        if n != n_true:
            text = f"CHALLENGE FAILED: {n:,} categories, {n_true:,} were published"
            return Check("count", "failed", text)
        text = (
            f"{'check':<11}count only: {n:,} categories, as many as were published; "
            "which ones was not checked (give the list with `truth`)"
        )
        return Check("count", "none", text)
    return _check_known(result, known, "CHALLENGE ")


def check_digits(result: Result, known: challenge.KnownCategories) -> Check:
    """Judge a run of an official network on all of scikit-learn's digits.

    Parameters
    ----------
    result : Result
        The result of the run.
    known : KnownCategories
        The known categories.

    Returns
    -------
    Check
        The judgement on the run.
    """
    return _check_known(result, known, "")


def _check_known(result: Result, known: challenge.KnownCategories, head: str) -> Check:
    """Compare the sha256 of the whole list. The verdict begins with `head`."""
    n = result.live.size
    kind: Kind = "sha256 published" if known.is_published else "sha256 computed"
    name = "published list" if known.is_published else "list computed with the float64 reference"
    if categories_sha256(result.categories) == known.sha256:
        text = f"{head}PASSED: {n:,} categories, equal to the {name} (by its sha256)"
        return Check(kind, "passed", text)
    text = f"{head}FAILED: {n:,} categories, not the {known.count:,} of the {name} (by its sha256)"
    return Check(kind, "failed", text)
