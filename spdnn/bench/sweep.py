"""The sweep: networks x engines x modes x threads x features, and rivals, measured in turn.

All contestants of a network are prepared first and run once to warm up. Then each runs once in each
round, so that changes of the machine's speed affect all of them. The records of a network are
written when its last round is done and checked. A case that has a record is not measured again.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spdnn.bench import records
from spdnn.bench.contestants import (
    Contestant,
    Entry,
    LeftOut,
    edges_a_feature,
    engine_entries,
    prepare,
    rival_entries,
)
from spdnn.bench.judge import Judge
from spdnn.bench.machine import peaks
from spdnn.bench.origin import data_facts
from spdnn.bench.records import Record
from spdnn.bench.rivals import RIVALS
from spdnn.checks.truth import Check
from spdnn.engines import make_engine
from spdnn.errors import DataError
from spdnn.io.formats import OFFICIAL, Cap
from spdnn.machine import provenance
from spdnn.run.result import Seconds
from spdnn.run.team import Team
from spdnn.sources.features import SourcedFeatures, open_features
from spdnn.sources.folder import find_inputs, find_weights
from spdnn.sources.networks import SourcedNetwork, open_network

SETTLE_SECONDS = 0.3
"""Pause before each run if there are rivals: their threads spin for a while after their work."""

PREPARING = 0.3
"""Guessed share of a network's time that passes before its rounds, for the progress bar."""

Progress = Callable[[float], None]
Opened = tuple[SourcedNetwork, SourcedFeatures]


