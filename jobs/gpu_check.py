"""What only a GPU can tell, in one command and under eight minutes, without a network.

    python jobs/gpu_check.py FOLDER [--data DIR]

It needs a source checkout, what `spdnn[cuda13]` brings, pytest and hypothesis. compute-sanitizer
(`pip install nvidia-cuda-sanitizer-api`) and the GPU tests come first. `spdnn bench` then measures
official networks, and what it does not do follows: seconds of kernels beside their bounds by
counts, long outputs in chunks and whole, variants of a kernel. `PARTS` has the order. Each part is
a process of its own: a failure ends nothing else. What takes long and needs no GPU is begun ahead.
After each part FOLDER/gpu_check.json and FOLDER/gpu_check.md are written again, so that a check
that is cut short has told what it found.

Exit status: 0 all done and right, 1 something failed or was left out, 2 there is no GPU to check.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PARTS = {
    # The seconds that each is expected to take: 430 of the 480 that there are. A process takes 4 to
    # start, and 8 to 12 to compile. Plans are as measured on one slow core, runs are at half of the
    # goals, and cuSPARSE is guessed from its memory traffic.
    "sanitizer memcheck": "accesses out of bounds, or not aligned",  # 50: all four at once
    "sanitizer racecheck": "races in shared memory",
    "sanitizer synccheck": "barriers that some threads do not reach",
    "sanitizer initcheck": "reads of memory that nobody has written",
    "tests": "every kernel against the reference, on networks of any kind",  # 70: compiling
    "bench 1024x120": "the resident kernel in both modes, and cuSPARSE",  # 30
    "bench 1024x1920": "goal in mode edges, many layers",  # 40
    "bench 65536x120 edges": "goal in mode edges, places beyond 32 bits",  # 50: plans 20
    "kernels 1024x120": "seconds of each kernel beside its bound by counts",  # 15
    "kernels 4096x120": "the same, with a launch a step",  # 20
    "run 65536x1920 merge": "goal in mode merge, with a plan made ahead",  # 20
    "skewed 16384x24": "long outputs in chunks, and whole",  # 25
    "wide 4096x120": "the grouped kernel with 2 and with 4 features a thread",  # 25
    "bench 16384x120": "goal in mode edges",  # 35
    "bench 4096x1920 edges": "goal in mode edges",  # 30
    "bench 4096x120": "for the table",  # 25
    "bench 1024x480": "for the table",  # 20
}
"""What is done and what for, the most telling first."""

GOALS = {
    ("1024x1920", "edges"): 100,
    ("4096x1920", "edges"): 100,
    ("16384x120", "edges"): 50,
    ("65536x120", "edges"): 50,
    ("65536x1920", "merge"): 1500,
}
"""TeraEdges/s wanted on an H200."""

SANITIZED = "streamed or shared_memory or whoever_comes_last or without_chunks"
"""Tests that launch every kernel of a run, on few features (pytest's -k)."""

INPUTS_AHEAD = (65536, 16384, 4096)
"""Sizes whose inputs are made ahead, in this order."""

RIVALS_BELOW = 65536
"""Neurons from which cuSPARSE is left out: to copy its dense features would take long."""

PLAN_SHARED = 227 << 10
"""Shared memory of the GPUs that a plan made on the emulated one is for: H100, H200, B200."""

LONGEST = {"sanitizer": 90.0}
LONGEST_USUALLY = 180.0
"""Seconds that one part may take, by the first word of its name."""

SHORTEST = 5.0
"""Seconds below which nothing more is begun."""

SAID = 60
"""Lines of a part that has failed that are kept."""

RUNS = 3
Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("folder", type=Path, help="where the results are written")
    add(
        "--data", type=Path, help="folder with MNIST's training images (else scikit-learn's digits)"
    )
    add("--seconds", type=float, default=450.0, help="for everything")
    add("--what", nargs="+", default=list(PARTS), metavar="PART", help="such as 'bench 1024x120'")
    add("--features", type=int, help="only the first of them")
    add("--rehearse", action="store_true", help="no GPU: the emulated one, engine cpu for bench")
    arguments = parser.parse_args()
    arguments.folder = arguments.folder.resolve()  # parts run elsewhere
    if any((arguments.folder / "records").glob("*")):
        sys.exit(f"{arguments.folder} has the records of another check: name another folder")
    if not arguments.rehearse:
        os.environ["SPDNN_TEST_GPU"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has begun
    with tempfile.TemporaryDirectory(prefix="spdnn-gpu-check-") as kept:
        check = Check(arguments, Path(kept))
        try:
            return check.run()
        finally:
            for job in check.jobs.values():
                job.end()


class Job:
    """A process; what it says goes to a file."""

    def __init__(self, command: Sequence[object], log: Path) -> None:
        self.log, self.began = log, time.monotonic()
        with log.open("w") as file:
            self.process = subprocess.Popen(
                list(map(str, command)), cwd=ROOT, env=environment(), stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def finish(self, seconds: float) -> Result:
        """Wait for it at most so long, and tell how it went."""
        try:
            status = self.process.wait(max(0.0, seconds))
            why = f"signal {-status}" if status < 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            self.end()
            status, why = 1, "out of time"
        took = round(time.monotonic() - self.began, 1)
        lines = [line for line in self.lines() if not line.startswith("{")]
        return {"ok": not status, "took": took, "said": [*lines[-SAID:], why] if status else []}

    def lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def told(self) -> list[Result]:
        """The results among what it said."""
        return [json.loads(line) for line in self.lines() if line.startswith("{")]

    def end(self) -> None:
        """End it with what it has begun, should it still be at it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Check:
    """All parts: what is left to do, what was found, and the processes that were begun."""

    def __init__(self, arguments: argparse.Namespace, kept: Path) -> None:
        from spdnn.machine import provenance

        self.started = time.monotonic()
        self.arguments, self.kept = arguments, kept
        self.waiting: list[str] = list(arguments.what)
        self.jobs: dict[str, Job] = {}
        self.record: Result = {
            "schema": 2,
            "provenance": provenance.gather(),
            "plan": {what: PARTS.get(what, "") for what in arguments.what},
            "results": [],
            "left_out": self.waiting,
        }
        self.records = arguments.folder / "records"
        self.records.mkdir(parents=True, exist_ok=True)
        self.seen: set[Path] = set()
        self.data = data_links(arguments.data, kept / "data")
        count = arguments.features
        self.of_data = ["--data", self.data, *(["--features", count] if count else [])]

    def left(self) -> float:
        """Seconds that are left."""
        return float(self.arguments.seconds - (time.monotonic() - self.started))

    def run(self) -> int:
        """Do all that there is time for; gives the exit status."""
        self.write()
        if self.left() >= SHORTEST:
            [gpu, *_] = self.do("gpu")
            if not gpu["ok"]:
                return 2
            self.begin_ahead(gpu.get("shared_bytes") == PLAN_SHARED)
        while self.waiting and self.left() >= SHORTEST:
            what = self.waiting.pop(0)
            print(f"{what}: {PARTS.get(what, '')}", flush=True)
            if all(self.is_ready(what, name) for name in needs(what)):
                self.do(what)
        self.record["seconds"] = round(time.monotonic() - self.started, 1)
        self.write()
        is_fine = all(result["ok"] for result in self.record["results"])
        return 0 if is_fine and not self.waiting else 1

    def begin_ahead(self, can_plan: bool) -> None:
        """Begin what needs no GPU, beside all that follows, and all checks by the sanitizer."""
        from spdnn.sources.folder import find_images

        wanted = {name for what in self.waiting for name in needs(what)}
        ahead = [what for what in self.waiting if what.startswith("sanitizer") and sanitizer()]
        if find_images(self.data):
            ahead += [name for size in INPUTS_AHEAD if (name := f"inputs {size}") in wanted]
        ahead += [name for name in sorted(wanted) if name.startswith("plan ") and can_plan]
        ahead += [name for name in sorted(wanted) if name.startswith("counts ")]
        for name in ahead:
            self.begin(name)

    def begin(self, what: str) -> Job:
        """The process of a part, begun now if it was not ahead."""
        if what not in self.jobs:
            # What needs no GPU lets the host of the GPU go first.
            gently = ["nice"] if what.startswith(("inputs", "plan", "counts")) else []
            self.jobs[what] = Job([*gently, *self.command(what)], self.kept / f"{what}.log")
        return self.jobs[what]

    def command(self, what: str) -> list[object]:
        """What does a part."""
        kind, *words = what.split(" ")
        rehearses = self.arguments.rehearse
        if kind == "sanitizer":
            # CuPy and the compiler try calls that fail, which is no fault of a kernel.
            options = ["--error-exitcode", "9", "--report-api-errors", "no", "--print-limit", "20"]
            tests = pytest("-k", SANITIZED, "test_production.py", "test_skewed.py")
            return [sanitizer(), "--tool", *words, *options, *tests]
        if kind == "tests":
            return pytest("-m", "not slow", "--maxfail=4", ".")
        if kind == "inputs":
            return spdnn("data", "make", "inputs", "--neurons", *words, "--data", self.data)
        if kind not in ("bench", "plan", "run"):
            emulated = ["--emulated"] if rehearses else []
            part = [sys.executable, "-m", "tools.on_gpu", kind, *words]
            return [*part, *self.of_data, *emulated]
        neurons, layers = size_of(what)
        network = ["--neurons", neurons, "--layers", layers]
        if kind == "bench":
            modes = words[1] if words[1:] else "edges,merge"
            rivals = "cusparse" if neurons < RIVALS_BELOW else "none"
            network += ["--engines", "cpu" if rehearses else "cuda", "--modes", modes]
            network += ["--rivals", rivals, "--rival-seconds", "1", "--runs", RUNS]
            return spdnn("bench", *network, "--out", self.records, *self.of_data)
        network += ["--engine", "cuda", "--mode", words[1]]
        plan = ["--plan", self.kept / f"{words[0]}-{words[1]}.plan"]
        if kind == "plan":
            # The emulated GPU has the shared memory of the real one: the plan is the same.
            few = ["--device", "emulated", "--features", "1", "--check", "none"]
            return spdnn("run", *network, *plan, *few, "--data", self.data)
        device = ["--device", "emulated"] if rehearses else []
        record = self.records / f"{'-'.join(words)}.json"
        return spdnn("run", *network, *plan, *device, "--json", record, *self.of_data)

    def is_ready(self, what: str, name: str) -> bool:
        """Wait for what was begun ahead, and tell if that took long or failed."""
        job = self.jobs.get(name)
        if job is None:
            return True
        began = time.monotonic()
        result = job.finish(self.left() - SHORTEST)
        waited = round(time.monotonic() - began, 1)
        if waited > 1 or not result["ok"]:
            self.keep(what, {"run": f"ahead: {name}", **result, "waited": waited})
        return bool(result["ok"]) or name.startswith("counts")

    def do(self, what: str) -> list[Result]:
        """Do a part to its end, and keep what it found."""
        if what.startswith("sanitizer") and sanitizer() is None:
            said = ["left out: compute-sanitizer is not installed"]
            self.keep(what, {"run": "sanitizer", "ok": True, "said": said})
            return []
        job = self.begin(what)
        longest = LONGEST.get(what.partition(" ")[0], LONGEST_USUALLY)
        ended = job.finish(min(self.left(), job.began + longest - time.monotonic()))
        found = [*job.told(), *self.new_records()]
        if found:
            found[0]["took"] = ended["took"]
        if not found or not ended["ok"]:
            found.append({"run": what.partition(" ")[0], **ended})
        for result in found:
            self.keep(what, result)
            counts = self.jobs.get(f"counts {what.partition(' ')[2]}")
            for counted in counts.told() if counts and result.get("times") else ():
                self.keep(what, comparison(result["times"], counted["least"]))
        return found

    def new_records(self) -> list[Result]:
        """What is in the records that `spdnn bench` or `spdnn run` has written."""
        from spdnn.bench import records
        from spdnn.bench.rivals import RIVALS

        found: list[Result] = []
        for path in sorted(set(self.records.iterdir()) - self.seen):
            self.seen.add(path)
            record = records.read(path)
            rival = RIVALS.get(record.case.engine)
            is_right = record.facts["categories"]["truth"] == "passed"
            result = {"run": rival.short if rival else record.case.mode, "ok": is_right}
            if not record.is_emulated:
                result |= {"teraedges": record.rate / 1e12, "seconds": record.seconds}
            found.append(result | {"runs": record.facts["runs"]})
        return found

    def keep(self, what: str, result: Result) -> None:
        """Keep one result, write all, and show it."""
        self.record["results"].append({"what": what, **result})
        self.write()
        print(row(self.record["results"][-1]), flush=True)

    def write(self) -> None:
        """Write both files beside their names, then rename."""
        facts, folder = self.record["provenance"], self.arguments.folder
        head = f"# GPU check: {', '.join(facts['gpu']) or 'no GPU seen'}, {facts['date']}"
        lines = [head, "", "| part | run | ok | TeraEdges/s | goal | seconds | part took | |"]
        lines += ["|---" * 8 + "|", *map(row, self.record["results"])]
        texts = {
            "gpu_check.json": json.dumps(self.record, indent=1),
            "gpu_check.md": "\n".join(lines),
        }
        for name, text in texts.items():
            beside = folder / f"{name}.part"
            beside.write_text(text + "\n")
            beside.replace(folder / name)


def needs(what: str) -> list[str]:
    """What is made ahead for a part."""
    kind, _, size = what.partition(" ")
    inputs = [f"inputs {size_of(what)[0]}"] if kind in ("bench", "run", "kernels", "wide") else []
    more = {"run": [f"plan {size}"], "kernels": [f"counts {size}"]}
    return inputs + more.get(kind, [])


def size_of(what: str) -> tuple[int, int]:
    """Neurons and layers of the network in a name, such as "bench 1024x120"."""
    neurons, layers = next(word for word in what.split(" ") if word[0].isdigit()).split("x")
    return int(neurons), int(layers)


def data_links(data: Path | None, folder: Path) -> Path:
    """A data folder for the time of the check: what is made ahead lies beside the user's files."""
    from spdnn.sources.folder import data_folder

    folder.mkdir()
    named = data_folder(data)
    for path in named.iterdir() if named.is_dir() else ():
        (folder / path.name).symlink_to(path.resolve())
    return folder


def environment() -> dict[str, str]:
    """The environment of a part; the compiler's libraries may be a toolkit's."""
    nvcc = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    toolkit = {"CUDA_HOME": str(Path(nvcc).resolve().parent.parent)} if nvcc else {}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return toolkit | os.environ | {"PYTHONPATH": path}


def sanitizer() -> str | None:
    """Where compute-sanitizer is: on the path, in a toolkit, or from PyPI."""
    packages = Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*/bin")
    folders = [os.environ.get("PATH", ""), f"{environment().get('CUDA_HOME', '')}/bin"]
    folders += ["/usr/local/cuda/bin", *map(str, packages)]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def spdnn(*words: object) -> list[object]:
    """A command of spdnn."""
    program = "import sys; from spdnn.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", program, *words]


def pytest(*words: str) -> list[object]:
    """A command of the GPU tests. A warning of a library is no failure."""
    options = ["-q", "--tb=short", "-W", "default", "-p", "no:cacheprovider"]
    files = [
        ROOT / "tests" / "gpu" / each if each.endswith((".", ".py")) else each for each in words
    ]
    return [sys.executable, "-m", "pytest", *options, *files]


def comparison(times: Mapping[str, Any], least: Mapping[str, Any]) -> Result:
    """Launches and seconds of kernels beside their bounds, which `tools.on_gpu` has told."""
    from tools.kernel_times import Least, beyond, compared

    found = compared(
        {kernel: (int(each[0]), float(each[1])) for kernel, each in times.items()},
        {title: Least(*each) for title, each in least.items()},
    )
    said = [each.text for each in found]
    if wrong := beyond(found):
        said.append(f"not as counted: {', '.join(wrong)}")
    return {"run": "kernels and counts", "ok": True, "said": said}


def row(result: Result) -> str:
    """A result as a line of the table."""
    size = next((word for word in result["what"].split(" ") if word[0].isdigit()), "")
    said = result.get("said", [])
    cells = [
        result["what"],
        result["run"],
        "yes" if result["ok"] else "NO",
        f"{result['teraedges']:.3f}" if "teraedges" in result else "",
        str(GOALS.get((size, result["run"]), "")),
        f"{result['seconds']:.4f}" if "seconds" in result else "",
        f"{result['took']:.1f}" if "took" in result else "",
        "; ".join(said if result["ok"] else said[-3:]).replace("|", "/"),
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
