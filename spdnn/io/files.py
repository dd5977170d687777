"""Files and folders: read whole and unpacked, written whole or not at all."""

import codecs
import gzip
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
"""Errors that json, zipfile, numpy and scipy raise for a damaged file or one of another format, and
errors that follow from facts that a file lacks or that have another type."""

_NO_FILES = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def require_file(path: Path) -> None:
    """Refuse to read a path that is there but no regular file. Every reader calls this first.

    A device may have no end. A pipe can be read only once, but several processes or passes may
    have to read it. Neither can be mapped. A path that is not there, and a folder, pass: the
    reader's own call of open tells them.

    Parameters
    ----------
    path : Path
        The path to read.

    Raises
    ------
    DataError
        If it is a pipe, a socket or a device.
    OSError
        If its folder may not be looked into.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        what = _NO_FILES.get(stat.S_IFMT(path.stat().st_mode), "something else")
        raise DataError(f"{path}: {what}; give a regular file")


def read_bytes(path: Path) -> bytes:
    """Read a file, unpacked if its name ends in ``.gz``.

    Parameters
    ----------
    path : Path
        The file to read.

    Returns
    -------
    bytes
        The content, at least one byte.

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
    """Unpack the bytes of a file, or of a member of an archive.

    Parameters
    ----------
    data : bytes
        The bytes as they were read.
    name : str
        Name of the file. The bytes are packed if it ends in ``.gz``.

    Returns
    -------
    bytes
        The content, at least one byte.

    Raises
    ------
    DataError
        If the bytes are damaged, or there are none. A transfer that broke off can leave a file
        without bytes, so a text without lines has to have one newline.
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
    """Remove the byte-order mark that some editors put before UTF-8."""
    return text.removeprefix(codecs.BOM_UTF8)


@contextmanager
def telling_damage(path: Path, what: str) -> Iterator[None]:
    """Turn errors of the block, which makes a value of a file's content, into errors of the file.

    Parameters
    ----------
    path : Path
        The file that the content comes from.
    what : str
        The kind of file for the message, such as "plan".

    Raises
    ------
    DataError
        If the block raises one, or an error of `DAMAGE`. A DataError that names the file already
        is raised unchanged.
    """
    try:
        yield
    except (DataError, *DAMAGE) as error:
        if isinstance(error, DataError) and str(error).startswith(str(path)):
            raise
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path}: damaged {what}: {reason}; remove it, or make it anew") from error


def replaces_file(path: Path) -> bool:
    """Whether writing to a path makes or replaces a regular file.

    It does not where the path is a device, a pipe, or the file that this process's standard output
    or error is written to. The latter may have any name, such as ``/dev/stdout``.
    """
    return not path.exists() or (path.is_file() and _standard_stream(path) is None)


def _standard_stream(path: Path) -> int | None:
    """The descriptor of standard output or error if it writes to this path, else None."""
    there = os.stat(path)
    for descriptor in (1, 2):
        with suppress(OSError):  # it is closed
            if os.path.samestat(there, os.fstat(descriptor)):
                return descriptor
    return None


def _opened(path: Path) -> BinaryIO:
    """Open a device or pipe, or a standard stream after what it has written so far."""
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

    The file is written beside `path` under another name and renamed at the end. If anything goes
    wrong it is removed, and the file that was at `path` before stays. A link is followed. A device,
    a pipe and a standard stream are written to directly.

    Parameters
    ----------
    path : Path
        The file to write.

    Yields
    ------
    binary file
        The file to write the content to.

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
        # A part of the name is enough: the whole may already be as long as a name can be.
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
    """Make a folder that appears under `path` only once it is complete.

    Parameters
    ----------
    path : Path
        The folder to make. It must not be there yet.

    Yields
    ------
    Path
        The folder to write files into; it has another name meanwhile.

    Raises
    ------
    DataError
        If `path` is there already or cannot be written. Then nothing is left of the folder.
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
