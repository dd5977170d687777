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
    liberty is taken with floating point. Where no cache folder can be written it compiles
    anew in every process, after one warning in the log.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
    try:
        compiled: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:  # numba: "cannot cache function ...: no locator available"
        if not _warned:
            _log.warning("compiled kernels are not kept on disk: %s", error)
            _warned.add("no cache")
        compiled = numba.njit(**options)(function)
    return compiled
