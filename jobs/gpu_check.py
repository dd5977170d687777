"""Everything that only a GPU can tell, in one command and under eight minutes, without a network.

    python jobs/gpu_check.py FOLDER [--images train-images-idx3-ubyte.gz]

From a source checkout with numba-cuda, CuPy (cupy-cuda13x), scipy and NumPy 2. Runs official-recipe
networks in both modes, a skewed one with its long outputs in chunks and whole, cuSPARSE through
CuPy on the same inputs, and the GPU tests; the most telling first. After each result
FOLDER/gpu_check.json and FOLDER/gpu_check.md are written anew, so that a check cut short has told
what it found. A network is run in a process of its own: what breaks there ends nothing else. Inputs
are made from MNIST's images where they are given, else from scikit-learn's digits, else of random
pixels.

Exit status: 0 all done and right, 1 something failed or was left out, 2 there is no GPU to check.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PLAN = (
    "1024x120",
    "65536x120",
    "tests",
    "16384x24 skewed",
    "1024x1920",
    "16384x120",
    "4096x120",
    "1024x480",
)
"""The most telling first."""

GOALS = {
    ("1024x1920", "edges"): 100,
    ("4096x1920", "edges"): 100,
    ("16384x120", "edges"): 50,
    ("65536x120", "edges"): 50,
    ("65536x1920", "merge"): 1500,
}
"""TeraEdges/s wanted on an H200."""

FEATURES = 60000
UNOFFICIAL_BIAS = -0.1
SKEWED_FEATURES = 256
"""Few enough for one long output to keep the others waiting."""
WHOLE = 1 << 30
"""Times the mean that no output has."""
REPEATS = 3
LONGEST = 150.0
"""Seconds that one network, or the tests, may take."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the results are written")
    parser.add_argument("--images", type=Path, help="MNIST's training images, IDX")
    parser.add_argument("--features", type=int, default=FEATURES)
    parser.add_argument("--seconds", type=float, default=450.0, help="for everything")
    parser.add_argument(
        "--what", nargs="+", default=PLAN, metavar="NxL", help="'NxL skewed', 'tests'"
    )
    parser.add_argument("--tiny", action="store_true", help="kernels for the simulator, once each")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        check_network(arguments)
        return 0
    return check_all(arguments)


def check_all(arguments):
    """Run each check in a process of its own, and write after each line that it gives."""
    from spdnn import provenance

    started = time.monotonic()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record = {"schema": 1, "provenance": provenance.gather(), "results": [], "left_out": []}
    write(arguments.folder, record)
    for number, what in enumerate(arguments.what):
        left = arguments.seconds - (time.monotonic() - started)
        if left < 5:
            record["left_out"] = list(arguments.what[number:])
            break
        for result in results_of(command_for(what, arguments), min(left, LONGEST)):
            record["results"].append({"what": what, **result})
            write(arguments.folder, record)
            print(row(record["results"][-1]), flush=True)
            if result.get("no_gpu"):
                return 2
    record["seconds"] = round(time.monotonic() - started, 1)
    write(arguments.folder, record)
    is_fine = all(result["ok"] for result in record["results"])
    return 0 if is_fine and not record["left_out"] else 1


def command_for(what, arguments):
    if what == "tests":
        return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/gpu"]
    images = ["--images", str(arguments.images)] if arguments.images else []
    return [
        sys.executable, __file__, str(arguments.folder), "--one", what, *images,
        "--features", str(arguments.features), *(["--tiny"] if arguments.tiny else []),
    ]  # fmt: skip


