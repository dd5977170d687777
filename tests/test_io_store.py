"""Binary stores: exact round trips, and no damage that goes unseen."""

import errno
import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spdnn import DataError, Features, Layer, Network
from spdnn.io import store
from spdnn.io.files import whole_file
from tests.makers import (
    dyadic_cases,
    dyadic_features,
    dyadic_network,
    same_features,
    same_layers,
    small_network,
)

NET = Path("net.spdnn")
INPUTS = Path("inputs.spdnn")


@given(dyadic_cases(always=True), st.booleans())
def test_a_network_comes_back_as_it_was_written(
    case: tuple[Network, Features], is_official: bool
) -> None:
    network, _ = case
    store.write_network(NET, network, is_official=is_official)
    read, was_official = store.read_network(NET)
    assert same_layers(read, network)
    assert read.name == network.name
    assert read.layer_edges == network.layer_edges
    assert was_official is is_official


@given(dyadic_cases(), st.integers(0, 20), st.integers(0, 80), st.booleans())
def test_features_come_back_as_they_were_written(
    case: tuple[Network, Features], start: int, stop: int, is_official: bool
) -> None:
    part = case[1].part(start, stop)
    store.write_features(INPUTS, part, is_official=is_official)
    read, was_official = store.read_features(INPUTS)
    assert same_features(read, part)
    assert read.indices.dtype == part.indices.dtype
    assert (read.values is None) == (part.values is None)
    assert was_official is is_official


@pytest.mark.parametrize("bias", [-0.25, [-0.25] * 3])
def test_one_bias_for_all_and_a_bias_for_each_stay_what_they_are(bias: Any) -> None:
    store.write_network(NET, Network([Layer(np.eye(3), bias)]))
    assert store.read_network(NET)[0].layers[0].bias.shape == np.shape(bias)


def test_layers_wider_than_16_bits_can_number_are_kept() -> None:
    wide = sp.csr_array(([1.0, 2.0], ([0, 1], [65536, 70000])), shape=(2, 70001))
    network = Network([Layer(wide), Layer(wide.T.tocsr())])
    store.write_network(NET, network)
    assert same_layers(store.read_network(NET)[0], network)
    with np.load(NET) as members:
        assert members["0/indices"].dtype == np.int32
        assert members["1/indices"].dtype == np.uint16


def test_features_wider_than_16_bits_can_number_are_kept() -> None:
    features = Features(70001, [0, 1, 2], [65536, 70000])
    store.write_features(INPUTS, features)
    assert same_features(store.read_features(INPUTS)[0], features)


def test_numpy_and_unzip_read_a_store() -> None:
    network = dyadic_network(1, [9, 8, 7], ["random", "shared"])
    store.write_network(NET, network)
    with np.load(NET) as members:
        for index, layer in enumerate(network.layers):
            np.testing.assert_array_equal(members[f"{index}/indices"], layer.weights.indices)
            np.testing.assert_array_equal(members[f"{index}/bias"], layer.bias)
    with zipfile.ZipFile(NET) as archive:
        assert archive.testzip() is None
        facts = json.loads(archive.read("spdnn.json"))
    assert facts["spdnn"] == "network"
    assert facts["shapes"] == [[9, 8], [8, 7]]


def test_equal_weights_are_kept_once() -> None:
    store.write_network(NET, small_network(64, 2))
    with np.load(NET) as members:
        assert members["1/weights"].tolist() == [0.25]


@given(dyadic_cases())
def test_the_data_of_every_array_begins_at_a_multiple_of_64_bytes(
    case: tuple[Network, Features],
) -> None:
    store.write_network(NET, case[0])
    store.write_features(INPUTS, case[1])
    for path, kind in ((NET, "network"), (INPUTS, "features")):
        opened = store.Store(path, kind)
        begin = np.frombuffer(opened._map, np.uint8).ctypes.data
        with zipfile.ZipFile(path) as archive:
            names = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
        assert names
        for name in names:
            array = opened.array(name)
            if array.size:
                assert (array.ctypes.data - begin) % store.ALIGNMENT == 0


def test_what_was_read_may_be_changed_and_the_file_stays() -> None:
    store.write_features(INPUTS, dyadic_features(1, 9, 9))
    before = INPUTS.read_bytes()
    store.read_features(INPUTS)[0].indices[:] = 0
    assert INPUTS.read_bytes() == before


