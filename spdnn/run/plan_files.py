"""Plans in files: made once, mapped into memory from then on."""

from pathlib import Path
from typing import Any, cast

from spdnn.engines.base import Engine, Keepable, KeepablePlan, Plan
from spdnn.errors import DataError, PlanError
from spdnn.io.files import telling_damage, whole_file
from spdnn.io.store import Store, StoreWriter
from spdnn.machine.provenance import own_version
from spdnn.network import Network


def plan_for(engine: Engine, network: Network, mode: str, path: Path | None = None) -> Plan:
    """Return the engine's plan of a network: read from a file, or made and written there.

    Parameters
    ----------
    engine : Engine
        What plans.
    network : Network
        What is planned.
    mode : str
        One of the engine's modes.
    path : Path, optional
        The file. Without it no file is read or written.

    Raises
    ------
    PlanError
        If the engine has no plans to keep.
    DataError
        If the file cannot be read or written, is damaged, or holds another plan than this one.
    """
    if path is None:
        return engine.plan(network, mode)
    keeping = _require_keepable(engine)
    if path.exists():
        return _read_plan(keeping, network, mode, path)
    plan = keeping.plan(network, mode)
    write_plan(keeping, network, mode, plan, path)
    return plan


def _read_plan(engine: Keepable, network: Network, mode: str, path: Path) -> KeepablePlan:
    """Read a plan; DataError if it is damaged, or another one's."""
    wanted = _facts_of(engine, network, mode)
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
    facts, arrays = cast(KeepablePlan, plan).to_parts()
    with whole_file(path) as file, StoreWriter(file) as writer:
        writer.header("plan", {"for": wanted, "facts": facts})
        for name, array in arrays.items():
            writer.add(name, array)


def _require_keepable(engine: Engine) -> Keepable:
    """Return the engine; PlanError if its plans cannot be kept."""
    if not isinstance(engine, Keepable):
        raise PlanError(f"engine {engine.name} has no plan that could be kept in a file")
    return engine


def _facts_of(engine: Keepable, network: Network, mode: str) -> dict[str, Any]:
    """What a plan must have been made for."""
    return {
        "made by": f"spdnn {own_version()}",
        "engine": engine.name,
        "mode": mode,
        "network": network.fingerprint,
        **engine.plan_facts,
    }
