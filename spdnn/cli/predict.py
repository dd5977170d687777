"""``spdnn predict``: run a classifier, give the class of each feature, count the right ones."""

import argparse
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spdnn.cli.arguments import (
    Commands,
    add_engine,
    add_tuning,
    refuse_tuning,
    require_apart,
    writable,
)
from spdnn.cli.progress import progress_bar
from spdnn.cli.sources import add_sources, as_rows, open_sources, source_rows
from spdnn.engines import choose_mode, make_engine
from spdnn.engines.base import CompilesAhead
from spdnn.errors import DataError, DeviceError
from spdnn.io.files import whole_file
from spdnn.io.labels import read_labels
from spdnn.machine.launcher import launched_size
from spdnn.run.prediction import Prediction
from spdnn.run.result import Result, Seconds
from spdnn.run.session import predict

N_SHOWN = 10
"""Number of classes, the most frequent ones, that are printed with their features."""


def add_parser(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "predict",
        help="run a classifier: the class of each feature, and how many are right",
        description=(
            "Run features through a classifier and take each one's largest output, counted from "
            "0. A single output gives class 1 if it is positive, else class 0."
        ),
    )
    add_sources(parser)
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="the true classes: .txt (a number a line), .npy, or MNIST's labels",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the classes, one a line")
    parser.add_argument(
        "--scores", type=Path, metavar="FILE", help="write the scores as an array, .npy"
    )
    add_engine(parser)
    add_tuning(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run a classifier and write what was asked for."""
    started = time.perf_counter()
    _refuse_early(arguments)
    labels = None if arguments.labels is None else read_labels(arguments.labels)
    network, features = open_sources(arguments)
    if labels is not None:
        labels = _fitting(arguments, labels, len(features.features), network.network.n_outputs)
    read = time.perf_counter() - started
    with progress_bar("inference") as progress:
        predicted = predict(
            network.network,
            features.features,
            engine=arguments.engine,
            mode=arguments.mode,
            threads=arguments.threads,
            device=arguments.device,
            tuning=arguments.tuning,
            progress=progress,
        )
    assert predicted.result is not None  # features are never scored without a run
    result = predicted.result.after(Seconds(), read=read, total=time.perf_counter() - started)
    rows = [
        *source_rows(network, features),
        *_result_rows(result, arguments.tuning is not None),
        *_class_rows(predicted, labels),
    ]
    try:
        print(as_rows(rows))
    finally:  # files that were asked for are written even if nobody reads what is printed
        _write(arguments, predicted)
    return 0


def _refuse_early(arguments: argparse.Namespace) -> None:
    """Find out before any work what would fail after it; then begin to compile."""
    if launched_size() > 1:
        raise DeviceError("spdnn predict is one process's work: start it without a launcher")
    for path in (arguments.out, arguments.scores):
        if path is not None:
            writable(path)
    require_apart(
        {"--out": arguments.out, "--scores": arguments.scores, "--tuning": arguments.tuning},
        {
            "--weights": arguments.weights,
            "--inputs": arguments.inputs,
            "--labels": arguments.labels,
        },
    )
    engine = make_engine(arguments.engine, arguments.threads, arguments.device)
    choose_mode(engine, arguments.mode)
    if arguments.tuning is not None:
        refuse_tuning(arguments.tuning, engine)
    if isinstance(engine, CompilesAhead):
        engine.compile_ahead()


def _write(arguments: argparse.Namespace, predicted: Prediction) -> None:
    """Write the files that were asked for."""
    if arguments.out is not None:
        with whole_file(arguments.out) as file:
            file.write("".join(f"{each}\n" for each in predicted.classes.tolist()).encode())
    if arguments.scores is not None:
        with whole_file(arguments.scores) as file:
            np.save(file, predicted.scores)


def _fitting(
    arguments: argparse.Namespace, labels: npt.NDArray[np.int64], n_features: int, n_outputs: int
) -> npt.NDArray[np.int64]:
    """The labels of the features that were asked for; DataError if they do not fit."""
    if arguments.features is not None:
        labels = labels[: arguments.features]
    if labels.size != n_features:
        raise DataError(f"{arguments.labels}: {labels.size} labels for {n_features} features")
    n_classes = max(2, n_outputs)
    if labels.size and not 0 <= labels.min() <= labels.max() < n_classes:
        wrong = labels[(labels < 0) | (labels >= n_classes)][0]
        raise DataError(f"{arguments.labels}: class {wrong} is outside of 0..{n_classes - 1}")
    return labels


def _result_rows(result: Result, is_tuned: bool) -> list[tuple[str, str]]:
    """Rows of the engine, of seconds and of live features."""
    seconds = result.seconds
    return [
        ("engine", f"{result.engine}, mode {result.mode}"),
        ("read", f"{seconds.read:10.3f} s"),
        *([("tune", f"{seconds.tune:10.3f} s")] if is_tuned else []),
        ("inference", f"{seconds.inference:10.3f} s"),
        ("total", f"{seconds.total:10.3f} s"),
        ("live", f"{result.live.size:,} of {result.n_features:,} features after the last layer"),
    ]


def _class_rows(
    predicted: Prediction, labels: npt.NDArray[np.int64] | None
) -> list[tuple[str, str]]:
    """Rows that count the features of each class, and the right ones."""
    classes, counts = np.unique(predicted.classes, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:N_SHOWN]
    shown = ", ".join(f"{classes[k]}: {counts[k]:,}" for k in np.sort(order))
    more = ", ..." if classes.size > N_SHOWN else ""
    rows = [("classes", f"{classes.size:,} found: {shown}{more}")]
    if labels is not None and labels.size:
        n_right = np.count_nonzero(predicted.classes == labels)
        rows.append(("accuracy", f"{n_right / labels.size:.4f} ({n_right:,} of {labels.size:,})"))
    return rows
