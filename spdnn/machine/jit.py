"""Compiling functions with numba, in the same way everywhere.

Machine code is kept on disk, in another folder for every version of this package's sources. numba
itself only checks the file that holds a function, not the files of the functions that it calls.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core.registry import CPUDispatcher

from spdnn.machine.code_cache import guard, own_cache_folder, warn_of_no_cache

_Number = TypeVar("_Number", bound=np.generic)
_Function = TypeVar("_Function", bound=Callable[..., Any])


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
        with own_cache_folder():
            compiled: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:  # numba: "cannot cache function ...: no locator available"
        warn_of_no_cache(error)
        compiled = numba.njit(**options)(function)
    else:
        guard(compiled)
    return compiled


def compile_for(compiled: Callable[..., Any], *arguments: Any) -> None:
    """Compile a function for the types of some arguments, without calling it."""
    cast(CPUDispatcher, compiled).compile(tuple(map(numba.typeof, arguments)))


def read_only(array: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Give a view that cannot be written to: functions are compiled for this kind alone."""
    view = array.view()
    view.flags.writeable = False
    return view
