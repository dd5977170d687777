"""Records: the facts of one case, measured once or several times, as JSON.

``spdnn run`` and ``spdnn bench`` write the same form. A record is small, because it has no list by
feature. It is written whole or not at all, and ``spdnn bench`` never overwrites one.
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
from spdnn.sources.features import SourcedFeatures
from spdnn.sources.networks import SourcedNetwork

SCHEMA = 2
"""Version of the form. Version 2 has columns by layer, and all runs of a case."""

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
"""Facts that differ when the same case is measured again. All others must be equal."""

_SAME_ORIGIN = ("cpu", "gpu", "driver", "memory", "versions", "platform", "git", "environment")
"""Facts of the provenance that all records of a folder share."""

SAME_DATA = ("weights", "inputs", "weights_sha256", "inputs_sha256")
"""Facts of the data that all records of a network share."""

_NUMBERS = re.compile(r"\[\s+(-?[\d.][^\[\]{}\"]*?)\s+\]")
"""A list of numbers that JSON has spread over several lines."""


class Case(NamedTuple):
    """What is measured. Records are named, matched and sorted by it.

    Attributes
    ----------
    neurons, layers : int
        The network.
    engine : str
        Name of the engine, or key of the rival.
    mode : str
        Mode of the engine.
    ranks : int
        Ranks of the run.
    threads : int
        Threads of all ranks.
    features : int
        Input features.
    """

    neurons: int
    layers: int
    engine: str
    mode: str
    ranks: int
    threads: int
    features: int

    @property
    def file_name(self) -> str:
        """File name of its record.

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
        """Its network, as it is printed."""
        return f"{self.neurons} x {self.layers}"


def case_of(network: Network, result: Result) -> Case:
    """The case of a run, by what its result says.

    Parameters
    ----------
    network : Network
        What was run.
    result : Result
        What the run gave.
    """
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
    """The case that facts are of."""
    return Case(*(facts[name] for name in Case._fields))


@dataclass(frozen=True, eq=False)
class Record:
    """A record, as it was read.

    Parameters
    ----------
    facts : dict
        Contents of the file.
    path : Path
        The file, for messages.

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
        """Whether its categories were proved right. Only then its rate may be shown.

        A sample that is right does not prove that all categories are.
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
        """Edges a second: all edges times all input features, divided by `seconds`."""
        return float(self.facts["edges"] * self.facts["features"] / self.seconds)

    @property
    def library(self) -> str | None:
        """Name of the rival; None for an engine of this project."""
        return self.facts.get("library")

    @property
    def name(self) -> str:
        """Name of the engine or rival, as it is printed."""
        return self.library or f"spdnn {self.case.engine}, {self.case.mode}"

    @property
    def share(self) -> float:
        """The share of the features that were run."""
        return float(self.facts["features"] / self.facts.get("features_there", self.case.features))

    @property
    def machine(self) -> str:
        """The machine, as it is printed. Records of two machines are never mixed."""
        provenance = self.facts["provenance"]
        gpus = provenance.get("gpu") or []
        cpu = provenance.get("cpu", {})
        parts = [f"{cpu.get('model', 'unknown')}, {cpu.get('allowed', '?')} processors", *gpus]
        return " + ".join(parts)


def median_of(n: int) -> int:
    """Position of the median of `n` ascending numbers; the first one if two are in the middle.

    Parameters
    ----------
    n : int
        How many numbers there are.

    Examples
    --------
    >>> [median_of(n) for n in (1, 2, 3, 5)]
    [0, 0, 1, 2]
    """
    return (n - 1) // 2


def as_facts(
    network: SourcedNetwork, features: SourcedFeatures, results: Sequence[Result], check: Check
) -> dict[str, Any]:
    """All facts of a case except its provenance, ready for JSON.

    Parameters
    ----------
    network : SourcedNetwork
        What was run.
    features : SourcedFeatures
        Its inputs.
    results : sequence of Result
        The runs, all of the same case. All facts are those of the run whose inference took the
        median time; the others give their seconds of inference.
    check : Check
        What the runs were judged by. There is no rate if it has failed.
    """
    by_time = sorted(results, key=lambda result: result.seconds.inference)
    result = by_time[median_of(len(by_time))]
    columns = zip(*result.layers, strict=True)
    facts = {
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
    return facts | _optional_facts(result)


def _optional_facts(result: Result) -> dict[str, Any]:
    """Facts that only some runs have."""
    facts: dict[str, Any] = {}
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
    """Facts as readable JSON, each list of numbers on one line."""
    text = json.dumps(facts, indent=1)
    text = _NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text)
    return (text + "\n").encode()


def write_new(folder: Path, facts: dict[str, Any]) -> Record:
    """Write a record, whole or not at all. It is named by its case.

    Parameters
    ----------
    folder : Path
        Where to write.
    facts : dict
        Contents of the record.

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
    """Read one record.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    DataError
        If it cannot be read, or is no record.
    """
    try:
        require_file(path)
        facts = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    return Record(facts, path)


def read_all(source: Path) -> list[Record]:
    """Read a record, or all records (``*.json``) of a folder, sorted by case.

    Parameters
    ----------
    source : Path
        A file or a folder.

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
    """Names of the facts of machine, software or data in which two records differ.

    Parameters
    ----------
    old, new : dict
        Facts, with "provenance" and "data". Packages that only one of them names are ignored.
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
    """Facts without those in `VOLATILE`, at any depth."""
    if isinstance(facts, dict):
        return {key: unvaried(value) for key, value in facts.items() if key not in VOLATILE}
    return [unvaried(each) for each in facts] if isinstance(facts, list) else facts


def only_passed(records: Iterable[Record]) -> list[Record]:
    """Records whose categories were proved right, and whose times are those of their engine.

    Tables and plots show no others.
    """
    return [record for record in records if record.passed and not record.is_emulated]
