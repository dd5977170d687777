"""The one way in which this project compiles functions with numba.

Machine code is kept on disk in a folder of its own for every version of the kernels' sources: numba
itself only looks at the file that holds a function, not at those whose functions it calls.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])
_log = logging.getLogger(__name__)
_warned: set[str] = set()


def _cache_folder() -> str:
    """Where compiled kernels are kept: below ``NUMBA_CACHE_DIR``, else the user's cache folder."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(os.environ.get("SPDNN_VECTORS", "").encode())
    for file in sorted(package.glob("**/*.py")):
        digest.update(file.read_bytes())
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    base = numba.config.CACHE_DIR or os.path.join(user_cache, "spdnn")
    return os.path.join(base, f"kernels-{digest.hexdigest()[:16]}")


_CACHE_FOLDER = _cache_folder()


@contextmanager
def _own_cache_folder() -> Iterator[None]:
    """Have numba keep what is decorated meanwhile in this package's own folder."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _CACHE_FOLDER
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def jit(function: _Function) -> _Function:
    """Compile `function` with numba when it is first called, and keep the machine code on disk.

    The function runs without the GIL; sums may use fused multiply-add, no other
    liberty is taken with floating point. Where no cache folder can be written, or its disk
    is full, it compiles anew in every process, after one warning in the log.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
    try:
        with _own_cache_folder():
            compiled: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:  # numba: "cannot cache function ...: no locator available"
        _warn_once(error)
        compiled = numba.njit(**options)(function)
    else:
        _guard_saving(compiled)
    return compiled


def _guard_saving(compiled: Any) -> None:
    """Have one process at a time save, and make of a failure a warning, not an error of the call.

    numba reads the index of a function's machine code, takes the next free number, and writes both:
    two processes that do so at once get the same number, and one's code bears the other's types.
    """
    cache: Any = getattr(compiled, "_cache", None)  # numba has no public way to it
    save = getattr(cache, "save_overload", None)
    if save is None:
        return

    def save_or_warn(*given: Any) -> None:
        try:
            with _alone_in(cache.cache_path):
                save(*given)
        except OSError as error:
            _warn_once(error)

    cache.save_overload = save_or_warn


@contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Hold other processes off a cache folder; go on without where files cannot be locked."""
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(open(os.path.join(folder, "lock"), "ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _warn_once(error: Exception) -> None:
    if not _warned:
        _log.warning("compiled kernels are not kept on disk: %s", error)
        _warned.add("no cache")
