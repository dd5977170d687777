"""`Session`: a network that is compiled and planned once, and run as often as is wanted.

This is the only way from a network to a result. One process by itself is a `Team` of one; the
ranks of an MPI job are a team, too, and take the same steps. `infer` and `predict` are a session
that is used once.
"""

import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from spdnn.engines import EMULATED, WITH_DEVICES, DeviceChoice, choose_mode, make_engine
from spdnn.engines.base import Calibrated, Engine, Plan, Progress, Scoring, Threaded
from spdnn.errors import DataError, DeviceError, PlanError
from spdnn.features import Features
from spdnn.machine.memory import require_bytes
from spdnn.network import Network
from spdnn.run.course import Course, find_checkpoint
from spdnn.run.options import DEFAULTS, Options
from spdnn.run.plan_files import plan_for, write_plan
from spdnn.run.prediction import Prediction, classes_of, require_classes, scores_of
from spdnn.run.reading import Reading
from spdnn.run.result import DeviceTime, LayerCount, Result, Seconds
from spdnn.run.team import Team, require_fit
from spdnn.run.tuning_files import require_tunable, tune

WORTH_ASKING = 64 << 20
"""Bytes of scores from which it is asked beforehand whether they fit: asking takes longer than a
small call."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Features that are ready to be run by a session.

    Attributes
    ----------
    engine : Engine
        The session's, with tile widths for so many features where they are tuned.
    own : Features
        The part of this rank.
    loaded : object
        That part in the engine's form.
    n_features : int
        Features of all ranks.
    seconds : Seconds
        What loading and tuning took.
    """

    engine: Engine
    own: Features
    loaded: Any
    n_features: int
    seconds: Seconds


