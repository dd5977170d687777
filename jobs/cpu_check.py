"""What only a node with many cores can tell, in one command and some fifteen minutes.

    python jobs/cpu_check.py FOLDER [--data DIR] [--networks 1024x120,65536x1920] [--threads 1,2,64]

It needs a source checkout and `spdnn[bench]`; ranks need mpi4py and a launcher as well. First it
measures what the machine can do: NumPy's matrix product and a copy through memory, with 1, 2, 4,
... threads. Then each network goes through all phases with as many threads (`tools.cores`), and at
last as ranks. Each measurement is a process of its own that may use as many processors as it has
threads: one of each core before the second ones, one NUMA node after the other. Beside each time is
the one that the model foresaw from the time with two threads. After each measurement
FOLDER/cpu_check.json and FOLDER/cpu_check.md are written again.

Exit status: 0 all was measured, 1 something failed or was left out.
"""

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spdnn.errors import SpdnnError  # noqa: E402
from spdnn.machine import provenance  # noqa: E402
from tools.cores import Spent, Terms, bandwidth_at, read_spent, terms_of  # noqa: E402
from tools.scaling import SECONDS_PER_DOUBLING  # noqa: E402

NETWORKS = ("1024x120", "1024x1920", "16384x120", "65536x120", "65536x1920")
"""Neurons x layers; the longest is the last."""

EDGES_UP_TO = 16384 * 120
"""Neurons of all layers up to which mode edges is measured: beyond, one core takes minutes."""

SPREAD = {"edges": 0.045, "merge": 0.14}
"""How much the parts of ranks differ, as measured (docs/scaling.md)."""

NODES = Path("/sys/devices/system/node")
CPUS = Path("/sys/devices/system/cpu")

SHORTEST = 10.0
"""Seconds that must be left to begin a measurement."""

SAID = 4
"""Last lines of a failed measurement that are kept."""

Result = dict[str, Any]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("folder", type=Path, help="where the results are written")
    add("--data", type=Path, help="folder with MNIST's training images (else the digits)")
    add("--networks", type=_list, default=NETWORKS, help="such as 1024x120,65536x1920")
    add("--threads", type=_list, help="numbers of threads; 1, 2, 4, ... and all by default")
    add("--features", type=int, help="only the first of them")
    add("--seconds", type=float, default=900.0, help="for everything")
    add("--launcher", default="mpirun -n", help="what comes before the number of ranks")
    arguments = parser.parse_args(words)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    return Check(arguments).run()


