"""Tab-separated triples, the text form of the challenge's matrices.

pyarrow parses the text. A triple that it refuses, or that a matrix cannot hold, is traced back to
its line for the message: only a faulty file is read line by line. pyarrow is imported when the
first text is parsed.
"""

import math
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.errors import DataError
from spdnn.io.files import without_mark

BLOCK_BYTES = 4 << 20
"""Bytes that pyarrow hands to a thread at a time. Its default of 1 MiB is a third slower here."""

_COLUMNS = {"row": "int32", "column": "int32", "value": "float32"}
"""Names of the columns and their types, as NumPy and pyarrow both call them."""

_WHOLE = re.compile(rb" *-?\d+ *")
_NUMBER = re.compile(rb" *-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)? *|[ +-]*(nan|inf|infinity) *", re.I)
"""Texts that pyarrow takes for a number. Python takes others, too, such as 1_000."""


class Triples(NamedTuple):
    """Parsed lines, each array of shape (n_lines,).

    Attributes
    ----------
    row, column : ndarray, int32
        The first and the second number of each line, as they are in the file.
    value : ndarray, float32
        The third number of each line.
    """

    row: npt.NDArray[np.int32]
    column: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]


def parse_triples(data: bytes, name: str) -> Triples:
    """Parse lines ``row<TAB>column<TAB>value``; CRLF and a missing last newline are fine.

    Parameters
    ----------
    data : bytes
        The text, unpacked.
    name : str
        The file's name, for messages.

    Returns
    -------
    Triples
        In the order of the lines.

    Raises
    ------
    DataError
        With the number of the first line that is not such a triple.
    """
    data = without_mark(data)
    if not data or data.isspace():
        return Triples(*(np.empty(0, dtype=kind) for kind in _COLUMNS.values()))
    try:
        triples = split_lines(data)
    except ValueError as error:  # pyarrow's ArrowInvalid is one
        raise _first_bad_line(data, name, str(error)) from error
    if not np.isfinite(triples.value).all():
        index = int(np.flatnonzero(~np.isfinite(triples.value))[0])
        raise line_error(data, name, index, "the value is NaN or infinite")
    return triples


def split_lines(data: bytes) -> Triples:
    """Parse lines as pyarrow does, without a look at what the numbers are.

    Parameters
    ----------
    data : bytes
        The text, with a line that is not empty.

    Raises
    ------
    ValueError
        If pyarrow refuses a line.
    """
    import pyarrow as pa
    import pyarrow.csv

    # The text is copied into pyarrow's own memory. A thread of pyarrow that releases a Python
    # object while the interpreter ends would abort the process (apache/arrow issue 34314).
    copy = pa.allocate_buffer(len(data))
    np.frombuffer(copy, dtype=np.uint8)[:] = np.frombuffer(data, dtype=np.uint8)
    types = {column: pa.type_for_alias(kind) for column, kind in _COLUMNS.items()}
    table = pa.csv.read_csv(
        pa.BufferReader(copy),
        read_options=pa.csv.ReadOptions(
            column_names=list(_COLUMNS), block_size=BLOCK_BYTES, use_threads=True
        ),
        parse_options=pa.csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pa.csv.ConvertOptions(column_types=types, null_values=[]),
    )
    return Triples(*(table.column(column).to_numpy() for column in _COLUMNS))


def triples_to_csr(
    triples: Triples,
    data: bytes,
    name: str,
    shape: tuple[int, int],
    what: tuple[str, str],
    index_base: int = 1,
) -> sp.csr_array:
    """Sort triples, which may be in any order, into a matrix.

    Parameters
    ----------
    triples : Triples
        The result of `parse_triples` for `data`.
    data : bytes
        The text, which is only searched for the line that a message names.
    name : str
        The file's name, for messages.
    shape : (int, int)
        Number of rows and columns.
    what : (str, str)
        Words for a row and a column in messages, such as ``("input", "output")``.
    index_base : {1, 0}
        Number of the first row and of the first column in the file.

    Returns
    -------
    csr_array, shape `shape`, float32
        In canonical format.

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
    """Make the error for triple number `index` (from 0), with the number of its line (from 1)."""
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
            # The form is tested first, since int() refuses numbers of thousands of digits itself.
            if form.fullmatch(field) is None or len(field) > 400 or abs(kind(field)) > largest:
                text = f"{word} {_shown(field)} is not a number in range"
                return DataError(f"{name}, line {number}: {text}")
    return DataError(f"{name}: not a file of tab-separated triples ({reason.splitlines()[0]})")


def _shown(field: bytes) -> str:
    return repr(field[:40].decode("utf-8", "replace"))
