"""Inputs in order are read in pieces, and are those that reading the whole file gives."""

import gzip
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spdnn import DataError, Features, Layer
from spdnn.io import ordered, tsv
from spdnn.io.ordered import read_ordered_inputs
from tests.makers import (
    dyadic_features,
    layer_files,
    same_features,
    small_network,
    triples_text,
    write_archive,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "PIECE_BYTES", 24)


@given(
    st.integers(0, 99),
    st.sampled_from(["random", "binary"]),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.booleans(),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_pieces_give_the_features_of_the_whole_file(
    seed: int, kind: str, newline: str, is_packed: bool, mark: bytes
) -> None:
    features = dyadic_features(seed, 20, 9, kind)
    text = mark + triples_text(features.to_csr(), newline=newline, last_newline=False)
    path = Path("f.tsv.gz" if is_packed else "f.tsv")
    path.write_bytes(gzip.compress(text) if is_packed else text)
    whole = tsv._read_any_inputs(path, 9, 1)
    found = read_ordered_inputs(path, 9, 1)
    assert found is not None
    assert same_features(found, whole)
    assert (found.values is None) == (whole.values is None)


LINES = st.lists(
    st.sampled_from(
        [
            *(b"1\t1\t1", b"1\t2\t1", b"2\t1\t0", b"3\t2\t0.5", b"5\t4\t1", b"6\t3\t-0.0"),
            *(b"5\t4\tnan", b"6\t4\t-inf", b"4\t5\t1", b"0\t1\t1", b"7\t1"),
            *(b"x", b"", b"\t\t", b" "),
        ]
    ),
    max_size=12,
)


@given(LINES, st.integers(0, 1))
def test_any_text_gives_the_features_or_the_error_of_the_whole_file(
    lines: list[bytes], index_base: int
) -> None:
    path = Path("f.tsv")
    path.write_bytes(b"\n".join(lines))

    def read(reader: Any) -> Features | str:
        try:
            return reader(path, 4, index_base)  # type: ignore[no-any-return]
        except DataError as error:
            return str(error)

    whole = read(tsv._read_any_inputs)
    found = read(lambda path, neurons, base: tsv.read_inputs(path, neurons, index_base=base))
    if isinstance(whole, Features):
        assert isinstance(found, Features)
        assert same_features(found, whole)
    else:
        assert found == whole


@given(st.integers(0, 200), st.integers(0, 7))
def test_a_changed_bit_of_a_packed_file_is_found_or_harmless(place: int, bit: int) -> None:
    features = dyadic_features(3, 20, 9, "binary")
    path = Path("f.tsv.gz")
    packed = bytearray(gzip.compress(triples_text(features.to_csr())))
    packed[place % len(packed)] ^= 1 << bit
    path.write_bytes(packed)
    try:
        found = tsv.read_inputs(path, 9)
    except DataError:
        return
    assert same_features(found, tsv._read_any_inputs(path, 9, 1))


def test_few_files_of_an_archive_wait_to_be_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_network(16, 30)
    path = write_archive(Path("a.tar.gz"), list(layer_files(network).items()))
    monkeypatch.setattr(tsv, "MAX_WAITING", 3)
    unpacked, parsed, lock = [0], [0], threading.Lock()
    members = tsv._archive_members
    most = 0

    def counted(path: Path) -> Any:
        nonlocal most
        for member in members(path):
            with lock:
                unpacked[0] += 1
                most = max(most, unpacked[0] - parsed[0])
            yield member

    def make_layer(weights: Any) -> Layer:
        time.sleep(0.002)
        with lock:
            parsed[0] += 1
        return Layer(weights)

    monkeypatch.setattr(tsv, "_archive_members", counted)
    assert tsv.read_layers(path, 16, 30, make_layer).n_layers == 30
    assert most <= 3
