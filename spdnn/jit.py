"""The one way in which this project compiles functions with numba."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])
_log = logging.getLogger(__name__)
_warned: set[str] = set()


def jit(function: _Function) -> _Function:
    """Compile `function` with numba when it is first called, and keep the machine code on disk.

    The function runs without the GIL; sums may use fused multiply-add, no other
    liberty is taken with floating point. Where no cache folder can be written, or its disk
    is full, it compiles anew in every process, after one warning in the log.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
    try:
        compiled: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:  # numba: "cannot cache function ...: no locator available"
        _warn_once(error)
        compiled = numba.njit(**options)(function)
    else:
        _let_saving_fail(compiled)
    return compiled


def _let_saving_fail(compiled: Any) -> None:
    """Make of a cache that cannot be written later on a warning, not an error of the call."""
    cache = getattr(compiled, "_cache", None)  # numba has no public way to it
    save = getattr(cache, "save_overload", None)
    if save is None:
        return

    def save_or_warn(*given: Any) -> None:
        try:
            save(*given)
        except OSError as error:
            _warn_once(error)

    cache.save_overload = save_or_warn


def _warn_once(error: Exception) -> None:
    if not _warned:
        _log.warning("compiled kernels are not kept on disk: %s", error)
        _warned.add("no cache")
