"""The program with streams that are closed, full, redirected or of another encoding."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spdnn import infer
from spdnn.cli.main import main
from spdnn.io.files import whole_file
from spdnn.run.result import categories_text
from tests.makers import dyadic_features, layer_files, small_network, triples_text, write_folder

NETWORK = small_network(64, 3)
FEATURES = dyadic_features(3, 40, 64, "binary")
TRUE = infer(NETWORK, FEATURES, engine="scipy").categories
BASE = [
    "run", "--neurons", "64", "--layers", "3", "--bias", "-0.5", "--weights", "weights",
    "--inputs", "inputs.tsv", "--engine", "scipy",
]  # fmt: skip


@pytest.fixture(autouse=True)
def files(alone: None) -> None:
    """Weights and inputs in the working folder."""
    write_folder(Path("weights"), layer_files(NETWORK))
    Path("inputs.tsv").write_bytes(triples_text(FEATURES.to_csr()))


def shell(redirected: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Start the program by a shell, with its streams redirected."""
    command = shlex.join([sys.executable, "-m", "spdnn", *arguments])
    return subprocess.run(
        ["sh", "-c", f"{command} {redirected}"],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
    )


# Closed streams


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    done = shell(closed, *BASE, "--save-categories", "c.tsv", "--json", "r.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("c.tsv").read_bytes() == categories_text(TRUE)
    assert json.loads(Path("r.json").read_text())["categories"]["count"] == TRUE.size
    if closed != ">&-" and "<&- " not in closed:
        assert "TeraEdges/s" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["info"], ["run", "--neurons"]])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_no_command_minds_closed_streams(arguments: list[str], closed: str) -> None:
    done = shell(closed, *arguments)
    assert done.returncode == (2 if arguments[0] == "run" else 0)
    assert "Traceback" not in done.stderr


def test_what_goes_to_a_closed_stream_does_not_end_in_a_file() -> None:
    program = (
        "import os, sys; from spdnn.cli.streams import prepare_streams; prepare_streams();"
        " file = open('data', 'wb'); os.write(2, b'noise'); print('more', file=sys.stderr)"
    )
    done = subprocess.run(["sh", "-c", f"{sys.executable} -c {shlex.quote(program)} 2>&-"])
    assert done.returncode == 0
    assert Path("data").read_bytes() == b""


# Files that are streams


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "out"])
def test_output_that_goes_to_standard_output_comes_behind_the_rest(name: str) -> None:
    done = shell("> out", *BASE, "--save-categories", name)
    assert (done.returncode, done.stderr) == (0, "")
    printed = Path("out").read_bytes()
    assert printed.startswith(b"network ")
    assert b"TeraEdges/s" in printed
    assert printed.endswith(b"\n" + categories_text(TRUE))


def test_it_comes_behind_what_a_file_held_before() -> None:
    Path("out").write_text("kept\n")
    done = shell(">> out", *BASE, "--save-categories", "/dev/stdout")
    assert done.returncode == 0
    assert Path("out").read_text().startswith("kept\nnetwork ")


def test_two_outputs_may_go_to_one_stream() -> None:
    done = shell("| cat", *BASE, "--save-categories", "/dev/stdout", "--json", "/dev/stdout")
    assert done.stderr == ""
    at = done.stdout.index("\n{")
    assert categories_text(TRUE).decode() in done.stdout[:at] + "\n"
    assert json.loads(done.stdout[at:])["categories"]["count"] == TRUE.size


def test_a_file_of_that_name_elsewhere_is_replaced_whole() -> None:
    Path("c.tsv").write_text("old")
    with whole_file(Path("c.tsv")) as file:
        file.write(b"new")
        assert Path("c.tsv").read_text() == "old"
    assert Path("c.tsv").read_text() == "new"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("option", ["--json", "--save-categories"])
def test_a_full_disk_does_not_cost_the_verdict(option: str) -> None:
    done = shell("", *BASE, option, "/dev/full")
    assert done.returncode == 2
    assert done.stderr == "spdnn: error: cannot write /dev/full: No space left on device\n"
    assert "TeraEdges/s" in done.stdout
    assert f"{TRUE.size} categories" in done.stdout.splitlines()[-1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_files_are_written_though_what_is_printed_is_lost() -> None:
    done = shell("> /dev/full", *BASE, "--save-categories", "c.tsv", PYTHONUNBUFFERED="1")
    assert done.returncode == 2
    assert done.stderr == "spdnn: error: [Errno 28] No space left on device\n"
    assert Path("c.tsv").read_bytes() == categories_text(TRUE)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_the_output_is_one_line() -> None:
    done = shell("> /dev/full", "info")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No space left on device" in done.stderr


def test_a_reader_that_leaves_causes_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "spdnn", "info"], stdout=writer, stderr=subprocess.PIPE
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (2, b"")


# Encodings


@pytest.mark.parametrize("name", ["gewichte-\u00fc", os.fsdecode(b"w-\xff")])
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_path_that_an_encoding_cannot_say_is_written_as_codes(name: str, encoding: str) -> None:
    Path("weights").rename(name)
    arguments = [name if word == "weights" else word for word in BASE]
    done = shell("", *arguments, "--json", "r.json", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("\\udcff" in done.stdout) == ("\udcff" in name)
    assert json.loads(Path("r.json").read_text())["data"]["weights"] == name
    missing = shell("", *arguments, "--truth", f"no-{name}", PYTHONIOENCODING=encoding)
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1


# Errors of the program itself


def test_what_nobody_has_foreseen_has_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault(*given: Any, **named: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("spdnn.cli.sources.open_features", fault)
    assert main(BASE) == 70
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.splitlines()[-1] == (
        "spdnn: internal error (RuntimeError): this is a bug, please report it"
    )
