"""Dense scores of dense inputs on the CPU: what a plan needs for them, and helper threads."""

import os
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines.base import OverflowingError
from spdnn.engines.cpu.kernels import scores as kernel
from spdnn.engines.cpu.kernels.crew import MAILBOX, STOP, open_mailbox, post
from spdnn.engines.cpu.kernels.tile import live_words
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.errors import DataError
from spdnn.machine.memory import l2_bytes, require_bytes
from spdnn.plan.cpu.blocks import IS_SHARED, N_INPUTS, N_ROWS
from spdnn.plan.cpu.plan import CpuPlan
from spdnn.plan.cpu.slices import slice_plan

PAGE = 1 << 12
"""Bytes: arrays that threads write begin at such a multiple, so that they share no cache line."""


WIDTH, DENSE_WIDTH = 64, 96
"""Features of a tile: twice the lanes that blocks with inputs of their own take at once, or those
that share them."""

WORTH_WAKING = 100_000
"""Additions of vectors from which helpers are woken, some 40 microseconds of one thread."""

WORTH_WAKING_ONE = 80_000
"""Edges of a network from which they are woken for one feature."""

WORTH_SHARING = 96
"""Weights of a neuron, on average, from which threads take a tile together, as in `run`."""

SHARED_VECTORS = 2
"""Vectors of features for each thread up to which they do: weights beyond the L2 cache are then
read once, not by each thread."""


def score_width(plan: CpuPlan) -> int:
    """Features of a tile for scores by a plan."""
    n_products = _products(plan)
    is_dense = 2 * n_products[plan.arrays.blocks[:, IS_SHARED] == 1].sum() > n_products.sum()
    fits = 2 * 4 * DENSE_WIDTH * plan.max_width <= l2_bytes()
    return DENSE_WIDTH if is_dense and fits else WIDTH


def _products(plan: CpuPlan) -> npt.NDArray[np.int64]:
    """Products that each block takes for a feature; blocks with equal weights may share these."""
    blocks = plan.arrays.blocks
    return blocks[:, N_ROWS] * blocks[:, N_INPUTS]


