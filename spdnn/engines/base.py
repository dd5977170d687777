"""The face that all engines share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from spdnn.engines.state import State
from spdnn.errors import DataError
from spdnn.features import Features
from spdnn.network import Network

Progress = Callable[[float], None]
"""Called now and then with the fraction of the work done, 0 to 1, from any thread."""


NO_FACTS: Mapping[str, Any] = {}
"""Of engines that run any plan of theirs."""


class DeviceSeconds(NamedTuple):
    """Where a device's time went during inference, by its own clock.

    Attributes
    ----------
    kernels : float
        Stages, from their first kernel to their last; gaps between kernels count.
    copies : float
        Weights and inputs that did not fit before; they overlap with kernels.
    """

    kernels: float
    copies: float


@dataclass(frozen=True, eq=False)
class Output:
    """What an engine gives back.

    Attributes
    ----------
    live : ndarray, shape (n_live,), int64
        The features (0-based, ascending) that are live after the last layer.
    n_live : ndarray, shape (n_layers,), int64
        Live features after each layer; like all counts 0 for layers that were not run.
    n_distinct : ndarray, shape (n_layers,), int64
        Those of them that were carried after each layer: the others are equal to one of them.
    edges_evaluated : ndarray, shape (n_layers,), int64
        Edges of each layer times the features it was evaluated for.
    activations : ndarray, shape (n_live, n_outputs), or None
        Activations of the live features after the last layer, where they were asked for.
    state : State or None
        Where the run stopped before the last layer: what goes on from there. `live` are then
        the features in it.
    device_seconds : DeviceSeconds or None
        Of engines that run on a device of their own.
    """

    live: npt.NDArray[np.int64]
    n_live: npt.NDArray[np.int64]
    n_distinct: npt.NDArray[np.int64]
    edges_evaluated: npt.NDArray[np.int64]
    activations: npt.NDArray[Any] | None
    state: State | None = None
    device_seconds: DeviceSeconds | None = None


class Engine(Protocol):
    """Plans networks and runs features through plans. It knows no files and no MPI.

    Attributes
    ----------
    name : str
    modes : tuple of str
        The last is the best.
    threads : int
    stops : bool
        Whether `run` can stop between layers, and go on from there.
    plan_class : type or None
        Of its plans, with `to_parts` and `from_parts`, where they can be kept in a file.
    plan_facts : mapping
        What a plan must have been made for, beside a network and a mode, for this engine to run
        it; ready for JSON.
    tuning : object
        What was measured of this machine and shapes plans, ready for JSON. It may be set to
        another process's before planning: plans of the same network are then equal.
    shapes : object
        What runs are cut into, of `shape_choices`, ready for JSON; no result depends on it. It may
        be set for the plan that is run next; None is the engine's own choice.
    """

    name: str
    modes: tuple[str, ...]
    threads: int
    stops: bool
    plan_class: Any
    plan_facts: Mapping[str, Any]
    tuning: Any
    shapes: Any

    @property
    def shape_choices(self) -> Callable[[Any, int], Sequence[Sequence[int]]] | None:
        """What may be tried as `shapes` to run a plan on so many features; None if nothing may.

        For each of the shapes the numbers that are worth a trial, the engine's own choice first.
        """

    def compile(self, network: Network) -> None:
        """Compile what planning and running this network need, or load it from the cache."""

    def plan(self, network: Network, mode: str) -> Any:
        """Make everything that depends on the weights alone.

        Raises
        ------
        PlanError, DeviceError
            If there can be no such plan, or it does not fit into memory.
        """

    def close(self) -> None:
        """TEMP"""

    def load(self, plan: Any, features: Features) -> Any:
        """Bring features into the form, and to the place, that this engine runs from.

        A plan's weights, too, where the engine runs elsewhere. That is part of what an engine
        is fed with, like reading, and timed apart.

        Raises
        ------
        DeviceError
            If they do not fit into memory.
        """

    def run(
        self,
        plan: Any,
        start: Any,
        *,
        until: int | None = None,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through a plan of this engine.

        Parameters
        ----------
        plan : object
            As `plan` gave it.
        start : object or State
            Features as `load` gave them; or where an earlier run of an equal plan has stopped.
        until : int, optional
            Layers after which to stop, more than `start` has passed; all where not given.
            Results do not depend, bit for bit, on where a run has stopped.
        activations : bool
            Whether those after the last layer are wanted.
        progress : callable, optional
            Called with the fraction done of what is to be run.

        Raises
        ------
        DeviceError
            If the work does not fit into memory.
        OverflowingError
            If activations after the last layer are not finite, or an earlier layer's without a
            cap were not, so that results would be wrong.
        """


class Plan(Protocol):
    """TEMP"""

    mode: str
    n_layers: int

    @property
    def work(self) -> Any: ...


@runtime_checkable
class Resumable(Protocol):
    """TEMP"""

    resumes: bool

    def run(
        self,
        plan: Any,
        start: Any,
        *,
        until: int | None = None,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output: ...


@runtime_checkable
class Calibrated(Protocol):
    """TEMP"""

    costs: Any

    def with_costs(self, costs: Any) -> Self: ...


@runtime_checkable
class Tunable(Protocol):
    """TEMP"""

    widths: Any

    def width_choices(self, plan: Any, n_features: int) -> Sequence[Sequence[int]]: ...
    def with_widths(self, widths: Any) -> Self: ...


@runtime_checkable
class Scoring(Protocol):
    """TEMP"""

    def scores(self, plan: Any, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]: ...


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
    """Edges evaluated a layer: for the live features only, where others may be dropped.

    Parameters
    ----------
    n_features : int
        Features that enter the first layer.
    n_live : ndarray, shape (n_layers,), int64
        Live features after each layer.
    may_drop : sequence of bool, length n_layers
        Whether dead features are dropped after each layer.
    layer_edges : sequence of int, length n_layers
    """
    edges = np.empty_like(n_live)
    n_entering = n_features
    for layer in range(n_live.size):
        edges[layer] = n_entering * layer_edges[layer]
        if may_drop[layer]:
            n_entering = int(n_live[layer])
    return edges
