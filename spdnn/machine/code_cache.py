"""Machine code on disk: where it is kept, and what guards numba's files of it.

A folder may be shared by many jobs, processors and versions of the package. Damage to it costs a
compilation and a warning, nothing else: numba itself would execute whatever is in a file.
"""

import fcntl
import hashlib
import logging
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import IndexDataCacheFile

_log = logging.getLogger(__name__)
_warned: set[str] = set()

_DIGEST_BYTES = 16


def _cache_folder() -> str:
    """Folder of compiled kernels, in ``NUMBA_CACHE_DIR`` or else the user's cache folder."""
    package = Path(__file__).parents[1]
    what = (numba.__version__, llvmlite.__version__, os.environ.get("SPDNN_VECTORS", ""))
    digest = hashlib.sha256("\n".join(what).encode())
    for file in sorted(package.glob("**/*.py")):
        digest.update(file.read_bytes())
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    base = numba.config.CACHE_DIR or os.path.join(user_cache, "spdnn")
    return os.path.join(base, f"kernels-{digest.hexdigest()[:16]}")


CACHE_FOLDER = _cache_folder()
"""The folder of this version of the package, of numba and of LLVM."""


@contextmanager
def own_cache_folder() -> Iterator[None]:
    """Have numba keep functions that the block decorates in this package's own folder."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = CACHE_FOLDER
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def guard(compiled: Any) -> None:
    """Check a function's machine code before it is loaded; let one process at a time save it.

    What goes wrong becomes a warning, and the function is compiled. numba reads the index of a
    function's machine code, takes the next free number, and writes both. Two processes that do so
    at once take the same number, and the code of one is then kept for the types of the other.

    Parameters
    ----------
    compiled : Dispatcher
        A function that numba has decorated with ``cache=True``.
    """
    cache: Any = getattr(compiled, "_cache", None)  # numba has no public way to it
    plain: Any = getattr(cache, "_cache_file", None)
    if plain is None:
        return
    impl = cache._impl
    stamp = impl.locator.get_source_stamp()
    cache._cache_file = _CheckedFile(cache.cache_path, impl.filename_base, stamp)
    save = cache.save_overload

    def save_or_warn(*given: Any) -> None:
        try:
            with _alone_in(cache.cache_path):
                save(*given)
        except OSError as error:
            warn_of_no_cache(error)

    cache.save_overload = save_or_warn


def keeps_code(compiled: Callable[..., Any]) -> bool:
    """Whether machine code of a compiled function is kept on disk once it was compiled."""
    return _checked_file(compiled) is not None


def is_kept(compiled: Callable[..., Any]) -> bool:
    """Whether machine code of a compiled function is on disk, for any types."""
    file = _checked_file(compiled)
    return file is not None and file.is_there


def _checked_file(compiled: Callable[..., Any]) -> "_CheckedFile | None":
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    return file if isinstance(file, _CheckedFile) else None


class _DamagedError(Exception):
    """A file is not what was written."""


class _CheckedFile(IndexDataCacheFile):  # type: ignore[misc]  # numba has no types
    """A function's index and its files of machine code, each of them behind its digest."""

    @property
    def is_there(self) -> bool:
        """Whether there is an index."""
        return os.path.exists(self._index_path)

    def save(self, key: Any, data: Any) -> None:
        """Save machine code together with its key: another index may name the same file."""
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        """The machine code for a key; None if there is none, or none that can be trusted."""
        try:
            found = super().load(key)
        except _DamagedError as error:
            _warn_of_damage(error)
            return None
        return found[1] if found is not None and found[0] == key else None

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(self._load_checked(self._index_path))
        except FileNotFoundError:
            return {}
        except (OSError, _DamagedError) as error:
            _warn_of_damage(error)
            return {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._save_checked(self._index_path, overloads)

    def _load_data(self, name: str) -> Any:
        return self._load_checked(self._data_path(name))

    def _save_data(self, name: str, data: Any) -> None:
        self._save_checked(self._data_path(name), data)

    def _load_checked(self, path: str) -> Any:
        with open(path, "rb") as file:
            digest, content = file.read(_DIGEST_BYTES), file.read()
        if digest != self._digest(path, content):
            raise _DamagedError(path)
        return pickle.loads(content)

    def _save_checked(self, path: str, value: Any) -> None:
        content = self._dump(value)
        with self._open_for_write(path) as file:
            file.write(self._digest(path, content))
            file.write(content)

    def _digest(self, path: str, content: bytes) -> bytes:
        """Digest of a file's name and content."""
        digest = hashlib.blake2b(os.path.basename(path).encode(), digest_size=_DIGEST_BYTES)
        digest.update(content)
        return digest.digest()


@contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Lock a cache folder against other processes, where files can be locked."""
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(open(os.path.join(folder, "lock"), "ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def warn_of_no_cache(error: Exception) -> None:
    """Say once that machine code cannot be kept."""
    _warn_once("no cache", "compiled kernels are not kept on disk: %s", error)


def _warn_of_damage(error: Exception) -> None:
    _warn_once("damage", "compiled kernels on disk are damaged and compiled again: %s", error)


def _warn_once(kind: str, message: str, error: Exception) -> None:
    if kind not in _warned:
        _log.warning(message, error)
        _warned.add(kind)
