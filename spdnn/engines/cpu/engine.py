"""The CPU engine: tiles of features, each taken by one thread through many layers.

Layers are cut into stages. A stage takes its tiles through its layers, drops the features that
die, and keeps the others as columns (neurons x features, tile by tile), from which the next stage
fills tiles of its own. Early stages are short, since most features die there and tiles
would run half empty. A stage that has more than `POOL_BYTES` waiting runs at once, so that
memory is bounded, whatever the number of features.

In mode ``merge`` the plan has merged neurons, and between stages equal features are merged; where
none are found, stages are taken together and nothing is looked at for a while.

Every feature is computed by itself, in an order that the plan fixes: results are the same, bit
for bit, for any number of threads and any tile.
"""

import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.engines.base import NO_FACTS, Output, OverflowingError, Progress
from spdnn.engines.cpu.calibrate import measured_costs
from spdnn.engines.cpu.columns import Columns, aligned_empty, from_rows, joined
from spdnn.engines.cpu.duplicates import Duplicates
from spdnn.engines.cpu.kernels.equal import are_all
from spdnn.engines.cpu.kernels.stage import Kept, Source, Work, take_tiles
from spdnn.engines.cpu.kernels.step import FULL_LANES
from spdnn.engines.cpu.kernels.team import break_up, gather_team
from spdnn.engines.cpu.kernels.tile import Room, live_words
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.engines.cpu.packed import PackedFeatures, is_worth_packing, pack
from spdnn.engines.cpu.scores import Scorer, score_width
from spdnn.engines.state import State
from spdnn.errors import PlanError
from spdnn.features import Features, index_dtype
from spdnn.machine.memory import available_bytes, l2_bytes, require_bytes
from spdnn.machine.threads import checked_threads
from spdnn.network import Layer, Network
from spdnn.plan.cpu.blocks import BlockCosts
from spdnn.plan.cpu.plan import CpuPlan, plan_edges, plan_merge

POOL_BYTES = 128 << 20
"""Activations that may wait for a stage before it runs, for each thread: some tiles at 65536
neurons, and as much for many processes of one thread as for one of many."""

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

TASKS_A_THREAD = 4
"""Into so many tasks for each thread a stage's tiles are cut: more even, but more to hand out."""

MOST_TILES = 16
"""Tiles of a task at most."""

WORTH_WAKING = 1 << 18
"""Additions of vectors from which a stage's few features are worth a second thread's waking: some
0.2 ms."""

WORTH_MEETING = 1 << 14
"""Of a layer, on average, from which threads that share a tile are worth their meeting after it."""

WORTH_FETCHING = 96
"""Edges of a neuron, on average, from which a tile is worth sharing: the others fetch what a thread
has written from its cache, which takes as long as some 10 to 30 additions (docs/performance.md)."""

Loaded = Features | PackedFeatures
"""Features as this engine takes them."""

_PLANS = {"edges": plan_edges, "merge": plan_merge}


@dataclass(eq=False)
class Stage:
    """Layers `first` to `end` (excluded), and the features that wait for them."""

    first: int
    end: int
    waiting: list[Columns] = field(default_factory=list)

    @property
    def waiting_bytes(self) -> int:
        """Size of the activations that wait."""
        return sum(columns.n_bytes for columns in self.waiting)


