"""Damage to the machine code on disk costs a compilation and one warning, nothing else."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spdnn.machine import code_cache
from spdnn.machine.code_cache import is_kept, keeps_code
from spdnn.machine.jit import jit, jit_part

PROGRAM = """
import numpy as np
from spdnn import Layer, Network
from spdnn.plan.cpu.plan import plan_edges
print(plan_edges(Network([Layer(np.eye(3), -0.5)])).layer_edges)
"""


def doubled(value: Any) -> Any:
    return value + value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder with the code of `doubled`, for whole numbers."""
    with pytest.MonkeyPatch.context() as patch:
        made = tmp_path_factory.mktemp("cache")
        patch.setattr(code_cache, "CACHE_FOLDER", str(made))
        assert jit(doubled)(21) == 42
        yield made


def files(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.rglob(f"*{suffix}"))


def cache_hits(function: Callable[..., Any]) -> int:
    return sum(function.stats.cache_hits.values())  # type: ignore[attr-defined]


def assert_survives(
    folder: Path, damage: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Damage the folder; compile, with one warning at most; the next function is loaded again."""
    code_cache._warned.clear()
    caplog.clear()
    damage()
    function = jit(doubled)
    assert function(21) == 42
    assert cache_hits(function) == 0
    assert len(caplog.messages) <= 1
    again = jit(doubled)
    assert again(21) == 42
    assert cache_hits(again) == 1


def test_what_was_kept_is_loaded(folder: Path) -> None:
    function = jit(doubled)
    assert keeps_code(function)
    assert is_kept(function)
    assert (function(21), cache_hits(function)) == (42, 1)


quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@quick
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_bit_that_has_changed_is_found(
    folder: Path, caplog: pytest.LogCaptureFixture, suffix: str, place: float, bit: int
) -> None:
    (path,) = files(folder, suffix)

    def flip() -> None:
        content = bytearray(path.read_bytes())
        content[int(place * len(content))] ^= 1 << bit
        path.write_bytes(content)

    assert_survives(folder, flip, caplog)
    assert caplog.messages[0].startswith("compiled kernels on disk are damaged")


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_file_that_was_cut_short_is_found(
    folder: Path, caplog: pytest.LogCaptureFixture, suffix: str, share: float
) -> None:
    (path,) = files(folder, suffix)

    def cut() -> None:
        os.truncate(path, int(share * path.stat().st_size))

    assert_survives(folder, cut, caplog)
    assert caplog.messages[0].endswith(path.name)


def test_a_file_of_numba_without_a_digest_is_found(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = files(folder, ".nbi")

    def write() -> None:
        path.write_bytes(pickle.dumps("0.0.0") + pickle.dumps((None, {})))

    assert_survives(folder, write, caplog)


def test_a_file_that_is_gone_is_compiled_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert_survives(folder, files(folder, ".nbc")[0].unlink, caplog)
    assert not caplog.messages


def test_a_folder_in_the_place_of_a_file_is_no_failure(
    folder: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (path,) = files(folder, ".nbi")
    code_cache._warned.clear()
    kept = path.rename(tmp_path / "kept")
    path.mkdir()
    function = jit(doubled)
    assert (function(21), cache_hits(function)) == (42, 0)
    path.rmdir()
    kept.rename(path)


def test_code_that_another_index_has_written_to_the_same_file_is_not_taken(folder: Path) -> None:
    (index,) = files(folder, ".nbi")
    of_whole_numbers = index.read_bytes()
    index.unlink()
    assert jit(doubled)(1.5) == 3.0  # to the file that the lost index names, too
    index.write_bytes(of_whole_numbers)
    function = jit(doubled)
    assert (function(21), cache_hits(function)) == (42, 0)


def test_a_part_that_python_calls_is_compiled_for_that() -> None:
    part = jit_part(doubled)
    assert (part(21), part(1.5)) == (42, 3.0)


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_two_programs_at_once_whose_kernels_are_all_damaged_say_one_line_each(
    tmp_path: Path, suffix: str
) -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert start().communicate() == ("(3,)\n", "")
    for number, path in enumerate(files(tmp_path, suffix)):
        content = bytearray(path.read_bytes())
        content[-1 - number] ^= 1
        path.write_bytes(content[: len(content) - number % 2])
    programs = [start(), start()]
    for output, errors in [program.communicate() for program in programs]:
        assert output == "(3,)\n"
        assert errors.count("\n") <= 1  # none, if the other one has compiled all of it before
        assert not errors or "damaged" in errors
    assert start().communicate() == ("(3,)\n", "")
