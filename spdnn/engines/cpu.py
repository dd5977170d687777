"""The CPU engine: tiles of features, each taken by one thread through many layers.

Layers are cut into stages. A stage takes its tiles through its layers, drops the features that
die, and hands on the others as strips (neurons x features), from which the next stage fills
tiles of its own. Early stages are short, since most features die there and tiles
would run half empty. A stage that has more strips than `POOL_BYTES` waiting runs at once, so that
memory is bounded, whatever the number of features.

In mode ``merge`` the plan has merged neurons, and between stages equal features are merged; where
none are found, stages are taken together and nothing is looked at for a while.

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

from spdnn.engines.base import Output, Progress
from spdnn.engines.calibrate import measured_costs
from spdnn.engines.duplicates import Duplicates
from spdnn.engines.kernels import inputs
from spdnn.engines.kernels import tile as kernels
from spdnn.engines.kernels.step import FULL_LANES
from spdnn.engines.kernels.vectors import LANES, MASKS
from spdnn.engines.packed import PackedFeatures, is_worth_packing, pack
from spdnn.engines.strips import Piece, Strip, aligned_empty, cut_pieces, lanes_for
from spdnn.errors import PlanError
from spdnn.features import Features
from spdnn.memory import l2_bytes, require_bytes
from spdnn.network import Layer, Network
from spdnn.plan.blocks import BlockCosts
from spdnn.plan.cpu import CpuPlan, plan_edges, plan_merge
from spdnn.state import State
from spdnn.threads import checked_threads

POOL_BYTES = 256 << 20
"""Activations that may wait for a stage before it runs."""

L2_SHARE = 0.25
"""Of a core's L2 cache for a tile: there are two, and weights pass through beside them."""

WEIGHT_USES = 3.0
"""Bytes of a tile for each byte of weights that passes, for which it may outgrow its share."""

LARGEST_L2_SHARE = 3.0
"""Up to so much of the L2 cache; beyond, the weights are the smaller evil."""

FIRST_STAGE = 2
"""Times as wide are the tiles of the first stage, in which they become narrower as features die."""

MAX_TILE = 1024
"""Features of a tile at most: enough to make the work around a tile small."""

STAGE_ENDS = (4, 8, 16, 32, 64, 128, 512)
"""Layers after which live features are gathered into full tiles again."""

LOOK_ENDS = (1, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024)
"""Layers after which mode ``merge`` looks for equal features, unless it has backed off."""

EARLY_LOOK_BYTES = 16 << 20
"""Activations for which a look before the first stage's usual end is cheap."""

Loaded = Features | PackedFeatures
"""Features as this engine takes them."""

_PLANS = {"edges": plan_edges, "merge": plan_merge}
_NO_VALUES = np.empty(0, dtype=np.float32)


@dataclass(eq=False)
class Stage:
    """Layers `first` to `end` (excluded), and the strips that wait for them."""

    first: int
    end: int
    waiting: list[Strip] = field(default_factory=list)

    @property
    def waiting_bytes(self) -> int:
        """Size of the activations that wait."""
        return sum(strip.n_bytes for strip in self.waiting)


