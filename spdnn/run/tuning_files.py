"""Widths of tiles in files: measured once, and taken from there from then on.

Branches that were fused are one network here: their tiles are tuned for all of them together.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from spdnn.engines.base import Engine, Plan, Tunable, Widths
from spdnn.errors import DataError, PlanError
from spdnn.features import Features
from spdnn.io.files import DAMAGE, require_file, whole_file
from spdnn.machine.memory import l2_bytes
from spdnn.machine.provenance import cpu_model, own_version
from spdnn.network import Network

VERSION = 1
"""Of the form of the file."""

ROUNDS = 5
"""Runs of each trial, in turn; their median counts."""

MARGIN = 0.97
"""Another trial is better than the best so far if it takes less than so much of its time."""

HOPELESS = 1.25
"""A trial that took so much more time than another is not run again."""

RUN_SECONDS = 0.06
"""A sample of the features is doubled as long as a run does not take longer."""

LONGEST_RUN_SECONDS = 0.25
"""Nor longer than this where a smaller sample would say nothing."""

LIMIT_SECONDS = 4.0
"""After so long no further trial is run: what has been found by then is taken."""

TILES = 4
"""So many for each thread a sample must be cut into, or it would say nothing of all features."""

LEAST_SAMPLE = 16
"""Features that are run first."""


def require_tunable(engine: Engine, path: Path, ranks: int = 1) -> None:
    """Refuse, before any work, what cannot be tuned, or kept in that file.

    Raises
    ------
    PlanError
        If the engine has no tiles to tune, or several ranks are to run.
    DataError
        If the file is there and no tuning file.
    """
    if ranks > 1:
        raise PlanError(
            "only a process by itself can be tuned: leave out `tuning`, or the launcher"
        )
    if not isinstance(engine, Tunable):
        raise PlanError(f"engine {engine.name} has no tiles that could be tuned")
    _read(path)


def tune(
    engine: Engine, network: Network, mode: str, plan: Plan, features: Features, path: Path
) -> Engine:
    """Return the engine with widths of tiles from a file, or measured, and kept there.

    An entry is for one network, engine, mode, number of threads, machine, and number of
    features: up to the next power of two. Whatever the widths are, results are the same.

    Parameters
    ----------
    engine : Engine
        A `Tunable` one; another one is returned as it is.
    network : Network
    mode : str
    plan : Plan
        The engine's plan of the network in this mode.
    features : Features
        A sample of them is run, for a few seconds at most; of none, nothing is tuned.
    path : Path
        The file; other entries of it are kept.

    Raises
    ------
    DataError
        If the file is there and no tuning file, or cannot be written.
    """
    if features.n_features == 0 or not isinstance(engine, Tunable):
        return engine
    n_features = 1 << (features.n_features - 1).bit_length()
    wanted = {
        "made by": f"spdnn {own_version()}",
        "network": network.fingerprint,
        "engine": engine.name,
        "mode": mode,
        "threads": engine.threads,
        "features": n_features,
        "machine": _machine(),
    }
    kept = [entry["shapes"] for entry in _read(path) if entry["for"] == wanted]
    if kept:
        try:
            return engine.with_widths(kept[0])
        except PlanError as error:
            raise DataError(f"{path}: damaged tuning file ({error})") from error
    widths = _search(engine, plan, features, n_features)
    # Read anew: another process may have added to it meanwhile.
    entries = [*_read(path), {"for": wanted, "shapes": list(widths)}]
    text = json.dumps({"spdnn": "tuning", "version": VERSION, "entries": entries}, indent=1)
    with whole_file(path) as file:
        file.write(text.encode() + b"\n")
    return engine.with_widths(widths)


def _machine() -> dict[str, Any]:
    """What of this machine the widths depend on."""
    # Numba's vectors are set up with the engine that needs them, not when the package is imported.
    from spdnn.engines.cpu.kernels.vectors import REGISTER_TILE

    return {"cpu": cpu_model(), "vectors": REGISTER_TILE, "l2": l2_bytes()}


def _read(path: Path) -> list[dict[str, Any]]:
    """Entries of a tuning file, none if it is not there; DataError if it is something else."""
    try:
        if not path.exists():
            return []
        require_file(path)
        facts = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except DAMAGE as error:
        raise DataError(f"{path}: not a tuning file, or a damaged one ({error})") from error
    if not isinstance(facts, dict) or facts.get("spdnn") != "tuning":
        raise DataError(f"{path}: not a tuning file of spdnn")
    if facts.get("version") != VERSION:
        raise DataError(
            f"{path}: a tuning file of version {facts.get('version')}, this program reads "
            f"version {VERSION}: name another file, or remove this one"
        )
    entries = facts.get("entries")
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise DataError(f"{path}: damaged tuning file (an entry is not as expected)")
    return entries


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("for"), dict)
        and isinstance(entry.get("shapes"), list)
        and all(isinstance(shape, int) for shape in entry["shapes"])
    )


def _search(engine: Tunable, plan: Plan, features: Features, n_features: int) -> Widths:
    """The quickest widths, found one after the other from the engine's own; they win ties."""
    first, later = engine.width_choices(plan, n_features)
    own = first[0], later[0]
    trials = _Trials(engine, plan, own)
    n_tiles = TILES * engine.threads
    n_sample = trials.take_sample(features, n_tiles * max(own))
    if n_sample < features.n_features:
        n_features = n_sample // n_tiles
        if n_features < max(own):
            return own
    first, later = engine.width_choices(plan, n_features)
    best = trials.quickest([own, *((width, own[1]) for width in first if width != own[0])])
    best = trials.quickest([best, *((best[0], width) for width in later if width != best[1])])
    # Of many trials one may be the quickest by luck: the two are measured once more.
    return trials.quickest([own, best]) if best != own else own


