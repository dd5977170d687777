"""The sizes of the kernels, and the kernels of some sizes."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from spdnn.engines.cuda.kernels import carried, gpu
from spdnn.engines.cuda.kernels.grouped import make_grouped
from spdnn.engines.cuda.kernels.resident import make_resident
from spdnn.engines.cuda.kernels.staged import make_staged
from spdnn.plan.cuda.sizes import PlanSizes


@dataclass(frozen=True)
class CudaSizes:
    """The sizes of the kernels; tests in the simulator take small ones.

    Attributes
    ----------
    plan : PlanSizes
        What the plan must know, too; its shared memory is the device's.
    thread_features : int
        Features of a thread of the grouped kernel.
    minibatch : int
        Features of a thread block of the staged kernel.
    resident_threads : tuple of int
        Threads of a thread block of the resident kernel, with groups and without.
    threads : int
        Threads of a thread block of the kernels around the layers.
    list_threads : int
        Threads of a thread block of the kernels that list features, at most 1024.
    """

    plan: PlanSizes
    thread_features: int = 4
    minibatch: int = 16
    resident_threads: tuple[int, int] = (256, 1024)
    threads: int = 256
    list_threads: int = 512

    @property
    def listed(self) -> int:
        """Features that a thread block lists."""
        return self.list_threads * carried.LISTED


def sizes_for(shared_bytes: int) -> CudaSizes:
    """The sizes for a GPU.

    Parameters
    ----------
    shared_bytes : int
        Shared memory that a thread block may have.
    """
    return CudaSizes(PlanSizes(shared_bytes=shared_bytes))


REGISTERS_HALF_FULL = 64
"""Registers a thread with which a multiprocessor still holds half of its most threads."""


class Kernels:
    """The kernels of some sizes; variants are made when they are first wanted.

    Parameters
    ----------
    sizes : CudaSizes
    """

    def __init__(self, sizes: CudaSizes) -> None:
        self.sizes = sizes
        plan, threads = sizes.plan, sizes.threads
        half = REGISTERS_HALF_FULL
        self.grouped = gpu.kernel(
            make_grouped(plan.bundle, plan.rows, sizes.thread_features),
            half if sizes.thread_features <= 2 else 2 * half,
        )
        self.staged = cache(
            lambda has_chunks: gpu.kernel(
                make_staged(plan.warps, sizes.minibatch, plan.buffer, has_chunks), half
            )
        )
        self.load_ones = cache(lambda bits: gpu.kernel(carried.make_load_ones(threads, bits)))
        self.load_values = cache(
            lambda in_order: gpu.kernel(carried.make_load_values(threads, in_order))
        )
        self.list_carried, self.count_carried, self.list_counted = (
            gpu.kernel(kernel, half) for kernel in carried.make_lists(sizes.list_threads)
        )
        self.hash_features = gpu.kernel(carried.make_hash(threads))
        self.propose = gpu.kernel(carried.propose)
        self.confirm = gpu.kernel(carried.make_confirm(threads))
        self.look_for_overflow = gpu.kernel(carried.make_look(threads))
        self.unite = gpu.kernel(carried.unite)
        self.resident = cache(self._resident)

    def _resident(self, features: int, has_groups: bool) -> Any:
        plan = self.sizes.plan
        threads = self.sizes.resident_threads[0 if has_groups else 1]
        made = make_resident(plan.bundle, plan.rows, plan.warps, features, threads, has_groups)
        return gpu.kernel(made, None if has_groups else REGISTERS_HALF_FULL)


_kernels_of = cache(Kernels)


def kernels_of(sizes: CudaSizes) -> Kernels:
    """The kernels of some sizes, made and compiled once in a process.

    Parameters
    ----------
    sizes : CudaSizes
        No kernel depends on what only the plan does with long outputs and shared memory, so that
        sizes that differ in this have the same kernels.
    """
    plan = replace(sizes.plan, chunk=0, skew=0, shared_bytes=0)
    return _kernels_of(replace(sizes, plan=plan))