class CpuEngine:
    """Modes ``edges`` and ``merge`` with numba kernels on `threads` threads."""

    name = "cpu"
    modes = tuple(_PLANS)
    stops = True
    plan_class = CpuPlan
    plan_facts = NO_FACTS

    def __init__(self, threads: int | None = None) -> None:
        self.threads = checked_threads(threads)
        self._costs: BlockCosts | None = None
        self._widths: tuple[int, int] | None = None
        self._scorers: weakref.WeakKeyDictionary[CpuPlan, Scorer] = weakref.WeakKeyDictionary()

    @property
    def tuning(self) -> list[Any]:
        """What blocks cost here, measured the first time it is asked for."""
        return [costs.tolist() for costs in self._costs or measured_costs()]

    @tuning.setter
    def tuning(self, costs: list[Any]) -> None:
        self._costs = BlockCosts(*map(np.array, costs))

    @property
    def shapes(self) -> list[int] | None:
        """Features of a tile in the first stage, and in the later ones, where they were set."""
        return None if self._widths is None else list(self._widths)

    @shapes.setter
    def shapes(self, widths: Sequence[int] | None) -> None:
        if widths is not None and not (
            len(widths) == 2
            and all(0 < width <= MAX_TILE and width % LANES == 0 for width in widths)
        ):
            raise PlanError(
                f"tiles of {widths} features: expected two multiples of {LANES} up to {MAX_TILE}"
            )
        self._widths = None if widths is None else (widths[0], widths[1])

    def shape_choices(self, plan: CpuPlan, n_features: int) -> list[list[int]]:
        """Widths of tiles that fit, up to all features in one: powers of two, and an even split."""
        all_in_one, share = (-(-n_features // (LANES * n)) * LANES for n in (1, self.threads))
        most = min(all_in_one, _in_lanes(MAX_TILE))
        widths = {_in_lanes(LANES << power) for power in range(MAX_TILE.bit_length())}
        fitting = [
            width
            for width in sorted(widths | {most, share})
            if width <= most and self._tile_bytes(plan, width) <= available_bytes()
        ]
        own = [min(tile_width(plan, times), most) for times in (FIRST_STAGE, 1)]
        return [[width, *(other for other in fitting if other != width)] for width in own]

    def _tile_bytes(self, plan: CpuPlan, width: int) -> int:
        """Memory that the threads' tiles take."""
        return 2 * 4 * plan.max_width * width * (self.threads + 1)

    def compile(self, network: Network) -> None:
        """Plan and run a tiny network with the same types, through several stages."""
        widths = [network.n_inputs, 2, network.max_width] + [2] * LOOK_ENDS[2]
        # With a cap that lasts, so that features are looked at for resting, too.
        layers = [Layer(2 * sp.eye_array(*shape), -0.01, 1.0) for shape in pairwise(widths)]
        features = Features(network.n_inputs, np.arange(3), np.zeros(2, np.int32))
        measured_costs()
        with ThreadPoolExecutor(1) as pool:
            forms: list[Loaded] = [features, pack(features, pool)]
        for mode in self.modes:
            plan = self.plan(Network(layers), mode)
            for form in forms:
                self.run(plan, form, activations=True)

    def plan(self, network: Network, mode: str) -> CpuPlan:
        """Cut all layers into blocks, in mode ``merge`` after merging neurons."""
        if mode not in _PLANS:
            raise PlanError(f"engine cpu has no mode {mode}")
        return _PLANS[mode](network, self._costs or measured_costs())

    def load(self, plan: CpuPlan, features: Features) -> Loaded:
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
        widths = self._widths or (tile_width(plan, FIRST_STAGE), tile_width(plan))
        require_bytes(
            self._tile_bytes(plan, max(widths)),
            f"{self.threads} tiles of {max(widths)} features",
            "take fewer --threads",
        )
        end = plan.n_layers if until is None else until
        with ThreadPoolExecutor(self.threads) as pool:
            run = _Run(plan, start, end, widths, self.threads, pool, activations, progress)
            return run.output()

    def scores(self, plan: CpuPlan, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The last layer's activations, dense, of dense features; the same bits as `run` gives.

        What the plan needs for it beside is made with the first call.

        Parameters
        ----------
        plan : CpuPlan
        inputs : ndarray, shape (n_features, n_inputs), float32
            C order.

        Returns
        -------
        ndarray, shape (n_features, n_outputs), float32
            Zeros for features that died.

        Raises
        ------
        DeviceError
            If what it works in does not fit into memory.
        OverflowingError
            If activations are not finite; see `run`.
        """
        scorer = self._scorers.get(plan)
        if scorer is None:
            scorer = Scorer(plan, self.threads, score_width(plan))
            self._scorers[plan] = scorer
        return scorer(inputs)

    def close(self) -> None:
        """Give back the threads that `scores` has started; the next call starts others."""
        for scorer in self._scorers.values():
            scorer.close()


def tile_width(plan: CpuPlan, times: int = 1) -> int:
    """Features of a tile: a multiple of the kernels' lanes.

    Measured at 1024 to 65536 neurons; see docs/performance.md. `times` as wide for the first stage.
    """
    of_l2 = times * l2_bytes() / (4 * max(plan.max_width, 1))
    wanted = times * WEIGHT_USES * plan.bytes_per_neuron / 4
    return _in_lanes(int(max(L2_SHARE * of_l2, min(wanted, LARGEST_L2_SHARE * of_l2))))


def _in_lanes(width: int) -> int:
    """The next smaller width of a tile that the kernels take without a remainder."""
    unit = FULL_LANES if width >= FULL_LANES else LANES
    return max(LANES, min(MAX_TILE, width) // unit * unit)


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
        threads: int,
        pool: ThreadPoolExecutor,
        keeps_activations: bool,
        progress: Progress | None,
    ) -> None:
        self.plan = plan
        self.start = start
        self.end = end
        self.first_width, self.width = widths
        self.threads = threads
        self.pool_bytes = POOL_BYTES * threads
        self.pool = pool
        self.keeps_activations = keeps_activations
        self.progress = progress
        self.n_features = start.n_carried if isinstance(start, State) else start.n_features
        self.steps_end = [0, *plan.steps_end().tolist()]
        self.neurons = [plan.n_loaded, *plan.layer_neurons]
        self.duplicates = Duplicates(self.n_features) if plan.mode == "merge" else None
        first = start.layer if isinstance(start, State) else 0
        ends = sorted({*STAGE_ENDS, *(LOOK_ENDS if self.duplicates is not None else ())})
        ends = [stop for stop in ends if first < stop < end] + [end]
        self.stages = [Stage(*span) for span in pairwise([first, *ends])]
        self.stages.append(Stage(end, end))  # where the results wait
        self.counts = np.zeros((3, plan.n_layers), dtype=np.int64)
        nothing = np.empty(0, dtype=np.int64)
        self._no_source = Source(
            np.empty((0, 0), dtype=np.uint16),
            nothing,
            np.empty(0, dtype=index_dtype(plan.load_position.size)),
            np.empty(0, dtype=np.float32),
            plan.load_position,
            plan.n_loaded,
            plan.n_repeats,
            *[nothing] * 4,
        )
        self.resting: int | None = None  # the feature that stands for all at rest
        self._of_thread = threading.local()
        self._feature_layers_done = 0

    def output(self) -> Output:
        if isinstance(self.start, State):
            columns = from_rows(self.start.activations, self.start.stands_for())
            self.stages[0].waiting.append(columns)
        else:
            self._take_inputs(self.start)
        for number in range(len(self.stages) - 1):
            self._drain(number)
        return self._gathered(self._merged(self.stages[-1]))

    def _gathered(self, found: Columns) -> Output:
        order = np.argsort(found.ids, kind="stable")
        live, of_live = found.ids[order], order
        if self.duplicates is not None:
            live, place = self.duplicates.expand(found.ids[order])
            of_live = order[place]
        if isinstance(self.start, State):
            live, of_live = _features_of(self.start, live, of_live)
        state, activations = None, None
        if self.end < self.plan.n_layers:
            every = np.arange(found.size), np.arange(self.neurons[self.end], dtype=np.int32)
            state = State(self.end, live, of_live, found.rows(*every, self.pool))
        elif self.keeps_activations:
            activations = found.rows(of_live, self.plan.output_position, self.pool)
        n_live, n_distinct, n_entered = self.counts
        edges = n_entered * np.array(self.plan.layer_edges, dtype=np.int64)
        return Output(live, n_live, n_distinct, edges, activations, state)

    def _take_inputs(self, features: Loaded) -> None:
        """Run the first stage on all features, as many at a time as may wait behind it."""
        source = self._no_source
        if isinstance(features, PackedFeatures):
            source = source._replace(masks=features.masks)
        else:
            values = source.values if features.values is None else features.values
            source = source._replace(
                indptr=features.indptr, indices=features.indices, values=values
            )
        # A multiple of a tile: features in mask form lie in blocks that are not cut.
        n_tiles = self.pool_bytes // (4 * self.plan.max_width * self.first_width)
        batch = max(1, n_tiles) * self.first_width
        for first in range(0, self.n_features, batch):
            end = min(first + batch, self.n_features)
            self._run_stages(0, source, range(first, end), self.first_width)

    def _drain(self, number: int) -> None:
        """Run a stage on all that waits for it."""
        if not self.stages[number].waiting:
            return
        columns = self._merged(self.stages[number])
        if columns.size:
            source = self._no_source._replace(
                ids=columns.ids,
                stands_for=columns.stands_for,
                addresses=columns.addresses,
                strides=columns.strides,
            )
            self._run_stages(number, source, range(columns.size), self.width)

    def _merged(self, stage: Stage) -> Columns:
        """All that waits for a stage and is still to be carried."""
        columns = joined(stage.waiting)
        stage.waiting = []
        n_waiting = columns.size
        if n_waiting == 0:
            return columns
        if self.duplicates is not None and columns.codes.size:
            columns = self.duplicates.merge(columns, self.neurons[stage.first], self.pool)
            self.counts[1, stage.first - 1] -= n_waiting - columns.size
        if stage.first < self.end and self.plan.rests[stage.first - 1]:
            columns = self._without_resting(columns, stage.first)
        self._report(stage.first, stage.first, n_waiting - columns.size, 0)
        return columns

    def _without_resting(self, columns: Columns, end: int) -> Columns:
        """Put features whose activations are at the cap, and stay there, to the results."""
        cap = self.plan.arrays.caps[self.steps_end[end] - 1]
        rest = are_all(columns.addresses, columns.strides, self.neurons[end], cap)
        if not rest.any():
            return columns
        resting = columns.take(rest)
        self.counts[0, end : self.end] += resting.stands_for.sum()
        self.counts[1, end - 1] -= resting.size
        if self.resting is None:
            # The first stands for all. After the last layer its activations are one number.
            self.resting = int(resting.ids[0])
            self.counts[1, end - 1 : self.end] += 1
            number = self.plan.arrays.caps[self.steps_end[self.end] - 1 :][:1]
            first = resting.take(np.arange(resting.size) == 0)
            first.addresses[:], first.strides[:], first.memory = number.ctypes.data, 0, [number]
            self.stages[-1].waiting.append(first)
        assert self.duplicates is not None  # features rest in mode merge only
        self.duplicates.let_stand(resting.ids, self.resting)
        return columns.take(~rest)

    def _run_stages(self, number: int, source: Source, features: range, width: int) -> None:
        """Run stages from `number` on, up to where a stop is worth it, on features in tiles.

        The survivors wait for the stage behind.
        """
        following, has_codes = self._next_stop(number, len(features))
        target = self.stages[following]
        first, end = self.stages[number].first, target.first
        keeps = self.keeps_activations or end < self.plan.n_layers
        width, n_together = self._shares(len(features), width, range(first, end))
        work = Work(
            self.steps_end[first],
            self.steps_end[end],
            first,
            self.neurons[first],
            self.neurons[end] if keeps else 0,
            self.neurons[end] if end == self.plan.n_layers else 0,
            has_codes,
            width,
        )
        n_tiles = len(features) // (width * self.threads * TASKS_A_THREAD)
        # Threads that share tiles take them one after the other, all in one task.
        step = len(features) if n_together > 1 else width * max(1, min(MOST_TILES, n_tiles))
        tasks = [range(at, min(at + step, features.stop)) for at in features[::step]]
        run = partial(self._run_tiles, source, work, end - first, n_together)
        # A thread is not woken for a single task.
        done = self.pool.map(run, tasks) if len(tasks) > 1 else map(run, tasks)
        for task, (kept, counts) in zip(tasks, done, strict=True):
            self.counts[:, first:end] += counts
            target.waiting.append(kept)
            self._report(first, end, len(task), kept.size)
        if end < self.end and target.waiting_bytes > self.pool_bytes:
            self._drain(following)

    def _shares(self, n_features: int, width: int, layers: range) -> tuple[int, int]:
        """How wide tiles are to be, and how many threads share one, for all threads to have work.

        Features that would leave threads idle are dealt out in narrower tiles. Fewer than a vector
        for each thread cannot be: where layers are dense enough, all threads share their tile.
        """
        n_vectors = -(-n_features // LANES)
        n_edges = sum(self.plan.layer_edges[layers.start : layers.stop])
        if n_features > width * (self.threads - 1) or n_vectors * n_edges < WORTH_WAKING:
            return width, 1
        if n_vectors >= self.threads:
            return -(-n_vectors // self.threads) * LANES, 1
        n_neurons = sum(self.plan.layer_neurons[layers.start : layers.stop])
        shares = n_vectors * n_edges >= WORTH_MEETING * len(layers)
        shares = shares and n_edges >= WORTH_FETCHING * n_neurons
        return width, self.threads if shares else 1

    def _next_stop(self, number: int, n_features: int) -> tuple[int, bool]:
        """The stage before which to stop, after stage `number`, and whether to look there."""
        last = len(self.stages) - 1
        if self.duplicates is None and n_features <= LANES:
            return last, False  # one vector, however many of them die
        for following in range(number + 1, last):
            first = self.stages[following].first
            if n_features == 1:  # nothing to gather, nothing to merge
                if self.plan.rests[first - 1]:
                    return following, False
                continue
            looks = self._looks_after(first, n_features)
            if looks or first in STAGE_ENDS:
                return following, looks
        # What waits, is written or sent holds no feature twice.
        return last, self.duplicates is not None and self.end < self.plan.n_layers

    def _looks_after(self, end: int, n_features: int) -> bool:
        """Whether to look for equal features after layers up to `end`, if so many come there."""
        if self.duplicates is None or end not in LOOK_ENDS:
            return False
        # An early look moves nearly all features: only where that is next to nothing.
        is_early = end < STAGE_ENDS[0]
        if is_early and 4 * n_features * self.neurons[end] > EARLY_LOOK_BYTES:
            return False
        return self.duplicates.wants_look()

    def _run_tiles(
        self, source: Source, work: Work, n_layers: int, n_together: int, features: range
    ) -> tuple[Columns, npt.NDArray[np.int64]]:
        """Take features through a stage, in this thread and as many more as share the tile.

        Returns those that go on, and the counts of each of its layers.
        """
        n = len(features)
        room = Room(
            *self._tiles(),
            live_words(n_together, work.width),
            np.zeros((3, n_layers), dtype=np.int64),
        )
        ids, stands_for, offsets, strides = np.empty((4, n), dtype=np.int64)
        kept = Kept(
            ids,
            stands_for,
            offsets,
            strides,
            np.empty(n + LANES if work.has_codes else 0, dtype=np.uint64),
            np.empty(n * work.n_kept + LANES, dtype=np.float32),
        )
        span = features.start, features.stop
        leader, *others = gather_team(n_together)
        take = partial(take_tiles, self.plan.arrays, work, source, *span, room, kept)
        try:
            waiting = [self.pool.submit(take, member) for member in others]
            n, n_numbers, not_finite = take(leader)
            for member in waiting:
                member.result()
        except BaseException:
            break_up(leader)
            raise
        if not_finite >= 0:
            raise OverflowingError(self._number_of(not_finite))
        # Given back: what dead features would have taken.
        kept.numbers.resize(n_numbers + LANES, refcheck=False)
        columns = Columns(
            ids[:n],
            stands_for[:n],
            kept.numbers.ctypes.data + 4 * offsets[:n],
            4 * strides[:n],
            kept.codes[:n],
            [kept.numbers],
        )
        return columns, room.counts

    def _number_of(self, feature: int) -> int:
        """What the caller of the engine calls a feature of this run."""
        if isinstance(self.start, State):
            return int(self.start.ids[np.flatnonzero(self.start.rows == feature)[0]])
        return feature

    def _tiles(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Two tiles that belong to the calling thread, each a row longer than needed."""
        if not hasattr(self._of_thread, "tiles"):
            size = (self.plan.max_width + 1) * max(self.first_width, self.width)
            self._of_thread.tiles = aligned_empty(size), aligned_empty(size)
        tiles: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] = self._of_thread.tiles
        return tiles

    def _report(self, first: int, end: int, n_features: int, n_survivors: int) -> None:
        """Count features as done; those that died are done with all layers."""
        if self.progress is None:
            return
        self._feature_layers_done += n_features * (end - first)
        self._feature_layers_done += (n_features - n_survivors) * (self.end - end)
        n_layers = self.end - self.stages[0].first
        self.progress(self._feature_layers_done / (self.n_features * n_layers))


def _features_of(
    start: State, live: npt.NDArray[np.int64], of_live: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The features that live rows of a state stand for, and what they have of `of_live`."""
    of_row = np.full(start.n_carried, -1, dtype=np.int64)
    of_row[live] = of_live
    is_live = of_row[start.rows] >= 0
    return start.ids[is_live], of_row[start.rows[is_live]]
