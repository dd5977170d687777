"""The engines by name. A new engine is a module and a line in `ENGINES`."""

import importlib
from collections.abc import Callable
from typing import Literal

from spdnn.engines.base import Engine
from spdnn.errors import DeviceError

ENGINES: dict[str, str | Callable[..., Engine]] = {
    "cpu": "spdnn.engines.cpu.engine:CpuEngine",
    "cuda": "spdnn.engines.cuda.engine:CudaEngine",
    "scipy": "spdnn.engines.reference:ReferenceEngine",
}
"""What makes each engine: a function or class, or its place as ``module:name``.

It is called with the number of threads, and for those in `WITH_DEVICES` with a device. A module is
imported only when its engine is asked for."""

WITH_DEVICES = ("cuda",)
"""Engines that can be told which device to take."""

EMULATED: tuple[Literal["emulated"], Literal["emulated-checked"]] = ("emulated", "emulated-checked")
"""Devices that execute a GPU's instructions on the CPU, without and with checks of accesses."""

DeviceChoice = int | Literal["emulated", "emulated-checked"]
"""A GPU, by its number among those that the process sees, or an emulated one."""

MODES = ("edges", "merge")
"""All modes; which of them an engine has, it says itself."""


def make_engine(
    name: str = "auto", threads: int | None = None, device: DeviceChoice | None = None
) -> Engine:
    """Make an engine.

    Parameters
    ----------
    name : str
        One of `ENGINES`, or "auto": the fastest engine that is known to run on this machine.
    threads : int, optional
        Threads of an engine on the CPU; by default `spdnn.machine.threads.default_threads`.
    device : int or {"emulated", "emulated-checked"}, optional
        Which of the GPUs that this process sees, or one that executes the GPU's instructions on
        the CPU; for engines on a GPU only.

    Raises
    ------
    DeviceError
        If there is no such engine here.

    Notes
    -----
    "auto" is "cpu" even if there is a GPU: see docs/decisions/0005.
    """
    if name == "auto":
        name = "cpu"
    if name not in ENGINES:
        raise DeviceError(f"unknown engine {name!r}: auto, {', '.join(ENGINES)}")
    if device is not None and name not in WITH_DEVICES:
        raise DeviceError(f'engine {name} has no devices to choose from: use `engine="cuda"`')
    if isinstance(device, str) and device not in EMULATED:
        raise DeviceError(f"unknown device {device!r}: a GPU's number, {', '.join(EMULATED)}")
    make = _maker(name)
    return make(threads, device) if name in WITH_DEVICES else make(threads)


def _maker(name: str) -> Callable[..., Engine]:
    """What makes an engine, imported if need be."""
    maker = ENGINES[name]
    if callable(maker):
        return maker
    module, _, attribute = maker.partition(":")
    try:
        found: Callable[..., Engine] = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise DeviceError(
            f"engine {name} cannot be loaded ({error}): "
            "pip install 'spdnn[cuda13]' or 'spdnn[cuda12]'"
        ) from error
    return found


def choose_mode(engine: Engine, mode: str = "auto") -> str:
    """Return the mode to run.

    Parameters
    ----------
    engine : Engine
        The engine that is to run it.
    mode : str
        One of its modes, or "auto" for the best of them.

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
