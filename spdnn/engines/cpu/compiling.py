"""Compiling: all that a mode needs, on two cores at the first call of all.

numba compiles one function at a time. Where nothing has been compiled on this machine yet, a second
process compiles the kernels of a run and keeps them on disk, while this one reads inputs and
compiles what plans. What it has not done when it is needed, this process waits for; what it has
failed to do, this process does itself. No result depends on it.

The second process is ``python -m spdnn.engines.cpu.compiling DTYPE``, of a plan's indices.
"""

import atexit
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.engines.cpu.calibrate import DEGREES, NEURONS, layer_of, measured_costs
from spdnn.engines.cpu.columns import from_rows
from spdnn.engines.cpu.duplicates import Duplicates
from spdnn.engines.cpu.kernels.barrier import thread_group
from spdnn.engines.cpu.kernels.equal import are_all
from spdnn.engines.cpu.kernels.segment import fill_tile, take_tiles
from spdnn.engines.cpu.kernels.shares import share_of
from spdnn.engines.cpu.kernels.tile import drop_dead
from spdnn.engines.cpu.packed import pack
from spdnn.engines.cpu.run import Loaded, Run, empty_source
from spdnn.engines.cpu.sizes import DEFAULT_SIZES, CpuSizes
from spdnn.features import Features, index_dtype
from spdnn.machine.code_cache import is_kept, keeps_code
from spdnn.machine.jit import compile_for
from spdnn.machine.launcher import launched_size
from spdnn.machine.thread_pool import KeptThreads
from spdnn.network import Layer, Network
from spdnn.plan.cpu.plan import CpuPlan, plan_edges, plan_merge

PLANNERS = {"edges": plan_edges, "merge": plan_merge}
"""What plans for each mode."""

PATIENCE = 120.0
"""Seconds that the second process may take. It takes under ten on an idle machine."""

_helpers: list[subprocess.Popen[bytes]] = []
"""The second process, once it was started."""


def compile_all(
    network: Network, modes: Sequence[str], sizes: CpuSizes, threads: KeptThreads
) -> None:
    """Compile what planning and running a network in some modes need, or load it from the cache.

    Parameters
    ----------
    network : Network
        Only its sizes matter.
    modes : sequence of str
        The modes.
    sizes : CpuSizes
        How runs are cut.
    threads : KeptThreads
        The engine's threads.
    """
    dtype = index_dtype(network.max_width)
    compile_ahead(threads.n_threads, dtype)
    _compile_parts(dtype)  # before the second process needs them
    widths = [network.n_inputs, 2, network.max_width] + [2] * sizes.look_ends[2]
    # Layers with a cap that lasts, so that kernels that look for features at rest run, too.
    layers = [Layer(2 * sp.eye_array(*shape), -0.01, 1.0) for shape in pairwise(widths)]
    plans = [PLANNERS[mode](Network(layers), threads=threads) for mode in modes]
    features = Features(network.n_inputs, np.arange(3), np.zeros(2, np.int32))
    forms: list[Loaded] = [features, pack(features, threads)]
    _compile_for_columns("merge" in modes, threads)
    _wait_for_helper()
    measured_costs()
    for plan in plans:
        for form in forms:
            _run(plan, form, sizes, threads)


def _run(plan: CpuPlan, form: Loaded, sizes: CpuSizes, threads: KeptThreads) -> None:
    Run(plan, form, plan.n_layers, sizes.own_widths(plan), sizes, threads, True, None).output()


def _compile_for_columns(merges: bool, threads: KeptThreads) -> None:
    """Compile what handles features between two segments."""
    columns = from_rows(np.ones((2, 1), np.float32), np.ones(2, np.int64))
    columns.rows(np.arange(2), np.zeros(1, np.int32), threads)
    if merges:
        columns.codes = np.zeros(2, np.uint64)
        Duplicates(2).merge(columns, 1, threads)
        are_all(columns.addresses, columns.strides, 1, np.float32(1))


def compile_ahead(n_threads: int, dtype: npt.DTypeLike = np.uint16) -> None:
    """Start the second process, where it can help; it is started once.

    It can help where nothing is compiled yet, compiled functions are kept, and there are two
    processors. Below a parallel launcher no process is started: MPI libraries do not stand it.

    Parameters
    ----------
    n_threads : int
        Threads of the run; one thread means that one processor is to be used.
    dtype : dtype
        The index dtype of the plan that is expected: of most networks uint16.
    """
    n_processors = min(n_threads, len(os.sched_getaffinity(0)))
    in_parallel = launched_size() > 1 or "mpi4py.MPI" in sys.modules
    if _helpers or in_parallel or n_processors < 2 or not sys.executable:
        return
    if not keeps_code(take_tiles) or is_kept(take_tiles):
        return
    package = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    with suppress(OSError):
        helper = subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name, np.dtype(dtype).name],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _helpers.append(helper)
        atexit.register(partial(_end, helper))


def _wait_for_helper() -> None:
    """Wait until the second process has done its work, or has failed."""
    for helper in _helpers:
        with suppress(subprocess.TimeoutExpired):
            helper.wait(PATIENCE)
        _end(helper)


def _end(helper: subprocess.Popen[bytes]) -> None:
    """End a process, if it still runs."""
    if helper.poll() is None:
        helper.kill()
        helper.wait()


def _compile_parts(dtype: npt.DTypeLike) -> None:
    """Compile some of what a run needs, if nothing of it is kept yet.

    The two processes then take about as long.
    """
    if is_kept(take_tiles):
        return
    plan = _small_plan(dtype)
    tile, lanes, ids = np.empty(0, np.float32), np.empty(0, np.int32), np.empty(0, np.int64)
    compile_for(fill_tile, empty_source(plan), 0, 0, 0, tile, 0, np.empty(0, np.uint16))
    compile_for(drop_dead, tile, 0, 0, lanes, ids, ids)
    compile_for(share_of, plan.arrays, 0, thread_group(1)[0])


def _small_plan(dtype: npt.DTypeLike) -> CpuPlan:
    """A plan whose arrays have the types of all plans with such indices, made of a table."""
    arrays = layer_of(1, DEGREES[0], True)
    position = np.arange(NEURONS, dtype=np.uint16 if dtype == np.uint16 else np.uint32)
    return CpuPlan(
        mode="edges",
        arrays=arrays._replace(indices=arrays.indices.astype(dtype)),
        layer_edges=(NEURONS * DEGREES[0],),
        layer_neurons=(NEURONS,),
        n_loaded=NEURONS,
        additions=0,
        max_width=NEURONS,
        load_position=position,
        output_position=np.arange(NEURONS, dtype=np.int32),
        rests=np.zeros(1, dtype=bool),
    )


def _main(dtype: str) -> None:
    """Compile what takes tiles through layers, then what is short; nothing that plans."""
    threads = KeptThreads(1)
    measured_costs()
    form = Features(NEURONS, np.arange(3), np.zeros(2, np.int32))
    _run(_small_plan(np.dtype(dtype)), form, DEFAULT_SIZES, threads)
    pack(form, threads)
    _compile_for_columns(True, threads)


if __name__ == "__main__":
    _main(*sys.argv[1:])
