"""Everything that only a GPU can tell, in one command and under eight minutes, without a network.

    python jobs/gpu_check.py FOLDER [--images train-images-idx3-ubyte.gz]

It needs a source checkout with numba-cuda, CuPy (cupy-cuda13x), scipy and NumPy 2, and pytest and
hypothesis for the tests. It runs official-recipe networks in both modes, a skewed network with its
long outputs in chunks and whole, cuSPARSE through CuPy on the same inputs, and the GPU tests. The
most telling come first. After each result FOLDER/gpu_check.json and FOLDER/gpu_check.md are written
again, so that a check that is cut short has told what it found. Each network has a process of its
own: a failure ends nothing else. Inputs are made from MNIST's images where they are given, else
from scikit-learn's digits, else of random pixels; each size is made once. A network that is run in
mode merge only is planned ahead, by a process that needs no GPU, and run as soon as its plan is
there.

Exit status: 0 all done and right, 1 something failed or was left out, 2 there is no GPU to check.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PLAN = {
    # The seconds that each is expected to take: 410 of the 480 that there are. A process takes 4 to
    # start, and 8 to 12 to compile (measured for all kernels, without the assembler). Inputs and
    # plans are as measured on one slow core, runs are at half of the goals, and cuSPARSE is guessed
    # from its memory traffic.
    "1024x120": "the resident kernel in both modes, and the published categories",  # 25
    "1024x1920": "goal in mode edges, on one launch for many layers",  # 35: plans 10
    "65536x120": "goal in mode edges: a launch a step, places beyond 32 bits",  # 80: plans 20
    "tests": "every kernel against the reference, on networks of any kind",  # 70: compiling
    "16384x24 skewed": "long outputs in chunks, and whole",  # 30: inputs 16
    "16384x120": "goal in mode edges",  # 35: plans 5
    # Its inputs (45 to 55) and then its plan (85 to 110) are made ahead: ready after 170 of 260.
    "65536x1920:merge": "goal in mode merge",  # 20: inputs and plan are mapped
    "4096x1920": "goal in mode edges, captured launches",  # 60: plans 22
    "4096x120": "for the table",  # 25
    "1024x480": "for the table",  # 20
}
"""What is done and what for, the most telling first."""

SAID = 60
"""Lines of a part that has failed that are kept."""

GOALS = {
    ("1024x1920", "edges"): 100,
    ("4096x1920", "edges"): 100,
    ("16384x120", "edges"): 50,
    ("65536x120", "edges"): 50,
    ("65536x1920:merge", "merge"): 1500,
}
"""TeraEdges/s wanted on an H200."""

FEATURES = 60000
UNOFFICIAL_BIAS = -0.1
REPEATS = 3
LONGEST = 180.0
"""Seconds that one network, or the tests, may take."""

SHORTEST = 5.0
"""Seconds below which nothing more is begun."""

SKEWED = " skewed"
"""Ends the name of a network of a power law's layers."""

SKEWED_FEATURES = 256
"""Features of a skewed network: so few that one long output keeps the others waiting."""

WHOLE = 1 << 30
"""A skew that no output reaches: all stay whole."""

