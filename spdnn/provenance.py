"""Where and with what a result was made.

Gathered without starting MPI; the one child process (git) runs only in a source checkout, so
this must be called before MPI is initialised.
"""

import os
import platform
import subprocess
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
    "numba-cuda",
)
"""Whose versions are kept, where they are installed."""

_SOURCE = Path(__file__).resolve().parent.parent


def gather() -> dict[str, Any]:
    """Collect the facts: CPU, GPUs, versions, git commit, date (UTC)."""
    return {
        "cpu": {
            "model": cpu_model(),
            "cores": os.cpu_count(),
            "allowed": len(os.sched_getaffinity(0)),
        },
        "gpu": gpu_models(),
        "versions": {"python": platform.python_version(), **package_versions()},
        "platform": platform.platform(),
        "git": git_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def package_versions() -> dict[str, str]:
    """Versions of the packages that matter, those that are installed."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def cpu_model() -> str:
    """The processor's name, as the kernel gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpu_models() -> list[str]:
    """Names of the NVIDIA GPUs that the driver shows; no CUDA library is loaded."""
    models = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = file.read_text().splitlines()
        models += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return models


def git_commit() -> str | None:
    """The commit of the source checkout, with "+" behind it where files differ; else None."""
    if not (_SOURCE / ".git").exists():
        return None
    command = ["git", "-C", str(_SOURCE), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
