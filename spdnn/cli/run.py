"""``spdnn run``: read a network and features, run them, check the categories, say how fast."""

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn import provenance
from spdnn.challenge import DEPTHS
from spdnn.cli.arguments import add_activation, add_network_size, count, positive, writable
from spdnn.cli.progress import progress_bar
from spdnn.engines import ENGINES, MODES, NOT_YET, choose_mode, make_engine
from spdnn.errors import DataError
from spdnn.inference import infer, with_reading
from spdnn.io.files import whole_file
from spdnn.result import (
    Comparison,
    Result,
    categories_sha256,
    categories_text,
    compare,
)
from spdnn.sources import (
    SourcedFeatures,
    SourcedNetwork,
    find_inputs,
    find_truth,
    find_weights,
    open_features,
    open_network,
    read_truth,
)

NONE = "none"
MERGE_NOTE = "the rate counts every edge for every feature, not the work that was left to do"
N_SHOWN = 5
"""Wrong categories that are named; of the others only the number."""


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a network, check its categories, say how fast",
        description=(
            "Run features through a network, check the categories, say how fast. What is not "
            "named is taken from the data folder, else made by the recipe."
        ),
    )
    add_network_size(parser, required=True)
    parser.add_argument(
        "--data", type=Path, default=Path("data"), metavar="DIR", help="data folder (data)"
    )
    parser.add_argument(
        "--weights", metavar="PATH|recipe", help="store, folder or archive of layer files"
    )
    parser.add_argument(
        "--inputs", metavar="PATH|recipe|digits", help="store, .tsv[.gz] or IDX images"
    )
    parser.add_argument("--truth", metavar="PATH|none", help="the true categories, one a line")
    parser.add_argument("--engine", default="auto", choices=("auto", *ENGINES, *NOT_YET))
    parser.add_argument("--mode", default="auto", choices=("auto", *MODES))
    parser.add_argument(
        "--features", type=count, metavar="COUNT", help="take only the first COUNT features"
    )
    add_activation(parser)
    parser.add_argument("--threads", type=positive, metavar="T", help="threads of engine cpu")
    parser.add_argument(
        "--save-categories", type=Path, metavar="FILE", help="write the categories, one a line"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all facts as JSON")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Do it; returns 1 if the categories are not the true ones."""
    started = time.perf_counter()
    _refuse_early(arguments)
    facts = provenance.gather()
    network, features, truth_source = _open(arguments)
    truth = None
    if truth_source is not None:
        # Cut only where fewer features were asked for: inputs that end early are a failure.
        truth = read_truth(truth_source, arguments.features)
    read = time.perf_counter() - started
    with progress_bar("inference") as progress:
        result = infer(
            network.network,
            features.features,
            engine=arguments.engine,
            mode=arguments.mode,
            threads=arguments.threads,
            progress=progress,
        )
    if arguments.save_categories is not None:
        with whole_file(arguments.save_categories) as file:
            file.write(categories_text(result.categories))
    result = with_reading(result, read, time.perf_counter() - started)
    check = None if truth is None else compare(result.categories, truth)
    if arguments.json is not None:
        record = as_record(arguments.neurons, network, features, result, truth_source, check)
        with whole_file(arguments.json) as file:
            file.write((json.dumps(record | {"provenance": facts}, indent=1) + "\n").encode())
    print(as_text(network, features, result))
    print(verdict(result, truth_source, truth, check, arguments.features))
    return 0 if check is None or check.is_equal else 1


def _refuse_early(arguments: argparse.Namespace) -> None:
    """Find, before any work, what would fail after it: outputs, truth, engine and mode."""
    outputs = [path for path in (arguments.save_categories, arguments.json) if path is not None]
    for path in outputs:
        writable(path)
    if len(outputs) == 2 and os.path.realpath(outputs[0]) == os.path.realpath(outputs[1]):
        raise DataError(f"--save-categories and --json would both write {outputs[0]}")
    if arguments.truth not in (None, NONE):
        read_truth(arguments.truth)
    choose_mode(make_engine(arguments.engine, arguments.threads), arguments.mode)


def _open(arguments: argparse.Namespace) -> tuple[SourcedNetwork, SourcedFeatures, str | None]:
    """Open what was named, or what the data folder holds."""
    neurons, folder = arguments.neurons, arguments.data
    layers = arguments.layers
    if layers is None and not (arguments.weights or "").endswith(".spdnn"):
        raise DataError("say how many --layers (official: " + ", ".join(map(str, DEPTHS)) + ")")
    weights, inputs = arguments.weights, arguments.inputs
    if weights is None:
        weights = find_weights(folder, neurons, layers)
    if inputs is None:
        inputs = find_inputs(folder, neurons)
    with progress_bar("weights") as progress:
        network = open_network(weights, neurons, layers, arguments.bias, arguments.ymax, progress)
    with progress_bar("inputs") as progress:
        features = open_features(inputs, neurons, arguments.features, progress, folder)
    truth: str | None = arguments.truth
    if truth is None and network.is_official and features.is_official:
        truth = find_truth(folder, neurons, network.network.n_layers)
    return network, features, None if truth == NONE else truth


def as_record(
    neurons: int,
    network: SourcedNetwork,
    features: SourcedFeatures,
    result: Result,
    truth_source: str | None,
    check: Comparison | None,
) -> dict[str, Any]:
    """All facts of a run but its provenance, ready for JSON."""
    truth = "none" if check is None else ("passed" if check.is_equal else "failed")
    return {
        "schema": 1,
        "neurons": neurons,
        "layers": network.network.n_layers,
        "features": result.n_features,
        "edges": result.n_edges,
        "engine": result.engine,
        "mode": result.mode,
        "ranks": result.ranks,
        "threads": result.threads,
        "seconds": asdict(result.seconds),
        "edges_per_second": result.edges_per_second,
        "edges_evaluated": result.edges_evaluated,
        "factor_saved": result.factor_saved,
        "categories": {
            "count": int(result.live.size),
            "sha256": categories_sha256(result.categories),
            "truth": truth,
        },
        "layers_log": [layer._asdict() for layer in result.layers],
        "data": {
            "weights": network.source,
            "inputs": features.source,
            "truth": truth_source,
            "official": network.is_official and features.is_official,
        },
    }


def as_text(network: SourcedNetwork, features: SourcedFeatures, result: Result) -> str:
    """The block of facts at the end of a run."""
    net, inputs, seconds = network.network, features.features, result.seconds
    notes = {True: "official", False: "not the official {}"}
    plural = "" if result.threads == 1 else "s"
    rows = [
        ("network", f"{net.n_inputs} neurons x {net.n_layers} layers, {net.n_edges:,} edges"),
        ("", f"{network.source} ({notes[network.is_official].format('network')})"),
        ("inputs", f"{inputs.n_features:,} features, {inputs.n_nonzeros:,} non-zeros"),
        ("", f"{features.source} ({notes[features.is_official].format('inputs')})"),
        ("engine", f"{result.engine}, mode {result.mode}, {result.threads} thread{plural}"),
        ("read", f"{seconds.read:10.3f} s"),
        ("compile", f"{seconds.compile:10.3f} s"),
        ("plan", f"{seconds.plan:10.3f} s"),
        ("inference", f"{seconds.inference:10.3f} s"),
        ("total", f"{seconds.total:10.3f} s"),
        (
            "rate",
            f"{result.edges_per_second / 1e12:10.4f} TeraEdges/s (edges x features / inference)",
        ),
        ("evaluated", f"{result.edges_evaluated:,} edges, 1 in {result.factor_saved:,.1f}"),
        *((("", MERGE_NOTE),) if result.mode == "merge" else ()),
        ("live", f"{result.live.size:,} of {result.n_features:,} features after the last layer"),
    ]
    return "\n".join(f"{name:<11}{fact}".rstrip() for name, fact in rows)


def verdict(
    result: Result,
    truth_source: str | None,
    truth: npt.NDArray[np.int64] | None,
    check: Comparison | None,
    count: int | None = None,
) -> str:
    """The last lines: whether the categories are the true ones, and what differs."""
    n = result.live.size
    part = "" if count is None else f" (of the first {count:,} features)"
    if check is None or truth is None:
        return f"{'check':<11}none: {n:,} categories, no truth to compare them with"
    if check.is_equal:
        return f"CHALLENGE PASSED: {n:,} categories, equal to {truth_source}{part}"
    lines = [f"CHALLENGE FAILED: {n:,} categories, {truth.size:,} in {truth_source}{part}"]
    for word, numbers in (("missing", check.missing), ("extra", check.extra)):
        shown = ", ".join(map(str, numbers[:N_SHOWN]))
        more = ", ..." if numbers.size > N_SHOWN else ""
        lines.append(f"{word:<11}{numbers.size:,}" + (f": {shown}{more}" if numbers.size else ""))
    return "\n".join(lines)
