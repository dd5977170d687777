"""Tab-separated triples, the text form of the challenge's matrices.

pyarrow parses; what it refuses, and what it accepts but a matrix cannot hold, is
traced back to a line for the message. Only a faulty file is read line by line.
"""

import codecs
import gzip
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import scipy.sparse as sp

from spdnn.errors import DataError
from spdnn.io.files import require_file

BLOCK_BYTES = 4 << 20
"""What pyarrow hands to a thread at a time; 1 MiB, its own choice, is a third slower here."""

_COLUMNS = {"row": pa.int32(), "column": pa.int32(), "value": pa.float32()}


_WHOLE = re.compile(rb" *-?\d+ *")
_NUMBER = re.compile(rb" *-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)? *|[ +-]*(nan|inf|infinity) *", re.I)
"""What pyarrow takes for a number; Python takes more, such as 1_000."""


class Triples(NamedTuple):
    """Parsed lines: `row` and `column` (int32) and `value` (float32), numbered as in the file."""

    row: npt.NDArray[np.int32]
    column: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]


def read_bytes(path: Path) -> bytes:
    """Content of a file, unpacked if its name ends in ``.gz``.

    Raises
    ------
    DataError
        If the file cannot be read, is damaged or has no bytes.
    """
    try:
        require_file(path)
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    return unpacked(data, str(path))


def unpacked(data: bytes, name: str) -> bytes:
    """Content of a file or of an archive's member that was read as `data`.

    Parameters
    ----------
    data : bytes
    name : str
        It is packed where this ends in ``.gz``.

    Raises
    ------
    DataError
        If it is damaged, or nothing: a transfer that broke off leaves a file without bytes.
        A text without lines has one newline.
    """
    if data and name.endswith(".gz"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{name}: damaged or truncated gzip file ({error})") from error
    if not data:
        raise DataError(
            f"{name}: empty (0 bytes), as an unfinished download is; "
            "a text that is to hold nothing has one newline"
        )
    return data


def without_mark(text: bytes) -> bytes:
    """Text without the byte-order mark that some editors put before UTF-8."""
    return text.removeprefix(codecs.BOM_UTF8)


def parse_triples(data: bytes, name: str) -> Triples:
    """Parse lines ``row<TAB>column<TAB>value``; CRLF and a missing last newline are fine.

    Parameters
    ----------
    data : bytes
        The text, unpacked.
    name : str
        The file's name, for messages.

    Raises
    ------
    DataError
        With the number of the first line that is not such a triple.
    """
    data = without_mark(data)
    if not data or data.isspace():
        return Triples(*(np.empty(0, dtype=kind.to_pandas_dtype()) for kind in _COLUMNS.values()))
    # A copy in memory of pyarrow's own: one of its threads that lets go of a Python object, even
    # of borrowed memory, while the interpreter ends, aborts the process (apache/arrow 34314).
    copy = pa.allocate_buffer(len(data))
    np.frombuffer(copy, dtype=np.uint8)[:] = np.frombuffer(data, dtype=np.uint8)
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(copy),
            read_options=pa.csv.ReadOptions(
                column_names=list(_COLUMNS), block_size=BLOCK_BYTES, use_threads=True
            ),
            parse_options=pa.csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=pa.csv.ConvertOptions(column_types=_COLUMNS, null_values=[]),
        )
    except pa.ArrowInvalid as error:
        raise _first_bad_line(data, name, str(error)) from error
    triples = Triples(*(table.column(column).to_numpy() for column in _COLUMNS))
    if not np.isfinite(triples.value).all():
        index = int(np.flatnonzero(~np.isfinite(triples.value))[0])
        raise line_error(data, name, index, "the value is NaN or infinite")
    return triples


def triples_to_csr(
    triples: Triples,
    data: bytes,
    name: str,
    shape: tuple[int, int],
    what: tuple[str, str],
    index_base: int = 1,
) -> sp.csr_array:
    """Sort triples in any order into a matrix of `shape`, float32, canonical format.

    Parameters
    ----------
    triples : Triples
        What `parse_triples` made of `data`.
    data, name
        As in `parse_triples`; only read for a message.
    shape : (int, int)
        How many rows and columns the file may name.
    what : (str, str)
        What rows and columns are called in messages, such as ``("input", "output")``.
    index_base : {1, 0}
        What the first row and column are called in the file.

    Raises
    ------
    DataError
        Naming the line, if a triple is out of range, counts from elsewhere or is named twice.
    """
    row, column, value = triples
    for numbers, size, word in zip((row, column), shape, what, strict=True):
        first, last = index_base, size - 1 + index_base
        if numbers.size and (int(numbers.min()) < first or int(numbers.max()) > last):
            index = int(np.flatnonzero((numbers < first) | (numbers > last))[0])
            text = f"{word} {numbers[index]} is outside of {first}..{last}"
            if numbers[index] in (0, size):
                text += f" (numbers count from {index_base})"
            raise line_error(data, name, index, text)
    matrix = sp.coo_array((value, (row - index_base, column - index_base)), shape=shape).tocsr()
    if matrix.nnz != value.size:
        key = row.astype(np.int64) * shape[1] + column
        order = np.argsort(key, kind="stable")
        twice = order[1:][key[order[1:]] == key[order[:-1]]]
        index = int(twice.min())
        text = f"{what[0]} {row[index]}, {what[1]} {column[index]} is named a second time"
        raise line_error(data, name, index, text)
    return matrix


def line_error(data: bytes, name: str, index: int, text: str) -> DataError:
    """Build the error for the triple number `index` (0-based), with its line number (1-based)."""
    for number, line in enumerate(data.splitlines(), start=1):
        if line:
            if index == 0:
                return DataError(f"{name}, line {number}: {text}")
            index -= 1
    return DataError(f"{name}: {text}")


def _first_bad_line(data: bytes, name: str, reason: str) -> DataError:
    kinds: tuple[tuple[str, re.Pattern[bytes], Callable[[bytes], float], float], ...] = (
        ("row", _WHOLE, int, 2**31 - 1),
        ("column", _WHOLE, int, 2**31 - 1),
        ("value", _NUMBER, float, math.inf),
    )
    for number, line in enumerate(data.splitlines(), start=1):
        if not line:
            continue
        fields = line.split(b"\t")
        if len(fields) != 3:
            text = f"expected 3 tab-separated fields, found {len(fields)}"
            return DataError(f"{name}, line {number}: {text}: {_shown(line)}")
        for field, (word, form, kind, largest) in zip(fields, kinds, strict=True):
            # The form first: int() refuses, in its own words, numbers of thousands of digits.
            if form.fullmatch(field) is None or len(field) > 400 or abs(kind(field)) > largest:
                text = f"{word} {_shown(field)} is not a number in range"
                return DataError(f"{name}, line {number}: {text}")
    return DataError(f"{name}: not a file of tab-separated triples ({reason.splitlines()[0]})")


def _shown(field: bytes) -> str:
    return repr(field[:40].decode("utf-8", "replace"))
