"""Makers of random networks and features, and files of them.

Dyadic networks have weights and biases that are small multiples of a power of two, and so few
bits in every sum that float32 and float64, in any order of addition, agree exactly: sums
cancel to zero exactly, and engines can be compared bit by bit.
"""

import io
import tarfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from spdnn import Features, Layer, Network
from spdnn.bench.records import as_json
from spdnn.run.result import LayerCount

EXACT_BITS = 24
"""Bits of float32's significand: sums of no more are exact."""

LARGEST_UNCAPPED = 64.0
SMALL_CAPS = (1.0, 4.0, 8.0)

PATTERNS = ("random", "empty", "full", "shared", "holes", "dense column", "power law", "cancel")
"""How the edges of a layer lie; see `edge_pattern`."""


def edge_pattern(rng: np.random.Generator, kind: str, n_inputs: int, n_outputs: int) -> np.ndarray:
    """Where a layer has edges: bool, shape (n_inputs, n_outputs)."""
    shape = (n_inputs, n_outputs)
    if kind == "empty":
        return np.zeros(shape, dtype=bool)
    if kind == "full":
        return np.ones(shape, dtype=bool)
    if kind in ("shared", "cancel"):
        # Groups of 1 to 20 outputs with the same inputs, scattered over the layer.
        mask = np.zeros(shape, dtype=bool)
        outputs = rng.permutation(n_outputs)
        start = 0
        while start < n_outputs:
            size = int(rng.integers(1, 21))
            pattern = rng.random(n_inputs) < rng.choice([0.1, 0.3, 0.8])
            mask[:, outputs[start : start + size]] = pattern[:, None]
            start += size
        return mask
    if kind == "power law":  # the first output has all inputs, the last ones few or none
        ranks = rng.permutation(np.arange(1.0, n_outputs + 1))
        degrees = n_inputs / ranks ** rng.choice([0.8, 1.5, 3.0])
        return np.argsort(rng.random(shape), axis=0) < degrees.astype(int)
    mask = rng.random(shape) < rng.choice([0.05, 0.2, 0.6])
    if kind == "holes":  # inputs without an edge, outputs without an edge
        mask[rng.random(n_inputs) < 0.5] = False
        mask[:, rng.random(n_outputs) < 0.5] = False
    elif kind == "dense column":
        mask[:, rng.integers(n_outputs)] = True
    return mask


def dyadic_weights(
    rng: np.random.Generator, kind: str, n_inputs: int, n_outputs: int
) -> sp.csr_array:
    """A layer's weights: multiples of 1/2 up to 2; "cancel" makes pairs that add up to zero."""
    mask = edge_pattern(rng, kind, n_inputs, n_outputs)
    row, column = np.nonzero(mask)
    values = rng.choice([-1.0, -0.5, 0.5, 1.0, 2.0, -0.0], size=row.size)
    if kind == "cancel":
        values = np.where(row % 2, -1.0, 1.0)
    return sp.csr_array((values.astype(np.float32), (row, column)), shape=(n_inputs, n_outputs))


def dyadic_network(
    seed: int,
    widths: list[int],
    kinds: list[str],
    *,
    always: bool = False,
    linear_end: bool = False,
) -> Network:
    """A network whose sums are all exact in float32 for features of at most 2.

    Parameters
    ----------
    seed : int
    widths : list of int
        Neurons before the first layer and after each.
    kinds : list of str
        Of each layer, from `PATTERNS`.
    always : bool
        Whether the bias counts for sums of zero, too, in about half of the layers.
    linear_end : bool
        Whether the last layer is linear.
    """
    rng = np.random.default_rng(seed)
    largest, bits = 2.0, 1  # the features
    layers = []
    for number, kind in enumerate(kinds):
        n_inputs, n_outputs = widths[number : number + 2]
        weights = dyadic_weights(rng, kind, n_inputs, n_outputs)
        bias = rng.choice([-1.0, -0.5, 0.0, 0.5], size=rng.choice([1, n_outputs]))
        bias = bias - 0.5 if rng.random() < 0.5 else bias
        bits += 1
        column_sums = np.abs(weights).sum(axis=0)
        largest = float(column_sums.max(initial=0.0)) * largest + 1.5
        assert largest * 2**bits < 2**EXACT_BITS, "the maker promised exact sums"
        is_linear = linear_end and number + 1 == len(kinds)
        ymax = None
        if not is_linear and (largest > LARGEST_UNCAPPED or rng.random() < 0.5):
            ymax = float(rng.choice(SMALL_CAPS))
            largest = min(largest, ymax)
        rule = "always" if always and rng.random() < 0.5 else "nonzero"
        layers.append(
            Layer(
                weights,
                bias[0] if bias.size == 1 else bias,
                ymax,
                "linear" if is_linear else "relu",
                rule,
            )
        )
    return Network(layers, "dyadic")


