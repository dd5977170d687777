"""The float64 reference for whole sets of features: what is live after each of several depths.

Features that have become equal, in every bit of float64, stay equal: one row is carried for all of
them. So the deepest network of 60000 features is within reach, by the reference's own step.
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
"""Activations of the features that are taken through the first layers together, at most."""

GATHERED = 32
"""Layers after which the chunks are put together: by then few distinct rows are left."""

FOLD_EVERY = 4
"""Layers between two looks for equal rows."""


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
    features : Features
    depths : collection of int
        Numbers of layers, up to the network's.
    progress : callable, optional
        Called with the fraction of the chunks that are done.

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
    """Take rows through layers; `owner` has the row that each feature is carried by."""
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
    """Keep the first of equal rows."""
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
