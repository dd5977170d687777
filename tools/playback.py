"""What the GPU engine asks of a device in a whole run, noted without running anything.

The engine runs with a plan of as many steps as the network has, made of the first few. The device
launches nothing. Where the engine reads how many features are live, it is told what is known.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.cuda.device import DeviceArray, Pending, SimulatedDevice, at_least_one, in_memory
from spdnn.engines.cuda.engine import CudaEngine
from spdnn.engines.cuda.kernels.records import Span
from spdnn.engines.cuda.sizes import CudaSizes
from spdnn.engines.cuda.titles import title_of
from spdnn.features import Features
from spdnn.plan.cuda.plan import CudaPlan
from spdnn.plan.steps import LAYER
from spdnn.recipes.radixnet import official_network

PLANNED_LAYERS = 4
"""Layers of the plan that is made. All layers of an official network have as many groups."""

LARGEST_KEPT = 1 << 20
"""Bytes of the largest array that has memory: larger ones hold activations or weights."""


@dataclass(frozen=True)
class Asked:
    """Something that the engine asks of the device.

    Attributes
    ----------
    kind : {"launch", "write", "read", "read later", "wait", "fill"}
        A launch; a copy to the device; a copy from it for which the host waits at once, or later,
        and the wait for one of these; memory that is filled with a byte.
    kernel : str
        The kernel's name, and which of its variants it is.
    grid : tuple of int
        Thread blocks.
    first, end : int
        The steps that it is for, from 0 and without the last one, or the one it comes after.
    n_bytes : int
        Bytes that are copied or filled.
    number : int
        Which of the copies for which the host waits later.
    """

    kind: str
    kernel: str = ""
    grid: tuple[int, ...] = ()
    first: int = 0
    end: int = 0
    n_bytes: int = 0
    number: int = 0


class Playback(SimulatedDevice):
    """A device that launches nothing, and knows how many features are live.

    Parameters
    ----------
    n_live : list of int
        Live features after each step.
    multiprocessors : int
        Multiprocessors of the GPU.
    shared_bytes : int
        Shared memory that a thread block may ask for.
    n_bytes : int
        Its memory.

    Attributes
    ----------
    asked : list of Asked
        What was asked for, in its order.
    """

    name = "playback"

    def __init__(
        self, n_live: list[int], multiprocessors: int, shared_bytes: int, n_bytes: int
    ) -> None:
        super().__init__(n_bytes)
        self.n_multiprocessors, self.shared_bytes = multiprocessors, shared_bytes
        self.n_live = n_live
        self.asked: list[Asked] = []
        self._done = 0
        self._n_later = 0

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """An array of zeros; a large one has no memory."""
        sizes = at_least_one(shape)
        array: npt.NDArray[Any] = np.zeros(1, dtype)
        if int(np.prod(sizes)) * array.itemsize <= LARGEST_KEPT:
            array = np.zeros(sizes, dtype)
        array = np.broadcast_to(array, sizes) if array.shape != sizes else array
        return in_memory(array)

    def view(self, array: DeviceArray, dtype: npt.DTypeLike) -> DeviceArray:
        """An array of as many bytes."""
        return self.empty(array.n_bytes // np.dtype(dtype).itemsize, dtype)

    def fill_bytes(self, array: DeviceArray, byte: int) -> None:
        """Note it, and do it where there is memory."""
        self.asked.append(Asked("fill", n_bytes=array.n_bytes))
        if array.memory.flags.writeable:
            super().fill_bytes(array, byte)

    def write(self, array: DeviceArray, host: npt.NDArray[Any], ahead: bool = False) -> None:
        """Note it, and do it where there is memory."""
        self.asked.append(Asked("write", n_bytes=host.nbytes))
        if array.memory.flags.writeable:
            super().write(array, host, ahead)

    def read(self, array: DeviceArray, count: int | None = None) -> npt.NDArray[Any]:
        """What is known, where one number is read: how many features are live."""
        taken = self._known(super().read(array, count))
        self.asked.append(Asked("read", n_bytes=taken.nbytes))
        return taken

    def read_later(self, array: DeviceArray) -> Pending:
        """The same, and the host waits for it later."""
        number = self._n_later
        self._n_later += 1
        host = self._known(array.memory.copy())
        self.asked.append(Asked("read later", n_bytes=host.nbytes, number=number))
        return Pending(host, lambda: self.asked.append(Asked("wait", number=number)))

    def _known(self, taken: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if taken.dtype == np.int32 and taken.size == 1 and self._done:
            taken[0] = self.n_live[self._done - 1]
        return taken

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        n_threads: int,
        arguments: tuple[Any, ...],
        shared: int = 0,
    ) -> None:
        """Note a launch, and which steps it is for."""
        title = title_of(kernel)
        spans = [argument for argument in arguments if isinstance(argument, Span)]
        first = self._done
        if spans:
            first, self._done = spans[0].first_step, spans[0].end_step
        elif title.startswith("grouped"):
            self._done += 1
        self.asked.append(Asked("launch", title, grid, first, self._done))


def repeated(plan: CudaPlan, n_layers: int) -> CudaPlan:
    """A plan of more layers: the steps of a plan, again and again.

    Parameters
    ----------
    plan : CudaPlan
        A plan with one step for each layer.
    n_layers : int
        Layers that are wanted.
    """
    order = np.arange(n_layers) % plan.n_layers
    steps = plan.arrays.steps[order]
    steps[:, LAYER] = np.arange(n_layers)
    lengths = np.diff(plan.extents, axis=0)[order]
    start = np.zeros((1, lengths.shape[1]), np.int64)
    return replace(
        plan,
        arrays=plan.arrays._replace(steps=steps, caps=plan.arrays.caps[order]),
        layer_edges=tuple(plan.layer_edges[place] for place in order),
        layer_neurons=tuple(plan.layer_neurons[place] for place in order),
        extents=np.concatenate([start, np.cumsum(lengths, axis=0)]),
    )


def played(
    neurons: int,
    n_layers: int,
    n_features: int,
    n_live: list[int],
    device: Playback,
    sizes: CudaSizes,
) -> list[Asked]:
    """What the engine asks for when it runs an official network in mode ``edges``.

    Parameters
    ----------
    neurons, n_layers : int
        The network.
    n_features : int
        Features of the run.
    n_live : list of int
        Live features after each layer.
    device : Playback
    sizes : CudaSizes
        Sizes of the kernels.
    """
    engine = CudaEngine(device=device, sizes=sizes)
    plan = engine.plan(official_network(neurons, PLANNED_LAYERS), "edges")
    # What a feature holds does not matter.
    features = Features(neurons, np.arange(n_features + 1), np.zeros(n_features, np.int32))
    plan = repeated(plan, n_layers)
    loaded = engine.load(plan, features)
    device.asked.clear()
    engine.run(plan, loaded)
    assert device.n_live is n_live
    return device.asked
