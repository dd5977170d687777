"""``spdnn data fuse``: make one network of the files of branches."""

from pathlib import Path

import numpy as np
import pytest

from spdnn import fuse, predict, read_network
from spdnn.cli.main import main
from spdnn.io import matrices, onnx_chain, state_dict, store
from tests.makers import dyadic_features, same_layers, small_network, trained_network
from tests.test_cli_run import failure

BRANCHES = [
    trained_network(1, [9, 8, 6, 4]),
    trained_network(2, [9, 5, 7, 4]),
    trained_network(3, [9, 3, 4]),
]
FEATURES = dyadic_features(5, 30, 9)
FUSE = ["data", "fuse"]


@pytest.fixture(autouse=True)
def files(alone: None) -> None:
    """One file for each branch, all of different kinds."""
    onnx_chain.write_model(Path("a.onnx"), BRANCHES[0])
    state_dict.write_safetensors(Path("b.safetensors"), BRANCHES[1])
    store.write_network(Path("c.spdnn"), BRANCHES[2])
    matrices.write_features(Path("f.npz"), FEATURES)


@pytest.mark.parametrize("join", ["concatenate", "sum"])
@pytest.mark.parametrize("target", ["fused.spdnn", "fused.onnx", "folder"])
def test_fused_files_are_the_fused_network(
    join: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["a.onnx", "b.safetensors", "c.spdnn", target, "--join", join]
    assert main([*FUSE, *arguments]) == 0
    expected = fuse(BRANCHES, "sum" if join == "sum" else "concatenate")
    facts = f"{target}: 3 layers, {expected.n_edges} edges, 0.0 MiB\n"
    assert capsys.readouterr().out == facts
    assert same_layers(read_network(target), expected)


def test_an_ensemble_is_asked_for_classes() -> None:
    main([*FUSE, "a.onnx", "b.safetensors", "c.spdnn", "e.spdnn", "--join", "sum"])
    arguments = ["--inputs", "f.npz", "--out", "c.txt", "--scores", "s.npy"]
    assert main(["predict", "--weights", "e.spdnn", *arguments]) == 0
    each = [predict(branch, FEATURES, engine="scipy").scores for branch in BRANCHES]
    np.testing.assert_allclose(np.load("s.npy"), sum(each), rtol=1e-5, atol=1e-5)
    classes = np.sum(each, axis=0).argmax(axis=1)
    np.testing.assert_array_equal(np.loadtxt("c.txt", dtype=int), classes)


def test_options_for_reading_are_for_all_branches() -> None:
    state_dict.write_safetensors(Path("d.safetensors"), BRANCHES[0])
    sources = ["b.safetensors", "d.safetensors"]
    options = ["--last-activation", "relu", "--ymax", "2", "--layers", "2"]
    assert main([*FUSE, *sources, "fused.spdnn", *options]) == 0
    layers = read_network("fused.spdnn").layers
    assert [(layer.activation, layer.ymax) for layer in layers] == [("relu", 2.0)] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.onnx", "n.npz"], "n.npz: the ending of its name says what to write: *.spdnn"),
        (["a.onnx", "b.safetensors"], "b.safetensors: it is there already; name a new file behind"),
        (["a.onnx", "nowhere/n.onnx"], "nowhere/n.onnx: there is no folder"),
        (["a.onnx", "x.onnx", "n.onnx"], "x.onnx: No such file or directory"),
        (["a.onnx", "b.safetensors", "n.onnx", "--ymax", "2"], "a.onnx: ONNX says itself"),
        (["a.onnx", "d.spdnn", "n.onnx"], "branch 2 (d.spdnn), layer 1: 64 inputs, expected 9"),
        (
            ["a.onnx", "b.safetensors", "n.spdnn", "--join", "sum", "--join", "mean"],
            "invalid choice: 'mean'",
        ),
        (["a.onnx", "c.spdnn", "n.safetensors", "--layers", "2"],
         "branch 2 (c.spdnn), layer 2: linear, bias rule always; "
         "expected relu, bias rule always, as layer 2 of branch 1 (a.onnx)"),
    ],
)  # fmt: skip
def test_what_cannot_be_fused_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write_network(Path("d.spdnn"), small_network())
    before = {path: path.read_bytes() for path in Path().iterdir()}
    assert message in failure([*FUSE, *arguments], capsys)
    assert {path: path.read_bytes() for path in Path().iterdir()} == before
