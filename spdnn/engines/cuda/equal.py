"""Features that have become equal, found and merged on the device."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.engines.cuda.carried import NOBODY, Carried
from spdnn.engines.cuda.device import Device, Pending
from spdnn.engines.cuda.kernels.carried import EMPTY
from spdnn.engines.cuda.kernels.records import HashTable
from spdnn.engines.cuda.sizes import Kernels
from spdnn.engines.looks import Looks, expand_stand_ins


class Look(NamedTuple):
    """A look for equal features that was launched.

    Attributes
    ----------
    layer : int
        The layer that was run last, counted from 1.
    n_before : Pending
        Features that are looked at.
    """

    layer: int
    n_before: Pending


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
        self._stand_in = device.empty(n_features, np.int64)
        n_slots = 2 << capacity.bit_length()
        self._hashes = HashTable(
            codes=device.empty(capacity, np.uint64),
            table=device.empty(n_slots, np.uint64),
            first=device.empty(n_slots, np.int32),
            slot_of=device.empty(capacity, np.uint64),
            differs=device.empty(capacity, np.int32),
        )

    def begin(self, carried: Carried) -> None:
        """Let every feature stand for itself.

        Parameters
        ----------
        carried : Carried
        """
        self.merged.fill(0)
        self._looks = Looks()
        self.device.copy(self._stand_in, carried.numbers, 0, self._n_features)

    def look(self, carried: Carried, layer: int) -> Look | None:
        """Let one of equal features stand for the others, unless there is a pause.

        Hashes propose, values decide. The host does not wait: what was found is told to `note`.

        Parameters
        ----------
        carried : Carried
        layer : int
            The layer that was run last, counted from 1.
        """
        if not self._looks.wants_look():
            return None
        device, kernels = self.device, self.kernels
        threads, hashes = kernels.sizes.threads, self._hashes
        n_neurons, features = carried.n_neurons, carried.features
        look = Look(layer, device.read_later(features.n_live))
        for array, byte in (
            (hashes.codes, 0),
            (hashes.table, EMPTY),
            (hashes.first, NOBODY),
            (hashes.differs, 0),
        ):
            device.fill_bytes(array, byte)
        tiles = carried.tiles_and_parts()
        rows = (-(-carried.n // threads),)
        y = carried.y[carried.at]
        bits = device.view(y, np.int32)
        device.launch(kernels.hash_features, tiles, threads, (bits, n_neurons, features, hashes))
        device.launch(kernels.propose, rows, threads, (features, hashes))
        device.launch(kernels.confirm, tiles, threads, (y, n_neurons, features, hashes))
        stand_in, flags = self._stand_in, carried.flags
        device.launch(kernels.unite, rows, threads, (features, hashes, stand_in, flags))
        carried.shorten()
        return look

    def note(self, look: Look, n_after: int) -> None:
        """Remember what a look has found, before the next one. After failures some are left out.

        Parameters
        ----------
        look : Look
        n_after : int
            Features that it has left.
        """
        n_before = int(look.n_before.value()[0])
        self._looks.note(n_before - n_after, n_before)
        # These were counted as distinct after the layer, and are no longer carried.
        self.merged[look.layer - 1] += n_before - n_after

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
