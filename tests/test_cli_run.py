"""``spdnn run`` from the command line: exit status, output and files."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from spdnn import Features, Layer, Network, infer
from spdnn.cli.main import main
from spdnn.engines.cpu.engine import CpuEngine
from spdnn.errors import DeviceError
from spdnn.io import store
from spdnn.run.result import categories_text
from tests.makers import (
    by_column,
    dyadic_features,
    layer_files,
    small_network,
    triples_text,
    write_folder,
)

NETWORK = small_network(64, 3)
FEATURES = dyadic_features(3, 40, 64, "binary")
TRUE = infer(NETWORK, FEATURES, engine="scipy").categories
"""Some features are live and some are dead. The tests of this file need both."""

BASE = [
    "run", "--neurons", "64", "--layers", "3", "--bias", "-0.5", "--weights", "weights",
    "--inputs", "inputs.tsv",
]  # fmt: skip


@pytest.fixture(autouse=True)
def files(alone: None) -> None:
    """Weights, inputs and truth in the working folder."""
    write_folder(Path("weights"), layer_files(NETWORK))
    Path("inputs.tsv").write_bytes(triples_text(FEATURES.to_csr()))
    Path("truth.tsv").write_bytes(categories_text(TRUE))


def with_option(arguments: list[str], name: str, value: str) -> list[str]:
    """Change the value of an option in arguments, or add the option."""
    if name not in arguments:
        return [*arguments, name, value]
    at = arguments.index(name)
    return [*arguments[: at + 1], value, *arguments[at + 2 :]]


def failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a wrong command; returns the one line that it prints."""
    try:
        status = main(arguments)
    except SystemExit as exit_:  # argparse exits
        status = exit_.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert printed.err.endswith("\n")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    return printed.err


def test_the_made_network_kills_some_features_and_not_others() -> None:
    assert 5 < TRUE.size < 35


@pytest.mark.parametrize("engine", ["auto", "cpu", "scipy"])
def test_true_categories_pass(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--truth", "truth.tsv", "--engine", engine]) == 0
    printed = capsys.readouterr()
    last = printed.out.splitlines()[-1]
    assert last == f"CHALLENGE PASSED: {TRUE.size} categories, equal to truth.tsv"
    assert printed.err == ""


def test_the_block_of_facts_names_data_engine_phases_and_rate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([*BASE, "--truth", "truth.tsv", "--engine", "cpu", "--threads", "2"])
    rows = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()]
    facts = {row[0]: row[1] for row in rows}
    edges = NETWORK.n_edges
    assert facts["network"] == f"64 neurons x 3 layers, {edges:,} edges"
    assert facts["inputs"] == f"40 features, {FEATURES.n_nonzeros:,} non-zeros"
    assert facts["weights"] == "(not the official network)"
    assert facts["inputs.tsv"] == "(not the official inputs)"
    assert facts["engine"] == "cpu, mode merge, 2 threads"
    assert facts["live"] == f"{TRUE.size} of 40 features after the last layer"
    for phase in ("read", "compile", "plan", "load", "tune", "inference", "total"):
        assert facts[phase].endswith(" s")
    assert "TeraEdges/s" in facts["rate"]
    assert " edges, 1 in " in facts["evaluated"]


def test_inputs_are_read_while_the_plan_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*BASE, "--truth", "truth.tsv", "--engine", "cpu", "--threads", "2"]
    assert main([*arguments, "--json", "r.json"]) == 0
    seconds = json.loads(Path("r.json").read_text())["seconds"]
    assert 0 < seconds["overlap"] <= min(seconds["read"], seconds["plan"])
    row = f"  overlap  {seconds['overlap']:10.3f} s: inputs were read while the plan was made"
    assert (row in capsys.readouterr().out) == (seconds["overlap"] >= 0.0005)
    phases = sum(seconds.values()) - seconds["total"] - 2 * seconds["overlap"]
    assert 0 < phases <= seconds["total"]


def test_inputs_that_are_damaged_are_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.tsv").write_text("1\t99\t1\n")
    for n_threads in ("1", "2"):
        arguments = with_option(BASE, "--inputs", "wrong.tsv")
        assert "wrong.tsv" in failure([*arguments, "--threads", n_threads], capsys)


