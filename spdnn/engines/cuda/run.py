"""One run of features through a plan, segment by segment."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.base import DeviceSeconds, Output, Progress
from spdnn.engines.cuda.carried import Carried, Survivors, joined
from spdnn.engines.cuda.device import Device
from spdnn.engines.cuda.equal import EqualFeatures
from spdnn.engines.cuda.kernels.gpu import WARP
from spdnn.engines.cuda.kernels.records import ChunkSums, Span
from spdnn.engines.cuda.placing import ORIGINS, Loaded, OnDevice, Window, place_inputs
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
from spdnn.plan.cuda.sizes import resident_bytes, resident_choices

SEGMENT_ENDS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512, 1024)
"""Layers after which the host learns how many features are live, or equal."""

HEAD_END = 16
"""Layers after which the survivors of several batches are taken on together."""

CAPTURED_STEPS = 8
"""Steps of a CUDA graph, an even number: they end in the buffers in which they began."""

LEAST_CAPTURED = 4
"""How often a graph must be launched to be worth its making."""


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


class Run:
    """Runs features through a plan, once.

    Parameters
    ----------
    device : Device
    kernels : Kernels
    plan : CudaPlan
    loaded : Loaded
        The features, and the plan's weights on the device.
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
        keeps_activations: bool,
        progress: Progress | None,
    ) -> None:
        self.device, self.kernels, self.plan = device, kernels, plan
        self.features, self.inputs, self.weights = loaded.features, loaded.inputs, loaded.weights
        self.keeps_activations, self.progress = keeps_activations, progress
        n_features = self.features.n_features
        self.carried = Carried(device, kernels, plan, n_features)
        self.equal = None
        if plan.mode == "merge":
            capacity = self.carried.capacity
            self.equal = EqualFeatures(device, kernels, n_features, plan.n_layers, capacity)
        self.segments = cut_segments(plan, self.weights.windows)
        self.results: list[Survivors] = []
        self._kernel_spans: list[tuple[Any, Any]] = []
        self._copy_spans: list[tuple[Any, Any]] = []
        self._graphs: dict[tuple[int, int, int], Callable[[], None]] = {}
        self._feature_steps_done = 0

    def output(self) -> Output:
        """Run everything."""
        carried, n_features = self.carried, self.features.n_features
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
            sum(device.seconds_between(*span) for span in self._kernel_spans),
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
        self._kernel_spans.append((began, self.device.record()))

    def _keep_result(self) -> None:
        if self.carried.n:
            self.carried.require_finite()
            self.results.append(self.carried.download(whole=self.keeps_activations))

    def _run_segments(self, segments: list[Segment]) -> None:
        """Run the features on the device through segments, until none is left."""
        carried, device = self.carried, self.device
        if self.weights.is_streamed:
            device.release()
        for number, segment in enumerate(segments):
            if not carried.n:
                return
            on_device = self._window(segment.window)
            entered, began = carried.n, device.record()
            if self.plan.is_resident:
                self._run_resident(segment, on_device)
            else:
                self._run_steps(segment, on_device)
            carried.after_step(segment.end - 1)
            carried.read_n()
            is_last = segment.end == self.plan.n_steps
            if self.equal is not None and segment.end_layer and not is_last and carried.n > 1:
                self.equal.merge(carried, segment.end_layer)
            self._kernel_spans.append((began, device.record()))
            if number + 1 < len(segments) and segments[number + 1].window != segment.window:
                device.release()
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

    def _window(self, number: int) -> OnDevice:
        """What kernels take of a window; has the next one copied meanwhile."""
        weights = self.weights
        if not weights.is_streamed:
            return weights.on_device[0]
        if weights.held[number % 2] != number:
            self._copy_window(number)
        self.device.await_ahead()
        following = number + 1
        if following < len(weights.windows) and weights.held[following % 2] != following:
            # Its slot has been free since the window before this one ended.
            self._copy_window(following)
        return weights.on_device[number % 2]

    def _copy_window(self, number: int) -> None:
        weights, device = self.weights, self.device
        assert weights.pinned is not None
        window, slot = weights.windows[number], weights.slots[number % 2]
        began = device.record(ahead=True)
        for column, name in enumerate(WINDOWED):
            first, end = (int(self.plan.extents[step, column]) for step in window)
            device.write(slot[name], weights.pinned[name][first:end], ahead=True)
        device.write(slot[ORIGINS], weights.pinned[ORIGINS][window.first], ahead=True)
        weights.held[number % 2] = number
        self._copy_spans.append((began, device.record(ahead=True)))

    def _run_resident(self, segment: Segment, on_device: OnDevice) -> None:
        """Launch one kernel for all steps of a segment."""
        carried, plan, sizes = self.carried, self.plan, self.kernels.sizes
        has_groups = plan.arrays.bundles.shape[0] > 0
        features = self._resident_features()
        n_first = int(plan.arrays.steps[segment.first, N_INPUTS])
        self.device.launch(
            self.kernels.resident(features, has_groups),
            (-(-carried.n // features),),
            sizes.resident_threads[0 if has_groups else 1],
            (
                carried.tiles(),
                Span(segment.first, segment.end, n_first, plan.max_width),
                on_device.tables,
                on_device.pairs,
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

    def _run_steps(self, segment: Segment, on_device: OnDevice) -> None:
        """Launch one or two kernels a step, and one that lists; as graphs where steps are many."""
        first = segment.first
        n_graphs = (segment.end - first) // CAPTURED_STEPS
        if n_graphs >= LEAST_CAPTURED and not self.weights.is_streamed:
            graph = self._graph(on_device)
            for _ in range(n_graphs):
                graph()
            first += n_graphs * CAPTURED_STEPS
        for of_step in launches_of(self.plan.arrays.steps[first : segment.end]):
            self._launch_step(on_device, of_step, self.carried.n)

    def _graph(self, on_device: OnDevice) -> Callable[[], None]:
        """A CUDA graph of some steps, with which any steps of the plan can be run.

        The cursor on the device says which steps they are. The graph's grid covers the largest
        step. It serves as many features as it was made for, down to half of them.
        """
        carried = self.carried
        for (at, of, n), graph in self._graphs.items():
            if (at, of) == (carried.at, carried.of) and n // 2 <= carried.n <= n:
                return graph
        # Each number is the most that any step needs.
        largest = Launches(*map(max, zip(*launches_of(self.plan.arrays.steps), strict=True)))
        key = (carried.at, carried.of, carried.n)

        def launches() -> None:
            for _ in range(CAPTURED_STEPS):
                self._launch_step(on_device, largest, key[2])

        self._graphs[key] = self.device.captured(launches)
        return self._graphs[key]

    def _launch_step(self, on_device: OnDevice, of_step: Launches, n: int) -> None:
        """Launch the step that the cursor names, for up to `n` features, and list what is live."""
        carried, device, sizes = self.carried, self.device, self.kernels.sizes
        tiles = carried.tiles()
        if of_step.n_bundles:
            device.launch(
                self.kernels.grouped,
                (of_step.n_bundles, -(-n // (WARP * sizes.thread_features))),
                sizes.plan.bundle * WARP,
                (tiles, carried.cursor, on_device.tables, on_device.groups),
            )
        if of_step.n_blocks:
            sums = ChunkSums(on_device.chunks, carried.partial, carried.arrived)
            device.launch(
                self.kernels.staged(of_step.has_chunks),
                (of_step.n_blocks, -(-n // sizes.minibatch)),
                sizes.plan.warps * WARP,
                (tiles, carried.cursor, on_device.tables, on_device.ell, sums),
            )
        carried.at = 1 - carried.at
        carried.shorten(after_step=True)
