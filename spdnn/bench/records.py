"""Records: the facts of one case, measured one or several times, as JSON.

`spdnn run --json` and `spdnn bench` write the same form. A record is small (no list by feature), is
written whole or not at all, and is never overwritten by `spdnn bench`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from spdnn.checks.truth import Check
from spdnn.errors import DataError
from spdnn.io.files import require_file, whole_file
from spdnn.network import Network
from spdnn.run.result import LayerCount, Result, categories_sha256
from spdnn.sources.sources import SourcedFeatures, SourcedNetwork

SCHEMA = 2
"""Version of the form: 2 has columns by layer, and all runs of a case."""

EMULATION = "a GPU's instructions, executed on the CPU: no time of it is a GPU's"
"""What records and output say of an emulated GPU."""

VOLATILE = frozenset(
    {
        "seconds",
        "edges_per_second",
        "runs",
        "warm_up",
        "imbalance",
        "ranks_log",
        "machine_peak",
        "peak_memory",
        "load",
        "joules",
        "date",
    }
)
"""What differs when the same case is measured again; everything else must not."""

_SAME_ORIGIN = ("cpu", "gpu", "driver", "memory", "versions", "platform", "git", "environment")
"""Of the provenance: what records of one folder must share."""

SAME_DATA = ("weights", "inputs", "weights_sha256", "inputs_sha256")
"""And of the data."""

_NUMBERS = re.compile(r"\[\s+(-?[\d.][^\[\]{}\"]*?)\s+\]")


class Case(NamedTuple):
    """What is measured: by it records are named, matched and sorted."""

    neurons: int
    layers: int
    engine: str
    mode: str
    ranks: int
    threads: int
    features: int

    @property
    def file_name(self) -> str:
        """Name of its record.

        Examples
        --------
        >>> Case(1024, 120, "cpu", "edges", 1, 2, 60000).file_name
        '1024-l120-cpu-edges-r1-t2-f60000.json'
        """
        return (
            f"{self.neurons}-l{self.layers}-{self.engine}-{self.mode}"
            f"-r{self.ranks}-t{self.threads}-f{self.features}.json"
        )

    @property
    def network(self) -> str:
        """Its network, for people."""
        return f"{self.neurons} x {self.layers}"


def case_of(network: Network, result: Result) -> Case:
    """Say what a run was of, by what it says that it has done."""
    return Case(
        network.n_inputs,
        network.n_layers,
        result.engine,
        result.mode,
        result.ranks,
        result.threads,
        result.n_features,
    )


def _case_in(facts: dict[str, Any]) -> Case:
    return Case(*(facts[name] for name in Case._fields))


@dataclass(frozen=True, eq=False)
class Record:
    """A record that was read.

    Parameters
    ----------
    facts : dict
        What the file holds.
    path : Path
        For messages.

    Raises
    ------
    DataError
        If it is no record of this form, or damaged.
    """

    facts: dict[str, Any]
    path: Path

    def __post_init__(self) -> None:
        facts = self.facts
        if not isinstance(facts, dict) or "schema" not in facts:
            raise DataError(f"{self.path}: not a record of spdnn")
        if facts["schema"] != SCHEMA:
            raise DataError(
                f"{self.path}: a record of form {facts['schema']}; this version reads form {SCHEMA}"
            )
        try:
            sound = (
                isinstance(facts["provenance"], dict)
                and isinstance(facts["data"], dict)
                and isinstance(facts["categories"]["truth"], str)
                and len(facts["runs"]) > 0
                and all(float(run["inference"]) > 0 for run in facts["runs"])
                and all(isinstance(part, int | str) for part in self.case)
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            sound = False
        if not sound:
            raise DataError(f"{self.path}: a damaged record")

    @property
    def case(self) -> Case:
        """What was measured."""
        return _case_in(self.facts)

    @property
    def passed(self) -> bool:
        """Whether its categories were proved right: only then has it a rate.

        A sample that is right does not prove that all are.
        """
        categories = self.facts["categories"]
        return bool(categories["truth"] == "passed" and categories.get("check") != "sample")

    @property
    def is_emulated(self) -> bool:
        """Whether a GPU's instructions were executed on the CPU: its times are no GPU's."""
        return "emulated" in self.facts

    @property
    def times(self) -> list[float]:
        """Seconds of inference of each run, ascending."""
        return sorted(run["inference"] for run in self.facts["runs"])

    @property
    def seconds(self) -> float:
        """Seconds of the median run."""
        return self.times[median_of(len(self.times))]

    @property
    def rate(self) -> float:
        """Edges a second: all edges times all input features, by `seconds`."""
        return float(self.facts["edges"] * self.facts["features"] / self.seconds)

    @property
    def library(self) -> str | None:
        """Name of the library whose products it took; None for this project's engines."""
        return self.facts.get("library")

    @property
    def name(self) -> str:
        """The engine for people."""
        return self.library or f"spdnn {self.case.engine}, {self.case.mode}"

    @property
    def share(self) -> float:
        """Features that were run, of all that there were."""
        return float(self.facts["features"] / self.facts.get("features_there", self.case.features))

    @property
    def machine(self) -> str:
        """The machine, for people: records of two are never mixed."""
        provenance = self.facts["provenance"]
        gpus = provenance.get("gpu") or []
        cpu = provenance.get("cpu", {})
        parts = [f"{cpu.get('model', 'unknown')}, {cpu.get('allowed', '?')} processors", *gpus]
        return " + ".join(parts)


