"""The engines, by name. Adding one is a file and a line in `ENGINES`."""

import importlib
from collections.abc import Callable

from spdnn.engines.base import Engine
from spdnn.errors import DeviceError

ENGINES = {
    "cpu": "spdnn.engines.cpu:CpuEngine",
    "scipy": "spdnn.engines.reference:ReferenceEngine",
}
"""Where each engine is; imported only when it is asked for."""

NOT_YET = {"cuda": "the CUDA engine is not part of this version"}
"""Engines that have a name and a place, but no code, and what to tell who asks for them."""

MODES = ("edges", "merge")


def make_engine(name: str = "auto", threads: int | None = None) -> Engine:
    """Make an engine.

    Parameters
    ----------
    name : str
        One of `ENGINES`, or "auto": the fastest that this machine can run.
    threads : int, optional
        For engines on the CPU; as many as `spdnn.threads.default_threads` says where not given.

    Raises
    ------
    DeviceError
        If there is no such engine here.
    """
    if name == "auto":
        name = "cpu"
    if name in NOT_YET:
        raise DeviceError(f"engine {name}: {NOT_YET[name]}; use one of {', '.join(ENGINES)}")
    if name not in ENGINES:
        raise DeviceError(f"unknown engine {name!r}: auto, {', '.join(ENGINES)}")
    module, _, attribute = ENGINES[name].partition(":")
    make: Callable[[int | None], Engine] = getattr(importlib.import_module(module), attribute)
    return make(threads)


def choose_mode(engine: Engine, mode: str = "auto") -> str:
    """Return the mode to run: `mode` itself, or for "auto" the best that the engine has.

    Raises
    ------
    DeviceError
        If the engine has no such mode.
    """
    if mode == "auto":
        return engine.modes[-1]
    if mode not in engine.modes:
        raise DeviceError(
            f"engine {engine.name} has no mode {mode} in this version; "
            f"it has {', '.join(engine.modes)}"
        )
    return mode
