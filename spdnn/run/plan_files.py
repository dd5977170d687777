"""Plans in files: made once, mapped into memory from then on."""

from pathlib import Path

from spdnn.engines.base import Engine, Keepable, Plan
from spdnn.errors import DataError, PlanError
from spdnn.io.files import telling_damage, whole_file
from spdnn.io.store import Store, StoreWriter
from spdnn.machine.provenance import own_version
from spdnn.network import Network


def plan_for(engine: Engine, network: Network, mode: str, path: Path | None = None) -> Plan:
    """The engine's plan of a network: from a file, or made, and kept there if there is none.

    Parameters
    ----------
    engine : Engine
    network : Network
    mode : str
    path : Path, optional
        The file; where not given, none is read or written.

    Raises
    ------
    PlanError
        If the engine has no plans to keep.
    DataError
        If the file cannot be read or written, is damaged, or holds another plan than this one.
    """
    if path is None:
        return engine.plan(network, mode)
    if not isinstance(engine, Keepable):
        raise PlanError(f"engine {engine.name} has no plan that could be kept in a file")
    wanted = {
        "made by": f"spdnn {own_version()}",
        "engine": engine.name,
        "mode": mode,
        "network": network.fingerprint,
        **engine.plan_facts,
    }
    if path.exists():
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
    plan = engine.plan(network, mode)
    facts, arrays = plan.to_parts()
    with whole_file(path) as file, StoreWriter(file) as writer:
        writer.header("plan", {"for": wanted, "facts": facts})
        for name, array in arrays.items():
            writer.add(name, array)
    return plan
