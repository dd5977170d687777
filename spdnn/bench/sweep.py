"""The sweep: networks x engines x modes x threads x features, and rivals, measured in turn.

All contestants of a network are prepared first and run once to warm up; then each runs once a
round, so that a machine whose speed drifts slows them all. A network's records are written when its
last round is done and checked; what has a record is not measured again.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spdnn import provenance
from spdnn.bench import records
from spdnn.bench.contestants import (
    Contestant,
    Entry,
    LeftOut,
    engine_entries,
    prepare,
    rival_entries,
)
from spdnn.bench.judge import Judge
from spdnn.bench.machine import peaks
from spdnn.bench.records import Record
from spdnn.bench.rivals import RIVALS
from spdnn.distributed import Team
from spdnn.engines import make_engine
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.inference import with_reading
from spdnn.network import Network
from spdnn.sources import (
    OFFICIAL,
    RECIPE,
    Cap,
    SourcedFeatures,
    SourcedNetwork,
    find_inputs,
    find_weights,
    open_features,
    open_network,
)
from spdnn.truth import Check

SETTLE_SECONDS = 0.3
"""Waited before a run where there are rivals: their threads spin for a while after their work."""

PREPARING = 0.3
"""Of the time that a network takes, as guessed for the progress bar: what comes before rounds."""

Progress = Callable[[float], None]
Opened = tuple[SourcedNetwork, SourcedFeatures]


@dataclass(frozen=True)
class Sweep:
    """What is to be measured.

    Attributes
    ----------
    neurons, layers : tuple of int
        Networks are all pairs.
    engines, modes : tuple of str
        All pairs that there are.
    rivals : tuple of str
        Keys of `RIVALS`.
    threads : tuple of int or None
        Of a rank; None for the default.
    features : tuple of int or None
        The first so many; None for all.
    runs : int
    rival_seconds : float
        A rival that would usually take longer for a run gets a share of the features.
    data, out : Path
        The data folder, and that of the records.
    bias, ymax
        As `spdnn.sources.open_network` takes them.
    """

    neurons: tuple[int, ...]
    layers: tuple[int, ...]
    engines: tuple[str, ...]
    modes: tuple[str, ...]
    rivals: tuple[str, ...]
    threads: tuple[int | None, ...]
    features: tuple[int | None, ...]
    runs: int
    rival_seconds: float
    data: Path
    out: Path
    bias: float | None = None
    ymax: Cap = OFFICIAL

    @property
    def networks(self) -> list[tuple[int, int]]:
        """Neurons and layers of each."""
        return [(neurons, layers) for neurons in self.neurons for layers in self.layers]


def refuse_early(sweep: Sweep, ranks: int) -> None:
    """Find, before any work, what would fail after it (SpdnnError)."""
    if sweep.rivals and ranks > 1:
        raise DataError("rivals run in one process: --rivals none under a launcher")
    for name in sweep.engines:
        engine = make_engine(name)
        if not set(sweep.modes) & set(engine.modes):
            raise DataError(f"engine {name} has no mode {' or '.join(sweep.modes)}")
    if sweep.out.exists() and not sweep.out.is_dir():
        raise DataError(f"cannot write records into {sweep.out}: it is no folder")


def run_sweep(
    sweep: Sweep,
    start: Callable[[], AbstractContextManager[Team]],
    facts: dict[str, Any],
    progress: Progress,
) -> Iterator[list[Record | LeftOut]]:
    """Measure what has no record yet, network by network.

    Parameters
    ----------
    sweep : Sweep
    start : callable
        Joins the ranks, once a network: what they share is let go after it.
    facts : dict
        The provenance of all records.
    progress : callable
        Called with the fraction of the sweep that is done, by a guess.

    Yields
    ------
    list of Record and LeftOut
        Those of a network, also those that were there already; empty but on rank 0.

    Raises
    ------
    SpdnnError
        If something asked for cannot be, or the folder holds records of another machine,
        software or data.
    """
    sizes = [neurons * layers for neurons, layers in sweep.networks]
    for number, (neurons, layers) in enumerate(sweep.networks):
        before, size = sum(sizes[:number]), sizes[number]

        def share(fraction: float, before: int = before, size: int = size) -> None:
            progress((before + size * fraction) / sum(sizes))

        with start() as team:
            team.on_first(lambda: refuse_early(sweep, team.size))
            yield _measure(sweep, team, (neurons, layers), facts, share)


def _measure(
    sweep: Sweep,
    team: Team,
    size: tuple[int, int],
    facts: dict[str, Any],
    progress: Progress,
) -> list[Record | LeftOut]:
    """Measure the cases of one network."""
    started = time.perf_counter()
    opened = team.on_leaders(lambda: _open(sweep, *size))
    read = time.perf_counter() - started
    threads = sorted({team.default_threads() if n is None else n for n in sweep.threads})
    common = facts | {"mpi": team.library}

    def list_cases() -> tuple[list[Entry], list[Record]]:
        assert opened is not None
        entries = _entries(sweep, opened, threads, team.size)
        return entries, _kept(sweep, entries, opened, common)

    listed = team.on_first(list_cases)
    entries, kept = listed or ([], [])
    done = {record.case for record in kept}
    to_do = team.tell([entry for entry in entries if entry.case not in done])
    network, features = _values(opened)
    contestants, left_out = prepare(to_do, network, features, team)
    progress(PREPARING)
    for number in range(sweep.runs):
        for contestant in contestants:
            if any(entry.library for entry in to_do):
                time.sleep(SETTLE_SECONDS)
            contestant.measure()
        progress(PREPARING + (1 - PREPARING) * (number + 1) / sweep.runs)

    def finish() -> list[Record | LeftOut]:
        assert opened is not None
        counts = {contestant.entry.case.features for contestant in contestants}
        judge = Judge(*opened, counts, sweep.data)
        sweep.out.mkdir(parents=True, exist_ok=True)
        measured_peaks = _peaks(contestants)
        written = []
        for contestant in contestants:
            case = contestant.entry.case
            record = _facts(contestant, opened, judge, read)
            record["in_turn_with"] = [c.entry.case.file_name for c in contestants]
            record["not_measured"] = {out.entry.name: out.reason for out in left_out}
            record["machine_peak"] = measured_peaks.get(case.threads)
            record["provenance"] = _provenance(contestant.entry, common)
            path = sweep.out / case.file_name
            records.write_new(path, record)
            written.append(Record(record, path))
        order = [entry.case for entry in entries]
        found = sorted([*kept, *written], key=lambda record: order.index(record.case))
        return [*found, *left_out]

    return team.on_first(finish) or []


def _open(sweep: Sweep, neurons: int, layers: int) -> Opened:
    """Open what the data folder holds, else what the recipes make."""
    weights = find_weights(sweep.data, neurons, layers)
    network = open_network(weights, neurons, layers, sweep.bias, sweep.ymax)
    return network, open_features(find_inputs(sweep.data, neurons), neurons, folder=sweep.data)


def _values(opened: Opened | None) -> tuple[Network | None, Features | None]:
    if opened is None:
        return None, None
    return opened[0].network, opened[1].features


def _entries(sweep: Sweep, opened: Opened, threads: list[int], ranks: int) -> list[Entry]:
    """All cases of a network, each once."""
    network, n_features = opened[0].network, len(opened[1].features)
    counts = sorted({n_features if count is None else count for count in sweep.features})
    if counts[-1] > n_features:
        raise DataError(f"{counts[-1]} features asked for, but there are {n_features}")
    engines = engine_entries(network, sweep.engines, sweep.modes, threads, counts, ranks)
    rivals = rival_entries(network, sweep.rivals, threads, counts[-1], sweep.rival_seconds)
    return list(dict.fromkeys([*engines, *rivals]))


def _kept(
    sweep: Sweep, entries: list[Entry], opened: Opened, common: dict[str, Any]
) -> list[Record]:
    """Records that are there; they must be of the same machine, software and data."""
    kept = []
    for entry in entries:
        path = sweep.out / entry.case.file_name
        if not path.exists():
            continue
        record = records.read(path)
        new = {"provenance": common, "data": _data(opened)}
        differing = records.different_origin(record.facts, new)
        if differing:
            raise DataError(
                f"{path} was made with other {', '.join(differing)}: "
                "give another folder with --out, or move that one away"
            )
        kept.append(record)
    return kept


def _peaks(contestants: list[Contestant]) -> dict[int, dict[str, float]]:
    """The machine's own peaks for the threads of those that run in this process alone."""
    cases = [contestant.entry.case for contestant in contestants]
    return {n: peaks(n) for n in sorted({case.threads for case in cases if case.ranks == 1})}