def test_a_plan_is_kept_and_used_again(capsys: pytest.CaptureFixture[str]) -> None:
    kept = [*BASE, "--truth", "truth.tsv", "--plan", "plan", "--json"]
    for name in ("first.json", "second.json"):
        assert main([*kept, name]) == 0
        assert "neurons 192 -> " in capsys.readouterr().out
    first, second = (json.loads(Path(f"{name}.json").read_text()) for name in ("first", "second"))
    assert first["work"] == second["work"]
    assert first["work"]["neurons"] < 192
    shallower = with_option([*BASE, "--plan", "plan"], "--layers", "2")
    assert "plan: this plan is another one's (network: " in failure(shallower, capsys)


@pytest.mark.parametrize(("mode", "has_note"), [("edges", False), ("merge", True)])
def test_mode_merge_says_what_its_rate_means(
    mode: str, has_note: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*BASE, "--mode", mode])
    assert ("not the work that was left to do" in capsys.readouterr().out) == has_note


def test_wrong_categories_fail_with_all_that_is_missing_and_extra(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dead = np.setdiff1d(np.arange(1, 41), TRUE)
    assert dead.size
    truth = np.sort(np.concatenate([TRUE[6:], dead[:1]]))
    Path("truth.tsv").write_bytes(categories_text(truth))
    assert main([*BASE, "--truth", "truth.tsv"]) == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"CHALLENGE FAILED: {TRUE.size} categories, {truth.size} in truth.tsv",
        f"missing    1: {dead[0]}",
        f"extra      6: {', '.join(map(str, TRUE[:5]))}, ...",
    ]


def test_as_many_but_other_categories_fail(capsys: pytest.CaptureFixture[str]) -> None:
    dead = np.setdiff1d(np.arange(1, 41), TRUE)
    Path("truth.tsv").write_bytes(categories_text([*TRUE[1:], dead[0]]))
    assert main([*BASE, "--truth", "truth.tsv"]) == 1
    assert "CHALLENGE FAILED" in capsys.readouterr().out


def test_without_truth_the_reference_takes_a_sample(capsys: pytest.CaptureFixture[str]) -> None:
    agree = "live features and activations agree with the float64 reference on"
    for check, n in (
        ([], 40),
        (["--truth", "none"], 40),
        (["--check", "reference"], 40),
        (["--check", "reference:8"], 8),
    ):
        assert main([*BASE, *check]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == (
            f"PASSED: {TRUE.size} categories; {agree} {n} of 40 features, spread over all"
        )


@pytest.mark.parametrize("options", [["--check", "none"], ["--engine", "scipy"]])
def test_without_any_check_nothing_is_claimed(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BASE, *options]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"check      none: {TRUE.size} categories, ")


