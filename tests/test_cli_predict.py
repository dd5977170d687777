"""A user's own networks on the command line: ``predict``, ``run`` and ``data convert``."""

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spdnn import Features, Layer, Network, predict, read_features, read_network
from spdnn.cli.main import main
from spdnn.io import matrices, onnx_chain, state_dict, store
from tests.makers import (
    dyadic_features,
    layer_files,
    same_features,
    same_layers,
    small_network,
    trained_network,
    triples_text,
    write_folder,
)
from tests.test_cli_run import failure

NETWORK = trained_network(1, [9, 8, 6, 4])
FEATURES = dyadic_features(5, 30, 9)
PREDICTED = predict(NETWORK, FEATURES, engine="scipy")
LABELS = np.where(np.arange(30) % 3 == 0, (PREDICTED.classes + 1) % 4, PREDICTED.classes)
"""Ten of the thirty labels differ from the classes that the network gives."""

BASE = ["predict", "--weights", "net.onnx", "--inputs", "f.npz"]


@pytest.fixture(autouse=True)
def files(alone: None) -> None:
    """The network, features and labels in the working folder."""
    onnx_chain.write_model(Path("net.onnx"), NETWORK)
    matrices.write_features(Path("f.npz"), FEATURES)
    np.save("labels.npy", LABELS)


def test_classes_accuracy_and_categories_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--labels", "labels.npy"]) == 0
    rows = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()]
    facts = {row[0]: row[1] for row in rows}
    assert facts["network"] == f"9 inputs, 3 layers, 4 outputs, {NETWORK.n_edges} edges"
    assert facts["accuracy"] == "0.6667 (20 of 30)"
    assert facts["live"] == f"{PREDICTED.result.live.size} of 30 features after the last layer"
    classes, counts = np.unique(PREDICTED.classes, return_counts=True)
    shown = ", ".join(f"{k}: {n}" for k, n in zip(classes, counts, strict=True))
    assert facts["classes"] == f"{classes.size} found: {shown}"


@pytest.mark.parametrize("engine", ["cpu", "scipy"])
def test_classes_and_scores_are_written(engine: str) -> None:
    assert main([*BASE, "--engine", engine, "--out", "c.txt", "--scores", "s.npy"]) == 0
    assert Path("c.txt").read_text() == "".join(f"{k}\n" for k in PREDICTED.classes)
    np.testing.assert_allclose(np.load("s.npy"), PREDICTED.scores, rtol=1e-5, atol=1e-6)


def test_only_the_most_frequent_of_many_classes_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    matrices.write_layers(Path("net"), Network([Layer(np.eye(12), activation="linear")]))
    np.save("f.npy", np.vstack([np.eye(12), np.eye(12)[2:]]))
    assert main(["predict", "--weights", "net", "--inputs", "f.npy"]) == 0
    shown = ", ".join(f"{k}: 2" for k in range(2, 12))
    assert f"classes    12 found: {shown}, ...\n" in capsys.readouterr().out


def write_labels(name: str) -> None:
    if name.endswith("npy"):
        np.save(name, LABELS)
    elif name.endswith("txt"):
        Path(name).write_text("".join(f"{k}\n" for k in LABELS))
    else:
        idx = struct.pack(">2I", 2049, LABELS.size) + LABELS.astype(np.uint8).tobytes()
        Path(name).write_bytes(gzip.compress(idx) if name.endswith("gz") else idx)


@pytest.mark.parametrize("name", ["l.npy", "l.txt", "l-idx1-ubyte", "l-idx1-ubyte.gz"])
def test_labels_are_read_from_any_of_the_usual_files(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_labels(name)
    assert main([*BASE, "--labels", name, "--features", "20"]) == 0
    n_right = np.count_nonzero(LABELS[:20] == PREDICTED.classes[:20])
    assert f"({n_right} of 20)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.txt", b"0\nx\n", "l.txt, line 2: 'x' is not a class, a number from 0"),
        ("l.txt", b"0\n" * 29, "l.txt: 29 labels for 30 features"),
        ("l.txt", b"0\n" * 29 + b"4\n", "l.txt: class 4 is outside of 0..3"),
        ("l.npy", np.ones(30), "l.npy: expected one row of whole numbers, not float64"),
        ("l.npy", np.full(30, -1), "l.npy: class -1 is outside of 0..3"),
        ("l", b"", "l: empty (0 bytes)"),
        ("l.txt", b"", "l.txt: empty (0 bytes)"),
        ("l", struct.pack(">2I", 2049, 3), "l: damaged IDX file: 8 bytes, where its header says"),
        ("l", None, "l: No such file"),
    ],
)
def test_labels_that_do_not_fit_are_one_line(
    name: str, content: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if isinstance(content, bytes):
        Path(name).write_bytes(content)
    elif content is not None:
        np.save(name, content)
    assert message in failure([*BASE, "--labels", name, "--out", "c.txt"], capsys)
    assert not Path("c.txt").exists()


def test_predict_is_refused_under_a_launcher_of_several_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    assert "predict is one process's work" in failure(BASE, capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "nowhere.onnx"], "nowhere.onnx: No such file"),
        (["--neurons", "8"], "net.onnx: a network of 9 inputs, not of 8"),
        (["--bias", "-1"], "net.onnx: a trained network keeps its own bias"),
        (["--inputs", "wide.npy"], "wide.npy: features of 10 neurons, not of 9"),
        (["--inputs", "nowhere.npy"], "nowhere.npy: no such file"),
        (["--features", "31"], "f.npz: 31 features asked for, but it has 30"),
        (["--scores", "nowhere/s.npy"], "cannot write nowhere/s.npy: there is no folder"),
        (["--engine", "scipy", "--mode", "merge"], "engine scipy has no mode merge"),
        (["--last-activation", "relu"], "net.onnx: ONNX says itself"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("wide.npy", np.eye(10))
    assert message in failure([*BASE, *arguments], capsys)


def test_run_takes_a_trained_network_without_being_told_its_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--weights", "net.onnx", "--inputs", "f.npz", "--json", "r.json"]
    assert main(["run", *arguments, "--save-categories", "c.tsv"]) == 0
    assert "network    9 inputs, 3 layers, 4 outputs" in capsys.readouterr().out
    found = np.loadtxt("c.tsv", dtype=int, ndmin=1)
    np.testing.assert_array_equal(found, PREDICTED.result.categories)
    facts = json.loads(Path("r.json").read_text())
    assert (facts["neurons"], facts["layers"], facts["features"]) == (9, 3, 30)


@pytest.mark.parametrize("target", ["n.spdnn", "n.onnx", "n.safetensors", "folder"])
def test_weights_are_converted_to_any_form_and_back(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "convert", "--weights", "net.onnx", target]) == 0
    facts = f"{target}: 3 layers, {NETWORK.n_edges} edges, 0.0 MiB\n"
    assert capsys.readouterr().out == facts
    assert same_layers(read_network(target), NETWORK)
    assert main(["data", "convert", "--weights", target, "--layers", "2", "back.onnx"]) == 0
    assert same_layers(read_network("back.onnx"), Network(NETWORK.layers[:2]))