MERGE_ONLY = ":merge"
"""Ends the name of a network that is run in mode merge only, and planned ahead."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the results are written")
    parser.add_argument("--images", type=Path, help="MNIST's training images, IDX")
    parser.add_argument("--features", type=int, default=FEATURES)
    parser.add_argument("--seconds", type=float, default=450.0, help="for everything")
    parser.add_argument("--what", nargs="+", default=list(PLAN), metavar="NxL",
                        help="'NxL skewed', 'NxL:merge' for that mode only, 'tests'")  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="kernels for the simulator, once each")
    parser.add_argument("--do", help=argparse.SUPPRESS)  # one part, in a process of its own
    parser.add_argument("--kept", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shared-bytes", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.images = arguments.images and arguments.images.resolve()  # parts run elsewhere
    if arguments.do == "GPU":
        tell_gpu(arguments)
    elif arguments.do == "plans":
        plan_ahead(arguments)
    elif arguments.do:
        check_network(arguments.do, arguments)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has begun
        return check_all(arguments)
    return 0


def check_all(arguments):
    """Run each check in a process of its own, and write after each line that it gives."""
    with tempfile.TemporaryDirectory(prefix="spdnn-gpu-check-") as kept:
        arguments.kept = Path(kept)
        check = Check(arguments)
        try:
            return check.run()
        finally:
            check.end()


class Check:
    """All checks: what is left to do, what was found, and the process that plans ahead."""

    def __init__(self, arguments):
        from spdnn.machine import provenance

        self.started = time.monotonic()
        self.arguments = arguments
        self.waiting = list(arguments.what)
        self.planner = None
        self.record = {
            "schema": 1,
            "provenance": provenance.gather(),
            "plan": {what: PLAN.get(what, "") for what in arguments.what},
            "results": [],
            "left_out": self.waiting,
        }
        arguments.folder.mkdir(parents=True, exist_ok=True)

    @property
    def left(self):
        """Seconds that are left."""
        return self.arguments.seconds - (time.monotonic() - self.started)

    def run(self):
        """Do all that there is time for; gives the exit status."""
        self.write()
        if self.left >= SHORTEST:
            self.do("GPU")
            if any(result.get("no_gpu") for result in self.record["results"]):
                return 2
        while self.waiting and self.left >= SHORTEST:
            self.do(self.next())
        self.record["seconds"] = round(time.monotonic() - self.started, 1)
        self.write()
        is_fine = all(result["ok"] for result in self.record["results"])
        return 0 if is_fine and not self.waiting else 1

    def next(self):
        """Take what to do next: what was planned ahead as soon as it is, else what comes first."""
        ahead = [what for what in self.waiting if what.endswith(MERGE_ONLY)]
        others = [what for what in self.waiting if what not in ahead]
        is_planned = self.planner is None or self.planner.poll() is not None
        what = ahead[0] if ahead and (is_planned or not others) else others[0]
        self.waiting.remove(what)
        return what

    def do(self, what):
        """Do one thing, with the results written as they come."""
        if what in PLAN:
            print(f"{what}: {PLAN[what]}", flush=True)
        if what.endswith(MERGE_ONLY) and not self.is_planned(what):
            return
        command = pytest() if what == "tests" else self.command(what)
        for result in results_of(command, min(self.left, LONGEST)):
            self.add(what, result)
            if "shared_bytes" in result and any(w.endswith(MERGE_ONLY) for w in self.waiting):
                self.begin_planning(result["shared_bytes"])

    def command(self, what):
        arguments = self.arguments
        images = ["--images", str(arguments.images)] if arguments.images else []
        return [
            sys.executable, __file__, str(arguments.folder), "--do", what, *images,
            "--features", str(arguments.features), "--kept", str(arguments.kept),
            *(["--tiny"] if arguments.tiny else []),
        ]  # fmt: skip

    def begin_planning(self, shared_bytes):
        """Plan ahead, beside all that follows; what is said of it goes to a file."""
        names = [what for what in self.waiting if what.endswith(MERGE_ONLY)]
        command = [*self.command("plans"), "--shared-bytes", str(shared_bytes), "--what", *names]
        with self.log.open("w") as log:
            self.planner = subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def log(self):
        """What the process that plans ahead has said."""
        return self.arguments.kept / "plans.log"

    def is_planned(self, what):
        """Wait for a plan as long as there is time for its run, and tell how it went."""
        began = time.monotonic()
        if self.planner is not None:
            try:
                self.planner.wait(max(0.0, self.left - SHORTEST))
            except subprocess.TimeoutExpired:
                said = "the plan was not ready in time"
                self.add(what, {"run": "plan ahead", "ok": False, "said": [said]})
                return False
        waited = round(time.monotonic() - began, 1)
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        told = [json.loads(line) for line in lines if line.startswith("{")]
        own = next((result for result in told if result.pop("of") == what), None)
        if own is None:
            own = {"run": "plan ahead", "ok": False, "said": lines[-SAID:]}
        self.add(what, {**own, "waited": waited})
        return own["ok"]

    def add(self, what, result):
        """Keep one result, write all, and show it."""
        self.record["results"].append({"what": what, **result})
        self.write()
        print(row(self.record["results"][-1]), flush=True)

    def write(self):
        write(self.arguments.folder, self.record)

    def end(self):
        """End the process that plans ahead, should it still be at it."""
        if self.planner is not None and self.planner.poll() is None:
            self.planner.kill()
            self.planner.wait()


def environment():
    """The environment of a part of the check; the compiler's libraries may be a toolkit's."""
    nvcc = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    toolkit = {"CUDA_HOME": str(Path(nvcc).resolve().parent.parent)} if nvcc else {}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return toolkit | os.environ | {"SPDNN_TEST_GPU": "1", "PYTHONPATH": path}


def pytest():
    """The command of the GPU tests: a warning of a library is no failure, and one is not all."""
    return [
        sys.executable, "-m", "pytest", "-q", "--maxfail=4", "--tb=short", "-W", "default",
        "-p", "no:cacheprovider", "tests/gpu",
    ]  # fmt: skip


def results_of(command, seconds):
    """Run a command; give its result lines as they come, then what went wrong, if anything."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
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
                tail = [*tail[1 - SAID :], line.rstrip()]
        status = process.wait()
    finally:
        timer.cancel()
        process.kill()  # where this was given up
    took = round(time.monotonic() - began, 1)
    is_tests = "pytest" in command
    if is_tests:
        yield {"run": "GPU tests", "ok": status == 0, "seconds": took, "said": tail[-1:]}
    if status < 0:
        why = "out of time" if took >= seconds - 1 else f"signal {-status}"
        yield {"run": "stopped", "ok": False, "seconds": took, "said": [*tail, why]}
    elif status:
        said = tail[:-1] if is_tests else tail
        yield {"run": "failed", "ok": False, "seconds": took, "said": said}


