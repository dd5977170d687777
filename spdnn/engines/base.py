"""What all engines have in common: their protocols, and what a run gives back.

Every engine has the methods of `Engine`. What only some engines can do is a protocol of its own:
`Resumable`, `Calibrated`, `Threaded`, `Keepable`, `Tunable`, `Scoring`. A caller asks for it with
``isinstance``. Each of these protocols has a member that `Engine` does not have, since
``isinstance`` looks at names and not at signatures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from spdnn.engines.state import State
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.machine.thread_pool import KeptThreads
from spdnn.network import Network
from spdnn.plan.work import Work

Progress = Callable[[float], None]
"""Called now and then with the fraction of the work done, 0 to 1, from any thread."""

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A value that can be written as JSON."""

Widths = tuple[int, int]
"""Features of a tile in the first segment of a run, and in the later segments."""


class DeviceSeconds(NamedTuple):
    """Where a device's time went during inference, by its own clock.

    Attributes
    ----------
    stream : float
        From the first kernel to the last one, of each batch; gaps between kernels count.
    copies : float
        Copying weights and inputs that did not fit before. Copies of weights overlap with kernels.
    """

    stream: float
    copies: float


@dataclass(frozen=True, eq=False)
class Output:
    """What an engine gives back.

    Attributes
    ----------
    live : ndarray, shape (n_live,), int64
        The features (0-based, ascending) that are live after the last layer.
    n_live : ndarray, shape (n_layers,), int64
        Live features after each layer. Like all counts it is 0 for layers that were not run.
    n_distinct : ndarray, shape (n_layers,), int64
        How many live features were carried after each layer. Each of the others is equal to one
        of these.
    edges_evaluated : ndarray, shape (n_layers,), int64
        Edges of each layer times the features that it was evaluated for.
    activations : ndarray, shape (n_live, n_outputs), or None
        Activations of the live features after the last layer, if they were asked for.
    state : State or None
        The features where the run has stopped, if that is before the last layer. A later run
        can start from it. `live` then holds the features of the state.
    device_seconds : DeviceSeconds or None
        Only from engines that run on a device of their own.
    """

    live: npt.NDArray[np.int64]
    n_live: npt.NDArray[np.int64]
    n_distinct: npt.NDArray[np.int64]
    edges_evaluated: npt.NDArray[np.int64]
    activations: npt.NDArray[Any] | None
    state: State | None = None
    device_seconds: DeviceSeconds | None = None


class Plan(Protocol):
    """What every engine's plan tells; the rest of a plan is the engine's own.

    Attributes
    ----------
    mode : str
        The mode that the network was planned for.
    n_layers : int
        Number of layers.
    work : Work or None
        What is computed for a feature; None if the plan computes the network as it is.
    """

    @property
    def mode(self) -> str:
        """The mode that the network was planned for."""

    @property
    def n_layers(self) -> int:
        """Number of layers."""

    @property
    def work(self) -> Work | None:
        """What is computed for a feature; None if the plan computes the network as it is."""


