"""The engines, by name. Adding one is a file and a line in `ENGINES`."""

import importlib
from collections.abc import Callable
from typing import Literal

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

EMULATED: tuple[Literal["emulated"], Literal["emulated-checked"]] = ("emulated", "emulated-checked")
"""Devices that execute a GPU's instructions on the CPU, without and with checks of accesses."""

DeviceChoice = int | Literal["emulated", "emulated-checked"]
"""A GPU, by its number among those that the process sees, or an emulated one."""

MODES = ("edges", "merge")


def make_engine(
    name: str = "auto", threads: int | None = None, device: DeviceChoice | None = None
) -> Engine:
    """Make an engine.

    Parameters
    ----------
    name : str
        One of `ENGINES`, or "auto": the fastest that is known to run on this machine.
    threads : int, optional
        For engines on the CPU; by default `spdnn.machine.threads.default_threads`.
    device : int or {"emulated", "emulated-checked"}, optional
        For engines on a GPU: which of those that this process sees, or one that executes the GPU's
        instructions on the CPU.

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
        raise DeviceError(f"engine {name} has no devices to choose from: use --engine cuda")
    if isinstance(device, str) and device not in EMULATED:
        raise DeviceError(f"unknown device {device!r}: a GPU's number, {', '.join(EMULATED)}")
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
