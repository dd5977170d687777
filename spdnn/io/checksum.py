"""CRC-32, zip's checksum, by several threads."""

import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from spdnn.machine.threads import default_threads

PIECE_BYTES = 16 << 20
"""Bytes that a thread takes at a time: some 10 ms of work."""

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
"""The polynomial 1; bits are reflected, so that x is one to the right."""


def crc32(data: memoryview) -> int:
    """Compute the same number as `zlib.crc32`.

    Parameters
    ----------
    data : memoryview
        Bytes.

    Examples
    --------
    >>> crc32(memoryview(b"123456789")) == 0xCBF43926
    True
    """
    if len(data) <= PIECE_BYTES:
        return zlib.crc32(data)
    pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
    with ThreadPoolExecutor(default_threads()) as pool:
        checksums = list(pool.map(zlib.crc32, pieces))
    whole = checksums[0]
    for piece, checksum in zip(pieces[1:], checksums[1:], strict=True):
        # Bytes that follow multiply what came before by x to the number of their bits.
        whole = _product(_power(8 * len(piece)), whole) ^ checksum
    return whole


def _product(a: int, b: int) -> int:
    """Multiply two polynomials modulo CRC-32's."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@cache
def _power(exponent: int) -> int:
    """Raise x to a power modulo CRC-32's polynomial."""
    power, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            power = _product(square, power)
        square = _product(square, square)
        exponent >>= 1
    return power