class _Trials:
    """Timed runs of a sample of features with different widths."""

    def __init__(self, engine: Tunable, plan: Plan, own: Widths) -> None:
        self._engine = engine
        self._plan = plan
        self._own = own
        self._loaded: Any = None
        self._end = perf_counter() + LIMIT_SECONDS

    def take_sample(self, features: Features, enough: int) -> int:
        """Take features from everywhere, as many as a short run takes; says how many.

        For `enough` of them a run may be longer.
        """
        step = -(-features.n_features // LEAST_SAMPLE)
        while True:
            sample = features.every(0, features.n_features, step)
            self._loaded = self._engine.load(self._plan, sample)
            seconds = min(self._seconds(self._own) for _ in range(2))
            longest = RUN_SECONDS if sample.n_features >= enough else LONGEST_RUN_SECONDS
            if step == 1 or 2 * seconds > longest:
                return sample.n_features
            step = -(-step // 2)

    def _seconds(self, widths: Widths) -> float:
        engine = self._engine.with_widths(widths)
        started = perf_counter()
        engine.run(self._plan, self._loaded)
        return perf_counter() - started

    def quickest(self, trials: Sequence[Widths]) -> Widths:
        """The quickest of some widths; the first, unless another is clearly better."""
        seconds: dict[Widths, list[float]] = {trial: [] for trial in trials}
        going = list(trials)
        for number in range(ROUNDS):
            first = number % len(going)  # each comes behind others than before
            for trial in going[first:] + going[:first]:
                if perf_counter() > self._end:
                    return trials[0]
                seconds[trial].append(self._seconds(trial))
            least = min(min(seconds[trial]) for trial in going)
            going = [trial for trial in going if min(seconds[trial]) <= HOPELESS * least]
        medians = {trial: median(seconds[trial]) for trial in going}
        best = min(medians, key=lambda trial: medians[trial])
        is_better = trials[0] not in medians or medians[best] < MARGIN * medians[trials[0]]
        return best if is_better else trials[0]
