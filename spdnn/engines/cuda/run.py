"""One run of features through a plan, segment by segment."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.base import DeviceSeconds, Output, Progress
from spdnn.engines.cuda.carried import Carried, Survivors, joined
from spdnn.engines.cuda.device import Device, Launch, Pending
from spdnn.engines.cuda.equal import EqualFeatures, Look
from spdnn.engines.cuda.kernels.gpu import WARP
from spdnn.engines.cuda.kernels.records import ChunkSums, Span
from spdnn.engines.cuda.placing import ORIGINS, Loaded, Window, place_inputs
from spdnn.engines.cuda.sizes import Kernels
from spdnn.plan.cuda.plan import (
    END_BUNDLE,
    END_ELL,
    FIRST_BUNDLE,
    FIRST_ELL,
    FIRST_WHOLE,
    N_INPUTS,
    WINDOWED,
    CudaPlan,
)
from spdnn.plan.cuda.sizes import resident_bytes, resident_choices, resident_rows

SEGMENT_ENDS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512, 1024)
"""Layers after which the host learns how many features are live, or equal."""

QUIET = 0.01
"""Share of the features up to which so few have gone in a segment that the next may be longer."""

HEAD_END = 16
"""Layers after which the survivors of several batches are taken on together."""

GROUPED, STAGED, IN_CHUNKS = range(3)
"""The kernels that a step launches: for groups, for other outputs, and where some are chunks."""


class Segment(NamedTuple):
    """Steps that features pass before the host looks at how many are left.

    Attributes
    ----------
    window : int
        The window that has their weights.
    first, end : int
        The first step, and the end of them (excluded).
    end_layer : int
        How many layers are done at their end; 0 where they end within a layer.
    """

    window: int
    first: int
    end: int
    end_layer: int


def cut_segments(plan: CudaPlan, windows: list[Window]) -> list[Segment]:
    """Cut a plan where the host looks, and at the ends of windows.

    Parameters
    ----------
    plan : CudaPlan
    windows : list of Window
    """
    layers = {int(end): number + 1 for number, end in enumerate(plan.steps_end())}
    ends = {end for end, layer in layers.items() if layer in SEGMENT_ENDS}
    ends |= {window.end for window in windows}
    of_end = [window.end for window in windows]
    return [
        Segment(int(np.searchsorted(of_end, end)), first, end, layers.get(end, 0))
        for first, end in pairwise([0, *sorted(ends)])
    ]


class Ended(NamedTuple):
    """A segment that was launched to its end, and what the host is still to learn of it.

    Attributes
    ----------
    segment : Segment
    look : Look or None
        The look for equal features behind it.
    n_live : Pending
        How many features it has left.
    """

    segment: Segment
    look: Look | None
    n_live: Pending


class Launches(NamedTuple):
    """What is launched for a step.

    Attributes
    ----------
    n_bundles, n_blocks : int
        Bundles and ELL blocks.
    has_chunks : bool
        Whether some of the ELL blocks are chunks.
    """

    n_bundles: int
    n_blocks: int
    has_chunks: bool


def launches_of(steps: npt.NDArray[np.int64]) -> list[Launches]:
    """What is launched for each step.

    Parameters
    ----------
    steps : ndarray, shape (n_steps, n_columns), int64
        Rows of the step table.
    """
    n_bundles = steps[:, END_BUNDLE] - steps[:, FIRST_BUNDLE]
    n_blocks = steps[:, END_ELL] - steps[:, FIRST_ELL]
    has_chunks = steps[:, FIRST_WHOLE] > steps[:, FIRST_ELL]
    columns = (column.tolist() for column in (n_bundles, n_blocks, has_chunks))
    return [Launches(*of_step) for of_step in zip(*columns, strict=True)]


class Room:
    """What a run needs beside weights and inputs; runs of one plan take it, one after the other.

    Parameters
    ----------
    device : Device
    kernels : Kernels
    plan : CudaPlan
    loaded : Loaded
        What it is for.

    Attributes
    ----------
    carried : Carried
    equal : EqualFeatures or None
        In mode ``merge``.
    segments : list of Segment
    launches : list of Launches
        What is launched for each step.

    Raises
    ------
    DeviceError
        If not even a few features fit.
    """

    def __init__(self, device: Device, kernels: Kernels, plan: CudaPlan, loaded: Loaded) -> None:
        self._is_for = loaded.weights, loaded.features.n_features
        n_features = loaded.features.n_features
        self.carried = Carried(device, kernels, plan, n_features)
        self.equal = None
        if plan.mode == "merge":
            capacity = self.carried.capacity
            self.equal = EqualFeatures(device, kernels, n_features, plan.n_layers, capacity)
        self.segments = cut_segments(plan, loaded.weights.windows)
        self.launches = launches_of(plan.arrays.steps)

    def suits(self, loaded: Loaded) -> bool:
        """Whether it is for these weights, and for as many features.

        Parameters
        ----------
        loaded : Loaded
        """
        weights, n_features = self._is_for
        return weights is loaded.weights and n_features == loaded.features.n_features


class Run:
    """Runs features through a plan, once.

    Parameters
    ----------
    device : Device
    kernels : Kernels
    plan : CudaPlan
    loaded : Loaded
        The features, and the plan's weights on the device.
    room : Room
        Room for such a run; what an earlier one has left in it is forgotten.
    keeps_activations : bool
        Whether the activations after the last layer are wanted.
    progress : callable or None
        Called with the fraction that is done.
    """

    def __init__(
        self,
        device: Device,
        kernels: Kernels,
        plan: CudaPlan,
        loaded: Loaded,
        room: Room,
        keeps_activations: bool,
        progress: Progress | None,
    ) -> None:
        self.device, self.kernels, self.plan = device, kernels, plan
        self.features, self.inputs, self.weights = loaded.features, loaded.inputs, loaded.weights
        self.carried, self.equal = room.carried, room.equal
        self.segments, self.launches = room.segments, room.launches
        self.keeps_activations, self.progress = keeps_activations, progress
        self.results: list[Survivors] = []
        self._spans: list[tuple[Any, Any]] = []
        self._copy_spans: list[tuple[Any, Any]] = []
        self._window_at: int | None = None
        self._n_quiet = 0
        self._kept: dict[tuple[int, int, int, int], Launch] = {}
        self._feature_steps_done = 0

    def output(self) -> Output:
        """Run everything."""
        carried, n_features = self.carried, self.features.n_features
        carried.begin()
        if self.equal is not None:
            self.equal.begin(carried)
        starts = range(0, n_features, carried.capacity)
        ends_head = [segment.end_layer >= HEAD_END for segment in self.segments]
        n_head = ends_head.index(True) + 1 if len(starts) > 1 and any(ends_head) else None
        waiting: list[Survivors] = []
        for start in starts:
            self._load(start, min(start + carried.capacity, n_features))
            self._run_segments(self.segments[:n_head])
            if n_head is not None:
                waiting.append(carried.download(whole=True))
            else:
                self._keep_result()
        waiting = [survivors for survivors in waiting if survivors.ids.size]
        for survivors in joined(waiting, carried.capacity):
            carried.upload(survivors, self.segments[n_head or 0].first)
            self._run_segments(self.segments[n_head:])
            self._keep_result()
        return self._gathered()

    def _gathered(self) -> Output:
        device, plan = self.device, self.plan
        ids = np.concatenate([part.ids for part in self.results] or [np.empty(0, np.int64)])
        order = np.argsort(ids, kind="stable")
        live, of_live = ids[order], order
        n_live, n_distinct, n_entered = device.read(self.carried.counts)
        if self.equal is not None:
            live, place = self.equal.expand(ids[order])
            of_live = order[place]
            n_distinct = n_distinct - self.equal.merged
        activations = None
        if self.keeps_activations:
            activations = np.empty((0, plan.output_position.size), dtype=np.float32)
            if self.results:
                by_position = np.concatenate([part.activations for part in self.results])
                activations = by_position[of_live][:, plan.output_position]
        edges = n_entered * np.array(plan.layer_edges, dtype=np.int64)
        seconds = DeviceSeconds(
            sum(device.seconds_between(*span) for span in self._spans),
            sum(device.seconds_between(*span) for span in self._copy_spans),
        )
        return Output(live, n_live, n_distinct, edges, activations, device_seconds=seconds)

    def _load(self, start: int, stop: int) -> None:
        """Take features up from their inputs, which are copied now if they did not fit before."""
        inputs = self.inputs
        if inputs is None:
            began = self.device.record()
            inputs = place_inputs(self.device, self.features, start, stop)
            self._copy_spans.append((began, self.device.record()))
        began = self.device.record()
        self.carried.load(inputs, start, stop)
        self._spans.append((began, self.device.record()))

    def _keep_result(self) -> None:
        if self.carried.n:
            self.results.append(self.carried.download(whole=self.keeps_activations))

    def _run_segments(self, segments: list[Segment]) -> None:
        """Run the features on the device through segments, until none is left.

        A segment is launched before it is known how many features the one before it has left, so
        that the device need not wait for the host. Until then the number before that stands for
        it: kernels find the true one on the device.
        """
        carried, device = self.carried, self.device
        self._window_at, self._n_quiet = None, 0
        began = device.record()
        ended: Ended | None = None
        while segments and carried.n:
            segment, segments = self._next(segments)
            slot = self._window(segment.window)
            if self.plan.is_resident:
                self._run_resident(segment, slot)
            else:
                self._run_steps(segment, slot)
            carried.after_step(segment.end - 1)
            if ended is not None:
                self._learn(ended)
            ended = Ended(segment, self._look(segment), device.read_later(carried.features.n_live))
        overflowing = None
        if carried.n and ended is not None and self._is_last(ended.segment):
            overflowing = carried.look_for_overflow()
        self._spans.append((began, device.record()))
        if carried.n and ended is not None:
            self._learn(ended)
        if overflowing is not None:
            carried.require_finite(overflowing)

    def _next(self, segments: list[Segment]) -> tuple[Segment, list[Segment]]:
        """What is to be run next, and what is left then: several in one where features stay.

        After one segment in which few features have gone there are two in one, then four, ...
        """
        first = segments[0]
        most = segments[: 2**self._n_quiet]
        joined = [segment for segment in most if segment.window == first.window]
        last = joined[-1]
        return Segment(first.window, first.first, last.end, last.end_layer), segments[len(joined) :]

    def _is_last(self, segment: Segment) -> bool:
        return segment.end == self.plan.n_steps

    def _look(self, segment: Segment) -> Look | None:
        """Look for equal features behind a segment, where that may be worth it."""
        is_wanted = segment.end_layer and not self._is_last(segment) and self.carried.n > 1
        if self.equal is None or not is_wanted:
            return None
        return self.equal.look(self.carried, segment.end_layer)

    def _learn(self, ended: Ended) -> None:
        """Wait for the end of a segment, and note how many features it has left."""
        carried, segment = self.carried, ended.segment
        entered, carried.n = carried.n, int(ended.n_live.value()[0])
        is_quiet = entered - carried.n <= QUIET * entered
        self._n_quiet = self._n_quiet + 1 if is_quiet else 0
        if self.equal is not None and ended.look is not None:
            self.equal.note(ended.look, carried.n)
        self._report(segment, entered)

    def _report(self, segment: Segment, entered: int) -> None:
        """Count a segment as done; features that are no longer carried are done with all steps."""
        if self.progress is None:
            return
        n_steps = self.plan.n_steps
        gone = entered - self.carried.n
        self._feature_steps_done += entered * (segment.end - segment.first)
        self._feature_steps_done += gone * (n_steps - segment.end)
        self.progress(self._feature_steps_done / (self.features.n_features * n_steps))

    def _window(self, number: int) -> int:
        """The slot of a window, for which the stream waits; has the next one copied meanwhile."""
        weights, device = self.weights, self.device
        if not weights.is_streamed:
            return 0
        slot, following = number % 2, number + 1
        if number != self._window_at:
            self._window_at = number
            # When the windows before this one are done, the slot of the next one is free.
            before = device.record()
            if weights.held[slot] != number:
                self._copy_window(number, before)
            device.await_event(weights.copied[slot])
            if following < len(weights.windows) and weights.held[1 - slot] != following:
                self._copy_window(following, before)
        return slot

    def _copy_window(self, number: int, free: Any) -> None:
        """Copy a window to its slot as soon as an event says that the slot is free."""
        weights, device = self.weights, self.device
        assert weights.pinned is not None
        slot, window = number % 2, weights.windows[number]
        device.await_event(free, ahead=True)
        began = device.record(ahead=True)
        for column, name in enumerate(WINDOWED):
            first, end = (int(self.plan.extents[step, column]) for step in window)
            device.write(weights.slots[slot][name], weights.pinned[name][first:end], ahead=True)
        origins = weights.pinned[ORIGINS][window.first]
        device.write(weights.slots[slot][ORIGINS], origins, ahead=True)
        weights.held[slot], weights.copied[slot] = number, device.record(ahead=True)
        self._copy_spans.append((began, weights.copied[slot]))

    def _run_resident(self, segment: Segment, slot: int) -> None:
        """Launch one kernel for all steps of a segment."""
        carried, plan, sizes = self.carried, self.plan, self.kernels.sizes
        on_device = self.weights.on_device[slot]
        has_groups = plan.arrays.bundles.shape[0] > 0
        features = self._resident_features()
        n_first = int(plan.arrays.steps[segment.first, N_INPUTS])
        self.device.launch(
            self.kernels.resident(features, has_groups),
            (-(-carried.n // features),),
            sizes.resident_threads[0 if has_groups else 1],
            (
                carried.tiles(),
                Span(segment.first, segment.end, n_first, resident_rows(plan.max_width)),
                on_device.tables,
                on_device.groups,
                on_device.ell,
                carried.features.stands_for,
                carried.counts,
            ),
            resident_bytes(plan.max_width, features),
        )
        carried.at = 1 - carried.at
        carried.shorten(in_place=True)

    def _resident_features(self) -> int:
        """Features of a thread block: the most that leave no more than half of the GPU idle."""
        choices = resident_choices(self.plan.max_width, self.plan.sizes.shared_bytes)
        n_wanted = self.device.n_multiprocessors / 2
        return next((c for c in choices if self.carried.n >= c * n_wanted), choices[-1])

    def _run_steps(self, segment: Segment, slot: int) -> None:
        """Launch one or two kernels for each step of a segment, and one that lists."""
        for of_step in self.launches[segment.first : segment.end]:
            self._launch_step(slot, of_step)

    def _launch_step(self, slot: int, of_step: Launches) -> None:
        """Launch the step that the cursor names, and list what is live."""
        carried, sizes = self.carried, self.kernels.sizes
        n = carried.n
        if of_step.n_bundles:
            grouped = self._prepared(GROUPED, slot)
            grouped((of_step.n_bundles, -(-n // (WARP * sizes.thread_features))))
        if of_step.n_blocks:
            staged = self._prepared(IN_CHUNKS if of_step.has_chunks else STAGED, slot)
            staged((of_step.n_blocks, -(-n // sizes.minibatch)))
        carried.at = 1 - carried.at
        carried.shorten(after_step=True)

    def _prepared(self, kind: int, slot: int) -> Launch:
        """A launch for the buffers and lists that are to be read now, kept for further steps."""
        carried = self.carried
        key = kind, slot, carried.at, carried.of
        if key not in self._kept:
            self._kept[key] = self._prepared_step(kind, slot)
        return self._kept[key]

    def _prepared_step(self, kind: int, slot: int) -> Launch:
        carried, kernels, on_device = self.carried, self.kernels, self.weights.on_device[slot]
        plan = kernels.sizes.plan
        common = (carried.tiles(), carried.cursor, on_device.tables)
        if kind == GROUPED:
            arguments = (*common, on_device.groups)
            return self.device.prepared(kernels.grouped, plan.bundle * WARP, arguments)
        sums = ChunkSums(on_device.chunks, carried.partial, carried.arrived)
        staged = kernels.staged(kind == IN_CHUNKS)
        return self.device.prepared(staged, plan.warps * WARP, (*common, on_device.ell, sums))