class CpuEngine:
    """Modes ``edges`` and ``merge`` with numba kernels on `threads` threads."""

    name = "cpu"
    modes = tuple(_PLANS)
    stops = True

    def __init__(self, threads: int | None = None) -> None:
        self.threads = checked_threads(threads)
        self._costs: BlockCosts | None = None

    @property
    def tuning(self) -> list[Any]:
        """What blocks cost here, measured the first time it is asked for."""
        return [costs.tolist() for costs in self._costs or measured_costs()]

    @tuning.setter
    def tuning(self, costs: list[Any]) -> None:
        self._costs = BlockCosts(*map(np.array, costs))

    def compile(self, network: Network) -> None:
        """Plan and run a tiny network with the same types, through several stages."""
        widths = [network.n_inputs, 2, network.max_width] + [2] * LOOK_ENDS[2]
        layers = [Layer(sp.eye_array(*shape), bias=-0.01) for shape in pairwise(widths)]
        features = Features(network.n_inputs, np.arange(3), np.zeros(2, np.int32))
        measured_costs()
        with ThreadPoolExecutor(1) as pool:
            forms: list[Loaded] = [features, pack(features, pool)]
        for mode in self.modes:
            plan = self.plan(Network(layers), mode)
            for form in forms:
                self.run(plan, form)

    def plan(self, network: Network, mode: str) -> CpuPlan:
        """Cut all layers into blocks, in mode ``merge`` after merging neurons."""
        if mode not in _PLANS:
            raise PlanError(f"engine cpu has no mode {mode}")
        return _PLANS[mode](network, self._costs or measured_costs())

    def load(self, features: Features) -> Loaded:
        """Pack features of 0 and 1 as bits, unless they are so few that it does not pay."""
        if not is_worth_packing(features):
            return features
        with ThreadPoolExecutor(self.threads) as pool:
            return pack(features, pool)

    def run(
        self,
        plan: CpuPlan,
        start: Loaded | State,
        *,
        until: int | None = None,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through layers; see `spdnn.engines.base.Engine`."""
        widths = tile_width(plan, FIRST_STAGE), tile_width(plan)
        n_bytes = 2 * 4 * plan.max_width * max(widths) * self.threads
        require_bytes(
            n_bytes, f"{self.threads} tiles of {max(widths)} features", "take fewer --threads"
        )
        with ThreadPoolExecutor(self.threads) as pool:
            end = plan.n_layers if until is None else until
            return _Run(plan, start, end, widths, pool, activations, progress).output()


def tile_width(plan: CpuPlan, times: int = 1) -> int:
    """Features of a tile: a multiple of the kernels' lanes.

    Measured at 1024 to 65536 neurons; see docs/performance.md. `times` as wide for the first stage.
    """
    of_l2 = times * l2_bytes() / (4 * max(plan.max_width, 1))
    wanted = times * WEIGHT_USES * plan.bytes_per_neuron / 4
    fitting = int(max(L2_SHARE * of_l2, min(wanted, LARGEST_L2_SHARE * of_l2)))
    unit = FULL_LANES if fitting >= FULL_LANES else LANES
    return max(LANES, min(MAX_TILE, fitting) // unit * unit)


class _Run:
    """One run of features up to layer `end` of a plan: the stages and what they have counted.

    Within it features are numbered from 0: those of `start`, or the rows of a State.
    """

    def __init__(
        self,
        plan: CpuPlan,
        start: Loaded | State,
        end: int,
        widths: tuple[int, int],
        pool: ThreadPoolExecutor,
        keeps_activations: bool,
        progress: Progress | None,
    ) -> None:
        self.plan = plan
        self.start = start
        self.end = end
        self.first_width, self.width = widths
        first = 0
        if isinstance(start, State):
            first, self.n_features = start.layer, start.n_carried
            self.stands_for = start.stands_for()
            self.first_width = self.width  # the first layers are behind
        else:
            self.n_features = start.n_features
        self.pool = pool
        self.keeps_activations = keeps_activations
        self.progress = progress
        self.n_repeats = plan.n_repeats
        self.steps_end = [0, *plan.steps_end().tolist()]
        self.duplicates = Duplicates(self.n_features) if plan.mode == "merge" else None
        ends = sorted({*STAGE_ENDS, *(LOOK_ENDS if self.duplicates is not None else ())})
        ends = [stop for stop in ends if first < stop < end] + [end]
        self.stages = [Stage(*span) for span in pairwise([first, *ends])]
        self.counts = np.zeros((3, plan.n_layers), dtype=np.int64)
        self.results: list[Strip] = []
        self._of_thread = threading.local()
        self._feature_layers_done = 0

    def output(self) -> Output:
        # A multiple of a tile: features lie in blocks that are not cut.
        n_tiles = POOL_BYTES // (4 * self.plan.max_width * self.first_width)
        batch = max(1, n_tiles) * self.first_width
        load = self._load_rows if isinstance(self.start, State) else self._load_inputs
        for start in range(0, self.n_features, batch):
            stop = min(start + batch, self.n_features)
            firsts = range(start, stop, self.first_width)
            self._run_stages(0, stop - start, firsts, partial(load, stop))
        for number in range(1, len(self.stages)):
            self._drain(number)
        if self.duplicates is not None and self.end < self.plan.n_layers:
            # What waits, is written or sent holds no feature twice.
            self.counts[1, self.end - 1] -= self.duplicates.merge(self.results)
        return self._gathered()

    def _gathered(self) -> Output:
        n_outputs = self.plan.output_position.size
        carried = [strip.ids[strip.columns] for strip in self.results]
        ids = np.concatenate([*carried, np.empty(0, np.int64)])
        order = np.argsort(ids, kind="stable")
        live, of_live = ids[order], order
        if self.duplicates is not None:
            live, place = self.duplicates.expand(ids[order])
            of_live = order[place]
        if isinstance(self.start, State):
            live, of_live = _features_of(self.start, live, of_live)
        state = self._state(live, of_live) if self.end < self.plan.n_layers else None
        activations = None
        if self.keeps_activations and state is None:
            found = [strip.carried() for strip in self.results]
            n_last = self.plan.layer_neurons[-1]
            by_position = np.concatenate([np.empty((n_last, 0), np.float32), *found], axis=1)
            activations = np.empty((live.size, n_outputs), dtype=np.float32)
            np.take(by_position.T[of_live], self.plan.output_position, axis=1, out=activations)
        n_live, n_distinct, n_entered = self.counts
        edges = n_entered * np.array(self.plan.layer_edges, dtype=np.int64)
        return Output(live, n_live, n_distinct, edges, activations, state)

    def _state(self, live: npt.NDArray[np.int64], of_live: npt.NDArray[np.int64]) -> State:
        """What the strips of the results hold; `of_live` counts their features."""
        n_rows = sum(strip.columns.size for strip in self.results)
        n_neurons = self.plan.layer_neurons[self.end - 1]
        activations = np.empty((n_rows, n_neurons), dtype=np.float32)
        row = 0
        for strip in self.results:
            activations[row : row + strip.columns.size] = strip.carried().T
            row += strip.columns.size
        return State(self.end, live, of_live, activations)

    def _drain(self, number: int) -> None:
        """Run a stage on all that waits for it."""
        waiting = self.stages[number].waiting
        self.stages[number].waiting = []
        if self.duplicates is not None:
            first = self.stages[number].first
            n_merged = self.duplicates.merge(waiting)
            self.counts[1, first - 1] -= n_merged
            self._report(first, first, n_merged, 0)
        n_features = sum(strip.columns.size for strip in waiting)
        if n_features:
            self._run_stages(number, n_features, cut_pieces(waiting, self.width), self._load_pieces)

    def _run_stages(
        self,
        number: int,
        n_features: int,
        tasks: Iterable[Any],
        load: Callable[[Any], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    ) -> None:
        """Run stages from `number` on tiles that `load` fills, up to where a stop is worth it.

        The survivors wait for the stage behind.
        """
        following, has_codes = self._next_stop(number, n_features)
        first, end = self.stages[number].first, self.stages[following - 1].end
        is_last = end == self.end
        if is_last:
            has_codes = self.duplicates is not None and end < self.plan.n_layers
        target = self.results if is_last else self.stages[following].waiting

        def work(task: Any) -> tuple[int, Strip, npt.NDArray[np.int64]]:
            return self._run_tile(first, end, *load(task), has_codes=has_codes)

        for n_loaded, strip, counts in self.pool.map(work, tasks):
            self.counts[:, first:end] += counts
            if strip.ids.size:
                target.append(strip)
            self._report(first, end, n_loaded, strip.ids.size)
        if not is_last and self.stages[following].waiting_bytes > POOL_BYTES:
            self._drain(following)

    def _next_stop(self, number: int, n_features: int) -> tuple[int, bool]:
        """The stage before which to stop, after stage `number`, and whether to look there."""
        if n_features == 1:
            return len(self.stages), False  # nothing to gather, nothing to merge
        for following in range(number + 1, len(self.stages)):
            first = self.stages[following].first
            looks = self._looks_after(first, n_features)
            if looks or first in STAGE_ENDS:
                return following, looks
        return len(self.stages), False

    def _looks_after(self, end: int, n_features: int) -> bool:
        """Whether to look for equal features after layers up to `end`, if so many come there."""
        if self.duplicates is None or end not in LOOK_ENDS:
            return False
        if end < STAGE_ENDS[0]:
            # An early look moves nearly all features: only where that is next to nothing.
            n_bytes = 4 * n_features * self.plan.layer_neurons[end - 1]
            if n_bytes > EARLY_LOOK_BYTES:
                return False
        return self.duplicates.wants_look()

    def _run_tile(
        self,
        first: int,
        end: int,
        ids: npt.NDArray[np.int64],
        stands_for: npt.NDArray[np.int64],
        *,
        has_codes: bool,
    ) -> tuple[int, Strip, npt.NDArray[np.int64]]:
        """Take this thread's tile through layers `first` to `end`.

        Returns the number of features that came, the strip of those that go on, and the counts
        of each of the layers.
        """
        tile, spare = self._buffers()
        counts = np.zeros((3, end - first), dtype=np.int64)
        is_swapped, stride, lanes = kernels.run_steps(
            self.plan.arrays,
            self.steps_end[first],
            self.steps_end[end],
            tile,
            spare,
            lanes_for(ids.size),
            ids,
            stands_for,
            first,
            counts,
        )
        n_neurons = self.plan.layer_neurons[end - 1]
        if end == self.plan.n_layers and not self.keeps_activations:
            n_neurons = 0  # only the numbers of the live features are wanted
        n = lanes.size
        matrix = np.empty(n_neurons * n + LANES, dtype=np.float32)
        codes = np.empty(lanes_for(n) if has_codes else 0, dtype=np.uint64)
        result = spare if is_swapped else tile
        kernels.keep_lanes(result, n_neurons, stride, lanes, matrix, n, codes)
        columns = np.arange(n, dtype=np.int32)
        strip = Strip(ids[lanes], stands_for[lanes], matrix, n_neurons, codes, columns)
        return ids.size, strip, counts

    def _report(self, first: int, end: int, n_features: int, n_survivors: int) -> None:
        """Count a tile as done; features that died are done with all layers."""
        if self.progress is None:
            return
        self._feature_layers_done += n_features * (end - first)
        self._feature_layers_done += (n_features - n_survivors) * (self.end - end)
        n_layers = self.end - self.stages[0].first
        self.progress(self._feature_layers_done / (self.n_features * n_layers))

    def _load_inputs(
        self, stop: int, first: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Fill this thread's tile with features from `first`, at most to `stop`."""
        assert not isinstance(self.start, State)
        stop = min(stop, first + self.first_width)
        n_lanes = lanes_for(stop - first)
        plan, features, (tile, _) = self.plan, self.start, self._buffers()
        if isinstance(features, PackedFeatures):
            blocks = features.masks[first // LANES : (first + n_lanes) // LANES]
            planes = np.empty(inputs.DIGITS * MASKS, dtype=np.uint16)
            inputs.load_masks(
                blocks, plan.load_position, plan.n_loaded, self.n_repeats, tile, n_lanes, planes
            )
        else:
            part = features.part(first, stop)
            values = _NO_VALUES if part.values is None else part.values
            inputs.load_features(
                part.indptr, part.indices, values, plan.load_position, plan.n_loaded, tile, n_lanes
            )
        return np.arange(first, stop, dtype=np.int64), np.ones(stop - first, dtype=np.int64)

    def _load_rows(
        self, stop: int, first: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Fill this thread's tile with rows of a State from `first`, at most to `stop`."""
        assert isinstance(self.start, State)
        stop = min(stop, first + self.first_width)
        rows = self.start.activations[first:stop]
        n_neurons, stride = rows.shape[1], lanes_for(stop - first)
        tile = self._buffers()[0][: n_neurons * stride].reshape(n_neurons, stride)
        tile[:, : stop - first] = rows.T
        tile[:, stop - first :] = 0
        return np.arange(first, stop, dtype=np.int64), self.stands_for[first:stop].copy()

    def _load_pieces(
        self, pieces: list[Piece]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Fill this thread's tile with pieces of strips."""
        tile = self._buffers()[0]
        count = sum(piece.columns.size for piece in pieces)
        stride = lanes_for(count)
        offset = 0
        for piece in pieces:
            strip = piece.strip
            kernels.load_columns(
                strip.matrix, strip.ids.size, strip.n_neurons, piece.columns, tile, stride, offset
            )
            offset += piece.columns.size
        kernels.clear_lanes(tile, pieces[0].strip.n_neurons, stride, count)
        ids = np.concatenate([piece.strip.ids[piece.columns] for piece in pieces])
        stands_for = np.concatenate([piece.strip.stands_for[piece.columns] for piece in pieces])
        return ids, stands_for

    def _buffers(self) -> tuple[npt.NDArray[np.float32], ...]:
        """Two tiles that belong to the calling thread, each a row longer than needed."""
        if not hasattr(self._of_thread, "tiles"):
            size = (self.plan.max_width + 1) * max(self.first_width, self.width)
            self._of_thread.tiles = aligned_empty(size), aligned_empty(size)
        tiles: tuple[npt.NDArray[np.float32], ...] = self._of_thread.tiles
        return tiles


def _features_of(
    start: State, live: npt.NDArray[np.int64], of_live: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The features that live rows of a state stand for, and what they have of `of_live`."""
    of_row = np.full(start.n_carried, -1, dtype=np.int64)
    of_row[live] = of_live
    is_live = of_row[start.rows] >= 0
    return start.ids[is_live], of_row[start.rows[is_live]]
