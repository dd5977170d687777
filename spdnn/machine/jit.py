"""Compiling functions with numba, in the same way everywhere.

Machine code is kept on disk, in another folder for every version of this package's sources. numba
itself only checks the file that holds a function, not the files of the functions that it calls.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core.registry import CPUDispatcher

_Number = TypeVar("_Number", bound=np.generic)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_log = logging.getLogger(__name__)
_warned: set[str] = set()


def _cache_folder() -> str:
    """Folder of compiled kernels, in ``NUMBA_CACHE_DIR`` or else the user's cache folder."""
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
    """Have numba keep functions that the block decorates in this package's own folder."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _CACHE_FOLDER
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def jit(function: _Function) -> _Function:
    """Compile a function with numba when it is first called, and keep the machine code on disk.

    The compiled function runs without the GIL. Sums may use fused multiply-add; all other
    floating-point operations are exactly those of the source. Where no cache folder can be written,
    or its disk is full, the function is compiled again in every process, after one warning in the
    log.

    Parameters
    ----------
    function : callable
        A function of arrays and numbers.

    Returns
    -------
    callable
        The compiled function.
    """
    return _compiled(function, {})


def jit_part(function: _Function) -> _Function:
    """Compile a function that only compiled functions call; see `jit`.

    It has no code that turns Python objects into its arguments, which takes as long to compile as a
    small function. Where Python calls it all the same, as tests do, a function that calls it is
    compiled.

    Parameters
    ----------
    function : callable
        A function of arrays and numbers.

    Returns
    -------
    callable
        The compiled function.
    """
    return _part(function, {})


def jit_inlined(function: _Function) -> _Function:
    """Compile a function as a part of each compiled function that calls it, and not by itself.

    For a large function with one caller: LLVM would do its work twice. See `jit_part`.

    Parameters
    ----------
    function : callable
        A function of arrays and numbers.

    Returns
    -------
    callable
        The compiled function.
    """
    return _part(function, {"inline": "always"})


def _part(function: _Function, more: Mapping[str, Any]) -> _Function:
    compiled: Any = _compiled(function, {"no_cpython_wrapper": True, **more})
    compiled.__class__ = _Part
    return cast(_Function, compiled)


class _Part(CPUDispatcher):  # type: ignore[misc]  # numba has no types
    """A compiled function that Python cannot call itself: numba would jump to address 0."""

    _face: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Call it through a function that is compiled for that."""
        if self._face is None:

            def face(*given):  # type: ignore[no-untyped-def]
                return self(*given)

            self._face = numba.njit(nogil=True)(face)
        return self._face(*arguments)


def _compiled(function: _Function, more: Mapping[str, Any]) -> _Function:
    options: dict[str, Any] = {
        "nogil": True,
        "fastmath": {"contract"},
        "error_model": "numpy",
        "no_cfunc_wrapper": True,
        **more,
    }
    try:
        with _own_cache_folder():
            compiled: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:  # numba: "cannot cache function ...: no locator available"
        _warn_once(error)
        compiled = numba.njit(**options)(function)
    else:
        _guard_saving(compiled)
    return compiled


def compile_for(compiled: Callable[..., Any], *arguments: Any) -> None:
    """Compile a function for the types of some arguments, without calling it."""
    cast(CPUDispatcher, compiled).compile(tuple(map(numba.typeof, arguments)))


def keeps_code(compiled: Callable[..., Any]) -> bool:
    """Whether machine code of a compiled function is kept on disk once it was compiled."""
    return bool(_kept_files(compiled))


def is_kept(compiled: Callable[..., Any]) -> bool:
    """Whether machine code of a compiled function is on disk, for any types."""
    return any(Path(path).exists() for path in _kept_files(compiled))


def _kept_files(compiled: Callable[..., Any]) -> list[str]:
    """The file that lists a function's machine code; nothing if none is kept."""
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    path = getattr(file, "_index_path", None)  # numba has no public way to it
    return [] if path is None else [path]


def read_only(array: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Give a view that cannot be written to: functions are compiled for this kind alone."""
    view = array.view()
    view.flags.writeable = False
    return view


def _guard_saving(compiled: Any) -> None:
    """Let one process at a time save machine code, and turn a failure into a warning.

    numba reads the index of a function's machine code, takes the next free number, and writes both.
    Two processes that do so at once take the same number, and the code of one is then kept for the
    types of the other.
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
    """Lock a cache folder against other processes, where files can be locked."""
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(open(os.path.join(folder, "lock"), "ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _warn_once(error: Exception) -> None:
    if not _warned:
        _log.warning("compiled kernels are not kept on disk: %s", error)
        _warned.add("no cache")
