"""The features that a run carries: their activations, and lists of who they are."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spdnn.engines.base import OverflowingError
from spdnn.engines.cuda.device import HINT, Device, Launch, Pending
from spdnn.engines.cuda.kernels.carried import window_of
from spdnn.engines.cuda.kernels.gpu import WARP
from spdnn.engines.cuda.kernels.records import FeatureList, Rows, Tiles
from spdnn.engines.cuda.placing import Inputs, copied
from spdnn.engines.cuda.sizes import Kernels
from spdnn.errors import DeviceError
from spdnn.plan.cuda.plan import CudaPlan
from spdnn.plan.steps import N_OUTPUTS

MOST_FEATURES = 65535 * 16
"""Features on the device at most: the grid's second axis ends there."""

MEMORY_SHARE = 0.9
"""Share of the memory left beside the weights that activations may take."""

CHUNK_BYTES = 5
"""Bytes of a feature for each chunk of a step: a partial sum, and its share of a counter."""

BLOCKS_A_MULTIPROCESSOR = 4
"""Thread blocks wanted where there are few features: their neurons are cut into parts."""

LEAST_NEURONS = 32
"""Neurons of a thread, below which another part costs more than it gives."""

NOBODY = 0x7F
"""What all bytes of a feature's number are set to, so that it is larger than any."""

COUNT_BITS = (1, 8, 32)
"""Bits in which inputs of one place may be counted."""

LIST_BYTES = 2 * (4 + 8 + 8) + 4 * 8
"""Bytes of a feature beside its activations."""


@dataclass(eq=False)
class Survivors:
    """Features on the host that wait to be taken on.

    Attributes
    ----------
    ids : ndarray, shape (n_features,), int64
        Their numbers in the run.
    stands_for : ndarray, shape (n_features,), int64
        How many features each stands for.
    activations : ndarray, shape (n_features, n_neurons), float32
        Without neurons where nobody wants them.
    """

    ids: npt.NDArray[np.int64]
    stands_for: npt.NDArray[np.int64]
    activations: npt.NDArray[np.float32]


def joined(waiting: list[Survivors], capacity: int) -> list[Survivors]:
    """Put the survivors of several batches into as few groups as hold them.

    Parameters
    ----------
    waiting : list of Survivors
    capacity : int
        Features of a group, at most.
    """
    if not waiting:
        return []
    columns = zip(*((s.ids, s.stands_for, s.activations) for s in waiting), strict=True)
    ids, stands_for, activations = map(np.concatenate, columns)
    groups = [slice(first, first + capacity) for first in range(0, ids.size, capacity)]
    return [Survivors(ids[group], stands_for[group], activations[group]) for group in groups]