def tell(**result):
    """One result, on a line of its own."""
    print(json.dumps(result), flush=True)


def tell_gpu(arguments):
    """Tell which GPU there is, and what plans must know of it."""
    from spdnn.errors import DeviceError

    began = time.perf_counter()
    try:
        device = make_engine(arguments).device
    except DeviceError as error:
        tell(run="GPU", ok=False, no_gpu=True, said=[str(error)])
        return
    tell(run="GPU", ok=True, device=device.name, shared_bytes=device.shared_bytes,
         seconds=round(time.perf_counter() - began, 2), said=[device.name])  # fmt: skip


def make_engine(arguments):
    """The GPU engine; for the simulator with small kernels."""
    from spdnn.engines import make_engine
    from spdnn.engines.cuda.engine import CudaEngine

    engine = make_engine("cuda")
    return CudaEngine(device=engine.device, sizes=tiny_sizes()) if arguments.tiny else engine


def plan_ahead(arguments):
    """Make inputs and keep them, then plan and keep that; no GPU is touched."""
    from spdnn.engines.cuda.device import SimulatedDevice
    from spdnn.engines.cuda.engine import CudaEngine
    from spdnn.engines.cuda.sizes import sizes_for
    from spdnn.run.plan_files import plan_for

    sizes = tiny_sizes() if arguments.tiny else sizes_for(arguments.shared_bytes)
    engine = CudaEngine(device=SimulatedDevice(), sizes=sizes)  # it plans, and launches nothing
    for what in arguments.what:
        began = time.perf_counter()
        network = network_of(what)
        features_for(network.n_inputs, arguments)
        made = time.perf_counter()
        plan_for(engine, network, "merge", plan_file(what, arguments))
        tell(of=what, run="plan ahead", ok=True, inputs=round(made - began, 1),
             seconds=round(time.perf_counter() - made, 1))  # fmt: skip


