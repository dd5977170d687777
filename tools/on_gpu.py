"""What `spdnn bench` does not measure on a GPU: ``python -m tools.on_gpu kernels 4096x120``.

Each result is a line of JSON. ``gpu`` tells which GPU there is. ``kernels`` tells launches and
seconds of each kernel, and ``counts`` their bounds, without a GPU. ``skewed`` runs layers of a
power law, their long outputs in chunks and whole. ``wide`` runs the grouped kernel with 2 and with
4 features a thread. `jobs/gpu_check.py` does all of it.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spdnn import Features, Layer, Network
from spdnn.engines import make_engine
from spdnn.errors import DeviceError
from spdnn.recipes.power_law import power_law_layer
from spdnn.recipes.radixnet import official_network
from spdnn.sources.features import open_features
from spdnn.sources.folder import find_inputs
from tools.kernel_times import least_by_kernel

if TYPE_CHECKING:
    from spdnn.engines.cuda.engine import CudaEngine
    from spdnn.engines.cuda.sizes import CudaSizes

RUNS = 3
SKEWED_FEATURES = 256
"""Features of a skewed network: so few that one long output keeps the others waiting."""

SKEWED_BIAS = -0.1
SKEWED_DEGREE = 32
"""Inputs of an output on average, as of official networks."""

WHOLE = 1 << 30
"""A skew that no output reaches: all stay whole."""


def tell(**result: Any) -> None:
    """One result, on a line of its own."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def engine_for(arguments: argparse.Namespace) -> "CudaEngine":
    """The engine on the GPU, or on the emulated one (DeviceError if there is none)."""
    engine: Any = make_engine("cuda", device="emulated" if arguments.emulated else None)
    made: CudaEngine = engine
    return made


def features_for(neurons: int, arguments: argparse.Namespace) -> Features:
    """The inputs of the data folder, or digits."""
    source = find_inputs(arguments.data, neurons)
    return open_features(source, neurons, arguments.features, folder=arguments.data).features


def tell_gpu(arguments: argparse.Namespace) -> None:
    """Tell which GPU there is, and what plans must know of it."""
    try:
        device = engine_for(arguments).device
    except DeviceError as error:
        tell(run="GPU", ok=False, no_gpu=True, said=[str(error)])
        return
    tell(run="GPU", ok=True, shared_bytes=device.shared_bytes, said=[device.name])


def tell_counts(arguments: argparse.Namespace) -> None:
    """Tell the bounds by counts of an official network's kernels; no GPU is touched."""
    counting: Any = importlib.import_module("tools.gpu_bounds")
    neurons, layers = arguments.size
    costs = counting.costs_of(neurons)
    bounds = counting.played_by_bounds(neurons, layers, costs, counting.packed_host).bounds
    tell(run="counts", ok=True, least=least_by_kernel(bounds, counting.RESOURCES))


def time_kernels(arguments: argparse.Namespace) -> None:
    """Tell launches and seconds of each kernel in a run of an official network."""
    engine, network = engine_for(arguments), official_network(*arguments.size)
    if not arguments.emulated:
        open_gpu: Any = importlib.import_module("spdnn.engines.cuda.gpu_device").open_gpu
        engine = type(engine)(device=open_gpu(times_kernels=True))
    engine.compile(network)
    plan = engine.plan(network, "edges")
    loaded = engine.load(plan, features_for(network.n_inputs, arguments))
    device: Any = engine.device
    for _ in range(2):  # the first run warms up
        device.kernel_times()
        engine.run(plan, loaded)
    tell(run="times by kernel", ok=True, times=device.kernel_times())


def run_skewed(arguments: argparse.Namespace) -> None:
    """Run a network of a power law's layers, its long outputs in chunks and whole."""
    neurons, layers = arguments.size
    weights = power_law_layer(neurons, neurons, min(SKEWED_DEGREE, neurons // 8))
    network = Network([Layer(weights, SKEWED_BIAS, 32.0)] * layers)
    engine = engine_for(arguments)
    whole = replace(engine.sizes, plan=replace(engine.sizes.plan, skew=WHOLE))
    arguments.features = min(SKEWED_FEATURES, arguments.features or SKEWED_FEATURES)
    run_variants({"edges": engine.sizes, "edges, whole outputs": whole}, engine, network, arguments)


def run_wide(arguments: argparse.Namespace) -> None:
    """Run the grouped kernel with the usual number of features of a thread, and with 4."""
    engine = engine_for(arguments)
    sizes = replace(engine.sizes, plan=replace(engine.sizes.plan, shared_bytes=0))
    variants = {f"edges, {n} features a thread": replace(sizes, thread_features=n) for n in (2, 4)}
    run_variants(variants, engine, official_network(*arguments.size), arguments)


def run_variants(
    variants: Mapping[str, "CudaSizes"],
    engine: "CudaEngine",
    network: Network,
    arguments: argparse.Namespace,
) -> None:
    """Run the same features with kernels of several sizes; all must find the same."""
    features = features_for(network.n_inputs, arguments)
    expected: list[int] | None = None
    for name, sizes in variants.items():
        engine = type(engine)(device=engine.device, sizes=sizes)
        engine.compile(network)
        plan = engine.plan(network, "edges")
        loaded = engine.load(plan, features)
        seconds = []
        for _ in range(1 if arguments.emulated else RUNS):
            began = time.perf_counter()
            live = engine.run(plan, loaded).live.tolist()
            seconds.append(time.perf_counter() - began)
        expected = live if expected is None else expected
        rate = network.n_edges * features.n_features / min(seconds) / 1e12
        # No time of an emulated GPU is a GPU's.
        times = {} if arguments.emulated else {"seconds": min(seconds), "teraedges": rate}
        tell(run=name, ok=live == expected, live=len(live), runs=seconds, **times)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "gpu": tell_gpu,
    "counts": tell_counts,
    "kernels": time_kernels,
    "skewed": run_skewed,
    "wide": run_wide,
}


def size(text: str) -> tuple[int, int]:
    """Neurons and layers of a network's name, such as 1024x120."""
    neurons, layers = text.split("x")
    return int(neurons), int(layers)


def main(words: Sequence[str] | None = None) -> None:
    """Do one part."""
    parser = argparse.ArgumentParser(description="Measurements on a GPU")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("size", type=size, nargs="?", default=(1024, 120), metavar="NxL")
    parser.add_argument("--data", type=Path, metavar="DIR", help="data folder")
    parser.add_argument("--features", type=int, metavar="COUNT", help="only the first of them")
    parser.add_argument("--emulated", action="store_true", help="on the emulated GPU: no times")
    arguments = parser.parse_args(words)
    PARTS[arguments.part](arguments)


if __name__ == "__main__":
    main()
