"""The float64 reference on all features of a network: which are live after several depths.

Features that have become equal in every bit of float64 stay equal, so one row is carried for all of
them. This brings 60000 features of the deepest network within reach.
"""

from collections.abc import Callable, Collection, Iterable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.engines.reference import next_features
from spdnn.features import Features
from spdnn.network import Layer, Network

Live = npt.NDArray[np.int64]

CHUNK_VALUES = 1 << 26
"""Most activations of the features that are taken through the first layers together."""

GATHERED = 32
"""Layers after which the parts are put together, because few distinct rows are left by then."""

FOLD_EVERY = 4
"""Layers after which equal rows are looked for again."""


def live_after(
    network: Network,
    features: Features,
    depths: Collection[int],
    progress: Callable[[float], None] | None = None,
) -> dict[int, Live]:
    """Find the live features after each of some depths.

    Parameters
    ----------
    network : Network
        The network to run.
    features : Features
        Its inputs.
    depths : collection of int
        Numbers of layers, up to that of the network.
    progress : callable, optional
        Called with the fraction of the features that are through the first layers.

    Returns
    -------
    dict of int to ndarray, int64
        By depth, the features (0-based, ascending) that are live after so many layers.
    """
    deepest = max(depths)
    size = max(1, CHUNK_VALUES // network.max_width)
    starts = range(0, features.n_features, size)
    early = [depth for depth in depths if depth <= GATHERED]
    found: dict[int, Live] = {depth: np.empty(0, dtype=np.int64) for depth in depths}
    rows, owners, n_rows = [], [], 0
    for start in starts:
        part = features.part(start, min(start + size, features.n_features))
        y, owner = part.to_csr(np.float64), np.arange(part.n_features)
        layers = network.layers[: min(deepest, GATHERED)]
        y, owner, live = _through(y, owner, layers, 0, early)
        for depth in early:
            found[depth] = np.concatenate([found[depth], start + live[depth]])
        rows.append(y)
        owners.append(n_rows + owner)
        n_rows += y.shape[0]
        if progress is not None:
            progress(min(1.0, (start + size) / features.n_features))
    if deepest > GATHERED and rows:
        y, owner = _folded(sp.vstack(rows, format="csr"), np.concatenate(owners))
        late = [depth for depth in depths if depth > GATHERED]
        _, _, live = _through(y, owner, network.layers[GATHERED:deepest], GATHERED, late)
        found |= live
    return found


def _through(
    y: sp.csr_array,
    owner: npt.NDArray[np.int64],
    layers: Iterable[Layer],
    first: int,
    depths: Collection[int],
) -> tuple[sp.csr_array, npt.NDArray[np.int64], dict[int, Live]]:
    """Take rows through layers.

    `owner` has the row that carries each feature. The last result has the live features at the
    depths that were asked for; `first` is the number of layers before these.
    """
    live = {}
    for number, layer in enumerate(layers, start=first + 1):
        y = next_features(y, layer)
        if number % FOLD_EVERY == 0:
            y, owner = _folded(y, owner)
        if number in depths:
            live[number] = np.flatnonzero((np.diff(y.indptr) > 0)[owner]).astype(np.int64)
    return y, owner, live


def _folded(
    y: sp.csr_array, owner: npt.NDArray[np.int64]
) -> tuple[sp.csr_array, npt.NDArray[np.int64]]:
    """Keep the first of all equal rows, and return it with the new owners."""
    y.sort_indices()
    first_of: dict[bytes, int] = {}
    kept: list[int] = []
    row_of = np.empty(y.shape[0], dtype=np.int64)
    for row in range(y.shape[0]):
        begin, end = y.indptr[row : row + 2]
        content = y.indices[begin:end].tobytes() + y.data[begin:end].tobytes()
        row_of[row] = first_of.setdefault(content, len(kept))
        if row_of[row] == len(kept):
            kept.append(row)
    return y[kept], row_of[owner]