@dataclass(frozen=True)
class Sweep:
    """What is to be measured.

    Attributes
    ----------
    neurons, layers : tuple of int
        Every pair is a network.
    engines, modes : tuple of str
        Every pair is measured, if the engine has the mode.
    rivals : tuple of str
        Keys of `RIVALS`.
    threads : tuple of int or None
        Threads of each rank; None for the default.
    features : tuple of int or None
        Numbers of features, counted from the first; None for all.
    runs : int
        Runs of each case.
    rival_seconds : float
        A rival that usually takes longer for a run gets a share of the features.
    data : Path or None
        The data folder, as `spdnn.sources.folder.data_folder` takes it.
    out : Path
        The folder of the records.
    bias : float or None
        Bias of every neuron; None for the official one.
    ymax : float, None or "official"
        Cap of activations; None for no cap.
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
    data: Path | None
    out: Path
    bias: float | None = None
    ymax: Cap = OFFICIAL

    @property
    def networks(self) -> list[tuple[int, int]]:
        """Neurons and layers of each network."""
        return [(neurons, layers) for neurons in self.neurons for layers in self.layers]


def refuse_early(sweep: Sweep, ranks: int) -> None:
    """Find out before any work what would fail after it.

    Parameters
    ----------
    sweep : Sweep
        What is to be measured.
    ranks : int
        Ranks of the run.

    Raises
    ------
    SpdnnError
        If something asked for cannot be.
    """
    if sweep.rivals and ranks > 1:
        raise DataError("rivals run in one process: leave out `rivals` under a launcher")
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
    show: Callable[[list[Record | LeftOut]], None],
) -> list[Record | LeftOut]:
    """Measure all cases that have no record yet, network by network.

    Parameters
    ----------
    sweep : Sweep
        What is to be measured.
    start : callable
        Joins the ranks. It is called for each network, and what they share is freed after it.
    facts : dict
        The provenance of all records.
    progress : callable
        Called with the fraction of the sweep that is done, which is a guess.
    show : callable
        Called with the outcomes of each network. The ranks are still joined then, so that they
        end together if it fails.

    Returns
    -------
    list of Record and LeftOut
        All outcomes, those with an earlier record included; empty on all ranks but 0.

    Raises
    ------
    SpdnnError
        If something asked for cannot be, or the folder holds records of another machine,
        software or data.
    """
    outcomes: list[Record | LeftOut] = []
    sizes = [neurons * layers for neurons, layers in sweep.networks]
    for number, (neurons, layers) in enumerate(sweep.networks):
        before, size = sum(sizes[:number]), sizes[number]

        def share(fraction: float, before: int = before, size: int = size) -> None:
            progress((before + size * fraction) / sum(sizes))

        with start() as team:
            team.on_first(lambda: refuse_early(sweep, team.size))
            of_network = _Bench(sweep, team, (neurons, layers), facts).measure(share)
            show(of_network)
        outcomes += of_network
    return outcomes


class _Bench:
    """One network of the sweep: contestants, rounds and records."""

    def __init__(
        self, sweep: Sweep, team: Team, size: tuple[int, int], facts: dict[str, Any]
    ) -> None:
        self.sweep, self.team = sweep, team
        started = time.perf_counter()
        self.opened = team.on_leaders(lambda: _open(sweep, *size))
        self.read_seconds = time.perf_counter() - started
        self.facts = facts | {"mpi": team.library}
        self.threads = sorted({team.default_threads() if n is None else n for n in sweep.threads})
        self.entries: list[Entry] = []
        self.kept: list[Record] = []
        self.contestants: list[Contestant] = []
        self.left_out: list[LeftOut] = []

    def measure(self, progress: Progress) -> list[Record | LeftOut]:
        """Measure the cases that have no record yet."""
        with ExitStack() as closing:
            self._enter(self._engine_entries, closing)
            if self.sweep.rivals:
                self._enter(self._rival_entries, closing)
            progress(PREPARING)
            rounds = self.contestants * self.sweep.runs
            for number, contestant in enumerate(rounds, start=1):
                if self.sweep.rivals:
                    time.sleep(SETTLE_SECONDS)
                contestant.measure()
                progress(PREPARING + (1 - PREPARING) * number / len(rounds))
        return self.team.on_first(self._finish) or []

    def _enter(
        self, list_entries: Callable[[SourcedNetwork, int], list[Entry]], closing: ExitStack
    ) -> None:
        """Prepare those of the entries that have no record; `closing` closes their sessions."""

        def list_them() -> tuple[list[Entry], list[Record]]:
            network, features = self._opened()
            entries = list_entries(network, len(features.features))
            return entries, self._records_of(entries)

        entries, kept = self.team.on_first(list_them) or ([], [])
        done = {record.case for record in kept}
        to_do = self.team.tell([entry for entry in entries if entry.case not in done])
        network, features = self.opened or (None, None)
        contestants, left_out = prepare(
            to_do,
            network.network if network else None,
            features.features if features else None,
            self.team,
            closing,
        )
        self.entries += entries
        self.kept += kept
        self.contestants += contestants
        self.left_out += left_out

    def _opened(self) -> Opened:
        """Network and inputs, on ranks that lead a node."""
        assert self.opened is not None
        return self.opened

    def _counts(self, n_features: int) -> list[int]:
        """Numbers of features that were asked for, ascending."""
        counts = sorted({n_features if n is None else n for n in self.sweep.features})
        if counts[-1] > n_features:
            raise DataError(f"{counts[-1]} features asked for, but there are {n_features}")
        return counts

    def _engine_entries(self, network: SourcedNetwork, n_features: int) -> list[Entry]:
        """All cases of engines, each once."""
        sweep, counts = self.sweep, self._counts(n_features)
        size = network.network, sweep.engines, sweep.modes, self.threads, counts, self.team.size
        return list(dict.fromkeys(engine_entries(*size)))

    def _rival_entries(self, network: SourcedNetwork, n_features: int) -> list[Entry]:
        """All cases of rivals, on as many features as their time allows."""
        sweep, count = self.sweep, self._counts(n_features)[-1]
        edges = edges_a_feature(network.network, *self._live())
        keys, seconds = sweep.rivals, sweep.rival_seconds
        return list(rival_entries(network.network, keys, self.threads, count, edges, seconds))

    def _live(self) -> tuple[int, list[int]]:
        """The number of features, and of those that are live after each layer, by some engine."""
        for record in self.kept:
            return record.case.features, record.facts["layers_log"]["live"]
        for contestant in self.contestants:
            return contestant.entry.case.features, [layer.live for layer in contestant.layers]
        raise DataError("rivals are measured beside an engine, and none could be")

    def _records_of(self, entries: list[Entry]) -> list[Record]:
        """Read the records that are there. They must be of the same machine, software and data."""
        found = []
        origin = {"provenance": self.facts, "data": data_facts(*self._opened())}
        for entry in entries:
            path = self.sweep.out / entry.case.file_name
            if not path.exists():
                continue
            record = records.read(path)
            differing = records.different_origin(record.facts, origin)
            if differing:
                raise DataError(
                    f"{path} was made with other {', '.join(differing)}: "
                    "give another folder with `out`, or move that one away"
                )
            found.append(record)
        return found

    def _finish(self) -> list[Record | LeftOut]:
        """Check what was measured, and write the records."""
        counts = {contestant.entry.case.features for contestant in self.contestants}
        judge = Judge(*self._opened(), counts, self.sweep.data)
        self.sweep.out.mkdir(parents=True, exist_ok=True)
        cases = [contestant.entry.case for contestant in self.contestants]
        own_peaks = {n: peaks(n) for n in sorted({c.threads for c in cases if c.ranks == 1})}
        written = []
        for contestant in self.contestants:
            facts = self._facts(contestant, judge)
            facts["machine_peak"] = own_peaks.get(contestant.entry.case.threads)
            written.append(records.write_new(self.sweep.out, facts))
        order = [entry.case for entry in self.entries]
        found = sorted([*self.kept, *written], key=lambda record: order.index(record.case))
        return [*found, *self.left_out]

    def _facts(self, contestant: Contestant, judge: Judge) -> dict[str, Any]:
        """All facts of a contestant except the machine's peaks."""
        entry, read = contestant.entry, self.read_seconds
        results = [result.after(Seconds(), read=read) for result in contestant.results]
        check = _worst([judge.check(result) for result in results])
        network, features = self._opened()
        facts = records.as_facts(network, features, results, check)
        facts["check"] = check.text
        facts["data"] |= data_facts(network, features)
        facts["features_there"] = len(features.features)
        facts["library"] = entry.library
        facts["in_turn_with"] = [other.entry.case.file_name for other in self.contestants]
        facts["not_measured"] = {out.entry.name: out.reason for out in self.left_out}
        facts["warm_up"] = contestant.warm_up
        joules = {name: used / len(results) for name, used in contestant.watch.joules.items()}
        facts["joules"] = joules or None
        facts["load"] = {
            "average": list(os.getloadavg()),
            "others_busy": contestant.watch.others_busy if entry.case.ranks == 1 else None,
        }
        packages = RIVALS[entry.case.engine].packages if entry.library else ()
        versions = self.facts["versions"] | provenance.package_versions(packages)
        facts["provenance"] = self.facts | {"versions": versions}
        return facts


def _open(sweep: Sweep, neurons: int, layers: int) -> Opened:
    """Open network and inputs: from the data folder, or made by the recipes."""
    weights = find_weights(sweep.data, neurons, layers)
    network = open_network(weights, neurons, layers, sweep.bias, sweep.ymax)
    return network, open_features(find_inputs(sweep.data, neurons), neurons, folder=sweep.data)


def _worst(checks: list[Check]) -> Check:
    """The first check that has failed, or the first of all."""
    return next((check for check in checks if check.outcome != "passed"), checks[0])