class Check:
    """All measurements: what is left to do, and what was found."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.started = time.monotonic()
        self.arguments = arguments
        self.processors = in_order(sorted(os.sched_getaffinity(0)))
        n_all = len(self.processors)
        asked = arguments.threads
        self.threads = sorted(map(int, asked)) if asked else doubling(n_all)
        self.record: Result = {
            "schema": 1,
            "provenance": provenance.gather(),
            "numa": numa_nodes(),
            "order": self.processors,
            "results": [],
            "left_out": [],
        }

    def run(self) -> int:
        """Do all that there is time for; gives the exit status."""
        self.write()
        for threads in self.threads:
            self.do(f"peaks {threads}", threads, self.peaks)
        for network in self.arguments.networks:
            for threads in reversed(self.threads):  # the most telling first
                self.do(f"phases {network} {threads}", threads, self.phases)
        for network in self.arguments.networks:
            for ranks, threads in self.divisions():
                self.do(f"ranks {network} {ranks} {threads}", ranks * threads, self.ranks)
        self.record["seconds"] = round(time.monotonic() - self.started, 1)
        self.write()
        is_fine = all(result["ok"] for result in self.record["results"])
        return 0 if is_fine and not self.record["left_out"] else 1

    def divisions(self) -> list[tuple[int, int]]:
        """Ranks, and threads of each: one for each NUMA node, or two, and one for each core."""
        launcher, *_ = shlex.split(self.arguments.launcher)
        if shutil.which(launcher, path=self.environment()["PATH"]) is None:
            return []
        if importlib.util.find_spec("mpi4py") is None:
            return []
        n_all = max(self.threads)
        by_node = max(2, len(self.record["numa"]))
        return sorted({(r, n_all // r) for r in (by_node, n_all) if 1 < r <= n_all})

    def do(self, what: str, n_processors: int, measure: Any) -> None:
        """Make one measurement, if there is time, and keep what it found."""
        left = self.arguments.seconds - (time.monotonic() - self.started)
        if left < SHORTEST:
            self.record["left_out"].append(what)
            return
        print(what, flush=True)
        began = time.monotonic()
        words = what.split(" ")[1:]
        command, target = measure(*words)
        try:
            done = subprocess.run(
                list(map(str, command)), cwd=ROOT, env=self.environment(), timeout=left,
                capture_output=True, text=True, check=False,
                preexec_fn=lambda: os.sched_setaffinity(0, self.processors[:n_processors]),
            )  # fmt: skip
            said = (done.stdout + done.stderr).splitlines()[-SAID:]
            is_done = done.returncode == 0 and target.exists()
        except subprocess.TimeoutExpired:
            said, is_done = ["out of time"], False
        result: Result = {"what": what, "ok": is_done}
        result["took"] = round(time.monotonic() - began, 1)
        result |= {"found": json.loads(target.read_bytes())} if is_done else {"said": said}
        self.record["results"].append(result)
        self.write()

    def environment(self) -> dict[str, str]:
        """The environment of a measurement: this checkout, the data folder, what Python brought."""
        beside = str(Path(sys.executable).parent)  # an MPI that pip has installed
        programs = os.pathsep.join([*filter(None, [os.environ.get("PATH")]), beside])
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        data = self.arguments.data
        more = {"SPDNN_DATA": str(data.resolve())} if data else {}
        return os.environ | more | {"PYTHONPATH": path, "PATH": programs}

    def peaks(self, threads: str) -> tuple[list[object], Path]:
        """The machine's own speed."""
        target = self.target("peaks", threads)
        program = (
            "import json, pathlib, sys; from spdnn.bench.machine import peaks; "
            "pathlib.Path(sys.argv[2]).write_text(json.dumps(peaks(int(sys.argv[1]))))"
        )
        return [sys.executable, "-c", program, threads, target], target

    def phases(self, network: str, threads: str) -> tuple[list[object], Path]:
        """All phases of a network in one process."""
        neurons, layers = network.split("x")
        target = self.target("phases", network, threads)
        command = [sys.executable, "-m", "tools.cores", "measure", neurons, layers]
        command += ["--threads", threads, "--json", str(target), "--modes", modes_of(network)]
        return [*command, *self.features()], target

    def ranks(self, network: str, ranks: str, threads: str) -> tuple[list[object], Path]:
        """A run of several ranks, whose launcher may bind them to fewer processors."""
        neurons, layers = network.split("x")
        target = self.target("ranks", network, ranks, threads)
        command = [*shlex.split(self.arguments.launcher), ranks, sys.executable, "-m", "spdnn"]
        command += ["run", "--neurons", neurons, "--layers", layers, "--weights", "recipe"]
        command += ["--threads", threads, "--check", "none", "--json", str(target)]
        return [*command, *self.features()], target

    def features(self) -> list[object]:
        count = self.arguments.features
        return [] if count is None else ["--features", count]

    def target(self, *words: str) -> Path:
        """Where a measurement writes; nothing older is there."""
        path: Path = self.arguments.folder.resolve() / f"{'-'.join(words)}.json"
        path.unlink(missing_ok=True)
        return path

    def write(self) -> None:
        """Write both files beside their names, then rename."""
        texts = {"cpu_check.json": json.dumps(self.record, indent=1), "cpu_check.md": self.text()}
        for name, text in texts.items():
            beside = self.arguments.folder / f"{name}.part"
            beside.write_text(text + "\n")
            beside.replace(self.arguments.folder / name)

    def found(self, kind: str) -> list[tuple[list[str], Any]]:
        """What measurements of a kind have found, with the words that name them."""
        results = [each for each in self.record["results"] if each["ok"]]
        words = [(each["what"].split(" "), each["found"]) for each in results]
        return [(rest, found) for (first, *rest), found in words if first == kind]

    def text(self) -> str:
        """The tables."""
        facts, nodes = self.record["provenance"], self.record["numa"]
        peaks = [found for _, found in self.found("peaks")]
        copied = {int(peak["threads"]): float(peak["copied_bytes_per_second"]) for peak in peaks}
        lines = [f"# CPU check: {facts['cpu']['model']}, {facts['date']}", ""]
        lines += [f"* NUMA node {name}: processors {cpus}" for name, cpus in nodes.items()]
        lines += [f"* not done: {name}" for name in self.record["left_out"]]
        for each in self.record["results"]:
            if not each["ok"]:
                lines.append(f"* FAILED: {each['what']}: {'; '.join(each['said'])}")
        lines += ["", "| threads | sgemm G/s | copy GB/s |", "|---|---|---|"]
        for peak in peaks:
            rates = peak["sgemm_per_second"] / 1e9, peak["copied_bytes_per_second"] / 1e9
            lines.append(f"| {peak['threads']} | {rates[0]:.1f} | {rates[1]:.1f} |")
        for network in self.arguments.networks:
            lines += self.network_lines(network, copied)
        return "\n".join(lines)

    def network_lines(self, network: str, copied: dict[int, float]) -> list[str]:
        """The table of one network: each phase by threads, measured and foreseen."""
        spent = [
            each
            for (name, _), record in self.found("phases")
            if name == network
            for each in read_spent(record)
        ]
        if not spent:
            return []
        counts = sorted({each.threads for each in spent})
        layers = int(network.split("x")[1])
        lines = ["", f"## {network}: seconds measured (foreseen)", ""]
        lines += [
            "| phase |" + "".join(f" {n} |" for n in counts),
            "|---" * (len(counts) + 1) + "|",
        ]
        terms: dict[str, Terms] = {}
        for phase in dict.fromkeys(each.phase for each in spent):
            own = [each for each in spent if each.phase == phase]
            terms[phase] = terms_of(own, layers)
            cells = [
                _cell(own, n, terms[phase].seconds(n, bandwidth_at(copied, n))) for n in counts
            ]
            lines.append(f"| {phase} | " + " | ".join(cells) + " |")
        for (name, ranks, threads), record in self.found("ranks"):
            mode = record["mode"]
            if name == network and f"run {mode}" in terms:
                foreseen = terms[f"run {mode}"].over_ranks(
                    int(ranks), int(threads), SPREAD[mode], SECONDS_PER_DOUBLING
                )
                took = record["seconds"]["inference"]
                lines.append(
                    f"\n{ranks} ranks of {threads} threads, run {mode}: {took:.4g} ({foreseen:.4g})"
                )
        return lines


