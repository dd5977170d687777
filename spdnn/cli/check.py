"""What ``spdnn run`` is judged by: a list, what is known of the categories, or the reference."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
from spdnn.engines.base import Engine
from spdnn.engines.reference import ReferenceEngine
from spdnn.errors import DataError, DeviceError
from spdnn.recipes.digits import known_categories
from spdnn.run.result import Result
from spdnn.sources.features import SourcedFeatures
from spdnn.sources.folder import DIGITS, find_truth
from spdnn.sources.networks import SourcedNetwork
from spdnn.sources.truth import read_truth

AUTO, NONE, REFERENCE = "auto", "none", "reference"

Judge = Callable[[Result, Engine, Any], Check]
"""Judges a run; takes the engine and the plan that have made the result, too."""


class CheckWay(NamedTuple):
    """What a run is to be judged by; `features` by the reference, None for as many as it can."""

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
        "--truth", metavar=f"PATH|{NONE}", help="the true categories, one a line; none: no list"
    )
    parser.add_argument(
        "--check",
        type=check_way,
        default=CheckWay(),
        metavar=f"{AUTO}|{NONE}|{REFERENCE}[:COUNT]",
        help="what the run is judged by. auto: a list of true categories, else what is known of "
        f"them, else the float64 reference on some features, for about {SHORT_SECONDS:g} s. "
        f"reference: that, on COUNT features, or for about {LONG_SECONDS:g} s",
    )


def refuse_check(arguments: argparse.Namespace) -> None:
    """Find, before any work, a list that cannot be read, or options that do not go together."""
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
    """Choose what to judge a run by, before it starts: a list is read first of all.

    Returns
    -------
    Judge
    str or None
        Path of the list, where there is one.
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
        # Cut only where fewer features were asked for: inputs that end early are a failure.
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
    plan: Any,
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
    network: SourcedNetwork, features: SourcedFeatures, result: Result, engine: Engine, plan: Any
) -> Check:
    """Judge a run by the reference though nobody asked: it must not take long, nor lose a run."""
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
    """Why there is nothing to compare by the reference, if there is not."""
    if result.engine == ReferenceEngine.name:
        return "computed by the reference itself"
    return "no features" if result.n_features == 0 else None
