"""Whether the categories of a run are the true ones, and what is known to judge it by."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from spdnn import challenge
from spdnn.run.result import Comparison, Result, categories_sha256, compare

N_SHOWN = 5
"""Wrong categories that are named; of the others only the number."""


Kind = Literal[
    "list", "sha256 published", "sha256 computed", "reference", "sample", "count", "none"
]


@dataclass(frozen=True)
class Check:
    """The judgement on a run.

    Attributes
    ----------
    kind : Kind
        What the categories were compared with; "reference": with a run of the float64 reference
        on all features, "sample": with one on some of them.
    outcome : {"passed", "failed", "none"}
        "none" where nothing proves them right or wrong: also where no more than their number
        is known, and it is right.
    text : str
        The same for people; its first line is the verdict.
    source : str or None
        Path of the list of true categories, where there was one.
    """

    kind: Kind
    outcome: Literal["passed", "failed", "none"]
    text: str
    source: str | None = None


def check_nothing(result: Result, reason: str = "no truth to compare them with") -> Check:
    """The judgement where there is nothing to compare with."""
    text = f"{'check':<11}none: {result.live.size:,} categories, {reason}"
    return Check("none", "none", text)


def check_list(
    result: Result, truth: npt.NDArray[np.int64], source: str, count: int | None = None
) -> Check:
    """Compare the categories with a list of the true ones.

    Parameters
    ----------
    result : Result
    truth : ndarray, shape (n_true,), int64
        1-based, ascending.
    source : str
        Where the list comes from, for the text.
    count : int, optional
        That only the first so many features were asked for, for the text.
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
    """Judge a run of an official network on all official inputs without a list at hand.

    By the sha256 of the whole list where it is known; else by the number of categories, which
    can show that they are wrong, but not that they are right.
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
    """Judge a run of an official network on all digits, whose categories are known."""
    return _check_known(result, known, "")


def _check_known(result: Result, known: challenge.KnownCategories, head: str) -> Check:
    """Compare the sha256 of the whole list; `head` is what the verdict begins with."""
    n = result.live.size
    kind: Kind = "sha256 published" if known.is_published else "sha256 computed"
    name = "published list" if known.is_published else "list computed with the float64 reference"
    if categories_sha256(result.categories) == known.sha256:
        text = f"{head}PASSED: {n:,} categories, equal to the {name} (by its sha256)"
        return Check(kind, "passed", text)
    text = f"{head}FAILED: {n:,} categories, not the {known.count:,} of the {name} (by its sha256)"
    return Check(kind, "failed", text)
