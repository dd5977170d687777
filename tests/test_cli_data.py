import gzip
import struct

import numpy as np
import pytest

from spdnn import challenge
from spdnn.cli.main import main
from spdnn.features import Features
from spdnn.io import download
from spdnn.io.store import read_features, read_network, write_features
from spdnn.recipes.radixnet import equals_recipe


@pytest.fixture(scope="module")
def images(shared_data):
    return shared_data / "train-images-idx3-ubyte.gz"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def data(folder, capsys):
    """Runs ``spdnn data VERB ... --data FOLDER``; gives status, stdout and stderr."""

    def run(*arguments):
        status = main(["data", *map(str, arguments), "--data", str(folder)])
        printed = capsys.readouterr()
        assert printed.err.count("\n") == (status == 2)  # one line for a mistake, none otherwise
        return status, printed.out, printed.err

    return run


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_made_weights_are_a_store_that_run_finds(data, folder):
    status, out, _ = data("make", "weights", "--neurons", 1024, "--layers", 120)
    assert status == 0
    assert "neuron1024-l120.spdnn: 120 layers, 3,932,160 edges" in out
    network, is_official = read_network(folder / "neuron1024-l120.spdnn")
    assert is_official
    assert equals_recipe(network)


def test_made_text_files_are_the_published_ones(data, folder, shared_data):
    status, _, _ = data("make", "weights", "--neurons", 1024, "--layers", 6, "--tsv")
    assert status == 0
    assert names(folder) == ["neuron1024"]
    assert names(folder / "neuron1024") == [f"n1024-l{layer}.tsv" for layer in range(1, 7)]
    archive = shared_data / "neuron1024-l1-120.tar.gz"
    assert data("check", "--neurons", 1024, "--weights", archive)[0] == 0
    assert data("check", "--neurons", 1024, "--weights", folder, "--layers", 6)[0] == 0


def test_a_depth_that_is_not_whole_groups_is_refused(data, folder):
    status, _, err = data("make", "weights", "--neurons", 1024, "--layers", 100)
    assert status == 2
    assert "100 layers are not whole groups of 6" in err
    assert "take 96, 102, or --cut" in err
    assert names(folder) == []
    assert data("make", "weights", "--neurons", 1024, "--layers", 4, "--cut")[0] == 0


def test_a_full_disk_is_one_line_and_leaves_nothing(data, folder, monkeypatch):
    def no_room(store, name, array):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("spdnn.io.store.StoreWriter.add", no_room)
    status, _, err = data("make", "weights", "--neurons", 1024, "--layers", 6)
    assert status == 2
    assert "No space left on device" in err
    assert names(folder) == []


def test_made_inputs_are_the_official_ones_in_both_forms(data, folder, images):
    assert data("make", "inputs", "--neurons", 1024, "--images", images)[0] == 0
    features, is_official = read_features(folder / "sparse-images-1024.spdnn")
    assert is_official
    assert features.n_nonzeros == challenge.SIZES[1024].input_nonzeros
    assert data("make", "inputs", "--neurons", 1024, "--images", images, "--tsv")[0] == 0
    store, text = folder / "sparse-images-1024.spdnn", folder / "sparse-images-1024.tsv"
    status, out, _ = data("check", "--neurons", 1024, "--inputs", text, "--images", store)
    assert status == 0
    assert "60,000 features equal to the recipe" in out


def write_images(path, n_images):
    header = struct.pack(">4I", 2051, n_images, 28, 28)
    images = np.zeros((n_images, 28, 28), dtype=np.uint8)
    images[:, 5:20, 10:15] = 255
    path.write_bytes(gzip.compress(header + images.tobytes(), 1))
    return path


def test_the_test_set_makes_no_inputs(data, folder, tmp_path):
    path = write_images(tmp_path / "t10k-images-idx3-ubyte.gz", 10000)
    status, _, err = data("make", "inputs", "--neurons", 1024, "--images", path)
    assert status == 2
    assert "it holds 10000 images (MNIST's test set?)" in err
    assert names(folder) == []


