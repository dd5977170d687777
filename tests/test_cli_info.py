"""``spdnn info`` says what is there, and why something is not."""

from importlib.metadata import version

import pytest

from spdnn.cli.main import main
from spdnn.errors import DeviceError


def facts(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    width = len("engine scipy") + 2
    return {line[:width].strip(): line[width:] for line in lines}


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
    monkeypatch.setattr("spdnn.provenance.gpu_models", lambda: ["GPU one", "GPU two"])
    assert facts(capsys)["gpu"] == "GPU one, GPU two"
    monkeypatch.setattr("spdnn.provenance.gpu_models", list)
    assert facts(capsys)["gpu"].startswith("none: ")


def test_a_missing_mpi_is_said_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.metadata import PackageNotFoundError

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("spdnn.cli.info.version", missing)
    assert facts(capsys)["mpi"] == "none: mpi4py is not installed (pip install 'spdnn[mpi]')"
    monkeypatch.setattr("spdnn.cli.info.version", lambda name: "4.1.0")
    assert facts(capsys)["mpi"] == "mpi4py 4.1.0"


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
