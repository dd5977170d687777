"""Triples in text: what is read, and the line that is named where something is wrong."""

import gzip

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spdnn import DataError
from spdnn.io.files import read_bytes
from spdnn.io.triples import parse_triples, triples_to_csr
from tests.makers import triples_text


def to_csr(data: bytes, shape: tuple[int, int] = (9, 9)) -> sp.csr_array:
    return triples_to_csr(parse_triples(data, "f.tsv"), data, "f.tsv", shape, ("input", "output"))


cells = st.tuples(st.integers(0, 8), st.integers(0, 8))
values = st.floats(-1e6, 1e6, width=32).filter(bool)


@given(
    st.dictionaries(cells, values),
    st.integers(0, 99),
    st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\r\n"]),
    st.booleans(),
)
def test_triples_in_any_order_with_any_line_ends_are_the_matrix(
    entries: dict[tuple[int, int], float], seed: int, newline: str, last_newline: bool
) -> None:
    matrix = np.zeros((9, 9), dtype=np.float32)
    for cell, value in entries.items():
        matrix[cell] = value
    text = triples_text(sp.coo_array(matrix), seed, newline, last_newline)
    csr = to_csr(text)
    np.testing.assert_array_equal(csr.toarray(), matrix)
    assert csr.has_canonical_format
    assert csr.dtype == np.float32


@pytest.mark.parametrize("text", [b"", b"\n", b"\r\n\r\n", b" \n"])
def test_a_file_without_lines_is_an_empty_matrix(text: bytes) -> None:
    assert to_csr(text).nnz == 0


def test_zeros_are_stored() -> None:
    assert to_csr(b"1\t1\t0\n").nnz == 1


def test_numbers_may_be_written_in_any_usual_way() -> None:
    csr = to_csr(b"1\t1\t.5\n1\t2\t-2e-1\n1\t3\t3.\n1\t4\t1E2\n 1\t5 \t6 \n")
    np.testing.assert_array_equal(csr.data, np.array([0.5, -0.2, 3, 100, 6], dtype=np.float32))


BEFORE = b"1\t1\t1\r\n\r\n2\t2\t1\r\n"
"""Three lines, one of them blank, before the faulty one."""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"3\t3", "expected 3 tab-separated fields, found 2: '3\\t3'"),
        (b"3 3 1", "expected 3 tab-separated fields, found 1: '3 3 1'"),
        (b"3\t3\t1\t1", "expected 3 tab-separated fields, found 4: '3\\t3\\t1\\t1'"),
        (b"3\t3\t1\t", "expected 3 tab-separated fields, found 4: '3\\t3\\t1\\t'"),
        (b"   ", "expected 3 tab-separated fields, found 1: '   '"),
        (b"x\t3\t1", "row 'x' is not a number in range"),
        (b"3\tx\t1", "column 'x' is not a number in range"),
        (b"3\t3\tx", "value 'x' is not a number in range"),
        (b"3\t3\t", "value '' is not a number in range"),
        (b"3.0\t3\t1", "row '3.0' is not a number in range"),
        (b"+3\t3\t1", "row '+3' is not a number in range"),
        (b"1_0\t3\t1", "row '1_0' is not a number in range"),
        (b"3\t3\t1_0", "value '1_0' is not a number in range"),
        (b"3\t3\t1,5", "value '1,5' is not a number in range"),
        (b'"3"\t3\t1', "row '\"3\"' is not a number in range"),
        (b"9999999999\t3\t1", "row '9999999999' is not a number in range"),
        (b"3\t" + b"9" * 5000 + b"\t1", f"column '{'9' * 40}' is not a number in range"),
        (b"\xff\t3\t1", "row '\ufffd' is not a number in range"),
        (b"3\t3\tnan", "the value is NaN or infinite"),
        (b"3\t3\t-inf", "the value is NaN or infinite"),
        (b"3\t3\t1e39", "the value is NaN or infinite"),
        (b"0\t3\t1", "input 0 is outside of 1..9 (numbers count from 1)"),
        (b"3\t0\t1", "output 0 is outside of 1..9 (numbers count from 1)"),
        (b"10\t3\t1", "input 10 is outside of 1..9"),
        (b"3\t10\t1", "output 10 is outside of 1..9"),
        (b"-1\t3\t1", "input -1 is outside of 1..9"),
        (b"2\t2\t1", "input 2, output 2 is named a second time"),
    ],
)
@pytest.mark.parametrize("after", [b"", b"\r\n", b"\r\n4\t4\t1\r\n"])
def test_a_faulty_line_is_named(line: bytes, message: str, after: bytes) -> None:
    with pytest.raises(DataError) as caught:
        to_csr(BEFORE + line + after)
    assert str(caught.value) == f"f.tsv, line 4: {message}"


def test_the_first_of_several_faulty_lines_is_named() -> None:
    with pytest.raises(DataError, match="line 2: output 12 is outside"):
        to_csr(b"1\t1\t1\n1\t12\t1\n1\t13\t1\n")
    with pytest.raises(DataError, match="line 3: input 1, output 1 is named a second time"):
        to_csr(b"1\t1\t1\n5\t5\t1\n1\t1\t1\n5\t5\t1\n")


def test_a_line_far_behind_is_named_by_its_number() -> None:
    lines = [b"%d\t%d\t1" % (k // 1000 + 1, k % 1000 + 1) for k in range(700_000)]
    lines[654_320] = b"1\tone\t1"  # beyond the first blocks that are handed to threads
    with pytest.raises(DataError, match=r"line 654321: column 'one'"):
        to_csr(b"\n".join(lines), (1000, 1000))


def test_a_file_that_is_no_text_is_refused_in_one_line() -> None:
    with pytest.raises(DataError) as caught:
        parse_triples(bytes(range(256)) * 20, "f.tsv")
    assert "\n" not in str(caught.value)


def test_packed_files_are_unpacked() -> None:
    from pathlib import Path

    path = Path("f.tsv.gz")
    path.write_bytes(gzip.compress(b"1\t1\t1\n") + gzip.compress(b"2\t2\t1\n"))
    assert read_bytes(path) == b"1\t1\t1\n2\t2\t1\n"


@given(st.data())
def test_a_packed_file_that_was_changed_or_cut_is_refused(data: st.DataObject) -> None:
    from pathlib import Path

    packed = bytearray(gzip.compress(b"1\t1\t0.0625\n" * 50, mtime=0))
    path = Path("f.tsv.gz")
    if data.draw(st.booleans()):
        packed = packed[: data.draw(st.integers(1, len(packed) - 1))]
    else:  # behind the header, whose time and system mean nothing
        packed[data.draw(st.integers(10, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(packed)
    with pytest.raises(DataError, match=r"^f\.tsv\.gz: damaged or truncated gzip file"):
        read_bytes(path)


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere", "No such file"), (".", "Is a directory")]
)
def test_a_file_that_cannot_be_read_is_named(name: str, message: str) -> None:
    from pathlib import Path

    with pytest.raises(DataError, match=message):
        read_bytes(Path(name))
