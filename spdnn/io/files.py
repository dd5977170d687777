"""Files and folders written whole or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from spdnn.errors import DataError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under `path` only once it is complete.

    It is written beside `path` under another name and renamed at the end; if anything
    goes wrong it is removed and what stood at `path` before stays.

    Raises
    ------
    DataError
        If it cannot be written (no folder, no permission, disk full).
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


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
