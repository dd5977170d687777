"""Digests of a run's plan and inputs: they tell whether two runs are the same."""

import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.features import Features

PIECE_BYTES = 64 << 20
"""Bytes that a thread hashes at a time. The digest of a plan depends on it."""

PIECE_FEATURES = 1024


def plan_digest(plan: Any, threads: int) -> str:
    """Hash all numbers of a plan: the sha256, in hexadecimal, of the digests of its pieces."""
    buffers: list[pickle.PickleBuffer] = []
    head = memoryview(pickle.dumps(plan, protocol=5, buffer_callback=buffers.append))
    pieces = [
        data[start : start + PIECE_BYTES]
        for data in (head, *(buffer.raw() for buffer in buffers))
        for start in range(0, max(len(data), 1), PIECE_BYTES)
    ]
    with ThreadPoolExecutor(threads) as pool:
        digests = pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces)
        return hashlib.sha256(b"".join(digests)).hexdigest()


def inputs_digest(features: Features, numbers: range) -> int:
    """Hash the features of one rank, which have the numbers `numbers` among all, to 64 bits.

    The digests of all ranks add up, modulo 2**64, to the digest of all features. The sum does not
    depend on which rank has which features.
    """
    total = np.zeros(1, dtype=np.uint64)
    for first in range(0, features.n_features, PIECE_FEATURES):
        part = features.part(first, first + PIECE_FEATURES).to_csr(np.float32)
        names = np.array(numbers[first : first + PIECE_FEATURES], dtype=np.uint64)
        keys = np.repeat(names * np.uint64(features.n_neurons), np.diff(part.indptr))
        keys += part.indices.astype(np.uint64)
        total += np.sum(_mixed(_mixed(keys) ^ part.data.view(np.uint32)), dtype=np.uint64)
    return int(total[0])


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread the bits of each number over all 64 (splitmix64; Steele et al., OOPSLA 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
