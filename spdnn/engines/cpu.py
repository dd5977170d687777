"""The CPU engine: tiles of features, each taken by one thread through many layers.

Layers are cut into stages. A stage takes its tiles through its layers, drops the features that
die, and hands on the others as strips (neurons x features), from which the next stage fills
tiles of its own. Early stages are short, since most features die there and tiles
would run half empty. A stage that has more strips than `POOL_BYTES` waiting runs at once, so that
memory is bounded, whatever the number of features.

Every feature is computed by itself, in an order that the plan fixes: results are the same, bit
for bit, for any number of threads and any tile.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.engines.base import Output, Progress, count_edges
from spdnn.engines.calibrate import measured_costs
from spdnn.engines.kernels import tile as kernels
from spdnn.engines.kernels.vectors import LANES
from spdnn.errors import PlanError
from spdnn.features import Features
from spdnn.memory import l2_bytes, require_bytes
from spdnn.network import Layer, Network
from spdnn.plan.cpu import MAY_DROP, N_OUTPUTS, CpuPlan, plan_edges
from spdnn.threads import checked_threads

POOL_BYTES = 256 << 20
"""Activations that may wait for a stage before it runs."""

L2_SHARE = 0.25
"""Of a core's L2 cache for a tile: there are two, and weights pass through beside them."""

MAX_TILE = 128
"""Features of a tile at most: beyond, weights are reused enough."""

STAGE_ENDS = (4, 8, 16, 32, 64, 128, 512)
"""Layers after which live features are gathered into full tiles again."""