def test_a_run_that_the_reference_contradicts_is_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = CpuEngine.run

    def wrong(self: Any, *given: Any, **named: Any) -> Any:
        output = run(self, *given, **named)
        return (
            output
            if output.state
            else replace(
                output,
                live=output.live[1:],
                activations=None if output.activations is None else output.activations[1:],
            )
        )

    monkeypatch.setattr(CpuEngine, "run", wrong)
    assert main([*BASE, "--json", "r.json"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"FAILED: {TRUE.size - 1} categories; of 40 of 40 features")
    assert last.endswith(f": {TRUE[0]}")
    categories = json.loads(Path("r.json").read_text())["categories"]
    assert (categories["truth"], categories["check"]) == ("failed", "sample")


@pytest.mark.parametrize("error", [DeviceError("too little memory"), MemoryError()])
def test_a_check_that_nobody_asked_for_loses_no_run(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr("spdnn.cli.check.check_sample", fails)
    assert main([*BASE, "--json", "r.json"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"check      none: {TRUE.size} categories, the reference cannot: " + (
        str(error) or "out of memory"
    )
    assert json.loads(Path("r.json").read_text())["categories"]["truth"] == "none"


def test_a_reference_that_would_take_long_is_left_out_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spdnn.cli.check.SHORT_SECONDS", 0.0)
    monkeypatch.setattr("spdnn.cli.check.LONG_SECONDS", 0.0)
    assert main(BASE) == 0
    assert "the reference takes more than 0 s (--check reference)" in capsys.readouterr().out
    assert main([*BASE, "--check", "reference"]) == 0
    assert "reference on 1 of 40 features" in capsys.readouterr().out


def test_what_took_long_is_said_how_to_keep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(BASE) == 0  # takes about a second
    assert "next time" not in capsys.readouterr().out
    monkeypatch.setattr("spdnn.cli.run.WORTH_SECONDS", 0.0)
    monkeypatch.setattr("spdnn.cli.run.WORTH_KEEPING", 0.0)
    inputs = "next time  inputs kept as a store: spdnn data convert --inputs ... FILE.spdnn"
    assert main(BASE) == 0
    printed = capsys.readouterr().out.splitlines()
    assert inputs in printed
    assert "           the plan kept: --keep" in printed
    store.write_features(Path("f.spdnn"), FEATURES)
    assert main([*with_option(BASE, "--inputs", "f.spdnn"), "--plan", "plan"]) == 0
    assert "next time" not in capsys.readouterr().out


def test_the_first_features_are_checked_against_their_part_of_the_truth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*BASE, "--truth", "truth.tsv", "--features", "20"]) == 0
    n = np.count_nonzero(TRUE <= 20)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        f"CHALLENGE PASSED: {n} categories, equal to truth.tsv (of the first 20 features)"
    )


def test_inputs_that_end_early_do_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    Path("inputs.tsv").write_bytes(triples_text(FEATURES.part(0, 20).to_csr()))
    assert main([*BASE, "--truth", "truth.tsv"]) == 1
    assert f"missing    {np.count_nonzero(TRUE > 20)}: " in capsys.readouterr().out


@pytest.mark.parametrize("engine", ["cpu", "scipy"])
def test_no_features_are_a_run_like_any_other(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*BASE, "--features", "0", "--truth", "truth.tsv", "--engine", engine]
    assert main([*arguments, "--save-categories", "c.tsv", "--json", "r.json"]) == 0
    assert "CHALLENGE PASSED: 0 categories" in capsys.readouterr().out
    arguments[arguments.index("truth.tsv")] = "c.tsv"
    assert main(arguments) == 0
    assert json.loads(Path("r.json").read_text())["categories"]["count"] == 0


def test_no_live_feature_left_is_a_result_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("truth.tsv").write_bytes(b"\n")
    assert main([*with_option(BASE, "--bias", "-1000"), "--truth", "truth.tsv"]) == 0
    assert "CHALLENGE PASSED: 0 categories" in capsys.readouterr().out


def test_saved_categories_are_the_bytes_of_the_published_form() -> None:
    main([*BASE, "--save-categories", "c.tsv"])
    assert Path("c.tsv").read_bytes() == Path("truth.tsv").read_bytes()


def test_the_json_holds_all_facts() -> None:
    arguments = [*BASE, "--truth", "truth.tsv", "--engine", "cpu", "--threads", "1"]
    arguments += ["--mode", "edges"]
    main([*arguments, "--json", "r.json", "--save-categories", "c.tsv"])
    record: dict[str, Any] = json.loads(Path("r.json").read_text())
    expected = infer(NETWORK, FEATURES, engine="scipy")
    assert record["schema"] == 2
    assert (record["neurons"], record["layers"], record["features"]) == (64, 3, 40)
    assert record["edges"] == NETWORK.n_edges
    assert (record["engine"], record["mode"]) == ("cpu", "edges")
    assert (record["ranks"], record["threads"]) == (1, 1)
    seconds = record["seconds"]
    names = ("read", "compile", "plan", "overlap", "load", "tune", "inference", "total")
    assert tuple(seconds) == names
    assert seconds["tune"] == seconds["overlap"] == 0  # one thread reads, then plans
    assert 2**25 < record["peak_memory"] < 2**36
    phases = sum(seconds.values()) - seconds["total"]
    assert 0 < phases <= seconds["total"]
    rate = NETWORK.n_edges * 40 / seconds["inference"]
    assert record["edges_per_second"] == pytest.approx(rate)
    assert record["runs"] == [{"inference": seconds["inference"]}]
    evaluated = sum(record["layers_log"]["edges_evaluated"])
    assert record["edges_evaluated"] == evaluated
    assert record["factor_saved"] == pytest.approx(NETWORK.n_edges * 40 / evaluated)
    assert record["categories"] == {
        "count": TRUE.size,
        "sha256": hashlib.sha256(Path("c.tsv").read_bytes()).hexdigest(),
        "truth": "passed",
        "check": "list",
    }
    assert record["layers_log"] == by_column(expected.layers)
    assert record["data"] == {
        "weights": "weights",
        "inputs": "inputs.tsv",
        "truth": "truth.tsv",
        "official": False,
    }
    provenance = record["provenance"]
    assert {"cpu", "gpu", "versions", "git", "date"} <= set(provenance)
    assert provenance["versions"]["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("truth", "word"), [("none", "passed"), ("truth.tsv", "passed"), ("other.tsv", "failed")]
)
def test_the_json_says_how_the_check_went(truth: str, word: str) -> None:
    Path("other.tsv").write_bytes(b"39\n40\n")
    main([*BASE, "--truth", truth, "--json", "r.json"])
    assert json.loads(Path("r.json").read_text())["categories"]["truth"] == word


def test_stores_are_run_like_the_files_they_were_made_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store.write_network(Path("n.spdnn"), NETWORK)
    store.write_features(Path("f.spdnn"), FEATURES)
    run = ["run", "--neurons", "64", "--weights", "n.spdnn", "--inputs", "f.spdnn"]
    assert main([*run, "--truth", "truth.tsv"]) == 0
    assert main([*run, "--save-categories", "c.tsv", "--layers", "2"]) == 0
    shorter = infer(Network(NETWORK.layers[:2]), FEATURES, engine="scipy")
    assert Path("c.tsv").read_bytes() == categories_text(shorter.categories)
    assert "64 neurons x 2 layers" in capsys.readouterr().out


def test_the_cap_is_that_which_is_asked_for() -> None:
    for cap, ymax in (("none", None), ("0.75", 0.75), ("official", 32.0)):
        layers = [Layer(layer.weights, layer.bias, ymax) for layer in NETWORK.layers]
        expected = infer(Network(layers), FEATURES, engine="scipy")
        main([*BASE, "--ymax", cap, "--save-categories", "c.tsv"])
        assert Path("c.tsv").read_bytes() == categories_text(expected.categories)


def test_a_negative_bias_may_be_written_in_any_way(capsys: pytest.CaptureFixture[str]) -> None:
    for bias in ("-.5", "-0.5", "-5e-1", "-50.E-2"):
        assert main([*with_option(BASE, "--bias", bias), "--truth", "truth.tsv"]) == 0


def test_what_is_not_named_comes_from_the_data_folder(capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(Path("data/neuron64"), layer_files(NETWORK))
    Path("inputs.tsv").rename("data/sparse-images-64.tsv")
    run = ["run", "--neurons", "64", "--layers", "3", "--bias", "-0.5"]
    assert main([*run, "--truth", "truth.tsv"]) == 0
    assert "data/neuron64 (not the official network)" in capsys.readouterr().out


def test_a_store_that_was_not_official_is_never_checked_by_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store.write_network(Path("n.spdnn"), NETWORK)
    Path("data").mkdir()
    Path("truth.tsv").rename("data/neuron64-l3-categories.tsv")
    assert main(with_option(["run", "--neurons", "64", "--inputs", "inputs.tsv"],
                            "--weights", "n.spdnn")) == 0  # fmt: skip
    assert "with the float64 reference on 40 of 40" in capsys.readouterr().out


def make_stores() -> None:
    store.write_network(Path("n.spdnn"), NETWORK)
    store.write_features(Path("f.spdnn"), FEATURES)
    store.write_features(Path("narrow.spdnn"), Features.from_matrix(np.eye(5)))
    narrow = [Layer(sp.eye_array(64)), Layer(np.ones((64, 5))), Layer(np.ones((5, 2)))]
    store.write_network(Path("narrowing.spdnn"), Network(narrow))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--weights", "nowhere", "nowhere: no such file or folder (or the word recipe)"),
        ("--weights", "truth.tsv", "truth.tsv: neither a folder of layer files, nor an archive"),
        ("--weights", "broken", "broken/n64-l2.tsv, line 1: value 'x' is not a number in range"),
        ("--weights", "n.spdnn", "n.spdnn: a store keeps its own bias"),
        ("--weights", "x" * 5000, "File name too long"),
        ("--weights", "", "layer 1 of 3 is missing"),
        ("--inputs", "", "no such file"),
        ("--layers", "4", "layer 4 of 4 is missing (no n64-l4.tsv in it)"),
        ("--layers", "0", "'0' is not a whole number from 1"),
        ("--layers", "1000000000000000", "of memory"),
        ("--neurons", "128", "it holds layers of 64 neurons"),
        ("--neurons", "10000000000000", "neurons are more than"),
        ("--neurons", "-3", "'-3' is not a whole number from 1"),
        ("--inputs", "nowhere.tsv", "nowhere.tsv: no such file"),
        ("--inputs", "weights", "weights: no such file"),
        ("--inputs", "broken/n64-l2.tsv", "line 1: value 'x' is not a number in range"),
        ("--inputs", "narrow.spdnn", "narrow.spdnn: features of 5 neurons, not of 64"),
        ("--inputs", "n.spdnn", "n.spdnn: this store holds network, not features"),
        ("--features", "41", "41 features asked for, but it has 40"),
        ("--features", "-1", "'-1' is not a whole number from 0"),
        ("--truth", "nowhere.tsv", "nowhere.tsv: No such file or directory"),
        ("--truth", "inputs.tsv", "inputs.tsv, line 1: "),
        ("--truth", "weights", "weights: Is a directory"),
        ("--device", "0", "engine cpu has no devices to choose from"),
        ("--engine", "gpu", "invalid choice: 'gpu'"),
        ("--bias", "nan", "'nan' is not a number of float32's range"),
        ("--bias", "-1e39", "'-1e39' is not a number of float32's range"),
        ("--bias", "little", "'little' is not a number of float32's range"),
        ("--ymax", "0", "'0' is neither a positive number nor none"),
        ("--ymax", "1e-60", "ymax must be a positive number"),
        ("--threads", "0", "'0' is not a whole number from 1"),
        ("--threads", "1000000000", "of memory"),
        ("--json", "nowhere/r.json", "cannot write nowhere/r.json: there is no folder"),
        ("--json", "weights", "cannot write weights: it is a folder"),
        ("--json", "truth.tsv/r.json", "cannot write truth.tsv/r.json: there is no folder"),
        ("--json", "x" * 5000, "File name too long"),
        ("--save-categories", "nowhere/c", "cannot write nowhere/c: there is no folder"),
        ("--wieghts", "x", "unrecognized arguments: --wieghts x"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_stores()
    write_folder(Path("broken"), {**layer_files(NETWORK), "n64-l2.tsv": b"1\t1\tx\n"})
    line = failure(with_option(BASE, option, value), capsys)
    assert line.startswith("spdnn")
    assert "error: " in line
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["walk"], "invalid choice: 'walk'"),
        (["run"], "say how many --neurons (official: 1024, 4096, 16384, 65536)"),
        (["run", "--neurons", "1024"], "say how many --layers (official: 120, 480, 1920)"),
        (["run", "--neurons", "96", "--layers", "2", "--bias", "-1"], "powers of two from 64"),
        (["run", "--neurons", "64", "--layers", "2"], "64 neurons have no official bias"),
        (
            ["run", "--neurons", "64", "--weights", "narrowing.spdnn", "--layers", "9"],
            "it has 3 layers, not 9",
        ),
        (
            ["run", "--neurons", "32", "--weights", "n.spdnn", "--inputs", "f.spdnn"],
            "n.spdnn: a network of 64 inputs, not of 32",
        ),
        (
            ["run", "--neurons", "64", "--weights", "f.spdnn"],
            "f.spdnn: this store holds features, not network",
        ),
        (
            ["run", "--neurons", "64", "--weights", "n.spdnn", "--ymax", "32"],
            "n.spdnn: a store keeps its own cap (ymax)",
        ),
        (
            [
                *["run", "--neurons", "1024", "--layers", "2", "--inputs", "digits", "--features"],
                "1" + 15 * "0",
            ],
            "1000000000000000 features of 1024 neurons needs",
        ),
        (
            [*BASE, "--json", "same", "--save-categories", "./same"],
            "--save-categories and --json would both write same",
        ),
        ([*BASE, "--json", "f", "--plan", "f"], "--json and --plan would both write f"),
        ([*BASE, "--tuning", "f", "--plan", "f"], "--plan and --tuning would both write f"),
        (
            [*BASE, "--save-categories", "inputs.tsv"],
            "--save-categories would replace inputs.tsv, which --inputs is read from",
        ),
        (
            [*BASE, "--json", "weights/n64-l1.tsv"],
            "--json would replace weights/n64-l1.tsv, which --weights is read from",
        ),
        (
            [*BASE, "--truth", "truth.tsv", "--save-categories", "truth.tsv"],
            "--save-categories would replace truth.tsv, which --truth is read from",
        ),
        (
            [*BASE, "--truth", "truth.tsv", "--check", "reference"],
            "--truth truth.tsv is what to judge the run by: leave out --check",
        ),
        ([*BASE, "--checkpoint-every", "1"], "--checkpoint-every has no use without --checkpoint"),
        ([*BASE, "--check", "list"], "'list' is none of auto, none, reference, reference:COUNT"),
        ([*BASE, "--check", "reference:0"], "'0' is not a whole number from 1"),
        ([*BASE, "--check", "none:3"], "'none:3' is none of"),
    ],
)
def test_a_mistaken_command_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_stores()
    assert message in failure(arguments, capsys)