def test_60000_other_images_make_no_official_inputs(data, folder, tmp_path):
    path = write_images(tmp_path / "train-images-idx3-ubyte.gz", 60000)
    status, _, err = data("make", "inputs", "--neurons", 1024, "--images", path)
    assert status == 2
    assert "these are not MNIST's 60000 training images" in err
    assert names(folder) == []


def test_inputs_are_made_of_the_images_in_the_data_folder(data, folder, images):
    folder.mkdir()
    (folder / images.name).symlink_to(images)
    assert data("make", "inputs", "--neurons", 1024)[0] == 0


def test_offline_without_images_a_line_says_what_to_do(data, monkeypatch):
    monkeypatch.setattr(download, "IMAGES_MIRRORS", ("http://127.0.0.1:9",))
    status, _, err = data("make", "inputs", "--neurons", 1024)
    assert status == 2
    assert "cannot fetch train-images-idx3-ubyte.gz" in err
    assert "put it into" in err


def test_run_fetches_the_images_for_recipe_inputs(folder, monkeypatch, capsys):
    folder.mkdir()
    monkeypatch.setattr(download, "IMAGES_MIRRORS", ("http://127.0.0.1:9",))
    arguments = ["--neurons", "1024", "--layers", "6", "--inputs", "recipe", "--data", str(folder)]
    assert main(["run", *arguments]) == 2
    assert "cannot fetch train-images-idx3-ubyte.gz" in capsys.readouterr().err


def test_fetch_takes_all_published_files_of_a_size(data, folder, monkeypatch):
    fetched = []

    def fetch_file(urls, folder, sha256=None, progress=None):
        fetched.extend(urls)
        return folder / urls[0].rsplit("/", 1)[-1]

    monkeypatch.setattr(download, "fetch_file", fetch_file)
    kinds = ("weights", "inputs", "categories")
    status, out, _ = data("fetch", *kinds, "--neurons", 4096, "--url", "http://here")
    assert status == 0
    assert len(fetched) == 5
    assert fetched[0] == "http://here/dnn/neuron4096.tar.gz"
    assert str(folder / "sparse-images-4096.tsv.gz") in out


def test_fetch_wants_to_know_the_size(data):
    status, _, err = data("fetch", "weights")
    assert status == 2
    assert "--neurons" in err


def test_check_says_where_weights_first_differ(data, folder):
    data("make", "weights", "--neurons", 1024, "--layers", 6, "--tsv")
    file = folder / "neuron1024" / "n1024-l3.tsv"
    file.write_text(file.read_text().replace("6.250000e-02", "0.125", 1))
    status, out, _ = data("check", "--neurons", 1024, "--weights", folder)
    assert status == 1
    assert "differs from the recipe, first in layer 3 (" in out
    assert "input 1, output 1: 0.125, the recipe has 0.0625" in out
    assert "1 of 6 layers differ" in out


def test_check_says_where_inputs_first_differ(data, folder):
    folder.mkdir()
    one = Features.from_matrix(np.eye(2, 1024))
    other = Features.from_matrix(np.eye(2, 1024, 1))
    write_features(folder / "one.spdnn", one)
    write_features(folder / "other.spdnn", other)
    names_of = ("--inputs", folder / "one.spdnn", "--images", folder / "other.spdnn")
    status, out, _ = data("check", "--neurons", 1024, *names_of)
    assert status == 1
    assert "first in image 1, neuron 1: 1, the recipe has none there" in out


