"""The published text files, packed or not, in a folder or an archive."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spdnn import DataError, DeviceError, Features, Layer, Network
from spdnn.io.labels import read_labels
from spdnn.io.tsv import iterate_weights, read_categories, read_inputs, read_layers
from tests.makers import (
    dyadic_features,
    layer_files,
    same_features,
    same_layers,
    small_network,
    triples_text,
    write_archive,
    write_folder,
)

NETWORK = small_network(64, 3)
FILES = layer_files(NETWORK)


def make_layer(weights: Any) -> Layer:
    return Layer(weights, -0.5, 32.0)


def read(path: Path, layers: int = 3, neurons: int = 64) -> Network:
    return read_layers(path, neurons, layers, make_layer)


def members(*numbers: int, folder: str = "neuron64/") -> list[tuple[str, bytes]]:
    return [(f"{folder}n64-l{number}.tsv", FILES[f"n64-l{number}.tsv"]) for number in numbers]


def plain_folder() -> Path:
    return write_folder(Path("layers"), FILES)


def published_folder() -> Path:
    write_folder(Path("published/neuron64"), FILES)
    return Path("published")


def packed_folder() -> Path:
    packed = {f"{name}.gz": gzip.compress(data) for name, data in FILES.items()}
    return write_folder(Path("packed"), packed)


def crlf_folder() -> Path:
    return write_folder(
        Path("crlf"),
        {name: data.replace(b"\n", b"\r\n")[:-2] for name, data in FILES.items()},
    )


def archive(name: str, mode: str) -> Callable[[], Path]:
    return lambda: write_archive(Path(name), members(3, 1, 2), mode)


def archive_of_packed_files() -> Path:
    packed = [(f"{name}.gz", gzip.compress(data)) for name, data in members(2, 3, 1, folder="./")]
    return write_archive(Path("packed.tar"), packed, "w")


def archive_with_other_files() -> Path:
    others = [("README", b"x"), ("neuron64/._n64-l1.tsv", b"\0"), ("n16-l1.tsv", b"1\t1\t1\n")]
    return write_archive(Path("others.tgz"), others + members(1, 2, 3))


@pytest.mark.parametrize(
    "make",
    [
        plain_folder,
        published_folder,
        packed_folder,
        crlf_folder,
        archive("a.tar", "w"),
        archive("a.tar.gz", "w:gz"),
        archive("a.tgz", "w:gz"),
        archive("unpacked.tar.gz", "w"),
        archive_of_packed_files,
        archive_with_other_files,
    ],
)
def test_layers_are_read_from_any_published_layout(make: Callable[[], Path]) -> None:
    assert same_layers(read(make()), NETWORK)


@given(st.permutations([1, 2, 3]), st.integers(1, 3))
def test_members_may_come_in_any_order_and_fewer_be_asked_for(
    order: list[int], layers: int
) -> None:
    path = write_archive(Path("a.tar.gz"), members(*order))
    network = read(path, layers)
    assert same_layers(network, Network(NETWORK.layers[:layers]))
    assert network.name == "a.tar.gz"


@pytest.mark.parametrize("twin", ["n64-l2.tsv.gz", "n64-l02.tsv", "n064-l2.tsv"])
def test_a_layer_that_is_twice_in_a_folder_is_refused_with_both_files(twin: str) -> None:
    folder = plain_folder()
    (folder / twin).write_bytes(b"1\t1\t1\n")
    for reading in (read, lambda path: list(iterate_weights(path, 64))):
        with pytest.raises(DataError, match="layer 2 is there twice, also as") as caught:
            reading(folder)
        assert twin in str(caught.value)
        assert "n64-l2.tsv" in str(caught.value).replace(twin, "")


@pytest.mark.parametrize("name", ["n64-l2.tsv", "n64-l2.tsv.gz"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_layer_of_no_bytes_is_refused_and_one_of_a_newline_has_no_edges(
    name: str, packed: bool
) -> None:
    def make(content: bytes) -> Path:
        others = [(f"n64-l{n}.tsv", FILES[f"n64-l{n}.tsv"]) for n in (1, 3)]
        if packed:
            return write_archive(Path("a.tar"), [*others, (name, content)], "w")
        return write_folder(Path("folder"), dict([*others, (name, content)]))

    for content in (b"", gzip.compress(b"")) if name.endswith("gz") else (b"",):
        with pytest.raises(DataError, match=rf"{name}: empty \(0 bytes\), as an unfinished"):
            read(make(content))
    newline = gzip.compress(b"\n") if name.endswith("gz") else b"\n"
    assert read(make(newline)).layer_edges[1] == 0


def test_the_number_of_layers_read_is_reported() -> None:
    seen: list[int] = []
    read_layers(plain_folder(), 64, 3, make_layer, seen.append)
    assert seen == [1, 2, 3]


def test_missing_layers_are_named_and_counted() -> None:
    folder = plain_folder()
    (folder / "n64-l2.tsv").unlink()
    with pytest.raises(DataError) as caught:
        read(folder)
    assert str(caught.value) == "layers: layer 2 of 3 is missing (no n64-l2.tsv in it)"
    with pytest.raises(DataError, match=r"layer 2 of 7 is missing .*, and 4 more$"):
        read(folder, 7)
    with pytest.raises(DataError, match="layer 1 of 2 is missing"):
        read(write_archive(Path("a.tar"), members(2), "w"), 2)


def test_layers_of_another_size_are_pointed_out() -> None:
    with pytest.raises(DataError, match=r"no n128-l1\.tsv in it.*; it holds layers of 64 neurons"):
        read(plain_folder(), neurons=128)


def test_a_layer_of_fewer_neurons_under_a_larger_name_is_not_taken_for_one() -> None:
    larger = triples_text(small_network(65, 1).layers[0].weights + np.eye(65))
    folder = write_folder(Path("wrong"), {**FILES, "n64-l2.tsv": larger})
    with pytest.raises(
        DataError, match=r"wrong/n64-l2\.tsv, line \d+: .* 65 is outside of 1\.\.64"
    ):
        read(folder)


@pytest.mark.parametrize("make", [plain_folder, archive("a.tar.gz", "w:gz")])
def test_a_faulty_line_is_named_with_its_file(
    make: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILES, "n64-l2.tsv", b"1\t1\t0.5\n1\t2\tnan\n")
    with pytest.raises(DataError, match=r"n64-l2\.tsv, line 2: the value is NaN or infinite"):
        read(make())


def test_a_layer_that_is_twice_in_an_archive_is_refused() -> None:
    path = write_archive(Path("a.tar"), members(1, 2, 3, 2), "w")
    with pytest.raises(DataError, match=r"a\.tar:.*: layer 2 is there twice, also as a\.tar:"):
        read(path)


def test_layers_may_lie_in_an_archive_without_a_folder() -> None:
    assert same_layers(read(write_archive(Path("a.tar"), members(1, 2, 3, folder=""))), NETWORK)


def test_what_a_layer_refuses_is_named_with_its_file() -> None:
    def refuse(weights: Any) -> Layer:
        return Layer(weights, np.nan)

    with pytest.raises(DataError, match=r"layers/n64-l1\.tsv: a bias of the layer is NaN"):
        read_layers(plain_folder(), 64, 3, refuse)


def test_a_layer_file_that_is_a_folder_is_named() -> None:
    folder = plain_folder()
    (folder / "n64-l2.tsv").unlink()
    (folder / "n64-l2.tsv").mkdir()
    with pytest.raises(DataError, match=r"n64-l2\.tsv: Is a directory"):
        read(folder)


def test_a_single_layer_file_is_not_a_network() -> None:
    with pytest.raises(DataError, match=r"n64-l1\.tsv: neither a folder of layer files, nor"):
        read(plain_folder() / "n64-l1.tsv", 1)


@given(st.data())
def test_a_packed_archive_that_was_changed_is_refused_or_the_same(data: st.DataObject) -> None:
    path = write_archive(Path("a.tar.gz"), members(1, 2, 3))
    packed = bytearray(path.read_bytes())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(packed)
    try:
        network = read(path)
    except DataError:
        return
    assert same_layers(network, NETWORK)  # the time in gzip's header, or the like


@given(st.floats(0, 1, exclude_max=True))
def test_a_packed_archive_that_was_cut_short_is_refused(fraction: float) -> None:
    path = write_archive(Path("a.tgz"), members(1, 2, 3))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * fraction)])
    with pytest.raises(DataError, match="damaged or truncated archive"):
        read(path)


@pytest.mark.parametrize("cut", [100, 600, 2000])
def test_an_unpacked_archive_that_was_cut_short_is_refused(cut: int) -> None:
    path = write_archive(Path("a.tar"), members(1, 2, 3), "w")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"damaged or truncated|missing"):
        read(path)


def test_a_link_in_an_archive_is_no_layer() -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        info = tarfile.TarInfo("n64-l1.tsv")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    Path("a.tar").write_bytes(data.getvalue())
    with pytest.raises(DataError, match="layer 1 of 1 is missing"):
        read(Path("a.tar"), 1)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.tar.gz"])
def test_weights_that_are_not_there_are_named(name: str) -> None:
    with pytest.raises(DataError, match=f"{name}: No such file"):
        read(Path(name))


def test_more_layers_than_memory_holds_are_refused_at_once() -> None:
    with pytest.raises(DeviceError, match=r"layers of 64 neurons needs .* of memory"):
        read(plain_folder(), 10**15)


@given(
    st.integers(0, 99),
    st.sampled_from(["random", "binary"]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_inputs_in_any_order_are_read_as_they_are(
    seed: int, kind: str, newline: str, is_packed: bool
) -> None:
    features = dyadic_features(seed, 20, 9, kind)
    last = np.flatnonzero(np.diff(features.indptr))[-1]
    features = features.part(0, int(last) + 1)  # a file does not know of empty images at its end
    text = triples_text(features.to_csr(), seed, newline, last_newline=False)
    path = Path("f.tsv.gz" if is_packed else "f.tsv")
    path.write_bytes(gzip.compress(text) if is_packed else text)
    read_back = read_inputs(path, 9)
    assert same_features(read_back, features)
    assert (read_back.values is None) == (kind == "binary")


def test_inputs_of_zero_are_dropped() -> None:
    Path("f.tsv").write_bytes(b"2\t1\t0\n1\t2\t1\n")
    features = read_inputs(Path("f.tsv"), 2)
    assert same_features(features, Features.from_matrix([[0, 1], [0, 0]]))
    assert features.n_nonzeros == 1


@pytest.mark.parametrize("name", ["f.tsv", "f.tsv.gz"])
def test_inputs_and_categories_of_no_bytes_are_refused_and_of_a_newline_are_none(
    name: str,
) -> None:
    path = Path(name)
    path.touch()
    for reading in (lambda: read_inputs(path, 2), lambda: read_categories(path)):
        with pytest.raises(DataError, match=rf"^{name}: empty \(0 bytes\)"):
            reading()
    path.write_bytes(gzip.compress(b"\n") if name.endswith("gz") else b"\n")
    assert read_inputs(path, 2).n_features == 0
    assert read_categories(path).size == 0


def test_a_byte_order_mark_is_no_part_of_a_text() -> None:
    mark = b"\xef\xbb\xbf"
    Path("c.tsv").write_bytes(mark + b"3\r\n1\r\n")
    assert read_categories(Path("c.tsv")).tolist() == [1, 3]
    Path("l.txt").write_bytes(mark + b"2\n0\n")
    assert read_labels(Path("l.txt")).tolist() == [2, 0]
    Path("f.tsv").write_bytes(mark + b"1\t2\t1\n")
    assert read_inputs(Path("f.tsv"), 2).n_features == 1
    Path("f.tsv").write_bytes(mark + b"1\t2\t1\n1\tx\t1\n")
    with pytest.raises(DataError, match="line 2: column 'x' is not a number"):
        read_inputs(Path("f.tsv"), 2)
    Path("f.tsv").write_bytes(mark + b"\n")
    assert read_inputs(Path("f.tsv"), 2).n_features == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"1\t1\t1\n0\t1\t1\n", r"line 2: image 0 is outside of 1\.\.1 \(numbers count from 1\)"),
        (b"1\t5\t1\n", r"line 1: neuron 5 is outside of 1\.\.4"),
        (b"1\t1\t1\n1\t1\t1\n", "line 2: image 1, neuron 1 is named a second time"),
        (b"1\t1\n", "line 1: expected 3 tab-separated fields, found 2"),
    ],
)
def test_faulty_inputs_are_named_by_line(text: bytes, message: str) -> None:
    Path("f.tsv").write_bytes(text)
    with pytest.raises(DataError, match=rf"f\.tsv, {message}"):
        read_inputs(Path("f.tsv"), 4)


def test_an_image_number_beyond_memory_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spdnn.machine.memory.available_bytes", lambda: 2**30)
    Path("f.tsv").write_bytes(b"2000000000\t1\t1\n")
    with pytest.raises(DeviceError, match=r"f\.tsv: images up to number 2000000000 needs"):
        read_inputs(Path("f.tsv"), 4)


@given(st.sets(st.integers(1, 10**17), min_size=1), st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_categories_are_read_in_any_order(numbers: set[int], newline: str) -> None:
    Path("c.tsv").write_text(newline.join(map(str, numbers)), newline="")
    categories = read_categories(Path("c.tsv"))
    assert categories.tolist() == sorted(numbers)
    assert categories.dtype == np.int64


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"0", r"0 is not a feature number \(they count from 1\)"),
        (b"-3", r"-3 is not a feature number \(they count from 1\)"),
        (b"x", "'x' is not a feature number"),
        (b"1.0", "'1.0' is not a feature number"),
        (b"1_0", "'1_0' is not a feature number"),
        (b"1\t1\t1", r"'1\\t1\\t1' is not a feature number"),
        (b"--1", "'--1' is not a feature number"),
        (b"9" * 30, f"'{'9' * 30}' is not a feature number"),
        (b"7", "feature 7 is named a second time, first in line 1"),
    ],
)
def test_a_faulty_category_is_named_by_line(line: bytes, message: str) -> None:
    Path("c.tsv").write_bytes(b"7\n\n" + line + b"\n")
    with pytest.raises(DataError, match=rf"^c\.tsv, line 3: {message}$"):
        read_categories(Path("c.tsv"))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to the superuser")
def test_a_file_without_permission_is_named() -> None:
    Path("c.tsv").touch(mode=0)
    with pytest.raises(DataError, match=r"c\.tsv: Permission denied"):
        read_categories(Path("c.tsv"))
