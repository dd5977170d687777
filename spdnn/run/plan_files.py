"""Plans in files: made once, mapped into memory from then on.

A plan's file is named by the user (`Path`), or lies beside the data under a name of its own
(`KeptPlans`). Both are read and written here.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from spdnn.engines.base import Calibrated, Engine, Keepable, KeepablePlan, Plan
from spdnn.errors import DataError, PlanError
from spdnn.io.files import telling_damage, whole_file
from spdnn.io.store import SUFFIX, Store, StoreWriter
from spdnn.machine.provenance import own_version
from spdnn.network import Network

PLAN_SUFFIX = f".plan{SUFFIX}"
"""Ending of the names of plans that are kept beside the data."""

_Facts = dict[str, Any]


@dataclass(eq=False)
class KeptPlans:
    """Plans in a folder. A plan that does not fit is made anew; a file is never trusted blindly.

    Attributes
    ----------
    folder : Path
        The folder.
    processor : str
        The processor whose costs shape plans, the same on all ranks.
    is_writing : bool
        Whether plans that were made are written into the folder.
    notes : list of str
        What was read, written, or could not be, for people.
    """

    folder: Path
    processor: str
    is_writing: bool
    notes: list[str] = field(default_factory=list)

    def file(self, network: Network, mode: str, engine: Keepable) -> Path | None:
        """Name the file of a plan; None where it is neither there nor to be written.

        The name says network, engine and mode, and ends with a digest of the network and of the
        form of the plan. A plan of another version or processor has the same name: it is replaced.
        """
        base = f"neuron{network.n_inputs}-l{network.n_layers}-{engine.name}-{mode}"
        if not self.is_writing and not any(self.folder.glob(f"{base}-*{PLAN_SUFFIX}")):
            return None  # the fingerprint of a network in memory would take time
        form = json.dumps([network.fingerprint, dict(engine.plan_facts)], sort_keys=True)
        digest = hashlib.sha256(form.encode()).hexdigest()[:8]
        path = self.folder / f"{base}-{digest}{PLAN_SUFFIX}"
        return path if self.is_writing or path.exists() else None


def plan_for(
    engine: Engine, network: Network, mode: str, place: Path | KeptPlans | None = None
) -> Plan:
    """Return the engine's plan of a network: read from a file, or made and written there.

    Parameters
    ----------
    engine : Engine
        What plans.
    network : Network
        What is planned.
    mode : str
        One of the engine's modes.
    place : Path or KeptPlans, optional
        The file, or the folder of kept plans. Without it no file is read or written.

    Raises
    ------
    PlanError
        If a file is named, and the engine has no plans to keep.
    DataError
        If a named file cannot be read or written, is damaged, or holds another plan than this one.
    """
    if isinstance(place, KeptPlans):
        return _kept_plan(engine, network, mode, place)
    if place is None:
        return engine.plan(network, mode)
    keeping = _require_keepable(engine)
    wanted = _facts_of(keeping, network, mode)
    if place.exists():
        return _read_plan(keeping, wanted, place)
    plan = keeping.plan(network, mode)
    _write_plan(plan, wanted, place)
    return plan


def _kept_plan(engine: Engine, network: Network, mode: str, place: KeptPlans) -> Plan:
    """As `plan_for`, where a file that is unfit, or cannot be written, is no error but a note."""
    try:
        keeping = _require_keepable(engine)
    except PlanError as error:
        if place.is_writing:
            place.notes.append(f"plan not kept: {error}")
        return engine.plan(network, mode)
    path = place.file(network, mode, keeping)
    if path is None:
        return keeping.plan(network, mode)
    wanted = _facts_of(keeping, network, mode)
    if isinstance(engine, Calibrated):
        wanted["processor"] = place.processor
    if path.exists():
        try:
            plan = _read_plan(keeping, wanted, path)
        except DataError as error:
            place.notes.append(f"plan made anew: {error}")
        else:
            place.notes.append(f"plan read: {path}")
            return plan
    plan = keeping.plan(network, mode)
    if place.is_writing:
        try:
            _write_plan(plan, wanted, path)
            place.notes.append(f"plan kept: {path}")
        except DataError as error:
            place.notes.append(f"plan not kept: {error}")
    return plan


def _read_plan(engine: Keepable, wanted: _Facts, path: Path) -> KeepablePlan:
    """Read a plan; DataError if it is damaged, or another one's."""
    store = Store(path, "plan")
    with telling_damage(path, "plan"):
        found = store.facts["for"]
        different = [name for name, value in wanted.items() if found.get(name) != value]
    if different:
        name = different[0]
        raise DataError(
            f"{path}: this plan is another one's ({name}: {found.get(name)}, "
            f"not {wanted[name]}): name another file, or remove this one"
        )
    with telling_damage(path, "plan"):
        return engine.plan_from_parts(store.facts["facts"], store.array)


def write_plan(engine: Engine, network: Network, mode: str, plan: Plan, path: Path) -> None:
    """Write the engine's plan of a network to a file.

    Parameters
    ----------
    engine : Engine
        What made the plan.
    network : Network
        What was planned. The file has its fingerprint.
    mode : str
        The mode that it was planned for.
    plan : Plan
        The plan.
    path : Path
        The file; it is replaced if it is there.

    Raises
    ------
    PlanError
        If the engine has no plans to keep.
    DataError
        If the file cannot be written.
    """
    wanted = _facts_of(_require_keepable(engine), network, mode)
    _write_plan(cast(KeepablePlan, plan), wanted, path)


def _write_plan(plan: KeepablePlan, wanted: _Facts, path: Path) -> None:
    facts, arrays = plan.to_parts()
    with whole_file(path) as file, StoreWriter(file) as writer:
        writer.header("plan", {"for": wanted, "facts": facts})
        for name, array in arrays.items():
            writer.add(name, array)


def _require_keepable(engine: Engine) -> Keepable:
    """Return the engine; PlanError if its plans cannot be kept."""
    if not isinstance(engine, Keepable):
        raise PlanError(f"engine {engine.name} has no plan that could be kept in a file")
    return engine


def _facts_of(engine: Keepable, network: Network, mode: str) -> _Facts:
    """What a plan must have been made for."""
    return {
        "made by": f"spdnn {own_version()}",
        "engine": engine.name,
        "mode": mode,
        "network": network.fingerprint,
        **engine.plan_facts,
    }
