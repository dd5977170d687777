"""Weights and inputs on the device: all of them, or as much as fits at a time."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.cuda.device import Device, DeviceArray
from spdnn.errors import DeviceError
from spdnn.features import Features
from spdnn.plan.cuda.plan import WINDOWED, CudaPlan

IN_CORE_SHARE = 0.5
"""Of the device's memory for weights that stay in it; larger ones are streamed."""

WINDOW_SHARE = 0.1
"""Of the device's memory for each of the two windows of streamed weights."""

INPUT_SHARE = 0.25
"""Of the device's memory for inputs that are moved all at once."""


class Window(NamedTuple):
    """Steps `first` to `end` (excluded), whose weights are on the device together."""

    first: int
    end: int


@dataclass(eq=False)
class Weights:
    """A plan's arrays on a device: all of them, or two windows."""

    tables: dict[str, DeviceArray]
    windows: list[Window]
    slots: list[dict[str, DeviceArray]]
    pinned: dict[str, npt.NDArray[Any]] | None
    held: list[int | None] = field(default_factory=lambda: [None, None])

    @property
    def is_streamed(self) -> bool:
        """Whether windows are copied during inference."""
        return self.pinned is not None


@dataclass(eq=False)
class Inputs:
    """Features in index form on a device."""

    indptr: DeviceArray
    indices: DeviceArray
    values: DeviceArray
    origin: int
    first: int
    has_values: bool


@dataclass(eq=False)
class Loaded:
    """Features, and what is on the device for them: the weights, the inputs if they fit."""

    features: Features
    weights: Weights
    inputs: Inputs | None


def place_weights(device: Device, plan: CudaPlan) -> Weights:
    """Copy a plan to the device, or its tables and room for two windows of its weights."""
    arrays = plan.arrays
    free = device.free_bytes()
    step_bytes = plan.step_bytes()
    tables = {
        name: copied(device, getattr(arrays, name))
        for name in arrays._fields
        if name not in WINDOWED
    }
    if int(step_bytes.sum()) <= IN_CORE_SHARE * free:
        whole = {name: copied(device, getattr(arrays, name)) for name in WINDOWED}
        whole["origins"] = copied(device, np.zeros(len(WINDOWED), dtype=np.int64))
        whole["group_pairs"] = device.view(whole["group_weights"], np.int64)
        return Weights(tables, [Window(0, plan.n_steps)], [whole], None)
    room = int(WINDOW_SHARE * free)
    if int(step_bytes.max()) > room:
        raise DeviceError(
            f"a layer's weights need {step_bytes.max() / 2**20:.1f} MiB twice, "
            f"{free / 2**20:.1f} MiB of {device.name} are free: take a GPU with more memory"
        )
    windows = cut_windows(step_bytes, room)
    slots = []
    for _ in range(2):
        slot = {"origins": device.empty(len(WINDOWED), np.int64)}
        for column, name in enumerate(WINDOWED):
            lengths = [plan.extents[w.end, column] - plan.extents[w.first, column]
                       for w in windows]  # fmt: skip
            slot[name] = device.empty(max(2, *map(int, lengths)), getattr(arrays, name).dtype)
        slot["group_pairs"] = device.view(slot["group_weights"], np.int64)
        slots.append(slot)
    pinned = {name: device.pinned(getattr(arrays, name)) for name in WINDOWED}
    pinned["origins"] = device.pinned(plan.extents[:, : len(WINDOWED)])
    return Weights(tables, windows, slots, pinned)


def place_inputs(device: Device, features: Features, start: int, stop: int) -> Inputs:
    """Copy some features to the device, in index form."""
    indptr = features.indptr[start : stop + 1]
    first, last = int(indptr[0]), int(indptr[-1])
    values = np.zeros(1) if features.values is None else features.values[first:last]
    return Inputs(
        copied(device, indptr),
        copied(device, features.indices[first:last]),
        copied(device, values.astype(np.float32, copy=False)),
        first,
        start,
        has_values(features),
    )


def copied(device: Device, host: npt.NDArray[Any]) -> DeviceArray:
    """An array of the host on the device."""
    # Two numbers at least: pairs of weights are also read as one.
    array = device.empty(host.shape if host.size else (2, *host.shape[1:]), host.dtype)
    device.write(array, np.ascontiguousarray(host))
    return array


def has_values(features: Features) -> bool:
    """Whether features are not all 0 and 1."""
    return features.values is not None


def cut_windows(step_bytes: npt.NDArray[np.int64], room: int) -> list[Window]:
    """Cut steps into windows of at most `room` bytes, each step into one.

    Examples
    --------
    >>> cut_windows(np.array([3, 3, 5, 1]), 6)
    [Window(first=0, end=2), Window(first=2, end=4)]
    """
    windows = []
    first, held = 0, 0
    for step, n_bytes in enumerate(step_bytes.tolist()):
        if step > first and held + n_bytes > room:
            windows.append(Window(first, step))
            first, held = step, 0
        held += n_bytes
    return [*windows, Window(first, step_bytes.size)]
