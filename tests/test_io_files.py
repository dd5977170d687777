"""What readers refuse before they read: what has no end, and what lacks a part of itself."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spdnn import DataError, infer, read_features, read_network
from spdnn.bench import records
from spdnn.engines import make_engine
from spdnn.engines.state import State
from spdnn.io import idx, labels, matrices, store, tsv
from spdnn.run import checkpoint
from spdnn.run.plan_files import plan_for
from spdnn.run.tuning_files import require_tunable
from tests.makers import dyadic_features, dyadic_network

NETWORK = dyadic_network(1, [30] * 3, ["shared"] * 2)
FEATURES = dyadic_features(2, 20, 30)

READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "layer": ("n8-l1.tsv", lambda path: tsv.read_layers(path.parent, 8, 1, lambda _: None)),  # type: ignore[arg-type, return-value]
    "archive": ("a.tar", lambda path: tsv.read_layers(path, 8, 1, lambda _: None)),  # type: ignore[arg-type, return-value]
    "inputs": ("f.tsv", lambda path: read_features(path, 8)),
    "truth": ("truth", tsv.read_categories),
    "labels": ("l.txt", labels.read_labels),
    "array of labels": ("l.npy", labels.read_labels),
    "images": ("images", idx.read_images),
    "features": ("f.spdnn", read_features),
    "network": ("n.spdnn", read_network),
    "matrix": ("f.npz", read_features),
    "layers of matrices": ("1.npz", matrices.read_layers),
    "plan": ("plan", lambda path: plan_for(make_engine("cpu", 1), NETWORK, "merge", path)),
    "tuning": ("tuning", lambda path: require_tunable(make_engine("cpu", 1), path)),
    "record": ("r.json", records.read),
    "onnx": ("n.onnx", read_network),
    "safetensors": ("n.safetensors", read_network),
    "checkpoint": (checkpoint.MANIFEST, lambda path: checkpoint.read_checkpoint(path.parent)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/null", "pipe"])
def test_what_is_no_regular_file_is_refused_before_it_is_read(
    reader: str, device: str, tmp_path: Path
) -> None:
    name, read = READERS[reader]
    path = tmp_path / "folder" / name
    path.parent.mkdir()
    if device == "pipe":
        os.mkfifo(path)  # nobody writes to it: opening it would wait for ever
    else:
        path.symlink_to(device)
    with pytest.raises(DataError, match=rf"{name}: a (device|pipe); give a regular file$"):
        read(path)


# Facts that are missing, though all checksums are right


def rewrite_facts(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the facts in a store, as only a program can: with the right checksum."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    facts = json.loads(members["spdnn.json"])
    change(facts)
    members["spdnn.json"] = json.dumps(facts).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def assert_damage_is_told(path: Path, read: Callable[[], Any]) -> None:
    with pytest.raises(DataError) as caught:
        read()
    text = str(caught.value)
    assert text.startswith(f"{path}: damaged")
    assert "remove it" in text
    assert "\n" not in text


@pytest.mark.parametrize("key", ["name", "official", "shapes", "edges", "layers"])
def test_a_network_whose_store_lacks_a_fact_is_damaged(key: str) -> None:
    path = Path("n.spdnn")
    store.write_network(path, NETWORK)
    rewrite_facts(path, lambda facts: facts.pop(key))
    assert_damage_is_told(path, lambda: store.read_network(path))


@pytest.mark.parametrize(("key", "value"), [("shapes", None), ("shapes", [["x", 1]]), ("edges", 3)])
def test_a_network_whose_store_has_a_fact_of_another_kind_is_damaged(key: str, value: Any) -> None:
    path = Path("n.spdnn")
    store.write_network(path, NETWORK)
    rewrite_facts(path, lambda facts: facts.update({key: value}))
    assert_damage_is_told(path, lambda: infer(store.read_network(path)[0], FEATURES))


@pytest.mark.parametrize("change", [{"ymax": "x"}, {"colour": 1}, {"activation": "none"}])
def test_a_layer_whose_facts_are_none_of_a_layers_is_damaged(change: dict[str, Any]) -> None:
    path = Path("n.spdnn")
    store.write_network(path, NETWORK)
    rewrite_facts(path, lambda facts: facts["layers"][1].update(change))
    assert_damage_is_told(path, lambda: store.read_network(path)[0].layers[1])


@pytest.mark.parametrize("key", ["n_neurons", "official"])
def test_features_whose_store_lacks_a_fact_are_damaged(key: str) -> None:
    path = Path("f.spdnn")
    store.write_features(path, FEATURES)
    rewrite_facts(path, lambda facts: facts.pop(key))
    assert_damage_is_told(path, lambda: store.read_features(path))


def test_features_of_fewer_neurons_than_they_name_are_damaged() -> None:
    path = Path("f.spdnn")
    store.write_features(path, FEATURES)
    rewrite_facts(path, lambda facts: facts.update(n_neurons=1))
    assert_damage_is_told(path, lambda: store.read_features(path))


CPU_FACTS = ["mode", "layer_edges", "layer_neurons", "n_loaded", "additions", "max_width"]


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.pop("for"),
        lambda facts: facts.pop("facts"),
        lambda facts: facts.update({"for": []}),
        lambda facts: facts.update(facts=None),
        *(lambda facts, key=key: facts["facts"].pop(key) for key in CPU_FACTS),
        *(lambda facts, key=key: facts["facts"].update({key: None}) for key in CPU_FACTS),
    ],
)
def test_a_plan_that_lacks_a_fact_is_damaged(change: Callable[[dict[str, Any]], Any]) -> None:
    path, engine = Path("plan"), make_engine("cpu", 1)
    plan_for(engine, NETWORK, "merge", path)
    rewrite_facts(path, change)
    assert_damage_is_told(path, lambda: plan_for(engine, NETWORK, "merge", path))


def write_checkpoint() -> tuple[Path, State]:
    folder = Path("ck")
    state = State(4, np.arange(3), np.arange(3), np.ones((3, 2), dtype=np.float32))
    checkpoint.write_state(folder, state, 0, 1)
    counts = np.zeros((3, 5), dtype=np.int64)
    checkpoint.write_checkpoint(folder, checkpoint.Checkpoint(4, {}, None, 1.0, counts, [3]))
    return folder / checkpoint.MANIFEST, state


KINDS = ["layer", "run", "seconds", "counts", "carried"]


@pytest.mark.parametrize("key", [*KINDS, "costs"])
@pytest.mark.parametrize("lacks", [True, False])
def test_a_checkpoint_that_lacks_a_fact_is_damaged(key: str, lacks: bool) -> None:
    path, _ = write_checkpoint()
    facts = json.loads(path.read_bytes())
    if lacks:
        del facts[key]
    elif key in KINDS:
        facts[key] = "x"
    else:
        facts["more"] = 1
    path.write_text(json.dumps(facts))
    assert_damage_is_told(path, lambda: checkpoint.read_checkpoint(path.parent))


def test_a_checkpoint_whose_state_has_fewer_rows_than_the_list_says_is_damaged() -> None:
    path, _ = write_checkpoint()
    facts = json.loads(path.read_bytes())
    path.write_text(json.dumps(facts | {"carried": [9]}))
    found = checkpoint.read_checkpoint(path.parent)
    assert found is not None
    (state_file,) = path.parent.glob("*.spdnn")
    assert_damage_is_told(state_file, lambda: checkpoint.read_state(path.parent, found, 0, 1))