@pytest.mark.parametrize("target", ["n.spdnn", "n.npz"])
def test_inputs_are_converted_to_any_form_and_back(target: str) -> None:
    assert main(["data", "convert", "--inputs", "f.npz", target]) == 0
    assert same_features(read_features(target), FEATURES)
    assert main(["data", "convert", "--inputs", target, "--features", "7", "back.npz"]) == 0
    assert same_features(read_features("back.npz"), FEATURES.part(0, 7))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "net.onnx", "n.npz"], "n.npz: the ending of its name says what to write: "
         "*.spdnn, *.onnx, *.safetensors, no ending"),
        (["--inputs", "f.npz", "n.onnx"], "n.onnx: the ending of its name says what to write: "
         "*.spdnn, *.npz"),
        (["--inputs", "f.tsv", "n.npz"], "f.tsv: say how many neurons the inputs have"),
        (["--weights", "recipe", "n.onnx"], "recipe: say how many neurons and layers"),
        (["--weights", "recipe", "--neurons", "1024", "--layers", "6", "folder"],
         "layer 1: a folder of .npz cannot say a cap of 32; write a store, or ONNX"),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(Path().iterdir())
    assert message in failure(["data", "convert", *arguments], capsys)
    assert sorted(Path().iterdir()) == before


def zero_based(text: bytes) -> bytes:
    """Lines of triples whose first two numbers are smaller by one."""
    rows = [line.split(b"\t") for line in text.splitlines()]
    return b"".join(b"%d\t%d\t%s\n" % (int(i) - 1, int(j) - 1, value) for i, j, value in rows)


def test_text_files_may_count_from_zero(capsys: pytest.CaptureFixture[str]) -> None:
    network = small_network(64, 3)
    features = dyadic_features(3, 40, 64, "binary")
    texts = layer_files(network)
    write_folder(Path("one"), texts)
    write_folder(Path("zero"), {name: zero_based(text) for name, text in texts.items()})
    Path("one.tsv").write_bytes(triples_text(features.to_csr()))
    Path("zero.tsv").write_bytes(zero_based(Path("one.tsv").read_bytes()))
    run = ["run", "--neurons", "64", "--layers", "3", "--bias", "-0.5", "--save-categories"]
    for name, base in (("one", "1"), ("zero", "0")):
        sources = ["--weights", name, "--inputs", f"{name}.tsv", "--index-base", base]
        assert main([*run, f"{name}.c", *sources]) == 0
    assert Path("one.c").read_bytes() == Path("zero.c").read_bytes() != b""
    assert same_layers(read_network("zero", 64, 3, bias=-0.5, ymax=32.0, index_base=0), network)
    assert same_features(read_features("zero.tsv", 64, index_base=0), features)
    convert = ["data", "convert", "--neurons", "64", "--index-base", "0"]
    assert main([*convert, "--inputs", "zero.tsv", "f.spdnn"]) == 0
    assert same_features(store.read_features(Path("f.spdnn"))[0], features)
    capsys.readouterr()
    told = failure([*run, "c", "--weights", "zero", "--inputs", "zero.tsv"], capsys)
    assert "is outside of 1..64 (numbers count from 1)" in told


def test_the_last_activation_is_as_told() -> None:
    state_dict.write_safetensors(Path("net.safetensors"), NETWORK)
    told = ["--weights", "net.safetensors", "--last-activation", "relu", "--ymax", "2"]
    assert main(["predict", *told, "--inputs", "f.npz", "--scores", "s.npy"]) == 0
    layers = [Layer(each.weights, each.bias, 2.0, bias_rule="always") for each in NETWORK.layers]
    expected = predict(Network(layers), FEATURES, engine="scipy").scores
    np.testing.assert_allclose(np.load("s.npy"), expected, rtol=1e-5, atol=1e-6)


def test_features_of_no_rows_are_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    matrices.write_features(Path("none.npz"), Features.from_matrix(np.empty((0, 9))))
    arguments = ["--inputs", "none.npz", "--out", "c.txt", "--scores", "s.npy"]
    assert main(["predict", "--weights", "net.onnx", *arguments]) == 0
    assert "classes    0 found:\n" in capsys.readouterr().out
    assert Path("c.txt").read_bytes() == b""
    assert np.load("s.npy").shape == (0, 4)
