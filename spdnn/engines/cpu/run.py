"""One run of features through a plan, segment by segment.

The layers are cut into segments. A segment fills tiles with features, takes them through its
layers, drops the features that die, and keeps the others as columns (neurons x features, tile by
tile). The next segment fills tiles of its own from these columns. The early segments are
short, since most features die there and tiles would run half empty. A segment is run as soon as
more than `CpuSizes.waiting_bytes` wait for it, so that memory is bounded for any number of
features.

In mode ``merge`` the plan has merged neurons, and equal features are merged between segments.
Where no equal features are found, several segments are run as one for a while.

Every feature is computed by itself, in an order that the plan fixes. Results are the same, bit for
bit, for any number of threads and any tile.
"""

import threading
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spdnn.engines.base import Output, OverflowingError, Progress, Widths
from spdnn.engines.cpu.columns import Columns, aligned_empty, from_rows, joined
from spdnn.engines.cpu.duplicates import Duplicates
from spdnn.engines.cpu.kernels.barrier import abort, thread_group
from spdnn.engines.cpu.kernels.equal import are_all
from spdnn.engines.cpu.kernels.segment import Kept, SegmentParams, Source, take_tiles
from spdnn.engines.cpu.kernels.tile import (
    DISTINCT,
    ENTERED,
    LIVE,
    Room,
    empty_counts,
    live_words,
)
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.engines.cpu.packed import PackedFeatures
from spdnn.engines.cpu.sizes import CpuSizes
from spdnn.engines.state import State
from spdnn.features import Features, index_dtype
from spdnn.machine.thread_pool import KeptThreads
from spdnn.plan.cpu.plan import CpuPlan

Loaded = Features | PackedFeatures
"""Features as this engine takes them."""

_NO_NUMBERS = np.empty(0, dtype=np.int64)


@dataclass(eq=False)
class Segment:
    """Layers `first` to `end` (excluded), and the features that wait for them."""

    first: int
    end: int
    waiting: list[Columns] = field(default_factory=list)

    @property
    def waiting_bytes(self) -> int:
        """Size of the activations that wait."""
        return sum(columns.n_bytes for columns in self.waiting)