def _cell(spent: Iterable[Spent], threads: int, foreseen: float) -> str:
    """The least seconds with a number of threads, and what was foreseen."""
    took = [each.seconds for each in spent if each.threads == threads]
    return f"{min(took):.4g} ({foreseen:.4g})" if took else ""


def _list(text: str) -> list[str]:
    return text.split(",")


def modes_of(network: str) -> str:
    """The modes that are measured."""
    neurons, layers = map(int, network.split("x"))
    return "edges,merge" if neurons * layers <= EDGES_UP_TO else "merge"


def doubling(n_all: int) -> list[int]:
    """1, 2, 4, ... and all.

    Examples
    --------
    >>> doubling(6)
    [1, 2, 4, 6]
    """
    return sorted({*(1 << power for power in range(n_all.bit_length())), n_all})


def numa_nodes() -> dict[str, str]:
    """The processors of each NUMA node, as the kernel writes them; empty where it does not."""
    found = sorted(NODES.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node")))
    return {
        path.name.removeprefix("node"): (path / "cpulist").read_text().strip() for path in found
    }


def numbers_in(text: str) -> list[int]:
    """The processors of a list.

    Examples
    --------
    >>> numbers_in("0-2,8")
    [0, 1, 2, 8]
    """
    spans = [span.partition("-") for span in text.split(",") if span]
    return [n for low, _, high in spans for n in range(int(low), int(high or low) + 1)]


def in_order(processors: Sequence[int]) -> list[int]:
    """Processors: one of each core before the second ones, one NUMA node after the other."""
    node_of = {n: int(name) for name, cpus in numa_nodes().items() for n in numbers_in(cpus)}

    def place(processor: int) -> tuple[int, int, int]:
        path = CPUS / f"cpu{processor}" / "topology" / "thread_siblings_list"
        siblings = numbers_in(path.read_text().strip()) if path.exists() else [processor]
        return siblings.index(processor), node_of.get(processor, 0), processor

    return sorted(processors, key=place)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpdnnError as error:
        sys.exit(f"cpu_check: error: {error}")