def test_list_says_what_is_there(data, folder):
    folder.mkdir()
    assert "nothing there" in data("list")[1]
    data("make", "weights", "--neurons", 1024, "--layers", 6)
    (folder / "sparse-images-1024.tsv.gz").write_bytes(b"")
    (folder / "sparse-images-1024.tsv.gz.sha256").write_text("0")
    (folder / "neuron1024.tar.gz.part").write_bytes(b"")
    status, out, _ = data("list")
    assert status == 0
    lines = out.splitlines()
    assert len(lines) == 5
    assert lines[0].endswith("3 there")
    assert "unfinished" in lines[2]
    assert "sha256 beside it" in lines[3]
    assert "weights of 1024, 4096, 16384, 65536 neurons" in lines[4]


def test_the_environment_names_the_data_folder(folder, monkeypatch, capsys):
    monkeypatch.setenv("SPDNN_DATA", str(folder))
    folder.mkdir()
    assert main(["data", "list"]) == 0
    assert capsys.readouterr().out.startswith(f"{folder}: nothing there")


READING = [
    ["run", "--neurons", "1024", "--layers", "6"],
    ["run", "--weights", "net.spdnn", "--inputs", "f.spdnn"],
    ["predict", "--weights", "net.spdnn"],
    ["bench", "--neurons", "1024", "--layers", "6"],
    ["data", "list"],
    ["data", "check", "--neurons", "1024", "--weights", "recipe"],
    ["data", "convert", "--inputs", "digits", "--neurons", "64", "f.spdnn"],
]


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: "-".join(arguments[:3]))
@pytest.mark.parametrize("named", [True, False])
def test_a_data_folder_that_is_named_and_not_there_is_refused(
    named, arguments, monkeypatch, capsys
):
    if not named:
        monkeypatch.setenv("SPDNN_DATA", "nowhere")
    assert main([*arguments, *(["--data", "nowhere"] if named else [])]) == 2
    name = "--data" if named else "SPDNN_DATA"
    assert f"nowhere: no such data folder ({name} names it)" in capsys.readouterr().err


def test_the_data_folder_that_nobody_named_need_not_be_there(monkeypatch, capsys):
    monkeypatch.delenv("SPDNN_DATA", raising=False)
    assert main(["data", "list"]) == 0
    assert capsys.readouterr().out.startswith("data: nothing there")


def test_a_data_folder_may_have_a_percent_sign_in_its_name(monkeypatch, capsys):
    monkeypatch.setenv("SPDNN_DATA", "50%d")
    with pytest.raises(SystemExit, match="0"):
        main(["data", "list", "--help"])
    assert "50%d" in capsys.readouterr().out


@pytest.fixture
def make_radixnet(tmp_path, capsys):
    path = tmp_path / "net.spdnn"

    def run(*arguments):
        status = main(["data", "make", "radixnet", *map(str, arguments), str(path)])
        return status, capsys.readouterr().err, path

    return run


def test_a_radixnet_of_ones_own_becomes_a_store(make_radixnet):
    arguments = (
        "--radices",
        "2,3",
        "--radices",
        "6",
        "--repeat",
        2,
        "--widths",
        "4",
        "--bias",
        "-0.5",
    )
    status, _, path = make_radixnet(*arguments, "--weights", "uniform:-1:1", "--ymax", 8)
    assert status == 0
    network, is_official = read_network(path)
    assert not is_official
    assert network.shapes == ((24, 24),) * 6
    assert network.layers[0].bias == np.float32(-0.5)
    assert network.layers[0].ymax == 8


@pytest.mark.parametrize(
    "arguments",
    [
        ("--radices", "2,0"),
        ("--radices", "2,2", "--weights", "uniform:1"),
        ("--radices", "2,2", "--weights", "uniform:2:1"),
        ("--radices", "2,2", "--widths", "1,x"),
    ],
)
def test_arguments_that_are_no_radixnet_are_one_line(make_radixnet, arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        make_radixnet(*arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_systems_that_do_not_fit_leave_no_store(make_radixnet):
    status, err, path = make_radixnet("--radices", "2,2", "--radices", "3", "--radices", "4")
    assert status == 2
    assert "system 2 has the product 3" in err
    assert not path.exists()