class Run:
    """Runs features up to layer `end` of a plan, once.

    Within a run features are numbered from 0: the features of `start`, or the rows of a state.

    Parameters
    ----------
    plan : CpuPlan
        The plan.
    start : Features, PackedFeatures or State
        What is run.
    end : int
        Layers after which to stop.
    widths : tuple of int
        Features of a tile in the first segment and in the later ones.
    sizes : CpuSizes
        How the run is cut.
    threads : KeptThreads
        The threads that work.
    keeps_activations : bool
        Whether activations after the last layer are wanted.
    progress : callable or None
        Called with the fraction that is done.
    """

    def __init__(
        self,
        plan: CpuPlan,
        start: Loaded | State,
        end: int,
        widths: Widths,
        sizes: CpuSizes,
        threads: KeptThreads,
        keeps_activations: bool,
        progress: Progress | None,
    ) -> None:
        self.plan, self.start, self.end = plan, start, end
        self.sizes = sizes
        self.first_width, self.width = widths
        self.threads, self.n_threads = threads, threads.n_threads
        self.waiting_bytes = sizes.waiting_bytes * self.n_threads
        self.keeps_activations = keeps_activations
        self.progress = progress
        self.n_features = start.n_carried if isinstance(start, State) else start.n_features
        self.steps_end = [0, *plan.steps_end().tolist()]
        self.neurons = [plan.n_loaded, *plan.layer_neurons]
        self.duplicates = Duplicates(self.n_features) if plan.mode == "merge" else None
        first = start.layer if isinstance(start, State) else 0
        self.segments = self._cut(first)
        self.counts = empty_counts(plan.n_layers)
        self.at_rest: int | None = None  # the feature that stands for all features at rest
        self._of_thread = threading.local()
        self._feature_layers_done = 0

    def _cut(self, first: int) -> list[Segment]:
        """Segments from layer `first` on, and an empty one in which the results wait."""
        ends = set(self.sizes.segment_ends)
        if self.duplicates is not None:
            ends.update(self.sizes.look_ends)
        inner = sorted(end for end in ends if first < end < self.end)
        segments = [Segment(*span) for span in pairwise([first, *inner, self.end])]
        return [*segments, Segment(self.end, self.end)]

    def output(self) -> Output:
        """Run everything."""
        if isinstance(self.start, State):
            columns = from_rows(self.start.activations, self.start.stands_for())
            self.segments[0].waiting.append(columns)
        else:
            self._take_inputs(self.start)
        for number in range(len(self.segments) - 1):
            self._drain(number)
        return self._gathered(self._merged(self.segments[-1]))

    # From segment to segment

    def _take_inputs(self, features: Loaded) -> None:
        """Run the first segment on all features, as many at a time as may wait after it."""
        source = empty_source(self.plan)
        if isinstance(features, PackedFeatures):
            source = source._replace(masks=features.masks, n_repeats=self.plan.n_repeats)
        else:
            values = source.values if features.values is None else features.values
            source = source._replace(
                indptr=features.indptr, indices=features.indices, values=values
            )
        # A multiple of a tile, since blocks of features in mask form are not cut.
        n_tiles = self.waiting_bytes // (4 * self.plan.max_width * self.first_width)
        batch = max(1, n_tiles) * self.first_width
        for first in range(0, self.n_features, batch):
            end = min(first + batch, self.n_features)
            self._run_segments(0, source, range(first, end), self.first_width)

    def _drain(self, number: int) -> None:
        """Run a segment on all features that wait for it."""
        if not self.segments[number].waiting:
            return
        columns = self._merged(self.segments[number])
        if columns.size:
            source = empty_source(self.plan)._replace(
                ids=columns.ids,
                stands_for=columns.stands_for,
                addresses=columns.addresses,
                strides=columns.strides,
            )
            self._run_segments(number, source, range(columns.size), self.width)

    def _merged(self, segment: Segment) -> Columns:
        """All features that wait for a segment, but for those that are not carried further."""
        columns = joined(segment.waiting)
        segment.waiting = []
        n_waiting = columns.size
        if n_waiting == 0:
            return columns
        if self.duplicates is not None and columns.codes.size:
            columns = self.duplicates.merge(columns, self.neurons[segment.first], self.threads)
            self.counts[DISTINCT, segment.first - 1] -= n_waiting - columns.size
        if segment.first < self.end and self.plan.rests[segment.first - 1]:
            columns = self._without_resting(columns, segment.first)
        self._report(segment.first, segment.first, n_waiting - columns.size, 0)
        return columns

    def _without_resting(self, columns: Columns, end: int) -> Columns:
        """Move features whose activations are at the cap, and stay there, to the results."""
        cap = self.plan.arrays.caps[self.steps_end[end] - 1]
        rest = are_all(columns.addresses, columns.strides, self.neurons[end], cap)
        if not rest.any():
            return columns
        resting = columns.take(rest)
        self.counts[LIVE, end : self.end] += resting.stands_for.sum()
        self.counts[DISTINCT, end - 1] -= resting.size
        if self.at_rest is None:
            # The first one stands for all. After the last layer its activations are one number.
            self.at_rest = int(resting.ids[0])
            self.counts[DISTINCT, end - 1 : self.end] += 1
            number = self.plan.arrays.caps[self.steps_end[self.end] - 1 :][:1]
            first = resting.take(np.arange(resting.size) == 0)
            first.addresses[:], first.strides[:], first.memory = number.ctypes.data, 0, [number]
            self.segments[-1].waiting.append(first)
        assert self.duplicates is not None  # features rest in mode merge only
        self.duplicates.let_stand(resting.ids, self.at_rest)
        return columns.take(~rest)

    def _next_stop(self, number: int, n_features: int) -> tuple[int, bool]:
        """The segment before which to stop, after segment `number`, and whether to look there."""
        last = len(self.segments) - 1
        if self.duplicates is None and n_features <= LANES:
            return last, False  # one vector, however many of them die
        for following in range(number + 1, last):
            first = self.segments[following].first
            if n_features == 1:  # nothing to gather, nothing to merge
                if self.plan.rests[first - 1]:
                    return following, False
                continue
            looks = self._looks_after(first, n_features)
            if looks or first in self.sizes.segment_ends:
                return following, looks
        # A state that is written or sent holds no feature twice.
        return last, self.duplicates is not None and self.end < self.plan.n_layers

    def _looks_after(self, end: int, n_features: int) -> bool:
        """Whether to look for equal features after layers up to `end`, if so many come there."""
        sizes = self.sizes
        if self.duplicates is None or end not in sizes.look_ends:
            return False
        # An early look moves nearly all features: only where that costs next to nothing.
        is_early = end < sizes.segment_ends[0]
        if is_early and 4 * n_features * self.neurons[end] > sizes.early_look_bytes:
            return False
        return self.duplicates.wants_look()

    # Tiles

    def _run_segments(self, number: int, source: Source, features: range, width: int) -> None:
        """Run segments from `number` on, up to where a stop is worth it.

        The live features wait for the segment after the stop.
        """
        following, has_codes = self._next_stop(number, len(features))
        target = self.segments[following]
        first, end = self.segments[number].first, target.first
        keeps = self.keeps_activations or end < self.plan.n_layers
        n_threads = self._worth_threads(len(features), range(first, end))
        width, n_together = self._shares(len(features), width, range(first, end), n_threads)
        params = SegmentParams(
            first_step=self.steps_end[first],
            end_step=self.steps_end[end],
            first_layer=first,
            n_entering=self.neurons[first],
            n_kept=self.neurons[end] if keeps else 0,
            n_checked=self.neurons[end] if end == self.plan.n_layers else 0,
            has_codes=has_codes,
            width=width,
        )
        n_tiles = len(features) // (width * n_threads * self.sizes.tasks_a_thread)
        # Threads that share tiles take them one after the other, all in one task.
        step = width * max(1, min(self.sizes.most_tiles, n_tiles))
        step = len(features) if n_together > 1 else step
        tasks = [range(at, min(at + step, features.stop)) for at in features[::step]]
        run = partial(self._run_tiles, source, params, end - first, n_together)
        done = self.threads.run_all(run, tasks)
        for task, (kept, counts) in zip(tasks, done, strict=True):
            self.counts[:, first:end] += counts
            target.waiting.append(kept)
            self._report(first, end, len(task), kept.size)
        if end < self.end and target.waiting_bytes > self.waiting_bytes:
            self._drain(following)

    def _worth_threads(self, n_features: int, layers: range) -> int:
        """How many threads some layers are worth: a task costs the interpreter some time, too."""
        n_edges = sum(self.plan.layer_edges[layers.start : layers.stop])
        work = -(-n_features // LANES) * n_edges
        return min(self.n_threads, 1 + work // max(1, self.sizes.worth_waking))

    def _shares(
        self, n_features: int, width: int, layers: range, n_threads: int
    ) -> tuple[int, int]:
        """How wide tiles are to be, and how many threads share one, so that all have work.

        Features that would leave threads idle are dealt out in narrower tiles. Fewer than a vector
        for each thread cannot be dealt out: where layers are dense enough, all threads share a
        tile.
        """
        sizes = self.sizes
        n_vectors = -(-n_features // LANES)
        n_edges = sum(self.plan.layer_edges[layers.start : layers.stop])
        if n_threads == 1 or n_features > width * (n_threads - 1):
            return width, 1
        if n_vectors >= n_threads:
            return -(-n_vectors // n_threads) * LANES, 1
        n_neurons = sum(self.plan.layer_neurons[layers.start : layers.stop])
        shares = n_vectors * n_edges >= sizes.worth_barrier * len(layers)
        shares = shares and n_edges >= sizes.worth_fetching * n_neurons
        return width, self.n_threads if shares else 1

    def _run_tiles(
        self,
        source: Source,
        params: SegmentParams,
        n_layers: int,
        n_together: int,
        features: range,
    ) -> tuple[Columns, npt.NDArray[np.int64]]:
        """Take features through a segment, in this thread and as many more as share the tile.

        Returns those that go on, and the counts of each of its layers.
        """
        n = len(features)
        room = Room(*self._tiles(), live_words(n_together, params.width), empty_counts(n_layers))
        ids, stands_for, offsets, strides = np.empty((4, n), dtype=np.int64)
        kept = Kept(
            ids=ids,
            stands_for=stands_for,
            offsets=offsets,
            strides=strides,
            codes=np.empty(n + LANES if params.has_codes else 0, dtype=np.uint64),
            numbers=np.empty(n * params.n_kept + LANES, dtype=np.float32),
        )
        span = features.start, features.stop
        take = partial(take_tiles, self.plan.arrays, params, source, *span, room, kept)
        leader, *others = thread_group(n_together)
        if others:
            try:
                waiting = self.threads.submit_together([partial(take, other) for other in others])
                n, n_numbers, not_finite = take(leader)
                for member in waiting:
                    member.result()
            except BaseException:
                abort(leader)
                raise
        else:
            n, n_numbers, not_finite = take(leader)
        if not_finite >= 0:
            raise OverflowingError(self._number_of(not_finite))
        # Give back the memory that dead features would have taken.
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

    def _tiles(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Two tiles that belong to the calling thread, each a row longer than needed.

        A row is as long as the widest tile of this run, which has no more features than the run.
        """
        if not hasattr(self._of_thread, "tiles"):
            n_lanes = -(-self.n_features // LANES) * LANES
            size = (self.plan.max_width + 1) * min(max(self.first_width, self.width), n_lanes)
            self._of_thread.tiles = aligned_empty(size), aligned_empty(size)
        tiles: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] = self._of_thread.tiles
        return tiles

    def _number_of(self, feature: int) -> int:
        """What the caller of the engine calls a feature of this run."""
        if isinstance(self.start, State):
            return int(self.start.ids[np.flatnonzero(self.start.rows == feature)[0]])
        return feature

    def _report(self, first: int, end: int, n_features: int, n_live: int) -> None:
        """Count features as done with some layers; those that died are done with all layers."""
        if self.progress is None:
            return
        self._feature_layers_done += n_features * (end - first)
        self._feature_layers_done += (n_features - n_live) * (self.end - end)
        n_layers = self.end - self.segments[0].first
        self.progress(self._feature_layers_done / (self.n_features * n_layers))

    # Results

    def _gathered(self, found: Columns) -> Output:
        """Sort what was found by feature, and find again the features that others stand for."""
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
            state = State(self.end, live, of_live, found.rows(*every, self.threads))
        elif self.keeps_activations:
            activations = found.rows(of_live, self.plan.output_position, self.threads)
        edges = self.counts[ENTERED] * np.array(self.plan.layer_edges, dtype=np.int64)
        return Output(live, self.counts[LIVE], self.counts[DISTINCT], edges, activations, state)


def empty_source(plan: CpuPlan) -> Source:
    """A source of no features; all its arrays have the types that kernels expect."""
    return Source(
        masks=np.empty((0, 0), dtype=np.uint16),
        indptr=_NO_NUMBERS,
        indices=np.empty(0, dtype=index_dtype(plan.load_position.size)),
        values=np.empty(0, dtype=np.float32),
        position=plan.load_position,
        n_loaded=plan.n_loaded,
        n_repeats=0,
        ids=_NO_NUMBERS,
        stands_for=_NO_NUMBERS,
        addresses=_NO_NUMBERS,
        strides=_NO_NUMBERS,
    )


def _features_of(
    start: State, live: npt.NDArray[np.int64], of_live: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The features that live rows of a state stand for, and the `of_live` of each."""
    of_row = np.full(start.n_carried, -1, dtype=np.int64)
    of_row[live] = of_live
    is_live = of_row[start.rows] >= 0
    return start.ids[is_live], of_row[start.rows[is_live]]