class KeepablePlan(Plan, Protocol):
    """A plan that can be written to a file."""

    def to_parts(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """All of the plan: facts that are ready for JSON, and arrays by name."""


class Engine(Protocol):
    """Plans networks and runs features through plans. It knows no files and no MPI.

    An engine is a value that does not change. Only its threads, or what it holds on its device,
    come and go.

    Attributes
    ----------
    name : str
        The name by which `spdnn.engines.make_engine` makes it.
    modes : tuple of str
        Its modes; the last one is the best.
    threads : int
        Threads that a run may use.
    """

    @property
    def name(self) -> str:
        """The name by which `spdnn.engines.make_engine` makes it."""

    @property
    def modes(self) -> tuple[str, ...]:
        """Its modes; the last one is the best."""

    @property
    def threads(self) -> int:
        """Threads that a run may use."""

    def compile(self, network: Network, mode: str | None = None) -> None:
        """Compile what planning and running this network need, or load it from the cache.

        Parameters
        ----------
        network : Network
            Only its sizes matter.
        mode : str, optional
            The mode that is to be planned and run; by default all modes of the engine.
        """

    def plan(self, network: Network, mode: str) -> Plan:
        """Make everything that depends on the weights alone.

        Parameters
        ----------
        network : Network
            The network; its layers are read once, in order.
        mode : str
            One of `modes`.

        Raises
        ------
        PlanError
            If the engine has no such mode, or the network cannot be planned.
        DeviceError
            If the plan does not fit into memory.
        """

    def load(self, plan: Any, features: Features) -> Any:
        """Bring features into the form, and to the place, from which this engine runs.

        An engine that runs on a device also takes the plan's weights there. Loading is part of
        feeding the engine, like reading, and is timed apart from inference.

        Parameters
        ----------
        plan : Plan
            A plan of this engine.
        features : Features
            As many neurons as the network has inputs.

        Raises
        ------
        DeviceError
            If the features do not fit into memory.
        """

    def run(
        self,
        plan: Any,
        loaded: Any,
        *,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through all layers.

        Parameters
        ----------
        plan : Plan
            A plan of this engine.
        loaded : object
            Features as `load` gave them for this plan.
        activations : bool
            Whether the output has the activations after the last layer.
        progress : callable, optional
            Called with the fraction done of what is to be run.

        Raises
        ------
        DeviceError
            If the work does not fit into memory.
        OverflowingError
            If activations after the last layer are not finite. Activations of an earlier layer
            that has no cap count, too, since they would make later ones wrong.
        """

    def close(self) -> None:
        """Give back threads and device memory. It may be called twice.

        The engine can still be used: what a later call needs is taken again.
        """


@runtime_checkable
class Resumable(Engine, Protocol):
    """An engine that can stop between layers, and go on from there."""

    def run_part(
        self,
        plan: Any,
        start: Any,
        *,
        until: int | None = None,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through some layers, or from where an earlier run has stopped.

        The result does not depend, bit for bit, on where a run has stopped.

        Parameters
        ----------
        plan : Plan
            A plan of this engine.
        start : object or State
            Features as `load` gave them, or the state in which a run of an equal plan has stopped.
        until : int, optional
            Number of layers after which to stop, more than `start` has passed. By default the
            run goes through all layers.
        activations : bool
            Whether the output has the activations after the last layer.
        progress : callable, optional
            Called with the fraction done of what is to be run.

        Raises
        ------
        DeviceError, OverflowingError
            As `Engine.run`.
        """


@runtime_checkable
class Calibrated(Engine, Protocol):
    """An engine whose plans depend on what it has measured of its machine.

    Attributes
    ----------
    costs : JSON value
        What was measured. Engines of equal costs make equal plans of the same network.
    """

    @property
    def costs(self) -> Json:
        """What was measured, ready for JSON; it is measured when it is first asked for."""

    def with_costs(self, costs: Json) -> Self:
        """Return the same engine with other costs, for instance those of another machine.

        Parameters
        ----------
        costs : JSON value
            The `costs` of an engine of this kind.

        Raises
        ------
        PlanError
            If these are not the costs of such an engine.
        """


@runtime_checkable
class Threaded(Engine, Protocol):
    """An engine that plans and runs on threads that it keeps.

    Attributes
    ----------
    kept_threads : KeptThreads
        The threads. What else they are given takes none of the user's processors beside them.
    """

    @property
    def kept_threads(self) -> KeptThreads:
        """The threads that plan and run."""


@runtime_checkable
class CompilesAhead(Protocol):
    """An engine that can have kernels compiled while inputs are read."""

    def compile_ahead(self) -> None:
        """Begin to compile, where that saves time; `Engine.compile` waits for it."""


@runtime_checkable
class Keepable(Engine, Protocol):
    """An engine whose plans can be written to files.

    Attributes
    ----------
    plan_facts : mapping
        What, beside a network and a mode, a plan must have been made for; ready for JSON. The
        engine can run a kept plan only if these facts are equal.
    """

    @property
    def plan_facts(self) -> Mapping[str, Json]:
        """What, beside a network and a mode, a plan must have been made for."""

    def plan(self, network: Network, mode: str) -> KeepablePlan:
        """Make a plan; see `Engine.plan`."""

    def plan_from_parts(
        self, facts: Mapping[str, Any], array: Callable[[str], npt.NDArray[Any]]
    ) -> KeepablePlan:
        """Put together a plan that `to_parts` took apart.

        Parameters
        ----------
        facts : mapping
            The plan's facts.
        array : callable
            Gives an array of the plan by its name.

        Raises
        ------
        KeyError, TypeError
            If a part is missing or of another kind.
        """


@runtime_checkable
class Tunable(Engine, Protocol):
    """An engine that cuts runs into tiles, of which different widths may be tried.

    No result depends on the widths.

    Attributes
    ----------
    widths : tuple of int, or None
        Features of a tile in the first segment and in the later ones; None if the engine chooses
        them for each plan.
    """

    @property
    def widths(self) -> Widths | None:
        """Features of a tile in the first segment and in the later ones."""

    def width_choices(self, plan: Any, n_features: int) -> Sequence[Sequence[int]]:
        """Widths that are worth a trial, for each of the two; the engine's own choice is first.

        Parameters
        ----------
        plan : Plan
            A plan of this engine.
        n_features : int
            Features that are to be run.
        """

    def with_widths(self, widths: Sequence[int] | None) -> Self:
        """Return the same engine with other widths.

        Parameters
        ----------
        widths : sequence of int, or None
            The two widths; None for the engine's own choice.

        Raises
        ------
        PlanError
            If the engine has no such tiles.
        """


@runtime_checkable
class Scoring(Engine, Protocol):
    """An engine that takes dense inputs and gives dense activations."""

    def scores(self, plan: Any, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Compute the activations of all features after the last layer.

        Parameters
        ----------
        plan : Plan
            A plan of this engine.
        inputs : ndarray, shape (n_features, n_inputs), float32
            In C order.

        Returns
        -------
        ndarray, shape (n_features, n_outputs), float32
            The same bits as the activations of `Engine.run`; zeros for features that are not live.

        Raises
        ------
        DataError
            If an input is NaN or infinite.
        DeviceError, OverflowingError
            As `Engine.run`.
        """


class OverflowingError(DataError):
    """A feature has activations that are not finite.

    Attributes
    ----------
    feature : int
        Its number among those that the engine was given, from 0.
    """

    def __init__(self, feature: int) -> None:
        super().__init__(
            f"feature {feature + 1} has activations beyond what the engine's numbers hold, in the "
            "last layer or before: take smaller weights or inputs, give layers a cap (ymax), or "
            "take engine scipy, which computes in float64"
        )
        self.feature = feature


def count_edges(
    n_features: int,
    n_live: npt.NDArray[np.int64],
    may_drop: Sequence[bool] | npt.NDArray[Any],
    layer_edges: Sequence[int],
) -> npt.NDArray[np.int64]:
    """Count the edges that are evaluated in each layer.

    Where dead features may be dropped, a layer is evaluated for the live ones only.

    Parameters
    ----------
    n_features : int
        Features that enter the first layer.
    n_live : ndarray, shape (n_layers,), int64
        Live features after each layer.
    may_drop : sequence of bool, length n_layers
        Whether dead features are dropped after each layer.
    layer_edges : sequence of int, length n_layers
        Edges of each layer.

    Returns
    -------
    ndarray, shape (n_layers,), int64
    """
    edges = np.empty_like(n_live)
    n_entering = n_features
    for layer in range(n_live.size):
        edges[layer] = n_entering * layer_edges[layer]
        if may_drop[layer]:
            n_entering = int(n_live[layer])
    return edges
