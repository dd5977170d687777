"""`infer`: a network and features in, a Result out. `prepare`: ready to run several times."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines import choose_mode, make_engine
from spdnn.engines.base import Engine, Plan, Progress
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.network import Network
from spdnn.plan.work import Work
from spdnn.run.plan_files import plan_for
from spdnn.run.result import DeviceTime, LayerCount, Result, Seconds
from spdnn.run.tuning_files import require_tunable, tune


def infer(
    network: Network,
    features: Features,
    *,
    engine: str = "auto",
    mode: str = "auto",
    threads: int | None = None,
    device: int | None = None,
    plan_file: Path | None = None,
    tuning_file: Path | None = None,
    activations: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Run features through a network.

    Parameters
    ----------
    network : Network
    features : Features
        As many neurons as the network has inputs.
    engine : {"auto", "cpu", "cuda", "scipy"}
    mode : {"auto", "edges", "merge"}
    threads : int, optional
        For engine "cpu"; by default the processors that this process may use, at most
        ``OMP_NUM_THREADS``.
    device : int, optional
        For engine "cuda": which of the GPUs that this process sees, counted from 0.
    plan_file : Path, optional
        Keep the plan there; if there is the plan of this network already, it is taken from there.
    tuning_file : Path, optional
        Try, for a few seconds, how wide tiles should be for this network and number of features on
        this machine, and keep that there; if it is there already, it is taken from there. It
        changes no result.
    activations : bool
        Whether the Result has the activations of the live features.
    progress : callable, optional
        Called with the fraction of inference that is done.

    Returns
    -------
    Result
        Its times are those of compiling (or loading compiled kernels), planning, bringing the
        features into the engine's form, tuning, and inference.

    Raises
    ------
    DataError
        If the features do not fit the network.
    DeviceError
        If this machine cannot run that engine or mode, or has too little memory.
    PlanError
        If the engine has no plan to keep, or nothing to tune, where that is asked for.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from spdnn import Features, Layer, Network, infer
    >>> network = Network([Layer(sp.eye_array(3), bias=-1.0)])
    >>> infer(network, Features.from_matrix([[0, 3, 0], [1, 0, 1]]), engine="scipy").categories
    array([1])
    """
    prepared = prepare(
        network,
        features,
        engine=engine,
        mode=mode,
        threads=threads,
        device=device,
        plan_file=plan_file,
        tuning_file=tuning_file,
    )
    return prepared.run(activations=activations, progress=progress)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A network planned for an engine, and the features to run through it.

    Attributes
    ----------
    engine : Engine
    mode : str
    plan : Plan
    loaded : object
        The features in the engine's own form.
    n_features : int
    n_edges : int
        Stored weights of all layers.
    seconds : Seconds
        Of compiling, planning, loading and tuning; `total` is all of it.
    """

    engine: Engine
    mode: str
    plan: Plan
    loaded: Any
    n_features: int
    n_edges: int
    seconds: Seconds

    @property
    def work(self) -> Work | None:
        """What the plan computes for a feature, if it says so."""
        return self.plan.work

    def run(self, *, activations: bool = False, progress: Progress | None = None) -> Result:
        """Run the features through the plan; see `infer`."""
        started = time.perf_counter()
        output = self.engine.run(self.plan, self.loaded, activations=activations, progress=progress)
        inference = time.perf_counter() - started
        spent = self.seconds
        return Result(
            live=output.live,
            activations=output.activations,
            layers=layer_counts(output.n_live, output.edges_evaluated, output.n_distinct),
            seconds=replace(spent, inference=inference, total=spent.total + inference),
            engine=self.engine.name,
            mode=self.mode,
            threads=self.engine.threads,
            ranks=1,
            n_features=self.n_features,
            n_edges=self.n_edges,
            work=self.work,
            device=None if output.device_seconds is None else DeviceTime(*output.device_seconds),
        )


def prepare(
    network: Network,
    features: Features,
    *,
    engine: str = "auto",
    mode: str = "auto",
    threads: int | None = None,
    device: int | None = None,
    plan_file: Path | None = None,
    tuning_file: Path | None = None,
) -> Prepared:
    """Compile, plan, load and tune; the parameters and errors are those of `infer`."""
    require_fit(network, features)
    runner = make_engine(engine, threads, device)
    mode = choose_mode(runner, mode)
    if tuning_file is not None:
        require_tunable(runner, tuning_file)
    started = time.perf_counter()
    runner.compile(network)
    compiled = time.perf_counter()
    plan = plan_for(runner, network, mode, plan_file)
    planned = time.perf_counter()
    loaded = runner.load(plan, features)
    fed = time.perf_counter()
    if tuning_file is not None:
        runner = tune(runner, network, mode, plan, features, tuning_file)
    ready = time.perf_counter()
    seconds = Seconds(
        compile=compiled - started,
        plan=planned - compiled,
        load=fed - planned,
        tune=0.0 if tuning_file is None else ready - fed,
        total=ready - started,
    )
    return Prepared(runner, mode, plan, loaded, features.n_features, network.n_edges, seconds)


def require_fit(network: Network, features: Features) -> None:
    """Refuse features of another number of neurons than the network has inputs (DataError)."""
    if features.n_neurons != network.n_inputs:
        raise DataError(
            f"the features have {features.n_neurons} neurons, "
            f"but the network's first layer takes {network.n_inputs} inputs"
        )


def layer_counts(*counts: npt.NDArray[np.int64]) -> tuple[LayerCount, ...]:
    """Rows of a Result from its columns: live, edges evaluated and distinct, a number a layer."""
    return tuple(LayerCount(*map(int, row)) for row in zip(*counts, strict=True))


def with_reading(result: Result, read: float, total: float) -> Result:
    """Return `result` with the seconds of reading, and of the whole run, filled in."""
    return replace(result, seconds=replace(result.seconds, read=read, total=total))