def _facts(contestant: Contestant, opened: Opened, judge: Judge, read: float) -> dict[str, Any]:
    """All facts of a contestant but its provenance."""
    results = [
        with_reading(result, read, read + result.seconds.total) for result in contestant.results
    ]
    check = _worst([judge.check(result) for result in results])
    facts = records.as_facts(*opened, results, check)
    facts["check"] = check.text
    facts["data"] |= _data(opened)
    facts["features_there"] = len(opened[1].features)
    facts["warm_up"] = contestant.warm_up
    facts["library"] = contestant.entry.library
    joules = {name: used / len(results) for name, used in contestant.watch.joules.items()}
    facts["joules"] = joules or None
    facts["load"] = {
        "average": list(os.getloadavg()),
        "others_busy": contestant.watch.others_busy if facts["ranks"] == 1 else None,
    }
    return facts


def _worst(checks: list[Check]) -> Check:
    """The first check that has failed; else the first."""
    return next((check for check in checks if check.outcome != "passed"), checks[0])


def _data(opened: Opened) -> dict[str, Any]:
    """Where the data comes from, and checksums of what was read."""
    network, features = opened
    return {
        "weights": network.source,
        "inputs": features.source,
        "inputs_sha256": features_sha256(features.features),
        "weights_sha256": None if network.source == RECIPE else network_sha256(network.network),
    }


def features_sha256(features: Features) -> str:
    """sha256 of features in index form: where each begins, its neurons, its values."""
    begin, end = features.indptr[0], features.indptr[-1]
    digest = hashlib.sha256(features.indptr - begin)
    digest.update(features.indices[begin:end])
    if features.values is not None:
        digest.update(features.values[begin:end])
    return digest.hexdigest()


def network_sha256(network: Network) -> str:
    """sha256 of all layers' weights in CSR form, and of their biases."""
    digest = hashlib.sha256()
    for layer in network.layers:
        weights = layer.weights
        for part in (weights.indptr, weights.indices, weights.data, layer.bias):
            digest.update(part.tobytes())
    return digest.hexdigest()


def _provenance(entry: Entry, common: dict[str, Any]) -> dict[str, Any]:
    packages = RIVALS[entry.case.engine].packages if entry.library else ()
    versions = common["versions"] | provenance.package_versions(packages)
    return common | {"versions": versions}
