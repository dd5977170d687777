"""``spdnn info``: say which engines, threads, GPUs and MPI can be used, and why others cannot."""

import argparse
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from spdnn.cli.arguments import Commands
from spdnn.cli.errors import with_options
from spdnn.distributed.joining import first_line, load_mpi, why
from spdnn.engines import ENGINES, make_engine
from spdnn.errors import SpdnnError
from spdnn.machine import provenance
from spdnn.machine.memory import available_bytes
from spdnn.machine.threads import default_threads


def add_parser(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "info", help="say what this machine and installation can do", description=__doc__
    )
    parser.set_defaults(command=info)


def info(arguments: argparse.Namespace) -> int:
    """Print what is there."""
    rows = [
        *((name, number) for name, number in provenance.package_versions().items()),
        ("cpu", provenance.cpu_model()),
        ("threads", f"{default_threads()} by default"),
        ("memory", f"{available_bytes() / 2**30:.1f} GiB available"),
        ("gpu", ", ".join(provenance.gpu_models()) or "none: no NVIDIA driver shows one"),
        ("driver", provenance.gpu_driver() or "none"),
        ("toolkit", _toolkit()),
        *_mpi_rows(),
        *((f"engine {name}", _engine(name)) for name in ENGINES),
    ]
    width = max(len(name) for name, _ in rows) + 2
    print("\n".join(f"{name:<{width}}{fact}" for name, fact in rows))
    return 0


def _engine(name: str) -> str:
    """Whether an engine can be used, and its modes."""
    try:
        engine = make_engine(name)
    except (SpdnnError, ImportError) as error:
        return f"no: {with_options(str(error))}"
    return f"yes, modes {', '.join(engine.modes)}"


def _toolkit() -> str:
    """The CUDA toolkit that pip has installed. The compiler may find another one of the system."""
    try:
        return f"cuda-toolkit {version('cuda-toolkit')}"
    except PackageNotFoundError:
        return "none from PyPI (pip install 'spdnn[cuda13]' or 'spdnn[cuda12]' brings one)"


def _mpi_rows() -> list[tuple[str, str]]:
    """The MPI library that mpi4py loads, and which launchers can start it. MPI is not started."""
    try:
        package = f"mpi4py {version('mpi4py')}"
    except PackageNotFoundError:
        return [("mpi", "none: mpi4py is not installed (pip install 'spdnn[mpi]')")]
    try:
        library = first_line(load_mpi().Get_library_version())
    except Exception as error:  # whatever a broken installation raises
        return [("mpi", f"{package} cannot be used: {why(error)}")]
    rows = [("mpi", f"{package} with {library.partition(',')[0]}")]
    beside = str(Path(sys.executable).parent / "mpirun")
    for launcher in dict.fromkeys(filter(None, map(shutil.which, ("mpirun", beside)))):
        says = _version_text(launcher)
        fits = ("Open MPI" in says) == library.startswith("Open MPI")
        verdict = "starts it" if fits else "is another MPI's and cannot start it"
        rows.append(("mpirun", f"{launcher} {verdict}"))
    if len(rows) == 1:
        rows.append(("mpirun", "none on the path or beside Python"))
    return rows


def _version_text(launcher: str) -> str:
    """A launcher's description of itself; empty if it gives none."""
    try:
        done = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