def test_outputs_that_cannot_be_written_are_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(*given: Any, **named: Any) -> None:
        raise AssertionError("nothing may be opened")

    monkeypatch.setattr("spdnn.cli.sources.open_network", work)
    monkeypatch.setattr("spdnn.cli.sources.open_features", work)
    for option in ("--json", "--save-categories"):
        assert "cannot write" in failure([*BASE, option, "nowhere/f"], capsys)
    other_mode = [*BASE, "--engine", "scipy", "--mode", "merge"]
    assert "engine scipy has no mode merge" in failure(other_mode, capsys)
    assert "nowhere" in failure([*BASE, "--truth", "nowhere"], capsys)


def test_what_was_found_in_the_data_folder_is_not_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("data").mkdir()
    kept = Path("inputs.tsv").rename("data/sparse-images-64.tsv")
    arguments = [word for word in BASE if word not in ("--inputs", "inputs.tsv")]
    text = failure([*arguments, "--save-categories", str(kept)], capsys)
    assert "would replace data/sparse-images-64.tsv, which --inputs is read from" in text
    assert kept.read_bytes() == triples_text(FEATURES.to_csr())


def test_a_new_file_in_a_folder_that_is_read_is_no_harm() -> None:
    assert main([*BASE, "--json", "weights/r.json"]) == 0
    assert json.loads(Path("weights/r.json").read_text())["neurons"] == 64


