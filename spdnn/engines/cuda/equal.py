"""Features that have become equal, found and merged on the device."""

import numpy as np
import numpy.typing as npt

from spdnn.engines.cuda.carried import NOBODY, Carried
from spdnn.engines.cuda.device import Device
from spdnn.engines.cuda.kernels.carried import EMPTY
from spdnn.engines.cuda.kernels.records import HashTable
from spdnn.engines.cuda.placing import copied
from spdnn.engines.cuda.sizes import Kernels
from spdnn.engines.looks import Looks, expand_stand_ins


class EqualFeatures:
    """Who stands for whom among the features of a run.

    Parameters
    ----------
    device : Device
    kernels : Kernels
    n_features : int
        Features of the run.
    n_layers : int
        Layers of the plan.
    capacity : int
        Features that are carried at a time, at most.

    Attributes
    ----------
    merged : ndarray, shape (n_layers,), int64
        Features that were merged into others after each layer.
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
        self._hashes = HashTable(
            codes=device.empty(capacity, np.uint64),
            table=device.empty(n_slots, np.uint64),
            first=device.empty(n_slots, np.int32),
            slot_of=device.empty(capacity, np.uint64),
            differs=device.empty(capacity, np.int32),
        )

    def merge(self, carried: Carried, layer: int) -> None:
        """Let one of equal features stand for the others.

        Hashes propose, values decide. After looks that found nothing some are left out.

        Parameters
        ----------
        carried : Carried
        layer : int
            The layer that was run last, counted from 1.
        """
        if not self._looks.wants_look():
            return
        device, kernels = self.device, self.kernels
        threads, hashes = kernels.sizes.threads, self._hashes
        n, n_neurons = carried.n, carried.n_neurons
        for array, byte in (
            (hashes.codes, 0),
            (hashes.table, EMPTY),
            (hashes.first, NOBODY),
            (hashes.differs, 0),
        ):
            device.fill_bytes(array, byte)
        tiles = carried.tiles_and_parts()
        rows = (-(-n // threads),)
        features = carried.features
        y = carried.y[carried.at]
        bits = device.view(y, np.int32)
        device.launch(kernels.hash_features, tiles, threads, (bits, n_neurons, features, hashes))
        device.launch(kernels.propose, rows, threads, (features, hashes))
        device.launch(kernels.confirm, tiles, threads, (y, n_neurons, features, hashes))
        stand_in, flags = self._stand_in, carried.flags
        device.launch(kernels.unite, rows, threads, (features, hashes, stand_in, flags))
        carried.shorten()
        carried.read_n()
        self._looks.note(n - carried.n, n)
        # These were counted as distinct after the layer, and are no longer carried.
        self.merged[layer - 1] += n - carried.n

    def expand(
        self, carried: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """All features that the carried ones stand for; see `spdnn.engines.looks`.

        Parameters
        ----------
        carried : ndarray, int64
            Features of the run, ascending.

        Returns
        -------
        ndarray, int64
            The features, ascending.
        ndarray, int64
            Where in `carried` the feature that stands for each is.
        """
        stand_in = self.device.read(self._stand_in, self._n_features)
        return expand_stand_ins(stand_in, carried)
