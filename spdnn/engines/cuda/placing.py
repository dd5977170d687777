"""Weights and inputs on the device: all of them, or as much as fits at a time."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.cuda.device import Device, DeviceArray
from spdnn.engines.cuda.kernels.records import EllBlocks, Groups, StepTables
from spdnn.errors import DeviceError
from spdnn.features import Features
from spdnn.plan.cuda.plan import WINDOWED, CudaPlan

IN_CORE_SHARE = 0.5
"""Share of the device's memory that weights may take to stay in it; larger ones are streamed."""

WINDOW_SHARE = 0.1
"""Share of the device's memory for each of the two windows of streamed weights."""

INPUT_SHARE = 0.25
"""Share of the device's memory that inputs may take to be moved all at once."""


ORIGINS = "origins"
"""The name of an array beside those of `WINDOWED`: where each of these begins."""


class Window(NamedTuple):
    """Steps `first` to `end` (excluded), whose weights are on the device together."""

    first: int
    end: int


class OnDevice(NamedTuple):
    """What kernels read of a plan, as far as it is on the device together.

    Attributes
    ----------
    tables : StepTables
    groups : Groups
    ell : EllBlocks
    chunks : DeviceArray
        The table of chunks.
    """

    tables: StepTables
    groups: Groups
    ell: EllBlocks
    chunks: DeviceArray


@dataclass(eq=False)
class Weights:
    """A plan's arrays on a device: all of them, or two windows.

    Attributes
    ----------
    windows : list of Window
        The windows of the plan; one where all arrays are on the device.
    slots : list of dict
        Room for a window each: the arrays of `WINDOWED` and `ORIGINS` by name.
    on_device : list of OnDevice
        What kernels take of each slot.
    pinned : dict or None
        The same arrays on the host, whole, where windows are copied during inference.
    held : list of int
        The window that each slot holds, or that is being copied to it; None for none yet.
    copied : list of event
        What comes when the last copy to each slot is done.
    """

    windows: list[Window]
    slots: list[dict[str, DeviceArray]]
    on_device: list[OnDevice]
    pinned: dict[str, npt.NDArray[Any]] | None
    held: list[int | None] = field(default_factory=lambda: [None, None])
    copied: list[Any] = field(default_factory=lambda: [None, None])

    @property
    def is_streamed(self) -> bool:
        """Whether windows are copied during inference."""
        return self.pinned is not None


@dataclass(eq=False)
class Inputs:
    """Features in index form on a device.

    Attributes
    ----------
    indptr, indices, values : DeviceArray
        See `spdnn.features.Features`; `values` mean nothing without `has_values`.
    origin : int
        What `indptr` begins with: where the first of `indices` stands among those of all features.
    first : int
        The first feature of the run that is here.
    has_values : bool
        Whether inputs are not all 1.
    """

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
    """Copy a plan to the device, or its tables, with room for two windows of its weights.

    Parameters
    ----------
    device : Device
    plan : CudaPlan

    Raises
    ------
    DeviceError
        If a single step does not fit twice.
    """
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
        whole[ORIGINS] = copied(device, np.zeros(len(WINDOWED), dtype=np.int64))
        windows = [Window(0, plan.n_steps)]
        return Weights(windows, [whole], [_on_device(device, tables, whole)], None)
    room = int(WINDOW_SHARE * free)
    if int(step_bytes.max()) > room:
        raise DeviceError(
            f"a layer's weights need {step_bytes.max() / 2**20:.1f} MiB twice, "
            f"{free / 2**20:.1f} MiB of {device.name} are free: take a GPU with more memory"
        )
    windows = cut_windows(step_bytes, room)
    slots = []
    for _ in range(2):
        slot = {ORIGINS: device.empty(len(WINDOWED), np.int64)}
        for column, name in enumerate(WINDOWED):
            lengths = [plan.extents[w.end, column] - plan.extents[w.first, column]
                       for w in windows]  # fmt: skip
            slot[name] = device.empty(max(map(int, lengths)), getattr(arrays, name).dtype)
        slots.append(slot)
    pinned = {name: device.pinned(getattr(arrays, name)) for name in WINDOWED}
    pinned[ORIGINS] = device.pinned(plan.extents)
    on_device = [_on_device(device, tables, slot) for slot in slots]
    return Weights(windows, slots, on_device, pinned)


def _on_device(
    device: Device, tables: dict[str, DeviceArray], slot: dict[str, DeviceArray]
) -> OnDevice:
    """What kernels take of a plan's tables and one slot."""
    arrays = tables | slot
    of_groups = ("bundles", "groups", "group_inputs", "group_weights")
    of_ell = ("ell_blocks", "stages", "slices", "maps", "ell_indices", "ell_weights")
    return OnDevice(
        StepTables(*(arrays[name] for name in ("steps", "caps", "bias", ORIGINS))),
        Groups(*(arrays[name] for name in of_groups)),
        EllBlocks(*(arrays[name] for name in of_ell)),
        arrays["chunks"],
    )


def place_inputs(device: Device, features: Features, start: int, stop: int) -> Inputs:
    """Copy features `start` to `stop` (excluded) to the device, in index form.

    Parameters
    ----------
    device : Device
    features : Features
    start, stop : int
    """
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
    """Copy an array of the host to new memory of the device.

    Parameters
    ----------
    device : Device
    host : ndarray
    """
    array = device.empty(host.shape, host.dtype)
    device.write(array, np.ascontiguousarray(host))
    return array


def has_values(features: Features) -> bool:
    """Whether features are not all 0 and 1."""
    return features.values is not None


def cut_windows(step_bytes: npt.NDArray[np.int64], room: int) -> list[Window]:
    """Cut steps into windows, each step into one.

    Parameters
    ----------
    step_bytes : ndarray, shape (n_steps,), int64
        Bytes of each step.
    room : int
        Bytes of a window, at most; a step has no more.

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