def results_of(command, seconds):
    """Run a command; give its result lines as they come, then what went wrong, if anything."""
    environment = os.environ | {"SPDNN_TEST_GPU": "1", "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    tail = []
    try:
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
            else:
                tail = [*tail[-40:], line.rstrip()]
        status = process.wait()
    finally:
        timer.cancel()
    took = round(time.monotonic() - began, 1)
    if "pytest" in command:
        yield {"run": "GPU tests", "ok": status == 0, "seconds": took, "said": tail[-1:]}
    if status < 0:
        yield {"run": "stopped", "ok": False, "seconds": took, "said": ["out of time"]}
    elif status and "pytest" not in command:
        yield {"run": "failed", "ok": False, "seconds": took, "said": tail}
    elif status:
        yield {"run": "failed", "ok": False, "seconds": took, "said": tail[-40:-1]}


def tell(**result):
    """One result, on a line of its own."""
    print(json.dumps(result), flush=True)


def check_network(arguments):
    """Run one network: both modes, a variant of the kernel, cuSPARSE, and a comparison of all."""
    from spdnn.errors import DeviceError

    size, _, kind = arguments.one.partition(" ")
    neurons, layers = map(int, size.split("x"))
    try:
        from spdnn.engines import make_engine
        from spdnn.engines.cuda.engine import CudaEngine

        engine = make_engine("cuda")
        if arguments.tiny:
            engine = CudaEngine(device=engine.device, sizes=tiny_sizes())
    except DeviceError as error:
        tell(run="GPU", ok=False, no_gpu=True, said=[str(error)])
        return
    began = time.perf_counter()
    network = make_network(neurons, layers, kind == "skewed")
    if kind == "skewed":
        arguments.features = min(arguments.features, SKEWED_FEATURES)
    features, source = make_features(neurons, arguments)
    made = time.perf_counter() - began
    tell(run="GPU", ok=True, device=engine.device.name, inputs=source, seconds=round(made, 2))
    found = {}
    sizes = engine.sizes
    if kind == "skewed":
        whole = replace(sizes, shape=replace(sizes.shape, skew=WHOLE))
        runs = {"edges": sizes, "edges, whole outputs": whole}
    else:
        wide = replace(sizes, lane_features=4)
        runs = {"edges": sizes, "merge": sizes, "edges, 4 features a lane": wide}
    for name, of_run in runs.items():
        if of_run.lane_features != sizes.lane_features and found["edges"][1]:
            continue  # the resident kernel has no such variant
        engine = CudaEngine(device=engine.device, sizes=of_run)
        repeats = 1 if arguments.tiny else REPEATS
        found[name] = run_engine(engine, network, features, name, repeats)
    truth = found["edges"][0]
    for name, (live, _) in found.items():
        if not equal(live, truth):
            tell(
                run=f"{name} against edges", ok=False, said=[f"{live.size} live, not {truth.size}"]
            )
    check_truth(network, features, source, truth)
    run_rival(network, features, truth)


def make_network(neurons, layers, is_skewed):
    """An official network, or a power law's layer again and again."""
    from spdnn import Layer, Network
    from spdnn.bench.power_law import power_law_layer
    from spdnn.challenge import SIZES
    from spdnn.recipes.radixnet import official_network

    if is_skewed:
        weights = power_law_layer(neurons, neurons, min(32, neurons // 8))
        return Network([Layer(weights, UNOFFICIAL_BIAS, 32.0)] * layers)
    return official_network(neurons, layers, None if neurons in SIZES else UNOFFICIAL_BIAS)


def tiny_sizes():
    """One warp a block: the simulator makes a thread of each thread."""
    from spdnn.engines.cuda.sizes import Sizes
    from spdnn.plan.cuda import Shape

    shape = Shape(bundle=1, rows=4, warps=1, buffer=8, chunk=16, shared_bytes=48 << 10)
    return Sizes(shape, 1, 4, resident_threads=(32, 32), threads=32, list_threads=8)


def run_engine(engine, network, features, name, repeats):
    """Run the GPU engine several times and tell the best; returns what is live, and if resident."""
    began = time.perf_counter()
    engine.compile(network)
    compiled = time.perf_counter()
    plan = engine.plan(network, name.partition(",")[0])
    planned = time.perf_counter()
    loaded = engine.load(plan, features)
    ready = time.perf_counter()
    runs = []
    for _ in range(repeats):
        start = time.perf_counter()
        output = engine.run(plan, loaded)
        seconds = time.perf_counter() - start
        runs.append((seconds, *output.device_seconds))
    best = min(runs)
    tell(
        run=name,
        ok=True,
        teraedges=network.n_edges * features.n_features / best[0] / 1e12,
        seconds=best[0],
        kernels=best[1],
        copies=best[2],
        all_seconds=[run[0] for run in runs],
        compile=compiled - began,
        plan=planned - compiled,
        load=ready - planned,
        resident=plan.is_resident,
        streamed=loaded.weights.is_streamed,
        plan_bytes=plan.n_bytes,
        evaluated=int(output.edges_evaluated.sum()),
        live=int(output.live.size),
        n_live=output.n_live[:64].tolist(),
        n_distinct=output.n_distinct[:64].tolist(),
    )
    return output.live, plan.is_resident


def check_truth(network, features, source, live):
    """Compare with the known number of categories, or with the CPU engine where that is quick."""
    from spdnn import infer
    from spdnn.challenge import FEATURES, SIZES

    size = SIZES.get(network.n_inputs)
    if "official" in source and features.n_features == FEATURES and size is not None:
        tell(run="categories", ok=live.size == size.categories, live=int(live.size),
             wanted=size.categories)  # fmt: skip
    elif network.n_edges <= 1024 * 32 * 480:
        expected = infer(network, features, engine="cpu").live
        tell(run="against engine cpu", ok=equal(live, expected), live=int(live.size))


def run_rival(network, features, truth):
    """Run cuSPARSE on the same inputs."""
    from spdnn.bench.rivals import CuSparse
    from spdnn.errors import DeviceError

    try:
        rival = CuSparse(network)
    except DeviceError as error:
        tell(run="cuSPARSE", ok=True, said=[str(error)])
        return
    converted = rival.convert(features)
    runs = []
    for _ in range(2):
        start = time.perf_counter()
        live = rival.run(converted)
        runs.append(time.perf_counter() - start)
    best = min(runs)
    rate = network.n_edges * features.n_features / best / 1e12
    tell(run="cuSPARSE", ok=equal(live, truth), teraedges=rate, seconds=best, all_seconds=runs)


def make_features(neurons, arguments):
    """The inputs and where they are from."""
    import numpy as np

    from spdnn import Features
    from spdnn.recipes.digits import digit_features
    from spdnn.recipes.mnist import mnist_features

    if arguments.images is not None:
        features, is_official = mnist_features(arguments.images, neurons, arguments.features)
        return features, f"{arguments.images.name}{' (official)' if is_official else ''}"
    try:
        return digit_features(neurons, arguments.features), "digits"
    except Exception:  # scikit-learn is not there, or the size is none that it makes
        rng = np.random.default_rng(0)
        counts = rng.integers(0, max(2, neurons // 5), arguments.features)
        indices = [np.sort(rng.permutation(neurons)[:count]) for count in counts]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        return Features(neurons, indptr, np.concatenate([*indices, [0]])[: indptr[-1]]), "random"


def equal(one, other):
    return one.size == other.size and bool((one == other).all())


def write(folder, record):
    """Write both files beside their names, then rename."""
    lines = ["| network | run | ok | TeraEdges/s | goal | seconds | kernels | |", "|---" * 8 + "|"]
    lines += [row(result) for result in record["results"]]
    gpu = ", ".join(record["provenance"]["gpu"]) or "no GPU seen"
    table = "\n".join([f"# GPU check: {gpu}, {record['provenance']['date']}", "", *lines, ""])
    for name, text in (("gpu_check.json", json.dumps(record, indent=1)), ("gpu_check.md", table)):
        beside = folder / f"{name}.part"
        beside.write_text(text + "\n")
        beside.replace(folder / name)


def row(result):
    rate, goal = result.get("teraedges"), GOALS.get((result["what"], result["run"]), "")
    cells = [
        result["what"],
        result["run"],
        "yes" if result["ok"] else "NO",
        "" if rate is None else f"{rate:.3f}",
        str(goal),
        f"{result['seconds']:.4f}" if "seconds" in result else "",
        f"{result['kernels']:.4f}" if "kernels" in result else "",
        " ".join(result.get("said", [])[-3:]).replace("|", "/"),
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
