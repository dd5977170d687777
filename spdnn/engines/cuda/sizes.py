"""How the kernels are cut, and the kernels cut so."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from spdnn.engines.cuda.kernels import carried, gpu
from spdnn.engines.cuda.kernels.grouped import make_grouped
from spdnn.engines.cuda.kernels.resident import make_resident
from spdnn.engines.cuda.kernels.staged import make_staged
from spdnn.plan.cuda.sizes import PlanSizes


@dataclass(frozen=True)
class CudaSizes:
    """How the kernels are cut; tests in the simulator take small ones.

    Attributes
    ----------
    shape : PlanSizes
        What the plan must know; its shared memory is the device's.
    thread_features : int
        Features of a lane of the grouped kernel.
    minibatch : int
        Features of a block of the staged kernel.
    resident_threads : tuple of int
        Of a block of the resident kernel, with groups and without.
    threads : int
        Of a block of the others, and of the one that lists (at most 1024).
    """

    shape: PlanSizes
    thread_features: int = 2
    minibatch: int = 16
    resident_threads: tuple[int, int] = (256, 1024)
    threads: int = 256
    list_threads: int = 1024


def sizes_for(shared_bytes: int) -> CudaSizes:
    """The sizes for a GPU whose blocks may have so much shared memory."""
    return CudaSizes(PlanSizes(shared_bytes=shared_bytes))


REGISTERS_HALF_FULL = 64
"""Registers a thread with which half of the most threads of a multiprocessor still fit."""


class Kernels:
    """The kernels of some sizes, made when they are first wanted."""

    def __init__(self, sizes: CudaSizes) -> None:
        self.sizes = sizes
        shape, threads = sizes.plan, sizes.threads
        half = REGISTERS_HALF_FULL
        self.grouped = gpu.kernel(
            make_grouped(shape.bundle, shape.rows, sizes.thread_features),
            half if sizes.thread_features <= 2 else 2 * half,
        )
        self.staged = cache(
            lambda has_chunks: gpu.kernel(
                make_staged(shape.warps, sizes.minibatch, shape.buffer, has_chunks), half
            )
        )
        self.load = cache(lambda has_values: gpu.kernel(carried.make_load(threads, has_values)))
        self.list_after_step = gpu.kernel(carried.make_list(sizes.list_threads, True))
        self.shorten_list = gpu.kernel(carried.make_list(sizes.list_threads, False))
        self.hash_features = gpu.kernel(carried.make_hash(threads))
        self.propose = gpu.kernel(carried.propose)
        self.confirm = gpu.kernel(carried.make_confirm(threads))
        self.look_for_overflow = gpu.kernel(carried.make_look(threads))
        self.unite = gpu.kernel(carried.unite)
        self.resident = cache(self._resident)

    def _resident(self, features: int, has_groups: bool) -> Any:
        shape = self.sizes.plan
        threads = self.sizes.resident_threads[0 if has_groups else 1]
        made = make_resident(shape.bundle, shape.rows, shape.warps, features, threads, has_groups)
        return gpu.kernel(made, None if has_groups else REGISTERS_HALF_FULL)


kernels_of = cache(Kernels)
