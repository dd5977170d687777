"""Files written whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from spdnn.errors import DataError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under `path` only once it is complete.

    It is written beside `path` under another name and renamed at the end; if anything
    goes wrong it is removed and what stood at `path` before stays. A link is followed. What is
    there and no file, such as ``/dev/null`` or a pipe, is written to as it is.

    Raises
    ------
    DataError
        If it cannot be written (no folder, no permission, disk full).
    """
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        # Not made from the whole name, which may be as long as names may be.
        partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
        try:
            with open(partial, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        finally:
            with suppress(OSError):  # renamed, or never made
                partial.unlink()
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
