"""The checksum of pieces is that of the whole."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spdnn.io import checksum


@given(st.binary(max_size=200), st.integers(1, 50))
def test_the_checksum_is_zlibs(data: bytes, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksum, "PIECE_BYTES", piece)
        assert checksum.crc32(memoryview(data)) == zlib.crc32(data)