class Scorer:
    """Computes scores by one plan, on a number of threads.

    Helpers are started with the first call, and sleep between calls. Calls from
    several threads wait for each other. After a fork the child starts helpers of its own.

    Parameters
    ----------
    plan : CpuPlan
        What scores are computed by.
    threads : int
        Threads of a call, its own included.
    tile_width : int
        Features of a tile, at most; a multiple of 16.

    Raises
    ------
    DeviceError
        If what it works in does not fit into memory.
    """

    def __init__(self, plan: CpuPlan, threads: int, tile_width: int) -> None:
        self._plan = plan
        self._threads = threads
        self._width = tile_width
        self._kind = plan.arrays.indices[:0]
        self._begin()

    def _begin(self) -> None:
        """Lay everything out for this process, without helpers."""
        plan, threads = self._plan, self._threads
        n_numbers = (plan.max_width + 1) * self._width
        require_bytes(
            2 * 4 * n_numbers * threads,
            f"{threads} tiles of {self._width} features",
            "take fewer `threads`",
        )
        slices = slice_plan(plan)
        live = live_words(threads, self._width)
        arrays = plan.arrays
        in_place = np.array_equal(plan.load_position, np.arange(plan.n_loaded))
        self._mailboxes = np.zeros((max(1, threads - 1), MAILBOX), dtype=np.int64)
        held: dict[int, npt.NDArray[Any] | int] = {
            kernel.STEPS: arrays.steps,
            kernel.N_STEPS: len(arrays.steps),
            kernel.CAPS: arrays.caps,
            kernel.BLOCKS: arrays.blocks,
            kernel.N_BLOCKS: len(arrays.blocks),
            kernel.INDICES: arrays.indices,
            kernel.N_INDICES: arrays.indices.size,
            kernel.WEIGHTS: arrays.weights,
            kernel.N_WEIGHTS: arrays.weights.size,
            kernel.BIAS: arrays.bias,
            kernel.N_BIAS: arrays.bias.size,
            kernel.LOAD_POSITION: plan.load_position.astype(np.int32),
            kernel.OUTPUT_POSITION: plan.output_position,
            kernel.N_INPUTS: plan.load_position.size,
            kernel.N_OUTPUTS: plan.output_position.size,
            kernel.N_LOADED: plan.n_loaded,
            kernel.IN_PLACE: int(in_place),
            kernel.N_LAYERS: plan.n_layers,
            kernel.N_LAST: plan.layer_neurons[-1],
            kernel.MAX_WIDTH: plan.max_width,
            kernel.EDGES: int(_products(plan).sum()),
            kernel.TILE_WIDTH: self._width,
            kernel.WORTH_WAKING: WORTH_WAKING,
            kernel.WORTH_WAKING_ONE: WORTH_WAKING_ONE,
            kernel.MOST_SHARED: self._most_shared(),
            kernel.N_THREADS: threads,
            kernel.MAILBOXES: self._mailboxes,
            kernel.MEETINGS: np.zeros((threads + 1) * kernel.APART, dtype=np.int64),
            kernel.TILES: _on_pages(2 * n_numbers * threads, np.float32),
            kernel.TILE_NUMBERS: n_numbers,
            kernel.LIVE: _on_pages(threads * live.size, np.uint64),
            kernel.LIVE_WORDS: live.shape[2],
            kernel.COUNTS: np.zeros(threads * 3 * plan.n_layers, dtype=np.int64),
            kernel.SCRATCH: _on_pages(threads * 2 * (plan.max_width + 1), np.float32),
            kernel.N_PARTS: 0,
        }
        if slices is not None:
            held |= {
                kernel.SLICE_STEPS: slices.steps,
                kernel.PARTS: slices.parts,
                kernel.N_PARTS: len(slices.parts),
                kernel.SLICE_INDICES: slices.indices,
                kernel.N_SLICE_INDICES: slices.indices.size,
                kernel.SLICE_WEIGHTS: slices.weights,
                kernel.N_SLICE_WEIGHTS: slices.weights.size,
                kernel.SHARES: slices.shares(threads),
            }
        self._held = [thing for thing in held.values() if not isinstance(thing, int)]
        job = np.zeros(kernel.JOB, dtype=np.int64)
        for place, thing in held.items():
            job[place] = thing if isinstance(thing, int) else thing.ctypes.data
        self._job = job
        self._n_outputs = plan.output_position.size
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._helpers: list[threading.Thread] = []
        self._stop: Any = None

    def _most_shared(self) -> int:
        """Vectors of features up to which all threads take one tile together."""
        n_products = int(_products(self._plan).sum())
        is_near = self._plan.arrays.weights.nbytes <= l2_bytes()
        if is_near or n_products < WORTH_SHARING * self._plan.work.neurons:
            return self._threads - 1
        return min(self._width // LANES, SHARED_VECTORS * self._threads)

    def __call__(self, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores of features.

        Parameters
        ----------
        inputs : ndarray, shape (n_features, n_inputs), float32
            C order.

        Returns
        -------
        ndarray, shape (n_features, n_outputs), float32
            The last layer's activations; zeros for features that died.

        Raises
        ------
        DataError
            If an input is not finite.
        OverflowingError
            If a score is not finite.
        """
        scores = np.empty((len(inputs), self._n_outputs), dtype=np.float32)
        if not len(inputs):
            return scores
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            if self._stop is None:
                self._start()
            failed = kernel.score(self._job, self._kind, inputs, scores)
        if failed == kernel.WRONG_INPUT:
            raise DataError("features: a value is NaN or infinite")
        if failed >= 0:
            raise OverflowingError(failed)
        return scores

    def _start(self) -> None:
        """Start the helpers; they hold what they work on, but not this object."""
        for number, mailbox in enumerate(self._mailboxes[: self._threads - 1]):
            open_mailbox(mailbox)
            work = _Help(self._job, self._kind, mailbox, number + 1, self._held)
            helper = threading.Thread(target=work, name=f"spdnn-{number + 1}", daemon=True)
            helper.start()
            self._helpers.append(helper)
        mailboxes = self._mailboxes[: self._threads - 1]
        self._stop = weakref.finalize(self, _stop, self._process, mailboxes, self._helpers)

    def close(self) -> None:
        """Let the helpers end; the next call starts others. May be called twice."""
        with self._lock:
            if self._stop is not None:
                self._stop()
                self._mailboxes[:] = 0
                self._helpers = []
                self._stop = None


class _Help:
    """What a helper does, and keeps alive meanwhile."""

    def __init__(
        self,
        job: npt.NDArray[np.int64],
        kind: npt.NDArray[Any],
        mailbox: npt.NDArray[np.int64],
        thread: int,
        held: list[npt.NDArray[Any]],
    ) -> None:
        self._work = job, kind, mailbox, thread
        self._held = held

    def __call__(self) -> None:
        kernel.serve(*self._work)


def _stop(process: int, mailboxes: npt.NDArray[np.int64], helpers: list[threading.Thread]) -> None:
    """Tell helpers to return and wait for them; a forked child has none of them."""
    if process != os.getpid():
        return
    for mailbox in mailboxes:
        mailbox[STOP] = 1
        post(mailbox)
    for helper in helpers:
        helper.join()


def _on_pages(size: int, dtype: Any) -> npt.NDArray[Any]:
    """Uninitialised numbers that begin on a page."""
    n_bytes = size * np.dtype(dtype).itemsize
    longer = np.empty(n_bytes + PAGE, dtype=np.uint8)
    first = -longer.ctypes.data % PAGE
    numbers: npt.NDArray[Any] = longer[first : first + n_bytes].view(dtype)
    return numbers