def test_a_failed_run_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path().iterdir())
    outputs = ["--json", "r.json", "--save-categories", "c.tsv"]
    failure([*with_option(BASE, "--features", "41"), *outputs], capsys)
    assert sorted(Path().iterdir()) == before


def test_too_little_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spdnn.machine.memory.available_bytes", lambda: 1000)
    assert "of memory, 0.0 GiB are available" in failure([*BASE, "--mode", "edges"], capsys)


def test_memory_that_ends_after_all_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted(*given: Any, **named: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("spdnn.cli.sources.open_features", exhausted)
    assert "out of memory" in failure(BASE, capsys)


def test_an_interrupt_is_one_line_and_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("spdnn.cli.sources.open_features", interrupted)
    assert main(BASE) == 130
    assert capsys.readouterr().err == "spdnn: interrupted\n"


def program(*arguments: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own."""
    command = [sys.executable, "-m", "spdnn", *arguments]
    return subprocess.run(command, text=True, stderr=subprocess.PIPE, check=False, **given)


def test_the_program_passes_on_its_exit_status() -> None:
    Path("wrong.tsv").write_bytes(b"40\n")
    for truth, status in (("truth.tsv", 0), ("wrong.tsv", 1), ("nowhere", 2)):
        done = program(*BASE, "--engine", "scipy", "--truth", truth, stdout=subprocess.DEVNULL)
        assert done.returncode == status
        assert done.stderr.count("\n") == (status == 2)
