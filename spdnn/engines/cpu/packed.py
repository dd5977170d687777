"""Features whose values are all 1 as masks, one bit for each input."""

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from spdnn.engines.cpu.kernels.inputs import pack_features
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.features import Features
from spdnn.machine.memory import require_bytes

SMALLEST_SHARE = 1 / 32
"""Share of the inputs that must not be zero. With fewer, indices take less memory than masks."""

BLOCKS_AT_ONCE = 64
"""Blocks of features that one task packs."""


@dataclass(frozen=True, eq=False)
class PackedFeatures:
    """Features in mask form; see `spdnn.engines.cpu.kernels.inputs`.

    Attributes
    ----------
    n_features : int
        Number of features.
    masks : ndarray, shape (ceil(n_features / 16), n_neurons), uint16
        The masks of blocks of 16 features.
    """

    n_features: int
    masks: npt.NDArray[np.uint16]


def is_worth_packing(features: Features) -> bool:
    """Whether the values of features are all 0 or 1, and dense enough."""
    n_places = features.n_features * features.n_neurons
    return features.values is None and features.n_nonzeros >= SMALLEST_SHARE * max(n_places, 1)


def pack(features: Features, pool: Executor) -> PackedFeatures:
    """Turn features into masks.

    Parameters
    ----------
    features : Features
        Their values are all 1.
    pool : Executor
        Its threads pack blocks of features in parallel.

    Raises
    ------
    DeviceError
        If the masks do not fit into memory.
    """
    n_blocks = -(-features.n_features // LANES)
    require_bytes(
        2 * n_blocks * features.n_neurons, "the features as bits", "take fewer `features`"
    )
    masks = np.empty((n_blocks, features.n_neurons), dtype=np.uint16)
    starts = range(0, n_blocks, BLOCKS_AT_ONCE)
    work = partial(pack_features, features.indptr, features.indices)
    ends = [min(start + BLOCKS_AT_ONCE, n_blocks) for start in starts]
    for _ in pool.map(lambda start, end: work(start, end, masks), starts, ends):
        pass
    return PackedFeatures(features.n_features, masks)
