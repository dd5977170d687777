"""Files and folders written whole or not at all, and what may be read."""

import os
import secrets
import shutil
import stat
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from spdnn.errors import DataError

DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What json, zipfile, numpy and scipy raise for files that are none of theirs, or were changed, and
what comes of facts that are missing or of another kind."""

_NO_FILES = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def require_file(path: Path) -> None:
    """Refuse to read what is there and no regular file: every reader asks this first.

    A device may have no end, a pipe can be read only once, where several processes or passes may
    have to, and neither can be mapped. Of what is not there, and of folders, the reader's own
    opening tells.

    Raises
    ------
    DataError
        If it is a pipe, a socket or a device.
    OSError
        If it cannot be looked at; what is not there is no error.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        what = _NO_FILES.get(stat.S_IFMT(path.stat().st_mode), "something else")
        raise DataError(f"{path}: {what}; give a regular file")


@contextmanager
def telling_damage(path: Path, what: str) -> Iterator[None]:
    """Tell what goes wrong while a value is made of a file's content as damage of the file.

    Parameters
    ----------
    path : Path
    what : str
        What the file is, such as "plan".

    Raises
    ------
    DataError
        One that names the file already is left as it is.
    """
    try:
        yield
    except (DataError, *DAMAGE) as error:
        if isinstance(error, DataError) and str(error).startswith(str(path)):
            raise
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path}: damaged {what}: {reason}; remove it, or make it anew") from error


def replaces_file(path: Path) -> bool:
    """Whether writing there makes or replaces a regular file.

    If not, it is a device, a pipe, or where this process's standard output or error goes, by
    whatever name: such as ``/dev/stdout`` where that was redirected into a file.
    """
    return not path.exists() or (path.is_file() and _standard_stream(path) is None)


def _standard_stream(path: Path) -> int | None:
    """Descriptor of standard output or error, if the path is that of what it writes to."""
    there = os.stat(path)
    for descriptor in (1, 2):
        with suppress(OSError):  # it is closed
            if os.path.samestat(there, os.fstat(descriptor)):
                return descriptor
    return None


def _opened(path: Path) -> BinaryIO:
    """Open what is no regular file, or a standard stream behind what it has written so far."""
    descriptor = _standard_stream(path)
    if descriptor is None:
        return open(path, "wb")
    stream = sys.stdout if descriptor == 1 else sys.stderr
    if stream is not None:
        stream.flush()
    return open(os.dup(descriptor), "wb")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under `path` only once it is complete.

    It is written beside `path` under another name and renamed at the end; if anything
    goes wrong it is removed and what stood at `path` before stays. A link is followed. A
    device, a pipe and a standard stream are written to as they are.

    Raises
    ------
    DataError
        If it cannot be written (no folder, no permission, disk full).
    """
    try:
        if not replaces_file(path):
            with _opened(path) as file:
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
