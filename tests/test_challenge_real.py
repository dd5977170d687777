"""The published network on the published inputs, whole."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spdnn.cli.main import main

LIVE_FIRST = [54687, 40498, 23042, 12010, 6537, 4087, 2774, 2128, 1939, 1874]
"""Live features after layers 1 to 10, and after some later ones, from docs/design.md."""
LIVE_LATER = {12: 1824, 16: 1814, 20: 1814, 28: 1812, 120: 1812}

EDGES_A_LAYER = 32 * 1024
LARGEST_MEMORY = 1.5e9
"""Bytes that 60000 features of 1024 neurons may take at the peak, all included."""


def command(data: Path, *more: str) -> list[str]:
    return [
        "run", "--neurons", "1024", "--layers", "120",
        "--weights", str(data / "neuron1024-l1-120.tar.gz"),
        "--inputs", str(data / "train-images-idx3-ubyte.gz"),
        "--truth", str(data / "neuron1024-l120-categories.tsv"),
        *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole_run(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run of all 60000 features in a process of its own: what it printed, wrote and took."""
    folder = tmp_path_factory.mktemp("run")
    outputs = ["--json", str(folder / "r.json"), "--save-categories", str(folder / "c.tsv")]
    arguments = command(shared_data, "--engine", "cpu", "--mode", "edges", *outputs)
    program = (
        "import sys; from spdnn.cli.main import main; from spdnn.machine.memory import peak_bytes;"
        "status = main(sys.argv[1:]); print(peak_bytes()); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    *lines, peak = done.stdout.splitlines()
    return {
        "status": done.returncode,
        "errors": done.stderr,
        "lines": lines,
        "peak": int(peak),
        "record": json.loads((folder / "r.json").read_text()),
        "categories": (folder / "c.tsv").read_bytes(),
    }


def test_the_published_categories_are_found(whole_run: dict[str, Any]) -> None:
    assert whole_run["status"] == 0, whole_run["errors"]
    assert whole_run["lines"][-1].startswith("CHALLENGE PASSED: 1,812 categories, equal to ")
    assert whole_run["record"]["categories"]["truth"] == "passed"


def test_the_saved_categories_are_the_published_file(
    whole_run: dict[str, Any], shared_data: Path
) -> None:
    published = (shared_data / "neuron1024-l120-categories.tsv").read_text().split()
    assert whole_run["categories"].decode().split() == published


def test_data_and_size_are_recognised_as_official(whole_run: dict[str, Any]) -> None:
    record = whole_run["record"]
    assert record["data"]["official"] is True
    assert record["edges"] == 120 * EDGES_A_LAYER
    assert record["features"] == 60000


def test_the_live_features_are_as_many_as_known_after_every_layer(
    whole_run: dict[str, Any],
) -> None:
    live = whole_run["record"]["layers_log"]["live"]
    assert live[:10] == LIVE_FIRST
    assert {layer: live[layer - 1] for layer in LIVE_LATER} == LIVE_LATER


def test_every_edge_of_every_live_feature_is_evaluated(whole_run: dict[str, Any]) -> None:
    log = whole_run["record"]["layers_log"]
    entering = [60000, *log["live"][:-1]]
    assert log["edges_evaluated"] == [n * EDGES_A_LAYER for n in entering]


def test_the_run_stays_within_its_memory(whole_run: dict[str, Any]) -> None:
    assert whole_run["peak"] < LARGEST_MEMORY


def test_the_reference_finds_the_same_among_the_first_2000(
    whole_run: dict[str, Any], shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = ["--save-categories", "c.tsv"]
    assert main(command(shared_data, "--engine", "scipy", "--features", "2000", *outputs)) == 0
    assert "CHALLENGE PASSED" in capsys.readouterr().out
    first = [line for line in whole_run["categories"].splitlines() if int(line) <= 2000]
    assert Path("c.tsv").read_bytes().splitlines() == first