def dyadic_features(seed: int, n_features: int, n_neurons: int, kind: str = "random") -> Features:
    """Features of 0/1 ("binary"), of small dyadic values, or all dead ("dead").

    "stored zeros" keeps some zeros, of both signs, among the stored values.
    """
    rng = np.random.default_rng(seed)
    dense = rng.choice([0.0, 0.0, 0.0, 1.0, -0.5, 2.0], size=(n_features, n_neurons))
    dense[rng.random(n_features) < 0.2] = 0
    if kind == "binary":
        dense = (dense != 0).astype(float)
    if kind == "dead":
        dense[:] = 0
    features = Features.from_matrix(dense)
    if kind == "stored zeros":
        values = np.ones(features.n_nonzeros, np.float32)
        if features.values is not None:
            values = features.values.copy()
        values[::3], values[1::6] = 0.0, -0.0
        return Features(n_neurons, features.indptr, features.indices, values)
    return features


FEATURE_KINDS = ("random", "binary", "dead", "stored zeros")


@st.composite
def dyadic_cases(
    draw: st.DrawFn, *, always: bool = False, max_layers: int = 7
) -> tuple[Network, Features]:
    """A dyadic network and features for it."""
    n_layers = draw(st.integers(1, max_layers))
    widths = draw(st.lists(st.integers(1, 40), min_size=n_layers + 1, max_size=n_layers + 1))
    kinds = draw(st.lists(st.sampled_from(PATTERNS), min_size=n_layers, max_size=n_layers))
    seed = draw(st.integers(0, 2**32 - 1))
    network = dyadic_network(seed, widths, kinds, always=always, linear_end=draw(st.booleans()))
    n_features = draw(st.sampled_from([0, 1, 2, 15, 16, 17, 33, 70]))
    kind = draw(st.sampled_from(FEATURE_KINDS))
    return network, dyadic_features(seed, n_features, widths[0], kind)


