"""Where networks and features come from: options that a source has no use for are refused."""

from pathlib import Path

import numpy as np
import pytest

from spdnn import DataError, Features, read_features, read_network
from spdnn.cli.main import main
from spdnn.io import matrices, store
from tests.makers import layer_files, small_network, triples_text, write_folder

NETWORK = small_network(64, 2)
FEATURES = Features.from_matrix(np.eye(5, 64, 59))
SIZE = ["--neurons", "64", "--layers", "2", "--bias", "-0.5"]


@pytest.fixture(autouse=True)
def files() -> None:
    """The same network and features as text and as other programs' files."""
    write_folder(Path("text"), layer_files(NETWORK))
    Path("f.tsv").write_bytes(triples_text(FEATURES.to_csr()))
    store.write_network(Path("n.spdnn"), NETWORK)
    store.write_features(Path("f.spdnn"), FEATURES)
    matrices.write_features(Path("f.npz"), FEATURES)
    np.save("f.npy", np.eye(5, 64, 59))


@pytest.mark.parametrize("source", ["n.spdnn", "recipe", "f.npz"])
@pytest.mark.parametrize("base", [0, 1])
def test_a_network_that_numbers_nothing_takes_no_index_base(source: str, base: int) -> None:
    with pytest.raises(DataError, match=rf"^{source}: index base {base} has no use"):
        read_network(source, 1024, 6, index_base=base)


@pytest.mark.parametrize("source", ["f.spdnn", "f.npz", "f.npy", "digits", "recipe", "images"])
@pytest.mark.parametrize("base", [0, 1])
def test_features_that_number_nothing_take_no_index_base(source: str, base: int) -> None:
    with pytest.raises(DataError, match=rf"^{source}: index base {base} has no use"):
        read_features(source, 64, index_base=base)


@pytest.mark.parametrize("source", [["--weights", "n.spdnn"], ["--inputs", "f.npz"]])
def test_convert_refuses_an_index_base_without_use(
    source: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "convert", *source, "--index-base", "0", "target.spdnn"]) == 2
    assert f"{source[1]}: index base 0 has no use" in capsys.readouterr().err


@pytest.mark.parametrize("base", ["0", "1"])
def test_run_refuses_an_index_base_that_neither_source_uses(
    base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--weights", "n.spdnn", "--inputs", "f.spdnn", "--index-base", base]
    assert main(["run", *arguments]) == 2
    assert f"f.spdnn: index base {base} has no use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("weights", "inputs"), [("text", "f.npz"), ("n.spdnn", "f.tsv"), ("text", "f.tsv")]
)
def test_run_takes_an_index_base_that_one_source_uses(
    weights: str, inputs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    size = SIZE if weights == "text" else []
    arguments = ["run", "--weights", weights, "--inputs", inputs, *size, "--engine", "scipy"]
    assert main([*arguments, "--index-base", "1"]) == 0
    assert main([*arguments, "--index-base", "0"]) == 2
    assert "64 is outside of 0..63" in capsys.readouterr().err
