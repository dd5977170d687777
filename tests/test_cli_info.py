"""``spdnn info`` says what is there, and why something is not."""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from spdnn.cli.main import main
from spdnn.errors import DeviceError


def facts(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    width = len("engine scipy") + 2
    # The first of several rows with a name counts. It is that of the mpirun on the path.
    return {line[:width].strip(): line[width:] for line in reversed(lines)}


def test_versions_threads_and_memory_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = facts(capsys)
    assert found["numpy"] == version("numpy")
    assert found["threads"] == "1 by default"
    assert found["memory"].endswith("GiB available")
    assert found["cpu"]


def test_every_engine_is_there_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys)
    assert found["engine cpu"] == "yes, modes edges, merge"
    assert found["engine scipy"] == "yes, modes edges"
    assert found["engine cuda"].startswith("no: ")


def test_an_engine_that_cannot_be_made_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> None:
        raise DeviceError("the reason")

    monkeypatch.setattr("spdnn.cli.info.make_engine", refuse)
    assert facts(capsys)["engine cpu"] == "no: the reason"


def test_gpus_are_named_or_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spdnn.machine.provenance.gpu_models", lambda: ["GPU one", "GPU two"])
    assert facts(capsys)["gpu"] == "GPU one, GPU two"
    monkeypatch.setattr("spdnn.machine.provenance.gpu_models", list)
    assert facts(capsys)["gpu"].startswith("none: ")


def test_a_missing_mpi_is_said_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.metadata import PackageNotFoundError

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("spdnn.cli.info.version", missing)
    assert facts(capsys)["mpi"] == "none: mpi4py is not installed (pip install 'spdnn[mpi]')"


def test_a_broken_mpi_is_said_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spdnn.cli.info.version", lambda name: "4.1.0")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert facts(capsys)["mpi"].startswith("mpi4py 4.1.0 cannot be used: import of mpi4py")


@pytest.mark.parametrize(
    ("says", "verdict"),
    [
        ("HYDRA build details:", "starts it"),
        ("mpirun (Open MPI) 5.0.5", "is another MPI's and cannot start it"),
    ],
)
def test_the_mpi_library_and_what_starts_it_are_named(
    says: str, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spdnn.cli.info.version", lambda name: "4.1.0")
    library = SimpleNamespace(Get_library_version=lambda: "MPICH Version:      4.3\nMore\0")
    monkeypatch.setattr("spdnn.cli.info.load_mpi", lambda: library)
    launcher = Path("bin/mpirun").absolute()
    launcher.parent.mkdir()
    launcher.write_text(f"#!/bin/sh\necho '{says}'\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(launcher.parent), prepend=os.pathsep)
    found = facts(capsys)
    assert found["mpi"] == "mpi4py 4.1.0 with MPICH Version: 4.3"
    assert found["mpirun"] == f"{launcher} {verdict}"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"spdnn {version('spdnn')}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["info", "--help"]])
def test_help_is_no_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("usage: spdnn")
