"""Checkpoints: the progress of a run, in a folder.

Each process writes its state to a store. The first process then writes the list of the stores,
``checkpoint.json``, which completes the checkpoint. Only then are the stores of an older
checkpoint removed. Whenever a run is stopped, the folder holds one complete checkpoint, or none
before the first.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.state import State, joined
from spdnn.errors import DataError
from spdnn.io.files import DAMAGE, require_file, telling_damage, whole_file
from spdnn.io.store import SUFFIX, Store, StoreWriter

MANIFEST = "checkpoint.json"
VERSION = 2
_STATE_FILE = re.compile(rf"layer-\d+-\d+-of-\d+{SUFFIX}")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The facts of a checkpoint, beside the states.

    Attributes
    ----------
    layer : int
        Layers that have been passed.
    run : mapping of str
        Facts that tell the run from others. Only a run with the same facts goes on from here.
    costs : object
        The costs that the engine planned with. Equal costs give an equal plan.
    seconds : float
        Inference so far.
    counts : ndarray, shape (3, n_layers), int64
        Live features, edges evaluated and distinct features so far, for all processes together.
    carried : sequence of int
        Number of rows in the state of each process.
    """

    layer: int
    run: Mapping[str, Any]
    costs: Any
    seconds: float
    counts: npt.NDArray[np.int64]
    carried: Sequence[int]


def _state_path(folder: Path, layer: int, number: int, size: int) -> Path:
    return folder / f"layer-{layer:05}-{number:04}-of-{size:04}{SUFFIX}"


def write_state(folder: Path, state: State, number: int, size: int) -> None:
    """Write the state of process `number` of `size`; the folder is made if it is not there.

    Raises
    ------
    DataError
        If it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror or error}") from error
    path = _state_path(folder, state.layer, number, size)
    with whole_file(path) as file, StoreWriter(file) as store:
        store.header("state", {"layer": state.layer})
        store.add("ids", state.ids)
        store.add("rows", state.rows)
        store.add("activations", state.activations)


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Complete a checkpoint whose states have all been written, and remove what is older.

    Raises
    ------
    DataError
        If it cannot be written.
    """
    facts = vars(checkpoint) | {
        "spdnn": "checkpoint",
        "version": VERSION,
        "counts": checkpoint.counts.tolist(),
    }
    with whole_file(folder / MANIFEST) as file:
        file.write(json.dumps(facts).encode())
    size = len(checkpoint.carried)
    kept = {_state_path(folder, checkpoint.layer, number, size) for number in range(size)}
    _remove_states(folder, kept)


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint, and the folder if nothing else is in it: its run is complete."""
    with suppress(OSError):
        (folder / MANIFEST).unlink(missing_ok=True)
        _remove_states(folder, set())
        folder.rmdir()


def _remove_states(folder: Path, kept: set[Path]) -> None:
    for path in folder.iterdir():
        if _STATE_FILE.fullmatch(path.name) and path not in kept:
            path.unlink(missing_ok=True)


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Read what a folder holds of a run's progress; None where that is nothing.

    Raises
    ------
    DataError
        If it is no checkpoint of this version, or damaged.
    """
    path = folder / MANIFEST
    try:
        require_file(path)
        facts = json.loads(path.read_bytes())
        if facts.pop("spdnn") != "checkpoint" or facts.pop("version") != VERSION:
            raise ValueError("of another version")
        facts["counts"] = np.array(facts["counts"], dtype=np.int64)
        return _whole(Checkpoint(**facts))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except DAMAGE as error:
        raise DataError(
            f"{path}: damaged, or not a checkpoint of this version of spdnn; remove it"
        ) from error


def _whole(checkpoint: Checkpoint) -> Checkpoint:
    """Return it; ValueError if a fact is not of its kind."""
    is_whole = (
        isinstance(checkpoint.layer, int)
        and isinstance(checkpoint.run, dict)
        and isinstance(checkpoint.seconds, int | float)
        and checkpoint.counts.ndim == 2
        and len(checkpoint.counts) == 3
        and isinstance(checkpoint.carried, list)
        and len(checkpoint.carried) > 0
        and all(isinstance(rows, int) and rows >= 0 for rows in checkpoint.carried)
    )
    if not is_whole:
        raise ValueError("a fact of another kind")
    return checkpoint


def require_same(folder: Path, checkpoint: Checkpoint, run: Mapping[str, Any]) -> None:
    """Refuse to go on from another run's checkpoint.

    Parameters
    ----------
    folder : Path
    checkpoint : Checkpoint
    run : mapping of str
        Facts of the run that is to go on, as far as they are known.

    Raises
    ------
    DataError
        If one of them differs from the checkpoint's.
    """
    for name, value in run.items():
        found = checkpoint.run.get(name)
        if found != value:
            raise DataError(
                f"{folder}: the checkpoint there is of another run ({name} {found}, not {value}): "
                "remove it or name another folder"
            )


def read_state(folder: Path, checkpoint: Checkpoint, number: int, size: int) -> State:
    """Read the part of process `number` of `size`, however many had written the checkpoint.

    Raises
    ------
    DataError
        If a store is missing or damaged.
    """
    ends = np.cumsum(checkpoint.carried)
    first, end = (int(ends[-1]) * edge // size for edge in (number, number + 1))
    parts = []
    for writer, n_rows in enumerate(checkpoint.carried):
        start = int(ends[writer]) - n_rows
        rows = np.arange(max(first, start), min(end, start + n_rows)) - start
        # A state without rows is read from a store, too: it has the number of neurons.
        if rows.size or (writer == 0 and first == end):
            path = _state_path(folder, checkpoint.layer, writer, len(checkpoint.carried))
            store = Store(path, "state")
            with telling_damage(path, "checkpoint"):
                arrays = (store.array(name) for name in ("ids", "rows", "activations"))
                parts.append(State(checkpoint.layer, *arrays).take(rows))
    return joined(parts)