class Session:
    """A network that is compiled and planned, and threads that wait for features.

    A session may be used from several Python threads: calls wait for one another. After a fork
    the child may use it, too, but not a session on a GPU. It is a context manager; at the end it
    gives back its threads and memory.

    Parameters
    ----------
    network : Network
        What is to be run.
    engine : {"auto", "cpu", "cuda", "scipy"}
        What computes.
    mode : {"auto", "edges", "merge"}
        Whether equal neurons and equal features are merged. "auto" is the engine's best mode.
    threads : int, optional
        Threads of engine "cpu"; by default the processors that this process may use, at most
        ``OMP_NUM_THREADS``.
    device : int or {"emulated", "emulated-checked"}, optional
        For engine "cuda": which of the GPUs that this process sees, counted from 0; or a device
        that executes the GPU's instructions on the CPU; see `spdnn.run.options.Options`.
    plan : path-like, optional
        File of the plan. It is written if it is not there, and read if it is.
    tuning : path-like, optional
        File of tile widths; see `spdnn.run.options.Options`.

    Attributes
    ----------
    engine : Engine
        The engine that runs it.
    mode : str
        The mode that it was planned in.
    seconds : Seconds
        What compiling and planning took.

    Raises
    ------
    DeviceError
        If this machine cannot run that engine or mode, or has too little memory.
    PlanError
        If there can be no such plan, the engine has no plan to keep in a file, or nothing to tune.
    DataError
        If a file of a plan or of tile widths is damaged, or of another network.

    Examples
    --------
    >>> import numpy as np
    >>> from spdnn import Layer, Network, Session
    >>> network = Network([Layer(np.eye(3), bias=-1.0)])
    >>> with Session(network, engine="scipy") as session:
    ...     session.run(np.array([[0, 3, 0], [1, 0, 1]])).categories
    array([1])
    """

    def __init__(
        self,
        network: Network,
        *,
        engine: str = "auto",
        mode: str = "auto",
        threads: int | None = None,
        device: DeviceChoice | None = None,
        plan: str | os.PathLike[str] | None = None,
        tuning: str | os.PathLike[str] | None = None,
    ) -> None:
        plan_file, tuning_file = (None if path is None else Path(path) for path in (plan, tuning))
        options = Options(engine, mode, threads, device, plan_file, tuning_file)
        self._open(Team(), network, options)

    @classmethod
    def of_team(
        cls,
        team: Team,
        network: Network | None,
        options: Options = DEFAULTS,
        reading: Reading[Any] | None = None,
    ) -> "Session":
        """Open a session that the ranks of a team run together; all of them call this.

        Parameters
        ----------
        team : Team
            The ranks. One process by itself is a ``Team()``.
        network : Network or None
            What is to be run; None on ranks that lead no node.
        options : Options
            The same on all ranks.
        reading : Reading, optional
            What the leaders of nodes read while they plan.

        Raises
        ------
        SpdnnError
            As `Session`, on all ranks; and if a checkpoint is another run's.
        """
        session = cls.__new__(cls)
        session._open(team, network, options, reading)
        return session

    def _open(
        self,
        team: Team,
        network: Network | None,
        options: Options,
        reading: Reading[Any] | None = None,
    ) -> None:
        """Compile and plan, in phases that all ranks go through."""
        self._team, self._options = team, options
        self._lock, self._process = threading.RLock(), os.getpid()
        self._is_open = True
        threads = team.default_threads() if options.threads is None else options.threads

        def chosen() -> tuple[Engine, str]:
            engine = make_engine(options.engine, threads, options.device)
            return engine, choose_mode(engine, options.mode)

        started = time.perf_counter()
        self.engine, self.mode = team.on_all(chosen)
        if options.tuning is not None:
            team.on_all(partial(require_tunable, self.engine, options.tuning, team.size))
        self._structure = structure = team.structure_of(network)
        self._network = structure if network is None else network
        shared = time.perf_counter()
        # One rank of a node compiles; the others then find the kernels in the cache.
        team.on_leaders(lambda: self.engine.compile(structure, self.mode))
        team.on_others(lambda: self.engine.compile(structure, self.mode))
        compiled = time.perf_counter()
        self._agree_on_costs()

        def planned(network: Network) -> Plan:
            return plan_for(self.engine, network, self.mode, options.plan)

        def planned_beside() -> Plan:
            if reading is None:
                return planned(self._network)
            engine = self.engine
            threads = engine.kept_threads if isinstance(engine, Threaded) else None
            return reading.beside(planned, self._network, threads)

        self.plan = team.shared(planned_beside)
        ready = time.perf_counter()
        waited, overlap = (reading.waited, reading.overlap) if reading else (0.0, 0.0)
        # Asked once: it takes longer than a small call.
        self._scoring = self.engine if isinstance(self.engine, Scoring) else None
        self.seconds = Seconds(
            compile=compiled - shared,
            plan=ready - compiled - waited,
            overlap=overlap,
            total=ready - started,
        )

    def _agree_on_costs(self) -> None:
        """Have all nodes plan with equal costs, those of a checkpoint if there is one.

        Plans are then equal on all nodes.
        """
        found = find_checkpoint(self._team, self._options.checkpoint, self._run_facts())
        if isinstance(self.engine, Calibrated):
            costs = self._team.tell((found.costs if found else self.engine.costs,))[0]
            self.engine = self.engine.with_costs(costs)

    def _run_facts(self) -> dict[str, Any]:
        """What tells this session's runs from others."""
        layers = self._structure.n_layers
        return {"engine": self.engine.name, "mode": self.mode, "layers": layers}

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back threads and memory; the session can be used no more."""
        with self._own_lock():
            self._is_open = False
            self.engine.close()

    @property
    def network(self) -> Network:
        """What is run; on ranks that lead no node without its weights."""
        return self._network

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Wait for other threads' calls; refuse what a closed or forked session cannot do."""
        is_tied = self.engine.name in WITH_DEVICES or self._team.size > 1
        if is_tied and self._process != os.getpid():
            raise DeviceError(
                "a session on a GPU or of several ranks does not survive a fork: "
                "make one in the child"
            )
        with self._own_lock():
            if not self._is_open:
                raise PlanError("this session is closed")
            yield

    def _own_lock(self) -> threading.RLock:
        """The lock of this process: another thread may have held its parent's at the fork."""
        if self._process != os.getpid():
            self._lock, self._process = threading.RLock(), os.getpid()
        return self._lock

    # Running

    def run(
        self,
        features: Any,
        *,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Result:
        """Run features through the network.

        Parameters
        ----------
        features : Features, scipy.sparse matrix or array_like, shape (n_features, n_inputs)
            The inputs. On a team they are all ranks' features, and None on ranks that lead no
            node.
        activations : bool
            Whether the Result has the activations of the live features. Ranks do not gather them.
        progress : callable, optional
            Called with the fraction of inference that is done.

        Returns
        -------
        Result
            Its seconds are those of this call: loading, tuning, inference. On a team it is
            complete on rank 0; elsewhere the live features are missing.

        Raises
        ------
        DataError
            If the features do not fit the network, activations are not finite, or a checkpoint
            cannot be written or is another run's.
        DeviceError
            If the work does not fit into memory.
        PlanError
            If the session is closed, or a team of several is asked for activations.
        """
        with self._call():
            return self.run_batch(self.load(features), activations=activations, progress=progress)

    def load(self, features: Any) -> Batch:
        """Bring features into the engine's form, to run them more than once.

        Parameters
        ----------
        features : Features, scipy.sparse matrix or array_like, shape (n_features, n_inputs)
            As for `run`.

        Raises
        ------
        SpdnnError
            As `run`.
        """
        with self._call():
            team, engine, tuning = self._team, self.engine, self._options.tuning
            is_elsewhere = features is None and team.size > 1
            given = None if is_elsewhere else as_features(features)
            started = time.perf_counter()
            own, n_features = team.own_features(self._structure, given, self._options.partition)
            shared = time.perf_counter()
            loaded = team.on_all(lambda: engine.load(self.plan, own))
            fed = time.perf_counter()
            if tuning is not None:
                engine = tune(engine, self._network, self.mode, self.plan, own, tuning)
            ready = time.perf_counter()
            spent = 0.0 if tuning is None else ready - fed
            seconds = Seconds(load=fed - shared, tune=spent, total=ready - started)
            return Batch(engine, own, loaded, n_features, seconds)

    def run_batch(
        self, batch: Batch, *, activations: bool = False, progress: Progress | None = None
    ) -> Result:
        """Run features that `load` has prepared; otherwise as `run`.

        Inference lasts from a barrier of all ranks to the end of gathering, as the rank saw it
        that left the barrier first.
        """
        team = self._team
        if activations and team.size > 1:
            raise PlanError("activations are not gathered from several ranks")
        with self._call():
            facts = self._run_facts() | {"features": batch.n_features}
            course = Course(team, batch.engine, self.plan, self._options, facts)
            start = course.begin(batch.own)
            team.barrier()
            started = time.perf_counter()
            output = course.run(batch.loaded if start is None else start, activations, progress)
            live = team.gathered(output.live)
            seconds = max(team.everyones(time.perf_counter() - started))
            inference = course.seconds_before + seconds
            by_rank = team.everyones(course.rank_count(platform.node(), output.live.size))
            devices = team.everyones(course.device_seconds)
            slowest = devices[max(range(team.size), key=lambda rank: by_rank[rank].seconds)]
            return Result(
                live=live,
                activations=output.activations,
                layers=tuple(map(LayerCount._make, course.layer_rows())),
                seconds=batch.seconds + Seconds(inference=inference, total=inference),
                engine=batch.engine.name,
                mode=self.mode,
                threads=sum(rank.threads for rank in by_rank),
                ranks=team.size,
                n_features=batch.n_features,
                n_edges=self._structure.n_edges,
                work=self.plan.work,
                device=None if slowest is None else DeviceTime(*slowest),
                is_emulated=self._options.device in EMULATED,
                by_rank=tuple(by_rank) if team.size > 1 else (),
                resumed_after=course.resumed_after,
            )

    def scores(self, features: Any) -> npt.NDArray[Any]:
        """Compute the last layer's activations of every feature.

        An array is scored directly, without index form, counts or times. It is the quick way for
        few features. The first call prepares it: it compiles, or loads compiled kernels.

        Parameters
        ----------
        features : Features, scipy.sparse matrix or array_like, shape (n_features, n_inputs)
            The inputs.

        Returns
        -------
        ndarray, shape (n_features, n_outputs)
            float32; float64 from the reference. The same bits as those of `run`.

        Raises
        ------
        SpdnnError
            As `run`.
        """
        return self._scored(features)[0]

    def predict(self, features: Any, *, progress: Progress | None = None) -> Prediction:
        """Take the class of each feature: its largest score.

        A feature that dies on the way has scores of zero, as it would have without being dropped,
        and the class that they give.

        Parameters
        ----------
        features : Features, scipy.sparse matrix or array_like, shape (n_features, n_inputs)
            The inputs.
        progress : callable, optional
            Called with the fraction of inference that is done.

        Raises
        ------
        SpdnnError
            As `run`, and if the network has no outputs.
        """
        require_classes(self._structure)
        scores, result = self._scored(features, progress)
        return Prediction(classes_of(scores), scores, result)

    def _scored(
        self, features: Any, progress: Progress | None = None
    ) -> tuple[npt.NDArray[Any], Result | None]:
        """Scores of features, and the run that they are from if there was one."""
        with self._call():
            if self._scoring is not None and isinstance(features, np.ndarray):
                inputs = as_inputs(features, self._structure)
                self._require_scores(len(inputs))
                return self._scoring.scores(self.plan, inputs), None
            given = as_features(features)
            self._require_scores(given.n_features)
            result = self.run(given, activations=True, progress=progress)
            return scores_of(result, self._structure.n_outputs), result

    def _require_scores(self, n_features: int) -> None:
        """Ask for the memory of live features' activations, and then of the scores of all."""
        n_bytes = 2 * n_features * self._structure.n_outputs * np.dtype(np.float32).itemsize
        if n_bytes > WORTH_ASKING:
            require_bytes(n_bytes, f"scores of {n_features} features", "take fewer `features`")

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, for `Session(network, plan=path)`.

        Parameters
        ----------
        path : path-like
            It is written whole; a file that is there is replaced.

        Raises
        ------
        PlanError
            If the engine has no plans to keep.
        DataError
            If the file cannot be written.
        """
        with self._call():
            self._team.on_first(
                lambda: write_plan(self.engine, self._network, self.mode, self.plan, Path(path))
            )

    def with_threads(self, threads: int) -> "Session":
        """Make a session with the same plan and another number of threads.

        Parameters
        ----------
        threads : int
            Threads of its engine.

        Raises
        ------
        PlanError
            If this session is one of several ranks.
        """
        if self._team.size > 1:
            raise PlanError("a session of several ranks keeps its threads")
        other = copy(self)
        other._lock = threading.RLock()
        other._options = replace(self._options, threads=threads)
        other.engine = engine = make_engine(self.engine.name, threads, self._options.device)
        other._scoring = engine if isinstance(engine, Scoring) else None
        return other


def as_features(features: Any) -> Features:
    """Take features as they are, or make them from a matrix (DataError if it is none)."""
    return features if isinstance(features, Features) else Features.from_matrix(features)


def as_inputs(array: npt.NDArray[Any], network: Network) -> npt.NDArray[np.float32]:
    """Take an array as dense inputs: float32, in C order. The engine refuses what is not finite.

    Parameters
    ----------
    array : ndarray, shape (n_features, n_inputs)
        Numbers of any type.
    network : Network
        What takes them.

    Raises
    ------
    DataError
        If it is no such array.
    """
    if array.ndim != 2:
        raise DataError(f"features must be a matrix, not of shape {array.shape}")
    require_fit(network, array.shape[1])
    if array.dtype == np.float32:
        return np.ascontiguousarray(array)
    try:
        with np.errstate(over="ignore"):  # too large becomes infinite, which is refused
            return np.ascontiguousarray(array, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"features must be a matrix of numbers ({error})") from error


def infer(
    network: Network,
    features: Any,
    *,
    activations: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Run features through a network: a `Session` that is used once.

    Parameters
    ----------
    network : Network
        What is to be run.
    features : Features, scipy.sparse matrix or array_like, shape (n_features, n_inputs)
        The inputs.
    activations : bool
        Whether the Result has the activations of the live features.
    progress : callable, optional
        Called with the fraction of inference that is done.
    **options
        Those of `Session`: engine, mode, threads, device, plan, tuning.

    Returns
    -------
    Result
        Its seconds are those of compiling (or loading compiled kernels), planning, loading the
        features, tuning, and inference.

    Raises
    ------
    SpdnnError
        As `Session` and `Session.run`.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from spdnn import Features, Layer, Network, infer
    >>> network = Network([Layer(sp.eye_array(3), bias=-1.0)])
    >>> infer(network, Features.from_matrix([[0, 3, 0], [1, 0, 1]]), engine="scipy").categories
    array([1])
    """
    features = as_features(features)
    require_fit(network, features.n_neurons)
    with Session(network, **options) as session:
        return session.run(features, activations=activations, progress=progress).after(
            session.seconds
        )


def predict(
    network: Network, features: Any, *, progress: Progress | None = None, **options: Any
) -> Prediction:
    """Run features through a classifier and take each one's largest score.

    A feature that dies on the way has scores of zero, as it would have without being dropped,
    and the class that they give.

    Parameters
    ----------
    network : Network
        The classifier.
    features : Features, scipy.sparse matrix or array_like, shape (n_features, n_inputs)
        The inputs.
    progress : callable, optional
        Called with the fraction of inference that is done.
    **options
        Those of `Session`: engine, mode, threads, device, plan, tuning.

    Returns
    -------
    Prediction
        With its result.

    Raises
    ------
    SpdnnError
        As `infer`, and if the network has no outputs, or the scores do not fit into memory.

    Examples
    --------
    >>> from spdnn import Features, Layer, Network, predict
    >>> network = Network([Layer([[1, 0], [0, 2]], bias=[0, -1], activation="linear")])
    >>> predict(network, Features.from_matrix([[1, 0], [1, 1.5]])).classes
    array([0, 1])
    """
    features = as_features(features)
    require_fit(network, features.n_neurons)
    require_classes(network)
    with Session(network, **options) as session:
        found = session.predict(features, progress=progress)
        assert found.result is not None  # only arrays are scored without a run
        return replace(found, result=found.result.after(session.seconds))