@st.composite
def float_cases(draw: st.DrawFn) -> tuple[Network, Features]:
    """A network of any weights, and features for it: equal only up to rounding."""
    n_layers = draw(st.integers(1, 5))
    widths = draw(st.lists(st.integers(1, 40), min_size=n_layers + 1, max_size=n_layers + 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layers = []
    for n_inputs, n_outputs in pairwise(widths):
        mask = edge_pattern(rng, draw(st.sampled_from(PATTERNS)), n_inputs, n_outputs)
        weights = sp.csr_array(mask * rng.normal(size=mask.shape))
        bias = rng.normal(size=n_outputs) * 0.3
        layers.append(Layer(weights, bias, draw(st.sampled_from([None, 0.7, 32.0]))))
    features = sp.random_array(
        (draw(st.integers(0, 40)), widths[0]), density=0.3, rng=rng, dtype=np.float32
    )
    return Network(layers), Features.from_matrix(features)


def small_network(
    n_neurons: int = 64, n_layers: int = 3, bias: float = -0.5, seed: int = 0
) -> Network:
    """A square network of equal weights, of the sort that the challenge's files hold."""
    rng = np.random.default_rng(seed)
    layers = []
    for _ in range(n_layers):
        mask = edge_pattern(rng, "shared", n_neurons, n_neurons)
        layers.append(Layer(sp.csr_array(mask * 0.25), bias, 32.0))
    return Network(layers, "small")


def by_column(layers: tuple[LayerCount, ...]) -> dict[str, list[int]]:
    """The counters of a Result's layers as records keep them."""
    return {name: [getattr(layer, name) for layer in layers] for name in LayerCount._fields}


def trained_network(seed: int = 0, widths: list[int] | None = None) -> Network:
    """Relu layers and a linear one, half of the weights left out, a bias a neuron."""
    rng = np.random.default_rng(seed)
    shapes = list(pairwise(widths or [7, 5, 4, 3]))
    layers = []
    for number, (n_inputs, n_outputs) in enumerate(shapes, start=1):
        dense = rng.normal(size=(n_inputs, n_outputs)) * (rng.random((n_inputs, n_outputs)) < 0.5)
        activation = "linear" if number == len(shapes) else "relu"
        bias = rng.normal(size=n_outputs)
        layers.append(Layer(dense, bias, activation=activation, bias_rule="always"))
    return Network(layers, "trained")


trained_networks = st.builds(
    trained_network, st.integers(0, 2**32 - 1), st.lists(st.integers(1, 12), min_size=2, max_size=6)
)


def record_facts(
    *,
    neurons: int = 1024,
    layers: int = 120,
    engine: str = "cpu",
    mode: str = "edges",
    ranks: int = 1,
    threads: int = 2,
    features: int = 60000,
    times: Sequence[float] = (1.5, 2.0, 2.5),
    truth: str = "passed",
    library: str | None = None,
) -> dict[str, Any]:
    """The facts of a record, as `spdnn bench` writes them, of a network of three layers."""
    median = sorted(times)[(len(times) - 1) // 2] if times else 0.0
    edges = 32 * neurons * layers
    return {
        "schema": 2,
        "neurons": neurons,
        "layers": layers,
        "features": features,
        "features_there": 60000,
        "edges": edges,
        "engine": engine,
        "library": library,
        "mode": mode,
        "ranks": ranks,
        "threads": threads,
        "seconds": {"read": 0.1, "compile": 0.5, "plan": 0.2, "inference": median, "total": 9.0},
        "runs": [{"inference": seconds} for seconds in times],
        "warm_up": 3.0,
        "edges_per_second": edges * features / median if truth == "passed" and median else None,
        "edges_evaluated": None if library else 32 * neurons * 60000,
        "factor_saved": None if library else 17.7,
        "categories": {"count": 1812, "sha256": "5" * 64, "truth": truth, "check": "list"},
        "check": "CHALLENGE PASSED" if truth == "passed" else "CHALLENGE FAILED",
        "layers_log": {}
        if library
        else {"live": [50000, 1812, 1812], "distinct": [50000, 1812, 1]},
        "data": {"weights": "recipe", "inputs": "inputs", "inputs_sha256": "1", "official": True},
        "joules": None,
        "load": {"average": [0.0, 0.0, 0.0], "others_busy": 0.25},
        "machine_peak": {
            "threads": 2,
            "sgemm_per_second": 9e10,
            "copied_bytes_per_second": 2e10,
        },
        "not_measured": {},
        "provenance": {
            "command": "spdnn bench",
            "cpu": {"model": "a CPU", "cores": 2, "allowed": 2},
            "gpu": [],
            "memory": 2**33,
            "versions": {"spdnn": "0.1.0"},
            "platform": "a system",
            "git": "abc123",
            "date": "2026-01-02T03:04:05+00:00",
        },
    }


def write_record(path: Path, facts: dict[str, Any]) -> None:
    """Write a record under a name of one's own."""
    path.write_bytes(as_json(facts))


def same_layers(one: Network, other: Network) -> bool:
    """Whether two networks are equal in everything but the name."""
    return one.shapes == other.shapes and all(
        np.array_equal(a.weights.indptr, b.weights.indptr)
        and np.array_equal(a.weights.indices, b.weights.indices)
        and np.array_equal(a.weights.data, b.weights.data)
        and a.weights.data.dtype == b.weights.data.dtype
        and a.bias.shape == b.bias.shape
        and np.array_equal(a.bias, b.bias)
        and (a.ymax, a.activation, a.bias_rule) == (b.ymax, b.activation, b.bias_rule)
        for a, b in zip(one.layers, other.layers, strict=True)
    )


def same_features(one: Features, other: Features) -> bool:
    """Whether two feature maps are equal, value by value."""
    return one.n_neurons == other.n_neurons and np.array_equal(
        one.to_csr().toarray(), other.to_csr().toarray()
    )


def triples_text(
    matrix: sp.sparray, seed: int | None = None, newline: str = "\n", last_newline: bool = True
) -> bytes:
    """A matrix as tab-separated 1-based triples, shuffled by `seed`."""
    coo = sp.coo_array(matrix)
    order = np.arange(coo.nnz)
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    lines = [f"{coo.row[k] + 1}\t{coo.col[k] + 1}\t{coo.data[k]:.9g}" for k in order]
    text = newline.join(lines) + (newline if last_newline else "")
    return text.encode()


def layer_files(network: Network) -> dict[str, bytes]:
    """The published files of a square network, by name."""
    n = network.n_inputs
    return {
        f"n{n}-l{number}.tsv": triples_text(layer.weights)
        for number, layer in enumerate(network.layers, start=1)
    }


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def write_archive(path: Path, files: list[tuple[str, bytes]], mode: str = "w:gz") -> Path:
    """Write a tar archive with these members, in this order."""
    with tarfile.open(path, mode) as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path