def median_of(n: int) -> int:
    """Where the median of `n` ascending numbers stands; of the middle two the first.

    Examples
    --------
    >>> [median_of(n) for n in (1, 2, 3, 5)]
    [0, 0, 1, 2]
    """
    return (n - 1) // 2


def as_facts(
    network: SourcedNetwork, features: SourcedFeatures, results: Sequence[Result], check: Check
) -> dict[str, Any]:
    """All facts of a case but its provenance, ready for JSON.

    Parameters
    ----------
    network : SourcedNetwork
    features : SourcedFeatures
    results : sequence of Result
        A run each, of the same case; the median one, by inference, is told in full.
    check : Check
        Where it has failed there is no rate.
    """
    by_time = sorted(results, key=lambda result: result.seconds.inference)
    result = by_time[median_of(len(by_time))]
    columns = zip(*result.layers, strict=True)
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        **case_of(network.network, result)._asdict(),
        "edges": result.n_edges,
        "seconds": asdict(result.seconds),
        "runs": [{"inference": each.seconds.inference} for each in results],
        "edges_per_second": (
            None if check.outcome == "failed" or result.is_emulated else result.edges_per_second
        ),
        "edges_evaluated": result.edges_evaluated if result.layers else None,
        "factor_saved": result.factor_saved if result.layers else None,
        "categories": {
            "count": int(result.live.size),
            "sha256": categories_sha256(result.categories),
            "truth": check.outcome,
            "check": check.kind,
        },
        "layers_log": dict(zip(LayerCount._fields, map(list, columns), strict=False)),
        "data": {
            "weights": network.source,
            "inputs": features.source,
            "truth": check.source,
            "official": network.is_official and features.is_official,
        },
    }
    if result.work is not None:
        facts["work"] = result.work._asdict()
    if result.device is not None:
        facts["device_seconds"] = result.device._asdict()
    if result.is_emulated:
        facts["emulated"] = EMULATION
    if result.resumed_after:
        facts["resumed_after"] = result.resumed_after
    if result.by_rank:
        facts["imbalance"] = result.imbalance
        facts["ranks_log"] = [rank._asdict() for rank in result.by_rank]
    return facts


def as_json(facts: dict[str, Any]) -> bytes:
    """Readable JSON, rows of numbers on one line."""
    text = json.dumps(facts, indent=1)
    text = _NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text)
    return (text + "\n").encode()


def write_new(folder: Path, facts: dict[str, Any]) -> Record:
    """Write a record, whole or not at all, named by the case that its facts are of.

    Raises
    ------
    DataError
        If there is such a record already, or it cannot be written.
    """
    record = Record(facts, folder / _case_in(facts).file_name)
    if record.path.exists():
        raise DataError(f"cannot write {record.path}: there is a record already")
    with whole_file(record.path) as file:
        file.write(as_json(facts))
    return record


def read(path: Path) -> Record:
    """Read one record (DataError if it is none)."""
    try:
        require_file(path)
        facts = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    return Record(facts, path)


def read_all(source: Path) -> list[Record]:
    """Read the record at a path, or all records (``*.json``) of a folder, sorted by case.

    Raises
    ------
    DataError
        If there is none, or one is damaged.
    """
    if not source.is_dir():
        return [read(source)]
    found = [read(path) for path in sorted(source.glob("*.json"))]
    if not found:
        raise DataError(f"{source}: no record (*.json) in this folder")
    return sorted(found, key=lambda record: record.case)


def different_origin(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Name what two records' machine, software or data differ in.

    Parameters
    ----------
    old, new : dict
        Facts, with "provenance" and "data"; versions that only one of them has do not count.
    """
    names = []
    for name in _SAME_ORIGIN:
        one, other = old["provenance"].get(name), new["provenance"].get(name)
        if name == "versions" and one and other:
            both = one.keys() & other.keys()
            one, other = ({key: each[key] for key in both} for each in (one, other))
        if one != other:
            names.append(name)
    old, new = old["data"], new["data"]
    return names + [name for name in SAME_DATA if old.get(name) != new.get(name)]


def unvaried(facts: Any) -> Any:
    """Facts without times, dates and what else a second measurement changes."""
    if isinstance(facts, dict):
        return {key: unvaried(value) for key, value in facts.items() if key not in VOLATILE}
    return [unvaried(each) for each in facts] if isinstance(facts, list) else facts


def only_passed(records: Iterable[Record]) -> list[Record]:
    """Those proved right, and measured on what they are of: no other is in a table or a plot."""
    return [record for record in records if record.passed and not record.is_emulated]