_NO_VALUES = np.empty(0, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Strip:
    """Some features between two stages: `ids` and their activations (neurons x features)."""

    ids: npt.NDArray[np.int64]
    matrix: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Piece:
    """Columns `first` to `first + count` of a strip, to be loaded into a tile."""

    strip: Strip
    first: int
    count: int


@dataclass(eq=False)
class Stage:
    """Layers `first` to `end` (excluded), and the strips that wait for them."""

    first: int
    end: int
    waiting: list[Strip] = field(default_factory=list)

    @property
    def waiting_bytes(self) -> int:
        """Size of the activations that wait."""
        return sum(strip.matrix.nbytes for strip in self.waiting)


class CpuEngine:
    """Mode ``edges`` with numba kernels on `threads` threads."""

    name = "cpu"
    modes = ("edges",)

    def __init__(self, threads: int | None = None) -> None:
        self.threads = checked_threads(threads)

    def compile(self, network: Network) -> None:
        """Plan and run a tiny network with the same types, through two stages."""
        widths = [network.n_inputs, 1, network.max_width] + [1] * STAGE_ENDS[0]
        layers = [
            Layer(sp.csr_array(([1.0], ([0], [0])), shape=shape), bias=-0.5)
            for shape in pairwise(widths)
        ]
        features = Features(network.n_inputs, np.arange(2), np.zeros(1, np.int32))
        self.run(plan_edges(Network(layers)), features)
        measured_costs()

    def plan(self, network: Network, mode: str) -> CpuPlan:
        """Cut all layers into blocks."""
        if mode not in self.modes:
            raise PlanError(f"engine cpu has no mode {mode}")
        return plan_edges(network, measured_costs())

    def run(
        self,
        plan: CpuPlan,
        features: Features,
        *,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through all layers; see `spdnn.engines.base.Engine`."""
        width = tile_width(plan.max_width)
        n_bytes = 2 * 4 * plan.max_width * width * self.threads
        require_bytes(n_bytes, f"{self.threads} tiles of {width} features", "take fewer --threads")
        with ThreadPoolExecutor(self.threads) as pool:
            return _Run(plan, features, width, pool, activations, progress).output()


def tile_width(n_neurons: int) -> int:
    """Features of a tile for layers of `n_neurons` neurons: a multiple of the kernels' lanes."""
    fitting = int(L2_SHARE * l2_bytes()) // (4 * max(n_neurons, 1))
    return max(LANES, min(MAX_TILE, fitting // LANES * LANES))


class _Run:
    """One run of features through a plan: the stages and what they have counted."""

    def __init__(
        self,
        plan: CpuPlan,
        features: Features,
        width: int,
        pool: ThreadPoolExecutor,
        keeps_activations: bool,
        progress: Progress | None,
    ) -> None:
        self.plan = plan
        self.features = features
        self.width = width
        self.pool = pool
        self.keeps_activations = keeps_activations
        self.progress = progress
        ends = [end for end in STAGE_ENDS if end < plan.n_layers] + [plan.n_layers]
        self.stages = [Stage(*span) for span in zip([0, *ends[:-1]], ends, strict=True)]
        self.n_live = np.zeros(plan.n_layers, dtype=np.int64)
        self.results: list[Strip] = []
        self._of_thread = threading.local()
        self._feature_layers_done = 0

    def output(self) -> Output:
        batch = max(self.width, POOL_BYTES // (4 * self.plan.max_width))
        n_features = self.features.n_features
        for start in range(0, n_features, batch):
            stop = min(start + batch, n_features)
            firsts = range(start, stop, self.width)
            self._run_stage(0, firsts, partial(self._load_inputs, stop))
        for number in range(1, len(self.stages)):
            self._drain(number)
        return self._gathered()

    def _gathered(self) -> Output:
        ids = np.concatenate([strip.ids for strip in self.results] or [np.empty(0, np.int64)])
        order = np.argsort(ids, kind="stable")
        activations = None
        if self.keeps_activations:
            n_outputs = self.plan.output_order.size
            found = [strip.matrix for strip in self.results]
            by_position = np.concatenate([np.empty((n_outputs, 0), np.float32), *found], axis=1)
            activations = np.empty((ids.size, n_outputs), dtype=np.float32)
            activations[:, self.plan.output_order] = by_position[:, order].T
        may_drop = self.plan.arrays.layers[:, MAY_DROP]
        n_features, layer_edges = self.features.n_features, self.plan.layer_edges
        edges = count_edges(n_features, self.n_live, may_drop, layer_edges)
        return Output(ids[order], self.n_live, edges, activations)

    def _drain(self, number: int) -> None:
        """Run a stage on all that waits for it."""
        waiting = self.stages[number].waiting
        self.stages[number].waiting = []
        self._run_stage(number, cut_pieces(waiting, self.width), self._load_pieces)

    def _run_stage(
        self, number: int, tasks: Iterable[Any], load: Callable[[Any], npt.NDArray[np.int64]]
    ) -> None:
        """Run a stage on tiles that `load` fills; hand the survivors to the next stage."""
        stage = self.stages[number]
        is_last = number + 1 == len(self.stages)
        following = self.results if is_last else self.stages[number + 1].waiting

        def work(task: Any) -> tuple[int, Strip, npt.NDArray[np.int64]]:
            return self._run_tile(stage, load(task), keeps_matrix=not is_last)

        for n_features, strip, n_live in self.pool.map(work, tasks):
            self.n_live[stage.first : stage.end] += n_live
            if strip.ids.size:
                following.append(strip)
            self._report(stage, n_features, strip.ids.size)
        if not is_last and self.stages[number + 1].waiting_bytes > POOL_BYTES:
            self._drain(number + 1)

    def _run_tile(
        self, stage: Stage, ids: npt.NDArray[np.int64], *, keeps_matrix: bool
    ) -> tuple[int, Strip, npt.NDArray[np.int64]]:
        """Take this thread's tile through a stage.

        Returns the number of features that came, the strip of those that go on, and the live
        features after each of the stage's layers.
        """
        tile, spare = self._tiles()
        n_live = np.zeros(stage.end - stage.first, dtype=np.int64)
        stride = lanes_for(ids.size)
        is_swapped, stride, lanes = kernels.run_layers(
            self.plan.arrays, stage.first, stage.end, tile, spare, stride, ids, n_live
        )
        n_neurons = int(self.plan.arrays.layers[stage.end - 1, N_OUTPUTS])
        if not (keeps_matrix or self.keeps_activations):
            n_neurons = 0  # only the numbers of the live features are wanted
        result = spare if is_swapped else tile
        kept = np.empty(n_neurons * lanes.size + LANES, dtype=np.float32)
        kernels.keep_lanes(result, n_neurons, stride, lanes, kept, lanes.size)
        matrix = kept[: n_neurons * lanes.size].reshape(n_neurons, lanes.size)
        return ids.size, Strip(ids[lanes], matrix), n_live

    def _report(self, stage: Stage, n_features: int, n_survivors: int) -> None:
        """Count a tile as done; features that died are done with all layers."""
        if self.progress is None:
            return
        n_layers = self.plan.n_layers
        self._feature_layers_done += n_features * (stage.end - stage.first)
        self._feature_layers_done += (n_features - n_survivors) * (n_layers - stage.end)
        self.progress(self._feature_layers_done / (self.features.n_features * n_layers))

    def _load_inputs(self, stop: int, first: int) -> npt.NDArray[np.int64]:
        """Fill this thread's tile with features from `first`, at most to `stop`."""
        stop = min(stop, first + self.width)
        part = self.features.part(first, stop)
        values = _NO_VALUES if part.values is None else part.values
        kernels.load_features(
            part.indptr,
            part.indices,
            values,
            part.n_neurons,
            self._tiles()[0],
            lanes_for(stop - first),
        )
        return np.arange(first, stop, dtype=np.int64)

    def _load_pieces(self, pieces: list[Piece]) -> npt.NDArray[np.int64]:
        """Fill this thread's tile with pieces of strips; return their features' numbers."""
        tile = self._tiles()[0]
        count = sum(piece.count for piece in pieces)
        stride = lanes_for(count)
        offset = 0
        for piece in pieces:
            kernels.load_columns(piece.strip.matrix, piece.first, piece.count, tile, stride, offset)
            offset += piece.count
        kernels.clear_lanes(tile, pieces[0].strip.matrix.shape[0], stride, count)
        return np.concatenate(
            [piece.strip.ids[piece.first : piece.first + piece.count] for piece in pieces]
        )

    def _tiles(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Two buffers that belong to the calling thread."""
        if not hasattr(self._of_thread, "tiles"):
            size = self.plan.max_width * self.width + LANES
            self._of_thread.tiles = aligned_empty(size), aligned_empty(size)
        tiles: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] = self._of_thread.tiles
        return tiles


def aligned_empty(size: int) -> npt.NDArray[np.float32]:
    """Uninitialised float32 numbers that begin at a multiple of 64 bytes: of a cache line."""
    longer = np.empty(size + 16, dtype=np.float32)
    first = -longer.ctypes.data % 64 // 4
    return longer[first : first + size]


def lanes_for(n_features: int) -> int:
    """Lanes that hold so many features: the next multiple of the kernels' lanes."""
    return -(-n_features // LANES) * LANES


def cut_pieces(strips: list[Strip], width: int) -> list[list[Piece]]:
    """Share the columns of strips, in order, among tiles of `width` features."""
    tiles: list[list[Piece]] = []
    room = 0
    for strip in strips:
        first = 0
        while first < strip.ids.size:
            if room == 0:
                tiles.append([])
                room = width
            count = min(room, strip.ids.size - first)
            tiles[-1].append(Piece(strip, first, count))
            first += count
            room -= count
    return tiles