def network_of(what):
    """The network that is meant by a name such as 1024x120, or 1024x120 skewed."""
    from spdnn import Layer, Network
    from spdnn.challenge import SIZES
    from spdnn.recipes.power_law import power_law_layer
    from spdnn.recipes.radixnet import official_network

    size = what.removesuffix(MERGE_ONLY).removesuffix(SKEWED)
    neurons, layers = map(int, size.split("x"))
    if what.endswith(SKEWED):
        weights = power_law_layer(neurons, neurons, min(32, neurons // 8))
        return Network([Layer(weights, UNOFFICIAL_BIAS, 32.0)] * layers)
    return official_network(neurons, layers, None if neurons in SIZES else UNOFFICIAL_BIAS)


def plan_file(what, arguments):
    """Where the plan of a network is kept; None where it is made when it is wanted."""
    is_kept = what.endswith(MERGE_ONLY)
    return arguments.kept / f"{what.replace(':', '-')}.plan" if is_kept else None


def check_network(what, arguments):
    """Run one network: its modes and variants, cuSPARSE, and a comparison of all."""
    from spdnn.engines.cuda.engine import CudaEngine
    from spdnn.run.plan_files import plan_for

    engine = make_engine(arguments)
    began = time.perf_counter()
    network = network_of(what)
    features, source = features_for(network.n_inputs, arguments)
    if what.endswith(SKEWED):
        features = features.part(0, SKEWED_FEATURES)
    tell(run="inputs", ok=True, inputs=source, seconds=round(time.perf_counter() - began, 2))
    found = {}
    plans = {}
    usual = engine.sizes
    for name, sizes in runs_of(what, usual).items():
        mode = name.partition(",")[0]
        key = mode, sizes.plan
        engine = CudaEngine(device=engine.device, sizes=sizes)
        started = time.perf_counter()
        if key not in plans:
            plans[key] = plan_for(engine, network, mode, plan_file(what, arguments))
        planned = time.perf_counter() - started
        if plans[key].is_resident and sizes.thread_features != usual.thread_features:
            continue  # the resident kernel has no such variant
        repeats = 1 if arguments.tiny else REPEATS
        found[name] = run_engine(engine, network, plans[key], features, name, repeats, planned)
    first, truth = next(iter(found.items()))
    for name, live in found.items():
        if not equal(live, truth):
            said = f"{live.size} live, not {truth.size}"
            tell(run=f"{name} against {first}", ok=False, said=[said])
    check_truth(network, features, source, truth)
    if not what.endswith(MERGE_ONLY):
        run_rival(network, features, truth)


def runs_of(what, sizes):
    """The runs of a network: a mode each, and how the kernels are cut for it."""
    if what.endswith(MERGE_ONLY):
        return {"merge": sizes}
    if what.endswith(SKEWED):
        whole = replace(sizes, plan=replace(sizes.plan, skew=WHOLE))
        return {"edges": sizes, "edges, whole outputs": whole}
    wide = replace(sizes, thread_features=4)
    return {"edges": sizes, "merge": sizes, "edges, 4 features a thread": wide}


def tiny_sizes():
    """One warp a block: the simulator makes a thread of each thread."""
    from spdnn.engines.cuda.sizes import CudaSizes
    from spdnn.plan.cuda.sizes import PlanSizes

    plan = PlanSizes(bundle=1, rows=4, warps=1, buffer=8, chunk=16, shared_bytes=48 << 10)
    return CudaSizes(plan, 1, 4, resident_threads=(32, 32), threads=32, list_threads=8)


def run_engine(engine, network, plan, features, name, repeats, planned):
    """Run the GPU engine several times and tell the best; returns what is live."""
    began = time.perf_counter()
    engine.compile(network)
    compiled = time.perf_counter()
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
        plan=planned,
        load=ready - compiled,
        resident=plan.is_resident,
        streamed=loaded.weights.is_streamed,
        plan_bytes=plan.n_bytes,
        evaluated=int(output.edges_evaluated.sum()),
        live=int(output.live.size),
        n_live=output.n_live[:64].tolist(),
        n_distinct=output.n_distinct[:64].tolist(),
    )
    return output.live


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


def features_for(neurons, arguments):
    """The inputs and where they are from; made once, and mapped from then on."""
    from spdnn.io.store import read_features, write_features

    path = arguments.kept / f"inputs-{neurons}.spdnn"
    if not path.exists():
        features, source = make_features(neurons, arguments)
        path.with_suffix(".txt").write_text(source)
        write_features(path, features)  # appears when it is complete
    features, _ = read_features(path)
    return features, path.with_suffix(".txt").read_text()


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
