"""Options and choice of what proves the categories of ``spdnn run``."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from spdnn.challenge import DEPTHS, FEATURES
from spdnn.checks.sample import (
    LONG_SECONDS,
    SHORT_SECONDS,
    check_sample,
    take_sample,
    take_sample_within,
)
from spdnn.checks.truth import Check, check_digits, check_list, check_nothing, check_official
from spdnn.cli.arguments import positive
from spdnn.engines.base import Engine, Plan
from spdnn.engines.reference import ReferenceEngine
from spdnn.errors import DataError, DeviceError
from spdnn.recipes.digits import known_categories
from spdnn.run.result import Result
from spdnn.sources.features import SourcedFeatures
from spdnn.sources.folder import DIGITS, find_truth
from spdnn.sources.networks import SourcedNetwork
from spdnn.sources.truth import read_truth

AUTO, NONE, REFERENCE = "auto", "none", "reference"

Judge = Callable[[Result, Engine, Plan], Check]
"""Judges a result; takes the engine and the plan that have made it, too."""


class CheckWay(NamedTuple):
    """What a run is to be judged by.

    Attributes
    ----------
    word : str
        "auto", "none" or "reference".
    features : int or None
        Features that the reference runs; None for as many as it can in its time.
    """

    word: str = AUTO
    features: int | None = None


def check_way(text: str) -> CheckWay:
    """Parse the value of ``--check``."""
    word, colon, number = text.partition(":")
    if word not in (AUTO, NONE, REFERENCE) or (colon and word != REFERENCE):
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {AUTO}, {NONE}, {REFERENCE}, {REFERENCE}:COUNT"
        )
    return CheckWay(word, positive(number) if colon else None)


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add ``--truth`` and ``--check``."""
    parser.add_argument(
        "--truth",
        metavar=f"PATH|{NONE}",
        help="list of the true categories, one a line; none: use no list",
    )
    parser.add_argument(
        "--check",
        type=check_way,
        default=CheckWay(),
        metavar=f"{AUTO}|{NONE}|{REFERENCE}[:COUNT]",
        help="what the run is judged by. auto: a list of true categories, else what is known of "
        f"them, else the float64 reference on some features for about {SHORT_SECONDS:g} s. "
        f"reference: the same on COUNT features, or for about {LONG_SECONDS:g} s",
    )


def refuse_check(arguments: argparse.Namespace) -> None:
    """Refuse before any work an unreadable list, or options that exclude each other."""
    if arguments.truth in (None, NONE):
        return
    if arguments.check.word != AUTO:
        raise DataError(f"--truth {arguments.truth} is what to judge the run by: leave out --check")
    read_truth(arguments.truth)


def choose_judge(
    arguments: argparse.Namespace,
    network: SourcedNetwork,
    features: SourcedFeatures,
) -> tuple[Judge, str | None]:
    """Choose what to judge a run by before it starts. A list is read here.

    Parameters
    ----------
    arguments : argparse.Namespace
        The options of `add_check`, and ``data`` and ``features``.
    network : SourcedNetwork
        The network to run.
    features : SourcedFeatures
        Its inputs.

    Returns
    -------
    Judge
        What judges the result.
    str or None
        Path of the list, if there is one.

    Raises
    ------
    DataError
        If the list cannot be read.
    """
    neurons, layers = network.network.n_inputs, network.network.n_layers
    is_official = network.is_official and features.is_official
    way: CheckWay = arguments.check
    source: str | None = arguments.truth
    if source is None and is_official and way.word == AUTO:
        source = find_truth(arguments.data, neurons, layers)
    if way.word == NONE:
        return lambda result, engine, plan: check_nothing(result), None
    if way.word == REFERENCE:
        return partial(_judge_by_sample, network, features, way.features), None
    if source is not None and source != NONE:
        # The list is cut only if fewer features were asked for. Inputs that end early must fail.
        truth = read_truth(source, arguments.features)
        count = arguments.features
        return lambda result, engine, plan: check_list(result, truth, source, count), source
    if source is None:
        if is_official and layers in DEPTHS and len(features.features) == FEATURES:
            return lambda result, engine, plan: check_official(result, neurons, layers), None
        if network.is_official and features.source == DIGITS:
            known = known_categories(features.features, layers)
            if known is not None:
                return lambda result, engine, plan: check_digits(result, known), None
    return partial(_judge_by_short_sample, network, features), None


def _judge_by_sample(
    network: SourcedNetwork,
    features: SourcedFeatures,
    count: int | None,
    result: Result,
    engine: Engine,
    plan: Plan,
) -> Check:
    """Judge a run by the float64 reference on `count` features, or as many as it can."""
    reason = _nothing_to_sample(result)
    if reason is not None:
        return check_nothing(result, reason)
    net, inputs = network.network, features.features
    sample = None if count is not None else take_sample_within(net, inputs, LONG_SECONDS)
    sample = sample or take_sample(net, inputs, count or 1)
    return check_sample(result, sample, engine, plan)


def _judge_by_short_sample(
    network: SourcedNetwork, features: SourcedFeatures, result: Result, engine: Engine, plan: Plan
) -> Check:
    """Judge a run by the reference, unless that takes long or fails: nobody has asked for it."""
    reason = _nothing_to_sample(result)
    if reason is not None:
        return check_nothing(result, reason)
    try:
        sample = take_sample_within(network.network, features.features, SHORT_SECONDS)
        if sample is not None:
            return check_sample(result, sample, engine, plan)
    except (DeviceError, MemoryError) as error:
        return check_nothing(result, f"the reference cannot: {str(error) or 'out of memory'}")
    reason = f"the reference takes more than {SHORT_SECONDS:g} s (--check {REFERENCE})"
    return check_nothing(result, reason)


def _nothing_to_sample(result: Result) -> str | None:
    """Why the reference has nothing to compare with; None if it has."""
    if result.engine == ReferenceEngine.name:
        return "computed by the reference itself"
    return "no features" if result.n_features == 0 else None
