"""The machine, the packages and the command that a result was made with.

The facts are gathered without starting MPI. In a source checkout a child process (git) is started,
so they must be gathered before MPI is initialised.
"""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "spdnn",
    "numpy",
    "scipy",
    "numba",
    "llvmlite",
    "pyarrow",
    "mpi4py",
    "cupy",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "numba-cuda",
    "cuda-core",
    "nvidia-nvvm",
)
"""Packages whose versions are recorded, where they are installed."""

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "SPDNN_VECTORS",
    "CUDA_VISIBLE_DEVICES",
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
)
"""Environment variables that change a run, or tell where it ran."""

_NVIDIA = Path("/proc/driver/nvidia")

_SOURCE = Path(__file__).resolve().parents[2]


def own_version() -> str:
    """Version of this package, or "from source" for a source checkout that is not installed."""
    try:
        return version("spdnn")
    except PackageNotFoundError:
        return "from source"


def gather() -> dict[str, Any]:
    """Collect the facts.

    Returns
    -------
    dict
        Command, CPU, memory in bytes, GPUs, versions, git commit and date (UTC), for JSON.
    """
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "cpu": {
            "model": cpu_model(),
            "cores": os.cpu_count(),
            "allowed": len(os.sched_getaffinity(0)),
        },
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": gpu_models(),
        "driver": gpu_driver(),
        "versions": {"python": platform.python_version(), **package_versions()},
        "platform": platform.platform(),
        "git": git_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def package_versions(packages: Collection[str] = PACKAGES) -> dict[str, str]:
    """Versions of packages.

    Parameters
    ----------
    packages : collection of str
        Names of packages.

    Returns
    -------
    dict
        Versions by name, of those that are installed.
    """
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def cpu_model() -> str:
    """Name of the processor, as the kernel gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpu_models() -> list[str]:
    """Names of the NVIDIA GPUs that the driver shows. No CUDA library is loaded."""
    models = []
    for file in sorted((_NVIDIA / "gpus").glob("*/information")):
        lines = file.read_text().splitlines()
        models += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return models


def gpu_driver() -> str | None:
    """First line of NVIDIA's driver on its version; None where there is no driver."""
    try:
        line = (_NVIDIA / "version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    return " ".join(line.partition(":")[2].split())


def git_commit() -> str | None:
    """Commit of the source checkout, followed by "+" where files differ; None without one."""
    if not (_SOURCE / ".git").exists():
        return None
    command = ["git", "-C", str(_SOURCE), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