@given(st.data())
def test_a_changed_bit_is_noticed_or_means_nothing(data: st.DataObject) -> None:
    network = dyadic_network(7, [9, 8, 7], ["random", "shared"])
    store.write_network(NET, network)
    content = bytearray(NET.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    NET.write_bytes(content)
    try:
        read = store.read_network(NET)[0]
        is_same = same_layers(read, network)
    except DataError:
        return
    assert is_same


def test_a_changed_byte_of_an_array_is_a_wrong_checksum() -> None:
    store.write_features(INPUTS, Features(9, [0, 3], [1, 4, 7]))
    content = INPUTS.read_bytes()
    wanted = np.array([1, 4, 7], np.uint16).tobytes()
    assert content.count(wanted) == 1
    INPUTS.write_bytes(content.replace(wanted, np.array([1, 4, 6], np.uint16).tobytes()))
    with pytest.raises(DataError, match=r"inputs\.spdnn: damaged store: checksum of indices\.npy"):
        store.read_features(INPUTS)


def test_a_changed_name_does_not_lead_to_another_layer() -> None:
    store.write_network(NET, dyadic_network(7, [9, 9, 9], ["random", "shared"]))
    content = NET.read_bytes()
    at = content.rindex(b"1/weights.npy")  # in the directory, at the end
    NET.write_bytes(content[:at] + b"0" + content[at + 1 :])
    with pytest.raises(DataError, match=r"the name of 0/weights\.npy was changed"):
        store.read_network(NET)[0].layers[0]


@given(st.floats(0, 1, exclude_max=True))
def test_a_store_that_was_cut_short_is_refused(fraction: float) -> None:
    store.write_features(INPUTS, dyadic_features(1, 9, 9))
    content = INPUTS.read_bytes()
    INPUTS.write_bytes(content[: int(len(content) * fraction)])
    with pytest.raises(DataError, match=r"inputs\.spdnn: not a store, or one that was cut short"):
        store.read_features(INPUTS)


def test_a_store_of_the_other_kind_is_refused() -> None:
    store.write_network(NET, small_network())
    store.write_features(INPUTS, dyadic_features(1, 2, 2))
    with pytest.raises(DataError, match="this store holds network, not features"):
        store.read_features(NET)
    with pytest.raises(DataError, match="this store holds features, not network"):
        store.read_network(INPUTS)


def test_a_store_of_another_version_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store, "VERSION", 99)
        store.write_network(NET, small_network())
    with pytest.raises(DataError, match=r"version 99, this program reads version 1; make it anew"):
        store.read_network(NET)


@pytest.mark.parametrize("content", [b"", b"PK", b"text\n" * 99])
def test_what_is_no_store_is_refused(content: bytes) -> None:
    NET.write_bytes(content)
    with pytest.raises(DataError, match=r"net\.spdnn: not a store"):
        store.read_network(NET)


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"spdnn": "network"}'])
def test_another_programs_archive_is_refused(text: str) -> None:
    with zipfile.ZipFile(NET, "w") as archive:
        archive.writestr("spdnn.json", text)
    with pytest.raises(DataError, match=r"net\.spdnn: not a store of spdnn"):
        store.read_network(NET)
    np.savez(NET.with_suffix(".npz"), a=np.ones(3))
    with pytest.raises(DataError, match=r"net\.npz: .*spdnn\.json is missing"):
        store.read_network(NET.with_suffix(".npz"))


@pytest.mark.parametrize(("path", "message"), [("nowhere", "No such file"), (".", "directory")])
def test_a_store_that_cannot_be_opened_is_named(path: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        store.read_network(Path(path))


class FullDisk:
    """A file that takes `room` bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: Any) -> int:
        self.room -= memoryview(data).nbytes
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.file.write(data))

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("room", [0, 10, 100, 500, 2000])
@pytest.mark.parametrize("before", [None, b"what stood there"])
def test_a_disk_that_fills_up_leaves_nothing_but_what_was_there(
    room: int, before: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is not None:
        NET.write_bytes(before)
    network = small_network()

    def open_full(*given: Any) -> FullDisk:
        return FullDisk(open(*given), room)

    with monkeypatch.context() as patch:
        patch.setattr("spdnn.io.files.open", open_full, raising=False)
        with pytest.raises(DataError, match=r"cannot write net\.spdnn: No space left on device"):
            store.write_network(NET, network)
    assert [path.name for path in Path().iterdir()] == ([] if before is None else [NET.name])
    assert before is None or NET.read_bytes() == before


def test_a_disk_that_is_really_full_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        with pytest.raises(DataError, match="No space left on device"):
            store.write_features(disk / "f.spdnn", dyadic_features(1, 3000, 40))
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_error_of_the_writer_itself_leaves_nothing() -> None:
    def broken(fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write_network(NET, small_network(), progress=broken)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere/f", "No such file or directory"),
        ("file/f", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_place_where_nothing_can_be_written_is_named(path: str, message: str) -> None:
    Path("file").touch()
    with pytest.raises(DataError, match=f"cannot write {path}: {message}"), whole_file(Path(path)):
        raise AssertionError("there is nothing to write into")


def test_a_name_as_long_as_names_may_be_is_written() -> None:
    with whole_file(Path("x" * 255)) as file:
        file.write(b"text")
    assert Path("x" * 255).read_bytes() == b"text"


def test_a_link_is_followed_and_kept() -> None:
    Path("link").symlink_to("target")
    with whole_file(Path("link")) as file:
        file.write(b"text")
    assert Path("link").is_symlink()
    assert Path("target").read_bytes() == b"text"


def test_a_device_is_written_to_and_stays_one() -> None:
    with whole_file(Path(os.devnull)) as file:
        file.write(b"text")
    assert Path(os.devnull).is_char_device()
