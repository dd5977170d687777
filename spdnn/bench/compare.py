"""Compare old records with new ones, case by case, and tell changes from noise."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from spdnn.bench.records import SAME_DATA, Case, Record

FEWEST_RUNS = 3
"""Runs on each side that a comparison of ranges needs. With five runs each, the range of one side
lies below the other's by chance once in 126 comparisons; with three runs each, once in 10."""

Verdict = Literal["faster", "slower", "within the spread", "too few runs", "FAILED"]


class Change(NamedTuple):
    """How a case has changed.

    Attributes
    ----------
    old, new : Record
        The records of the case.
    ratio : float or None
        The new rate divided by the old one; None if a check has failed.
    verdict : str
        What the ratio and the ranges of all runs say.
    """

    old: Record
    new: Record
    ratio: float | None
    verdict: Verdict

    @property
    def same_data(self) -> bool:
        """Whether both ran the same weights and inputs, as far as the records say."""
        old, new = self.old.facts["data"], self.new.facts["data"]
        return all(old.get(name) == new.get(name) for name in SAME_DATA)


class Changes(NamedTuple):
    """All changes, and the records that only one side has.

    Attributes
    ----------
    both : list of Change
        Cases that both sides have.
    only_old, only_new : list of Record
        Records of cases that one side has.
    """

    both: list[Change]
    only_old: list[Record]
    only_new: list[Record]

    @property
    def is_worse(self) -> bool:
        """Whether a case has become slower beyond its spread, or wrong."""
        return any(
            change.verdict == "slower" or (change.verdict == "FAILED" and not change.new.passed)
            for change in self.both
        )


def compare(old: Sequence[Record], new: Sequence[Record]) -> Changes:
    """Match records by case and compare them. Records of an emulated GPU have no rate.

    Parameters
    ----------
    old, new : sequence of Record
        The records of both sides; each case is there once.
    """
    olds, news = (
        {record.case: record for record in records if not record.is_emulated}
        for records in (old, new)
    )
    both = [_change(olds[case], news[case]) for case in sorted(olds.keys() & news.keys())]
    return Changes(both, _rest(olds, news), _rest(news, olds))


def _rest(these: dict[Case, Record], those: dict[Case, Record]) -> list[Record]:
    """The records of cases that only the first side has."""
    return [these[case] for case in sorted(these.keys() - those.keys())]


def _change(old: Record, new: Record) -> Change:
    """Compare two records. A change counts if the ranges of all runs do not overlap."""
    if not (old.passed and new.passed):
        return Change(old, new, None, "FAILED")
    ratio = new.rate / old.rate
    verdict: Verdict = "within the spread"
    if min(len(old.times), len(new.times)) < FEWEST_RUNS:
        verdict = "too few runs"
    elif new.times[-1] < old.times[0]:
        verdict = "faster"
    elif new.times[0] > old.times[-1]:
        verdict = "slower"
    return Change(old, new, ratio, verdict)
