"""Files and folders written whole or not at all."""

import os
import secrets
import shutil
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


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a new folder to fill, which appears under `path` only once it is complete.

    Raises
    ------
    DataError
        If `path` is there already, or it cannot be written; then nothing is left of it.
    """
    if path.exists():
        raise DataError(f"cannot write {path}: it is there already; remove it first")
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        partial.mkdir()
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
