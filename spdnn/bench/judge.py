"""Judge the categories of a benchmark's runs, always by something that proves them."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spdnn import challenge
from spdnn.bench.reference import live_after
from spdnn.checks.truth import Check, check_list, check_official
from spdnn.run.result import Result
from spdnn.sources.features import SourcedFeatures
from spdnn.sources.folder import find_truth
from spdnn.sources.networks import SourcedNetwork
from spdnn.sources.truth import read_truth


class Judge:
    """Judges runs of one network on the first features of its inputs.

    It takes the list in the data folder if network and inputs are the official ones, else the
    known sha256 of the whole list, else the float64 reference. The reference is run when it is
    first needed.

    Parameters
    ----------
    network : SourcedNetwork
        The network to run.
    features : SourcedFeatures
        All of its inputs.
    counts : collection of int
        Numbers of features that the runs take.
    folder : Path or None
        The data folder, as `spdnn.sources.folder.data_folder` takes it.
    """

    def __init__(
        self,
        network: SourcedNetwork,
        features: SourcedFeatures,
        counts: Collection[int],
        folder: Path | None,
    ) -> None:
        self._network, self._features = network.network, features.features
        self._neurons, self._layers = network.network.n_inputs, network.network.n_layers
        is_official = network.is_official and features.is_official
        self._list = find_truth(folder, self._neurons, self._layers) if is_official else None
        is_known = (self._neurons, self._layers) in challenge.CATEGORIES_SHA256
        self._known = challenge.FEATURES if is_official and is_known else None
        self._n_reference = max((count for count in counts if count != self._known), default=0)
        self._reference: npt.NDArray[np.int64] | None = None

    def check(self, result: Result) -> Check:
        """Judge a run.

        Parameters
        ----------
        result : Result
            What the run has found.

        Returns
        -------
        Check
            Its outcome is "passed" or "failed".

        Raises
        ------
        DataError
            If the list in the data folder is damaged.
        """
        n = result.n_features
        part = n if n < len(self._features) else None
        if self._list is not None:
            return check_list(result, read_truth(self._list, n), self._list, part)
        if n == self._known:
            return check_official(result, self._neurons, self._layers)
        if self._reference is None:
            features = self._features.part(0, self._n_reference)
            live = live_after(self._network, features, [self._layers])[self._layers]
            self._reference = live + 1
        truth = self._reference[self._reference <= n]
        check = check_list(result, truth, "the float64 reference", part)
        return replace(check, kind="reference", source=None)
