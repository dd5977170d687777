"""Digests of what a run is made of: its plan, its inputs."""

import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.features import Features

CHUNK_BYTES = 64 << 20
"""What a thread takes at a time; part of what the digest of a plan is."""

CHUNK_FEATURES = 1024


def plan_digest(plan: Any, threads: int) -> str:
    """sha256, in hexadecimal, of all that a plan holds: of the digests of its chunks."""
    buffers: list[pickle.PickleBuffer] = []
    head = memoryview(pickle.dumps(plan, protocol=5, buffer_callback=buffers.append))
    chunks = [
        data[start : start + CHUNK_BYTES]
        for data in (head, *(buffer.raw() for buffer in buffers))
        for start in range(0, max(len(data), 1), CHUNK_BYTES)
    ]
    with ThreadPoolExecutor(threads) as pool:
        digests = pool.map(lambda chunk: hashlib.sha256(chunk).digest(), chunks)
        return hashlib.sha256(b"".join(digests)).hexdigest()


def inputs_digest(features: Features, numbers: range) -> int:
    """A digest of features that are named `numbers`, 64 bits.

    Digests of parts add up to that of the whole, modulo 2**64: it does not depend on who has
    which features.
    """
    total = np.zeros(1, dtype=np.uint64)
    for first in range(0, features.n_features, CHUNK_FEATURES):
        part = features.part(first, first + CHUNK_FEATURES).to_csr(np.float32)
        names = np.array(numbers[first : first + CHUNK_FEATURES], dtype=np.uint64)
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
