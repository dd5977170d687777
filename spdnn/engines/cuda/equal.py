"""Features that have become equal, found and merged on the device."""

import numpy as np
import numpy.typing as npt

from spdnn.engines.cuda.carried import NOBODY, Carried, lists_of
from spdnn.engines.cuda.device import Device
from spdnn.engines.cuda.kernels.carried import EMPTY
from spdnn.engines.cuda.placing import copied
from spdnn.engines.cuda.sizes import Kernels
from spdnn.engines.looks import Looks, expand_stand_ins


class EqualFeatures:
    """Who stands for whom among the features of a run.

    Parameters
    ----------
    device, kernels
    n_features : int
        Of the run.
    n_layers : int
    capacity : int
        Features that are carried at a time, at most.

    Attributes
    ----------
    merged : ndarray, shape (n_layers,), int64
        Features that are no longer carried since each layer.
    """

    def __init__(
        self, device: Device, kernels: Kernels, n_features: int, n_layers: int, capacity: int
    ) -> None:
        self.device, self.kernels = device, kernels
        self.merged = np.zeros(n_layers, dtype=np.int64)
        self._n_features = n_features
        self._looks = Looks()
        self._stand_in = copied(device, np.arange(n_features, dtype=np.int64))
        n_slots = 2 << capacity.bit_length()
        self._codes = device.empty(capacity, np.uint64)
        self._table = device.empty(n_slots, np.uint64)
        self._first = device.empty(n_slots, np.int32)
        self._slot_of = device.empty(capacity, np.uint64)
        self._differs = device.empty(capacity, np.int32)

    def merge(self, carried: Carried, layer: int) -> None:
        """Let one of equal features stand for the others, behind `layer` (counted from 1).

        Hashes propose, values decide. Looking backs off where it finds nothing.
        """
        if not self._looks.wants_look():
            return
        device, kernels = self.device, self.kernels
        threads = kernels.sizes.threads
        n, n_neurons = carried.n, carried.n_neurons
        for array, byte in (
            (self._codes, 0),
            (self._table, EMPTY),
            (self._first, NOBODY),
            (self._differs, 0),
        ):
            device.fill_bytes(array, byte)
        tiles = carried.tiles_and_parts()
        rows = (-(-n // threads),)
        lists = lists_of(carried)
        slots = (self._first, self._slot_of)
        y = carried.y[carried.at]
        bits = device.view(y, np.int32)
        device.launch(kernels.hash_features, tiles, threads, (bits, n_neurons, *lists, self._codes))
        device.launch(kernels.propose, rows, threads, (self._codes, lists[1], self._table, *slots))
        device.launch(
            kernels.confirm, tiles, threads, (y, n_neurons, *lists, *slots, self._differs)
        )
        device.launch(
            kernels.unite,
            rows,
            threads,
            (
                lists[1],
                *slots,
                self._differs,
                carried.ids[carried.of],
                carried.stands_for[carried.of],
                self._stand_in,
                carried.flags,
            ),
        )
        carried.shorten()
        carried.read_n()
        self._looks.note(n - carried.n, n)
        # What was counted behind the layer is no longer carried.
        self.merged[layer - 1] += n - carried.n

    def expand(
        self, carried: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """All features that the carried ones stand for; see `expand_stand_ins`."""
        stand_in = self.device.read(self._stand_in, self._n_features)
        return expand_stand_ins(stand_in, carried)