def capacity_of(device: Device, plan: CudaPlan, n_features: int) -> int:
    """Features that the device is to hold at a time: all of them, or what fits, in whole tiles.

    Parameters
    ----------
    device : Device
    plan : CudaPlan
    n_features : int
        Features of the run.

    Raises
    ------
    DeviceError
        If not even one tile fits.
    """
    free = int(MEMORY_SHARE * device.free_bytes())
    per_tile = WARP * (2 * 4 * plan.max_width + CHUNK_BYTES * plan.max_chunks + LIST_BYTES)
    n_tiles = min(free // per_tile, MOST_FEATURES // WARP)
    if n_tiles < 1:
        raise DeviceError(
            f"{WARP} features of {plan.max_width} neurons need {per_tile / 2**20:.1f} MiB, "
            f"{device.name} has {free / 2**20:.1f} MiB left beside the weights: {HINT}"
        )
    return max(1, min(n_tiles, -(-n_features // WARP))) * WARP


class Carried:
    """Two buffers of activations and two of lists: a step reads one and writes the other.

    Attributes
    ----------
    capacity : int
        Features that there is room for.
    n_features : int
        Features of the run.
    n : int
        Features carried, as far as the host knows: an upper bound.
    y : list of DeviceArray
        Two buffers of activations, in tiles.
    lists : list of FeatureList
        Two lists of features.
    at, of : int
        The buffer, and the list, that is to be read: 0 or 1.
    flags : DeviceArray
        Set by kernels for features to go on with, all zero between steps.
    kept : DeviceArray
        Features that each thread block of the kernels that list keeps, where there are several.
    cursor : DeviceArray
        The step to be run.
    not_finite : DeviceArray
        A feature with an activation that is not finite, where one was looked for.
    counts : DeviceArray, shape (3, n_layers), int64
        Live features after each layer, distinct ones of them, features that entered.
    partial, arrived : DeviceArray
        Partial sums and counters for the chunks of long outputs; see
        `spdnn.engines.cuda.kernels.records.ChunkSums`.
    places, numbers : DeviceArray
        The numbers from 0 to the capacity, and to the number of features of the run (excluded).
    ones : DeviceArray
        Ones for as many features as there is room for.
    most_added : int
        Inputs that are added in one place as they are loaded, at most.
    n_neurons : int
        Neurons of the activations to be read.
    """

    def __init__(self, device: Device, kernels: Kernels, plan: CudaPlan, n_features: int) -> None:
        self.device, self.kernels, self.plan = device, kernels, plan
        self.n_features = n_features
        self.capacity = capacity_of(device, plan, n_features)
        size = self.capacity * plan.max_width
        self.y = [device.empty(size, np.float32) for _ in range(2)]
        self.lists = [
            FeatureList(
                live=device.empty(self.capacity, np.int32),
                n_live=device.empty(1, np.int32),
                ids=device.empty(self.capacity, np.int64),
                stands_for=device.empty(self.capacity, np.int64),
            )
            for _ in range(2)
        ]
        self.flags = device.empty(self.capacity, np.int32)
        self.kept = device.empty(-(-self.capacity // kernels.sizes.listed), np.int32)
        self.cursor = device.empty(1, np.int64)
        self.not_finite = device.empty(1, np.int64)
        self.counts = device.empty((3, plan.n_layers), np.int64)
        minibatch = kernels.sizes.minibatch
        meetings = (self.capacity // minibatch, plan.max_chunks)
        self.partial = device.empty((*meetings, minibatch), np.float32)
        self.arrived = device.empty(meetings, np.int32)
        self.steps = copied(device, plan.arrays.steps)
        self.places = copied(device, np.arange(self.capacity + 1, dtype=np.int32))
        self.numbers = copied(device, np.arange(n_features, dtype=np.int64))
        self.ones = copied(device, np.ones(self.capacity, dtype=np.int64))
        self.position = copied(device, plan.load_position)
        self.most_added = int(np.bincount(plan.load_position)[: plan.n_loaded].max(initial=0))
        self.at = self.of = self.n = 0
        self.n_neurons = plan.n_loaded
        self._listing: dict[tuple[int, bool, bool, bool], list[Launch]] = {}

    def begin(self) -> None:
        """Forget what an earlier run has left, also where that has failed."""
        for array in (self.flags, self.counts, self.arrived):
            self.device.fill_bytes(array, 0)

    @property
    def features(self) -> FeatureList:
        """The list that is to be read."""
        return self.lists[self.of]

    def tiles(self) -> Tiles:
        """The activations that a step reads, and where it writes."""
        features = self.features
        y, out = self.y[self.at], self.y[1 - self.at]
        return Tiles(y, out, features.live, features.n_live, self.flags)

    def load(self, inputs: Inputs, start: int, stop: int) -> None:
        """Take features `start` to `stop` up from their inputs."""
        n, device = stop - start, self.device
        self.at = self.of = 0
        self.n = n
        features = self.features
        # All of it is on the device: nothing is copied from the host.
        device.copy(features.live, self.places, 0, n)
        device.copy(features.n_live, self.places, n, 1)
        device.copy(features.ids, self.numbers, start, n)
        device.copy(features.stands_for, self.ones, 0, n)
        device.fill_bytes(self.cursor, 0)
        if inputs.has_values:
            kernel, n_windows = self.kernels.load_values(self.most_added > 1), 1
        else:
            bits = next(bits for bits in COUNT_BITS if self.most_added < 1 << bits)
            kernel = self.kernels.load_ones(bits)
            n_windows = max(1, -(-self.plan.n_loaded // window_of(bits)))
        device.launch(
            kernel,
            (-(-n // WARP), n_windows),
            self.kernels.sizes.threads,
            (
                Rows(inputs.indptr, inputs.indices, inputs.values, self.position),
                self.plan.n_loaded,
                start - inputs.first,
                n,
                inputs.origin,
                self.y[0],
            ),
        )

    def upload(self, survivors: Survivors, first_step: int) -> None:
        """Take survivors on, before step `first_step`."""
        n, n_neurons = survivors.activations.shape
        padded = np.zeros((-(-n // WARP) * WARP, n_neurons), dtype=np.float32)
        padded[:n] = survivors.activations
        tiles = padded.reshape(-1, WARP, n_neurons).transpose(0, 2, 1)
        device = self.device
        self.at = self.of = 0
        self.n = n
        features = self.features
        device.write(features.live, np.arange(n, dtype=np.int32))
        device.write(features.ids, survivors.ids)
        device.write(features.stands_for, survivors.stands_for)
        device.write(features.n_live, np.array([n], dtype=np.int32))
        device.write(self.cursor, np.array([first_step], dtype=np.int64))
        device.write(self.y[0], np.ascontiguousarray(tiles).reshape(-1))

    def download(self, *, whole: bool) -> Survivors:
        """Copy the features to the host, their activations only if the `whole` is wanted."""
        device, n_neurons, features = self.device, self.n_neurons, self.features
        ids = device.read(features.ids, self.n)
        stands_for = device.read(features.stands_for, self.n)
        rows = np.empty((self.n, 0), dtype=np.float32)
        if whole:
            live = device.read(features.live, self.n)
            n_tiles = int(live.max(initial=-1)) // WARP + 1
            n_numbers = n_tiles * WARP * n_neurons
            tiles = device.read(self.y[self.at], n_numbers)[:n_numbers]
            tiles = tiles.reshape(n_tiles, n_neurons, WARP)
            rows = tiles[live // WARP, :, live % WARP]
        return Survivors(ids, stands_for, rows)

    def tiles_and_parts(self) -> tuple[int, int]:
        """The grid of kernels that look at all activations: tiles, and parts of the neurons."""
        n_tiles = -(-self.n // WARP)
        n_parts = min(
            BLOCKS_A_MULTIPROCESSOR * self.device.n_multiprocessors // n_tiles,
            self.n_neurons // (LEAST_NEURONS * (self.kernels.sizes.threads // WARP)),
        )
        return n_tiles, max(1, n_parts)

    def look_for_overflow(self) -> Pending:
        """Look for a feature that is carried and has an activation that is not finite.

        The number to come is that of the first one, or larger than any.
        """
        device, kernels = self.device, self.kernels
        device.fill_bytes(self.not_finite, NOBODY)
        device.launch(
            kernels.look_for_overflow,
            self.tiles_and_parts(),
            kernels.sizes.threads,
            (self.y[self.at], self.n_neurons, self.features, self.not_finite),
        )
        return device.read_later(self.not_finite)

    def require_finite(self, found: Pending) -> None:
        """Raise (DataError) if `look_for_overflow` has found a feature."""
        feature = int(found.value()[0])
        if feature < self.n_features:
            raise OverflowingError(feature)

    def shorten(self, *, after_step: bool = False, in_place: bool = False) -> None:
        """Keep the features whose flags are set; the lists change places.

        Parameters
        ----------
        after_step : bool
            Whether the step that the cursor names has just been run.
        in_place : bool
            Whether the activations of the features are in the order of the list.
        """
        n_blocks = max(1, -(-self.n // self.kernels.sizes.listed))
        key = self.of, after_step, in_place, n_blocks > 1
        if key not in self._listing:
            self._listing[key] = self._prepared_listing(after_step, in_place, n_blocks > 1)
        for launch in self._listing[key]:
            launch((n_blocks,))
        self.of = 1 - self.of

    def _prepared_listing(self, after_step: bool, in_place: bool, is_long: bool) -> list[Launch]:
        """Launches that list features: one, or two where several thread blocks do."""
        kernels, features = self.kernels, self.features
        if in_place:
            features = features._replace(live=self.places)
        lists = self.flags, features, self.lists[1 - self.of]
        step, results = (int(after_step), self.cursor), (self.steps, self.counts)
        threads = kernels.sizes.list_threads
        if not is_long:
            arguments = *lists, *step, *results
            return [self.device.prepared(kernels.list_carried, threads, arguments)]
        counting = self.flags, features, *step, *results, self.kept
        listing = *lists, *step, self.kept
        return [
            self.device.prepared(kernels.count_carried, threads, counting),
            self.device.prepared(kernels.list_counted, threads, listing),
        ]

    def after_step(self, step: int) -> None:
        """Note that the activations are those after a step."""
        self.n_neurons = int(self.plan.arrays.steps[step, N_OUTPUTS])
