"""The engines, by name. Adding one is a file and a line in `ENGINES`."""

import importlib
from collections.abc import Callable

from spdnn.engines.base import Engine
from spdnn.errors import DeviceError

ENGINES = {
    "cpu": "spdnn.engines.cpu.engine:CpuEngine",
    "cuda": "spdnn.engines.cuda.engine:CudaEngine",
    "scipy": "spdnn.engines.reference:ReferenceEngine",
}
"""Where each engine is; imported only when it is asked for."""

WITH_DEVICES = ("cuda",)
"""Engines that can be told which device to take."""

MODES = ("edges", "merge")


def make_engine(
    name: str = "auto", threads: int | None = None, device: int | None = None
) -> Engine:
    """Make an engine.

    Parameters
    ----------
    name : str
        One of `ENGINES`, or "auto": the fastest that is known to run on this machine.
    threads : int, optional
        For engines on the CPU; by default `spdnn.machine.threads.default_threads`.
    device : int, optional
        For engines on a GPU: which of those that this process sees.

    Raises
    ------
    DeviceError
        If there is no such engine here.

    Notes
    -----
    "auto" is "cpu", with a GPU, too: see docs/decisions/0005.
    """
    if name == "auto":
        name = "cpu"
    if name not in ENGINES:
        raise DeviceError(f"unknown engine {name!r}: auto, {', '.join(ENGINES)}")
    if device is not None and name not in WITH_DEVICES:
        raise DeviceError(f"engine {name} has no devices to choose from: use `engine=\"cuda\"`")
    module, _, attribute = ENGINES[name].partition(":")
    try:
        make: Callable[..., Engine] = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise DeviceError(
            f"engine {name} cannot be loaded ({error}): "
            "pip install 'spdnn[cuda13]' or 'spdnn[cuda12]'"
        ) from error
    return make(threads, device) if name in WITH_DEVICES else make(threads)


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
