import json
import re

import numpy as np
import pytest

from spdnn import challenge
from spdnn.checks.truth import check_list, check_nothing, check_official
from spdnn.cli.main import main
from spdnn.recipes import digits
from spdnn.run.result import Result, Seconds, categories_sha256


def result_of(categories):
    live = np.array(categories, dtype=np.int64) - 1
    return Result(live, None, (), Seconds(), "cpu", "edges", 1, 1, 60000, 0)


def known(monkeypatch, categories, *, is_published):
    sha256 = categories_sha256(categories)
    entry = challenge.KnownCategories(sha256, len(categories), is_published)
    monkeypatch.setitem(challenge.CATEGORIES_SHA256, (1024, 120), entry)


def test_the_published_counts_are_known():
    counts = [size.categories for size in challenge.SIZES.values()]
    assert counts == [1812, 1801, 1918, 1994]


def test_the_published_list_has_the_known_sha256(shared_data):
    lines = (shared_data / "neuron1024-l120-categories.tsv").read_text().split()
    entry = challenge.CATEGORIES_SHA256[1024, 120]
    assert entry.is_published
    assert categories_sha256(map(int, lines)) == entry.sha256


def test_only_one_list_is_called_published():
    published = [key for key, entry in challenge.CATEGORIES_SHA256.items() if entry.is_published]
    assert published == [(1024, 120)]


def test_a_list_passes_only_as_a_whole():
    truth = np.array([2, 5, 9])
    assert check_list(result_of([2, 5, 9]), truth, "file").outcome == "passed"
    check = check_list(result_of([2, 7, 9]), truth, "file")
    assert (check.kind, check.outcome, check.source) == ("list", "failed", "file")
    assert check.text.splitlines() == [
        "CHALLENGE FAILED: 3 categories, 3 in file",
        "missing    1: 5",
        "extra      1: 7",
    ]


@pytest.mark.parametrize(
    ("is_published", "kind", "words"),
    [
        (True, "sha256 published", "the published list"),
        (False, "sha256 computed", "the list computed with the float64 reference"),
    ],
)
def test_without_a_list_the_known_sha256_decides(monkeypatch, is_published, kind, words):
    known(monkeypatch, [2, 5, 9], is_published=is_published)
    check = check_official(result_of([2, 5, 9]), 1024, 120)
    assert (check.kind, check.outcome) == (kind, "passed")
    assert check.text == f"CHALLENGE PASSED: 3 categories, equal to {words} (by its sha256)"
    check = check_official(result_of([2, 5, 8]), 1024, 120)
    assert (check.kind, check.outcome) == (kind, "failed")
    assert check.text == f"CHALLENGE FAILED: 3 categories, not the 3 of {words} (by its sha256)"


def test_a_right_count_is_called_a_count_and_is_no_pass(monkeypatch):
    monkeypatch.delitem(challenge.CATEGORIES_SHA256, (16384, 480))
    check = check_official(result_of(range(1, 1919)), 16384, 480)
    assert (check.kind, check.outcome) == ("count", "none")
    assert "count only: 1,918 categories, as many as were published" in check.text
    assert "PASSED" not in check.text


def test_a_wrong_count_is_a_failure(monkeypatch):
    monkeypatch.delitem(challenge.CATEGORIES_SHA256, (16384, 480))
    check = check_official(result_of(range(1, 1918)), 16384, 480)
    assert (check.kind, check.outcome) == ("count", "failed")
    assert check.text == "CHALLENGE FAILED: 1,917 categories, 1,918 were published"


def test_without_truth_nothing_is_claimed():
    check = check_nothing(result_of([1]))
    assert (check.kind, check.outcome) == ("none", "none")


@pytest.fixture(scope="module")
def images(shared_data):
    return shared_data / "train-images-idx3-ubyte.gz"


@pytest.fixture(scope="module")
def inputs(images, tmp_path_factory):
    """The official 1024 inputs, made once."""
    folder = tmp_path_factory.mktemp("inputs")
    options = ["--neurons", "1024", "--images", str(images), "--data", str(folder)]
    assert main(["data", "make", "inputs", *options]) == 0
    return folder / "sparse-images-1024.spdnn"


@pytest.fixture
def official_run(tmp_path):
    """Runs recipe weights without a list at hand; gives status and what the record says."""

    def run(neurons, layers, inputs, *options):
        record = tmp_path / "record.json"
        arguments = ["--neurons", str(neurons), "--layers", str(layers), "--weights", "recipe"]
        arguments += ["--inputs", str(inputs), "--engine", "cpu", "--data", str(tmp_path)]
        status = main(["run", *arguments, "--json", str(record), *options])
        return status, json.loads(record.read_text())["categories"]

    return run


def test_recipe_weights_and_inputs_pass_the_challenge(official_run, images, capsys):
    status, categories = official_run(1024, 120, images)
    assert status == 0
    assert "CHALLENGE PASSED: 1,812 categories, equal to the published list" in (
        capsys.readouterr().out
    )
    assert categories["truth"] == "passed"
    assert categories["check"] == "sha256 published"


def test_their_categories_equal_the_published_list(official_run, inputs, shared_data, capsys):
    truth = shared_data / "neuron1024-l120-categories.tsv"
    status, categories = official_run(1024, 120, inputs, "--truth", str(truth))
    assert status == 0
    assert f"CHALLENGE PASSED: 1,812 categories, equal to {truth}" in capsys.readouterr().out
    assert categories["check"] == "list"


@pytest.mark.slow
@pytest.mark.parametrize("layers", [480, 1920])
def test_1812_categories_are_left_at_the_other_depths(official_run, inputs, layers):
    status, categories = official_run(1024, layers, inputs)
    assert status == 0
    assert categories["count"] == 1812
    assert categories["check"] == "sha256 computed"


@pytest.mark.slow
@pytest.mark.parametrize(("neurons", "count"), [(4096, 1801), (16384, 1918)])
def test_the_larger_sizes_give_the_published_counts(official_run, images, neurons, count):
    status, categories = official_run(neurons, 120, images)
    assert status == 0
    assert categories["count"] == count


def test_a_failed_sha256_is_exit_status_1(official_run, inputs, monkeypatch, capsys):
    known(monkeypatch, [1, 2, 3], is_published=True)
    status, categories = official_run(1024, 120, inputs)
    assert status == 1
    assert categories["truth"] == "failed"
    assert "CHALLENGE FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("layers", "options"), [(6, []), (120, ["--features", "100"]), (120, ["--truth", "none"])]
)
def test_where_nothing_is_known_the_reference_takes_a_sample(
    layers, options, official_run, inputs, capsys
):
    status, categories = official_run(1024, layers, inputs, *options)
    assert (status, categories["check"], categories["truth"]) == (0, "sample", "passed")
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"agree with the float64 reference on [\d,]+ of [\d,]+ features", last)


def test_no_check_is_made_where_none_is_asked_for(official_run, inputs):
    status, categories = official_run(1024, 120, inputs, "--check", "none")
    assert (status, categories["truth"]) == (0, "none")


def test_the_digits_have_known_categories_too(official_run, capsys):
    status, categories = official_run(1024, 120, "digits")
    assert (status, categories["check"]) == (0, "sha256 computed")
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].startswith("PASSED: 10,590 categories, equal to the list")
    assert "the official images: spdnn data fetch images" in printed


def test_other_digits_than_those_have_none(official_run, monkeypatch):
    monkeypatch.setitem(digits.NONZEROS, 1024, 1)
    assert official_run(1024, 120, "digits")[1]["check"] == "sample"
