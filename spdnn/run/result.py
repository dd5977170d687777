"""The result of a run: categories, counts by layer, seconds by phase."""

import hashlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from operator import add
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spdnn.plan.work import Work


class LayerCount(NamedTuple):
    """The counts of one layer.

    Attributes
    ----------
    live : int
        Live features after it.
    edges_evaluated : int
        Edges that were evaluated in it, summed over all features.
    distinct : int
        Live features that were carried on after it. Each stands for all features that have
        become equal to it. Where nothing is merged they are all live features.
    """

    live: int
    edges_evaluated: int
    distinct: int


class RankCount(NamedTuple):
    """What one of several processes did.

    Attributes
    ----------
    host : str
    threads : int
    features : int
        Number of input features that it ran.
    live : int
        Those of them that are live after the last layer.
    edges_evaluated : int
    seconds : float
        Its own inference, without waiting for the others.
    received : int
        Features that it got from other ranks at stops between layers.
    """

    host: str
    threads: int
    features: int
    live: int
    edges_evaluated: int
    seconds: float
    received: int


@dataclass(frozen=True)
class Seconds:
    """Seconds by phase; `total` is the whole run as the user waited for it.

    Each phase has its own seconds, from its beginning to its end. `overlap` is how long features
    were read while the network was planned; it counts in both phases.
    """

    read: float = 0.0
    compile: float = 0.0
    plan: float = 0.0
    overlap: float = 0.0
    load: float = 0.0
    tune: float = 0.0
    inference: float = 0.0
    total: float = 0.0

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(*map(add, astuple(self), astuple(other)))


class DeviceTime(NamedTuple):
    """Seconds of inference by the device's own clock.

    Attributes
    ----------
    stream : float
        Seconds from the first kernel to the last one, of each batch; gaps between kernels count.
    copies : float
        Seconds of copying weights and inputs that did not fit before. Copies of weights overlap
        with kernels.
    """

    stream: float
    copies: float


@dataclass(frozen=True, eq=False)
class Result:
    """What a run found, and how long it took.

    Attributes
    ----------
    live : ndarray, shape (n_live,), int64
        Live features after the last layer, counted from 0, ascending.
    activations : ndarray, shape (n_live, n_outputs), or None
        Activations after the last layer, in the order of `live`, where they were asked for:
        float32, or float64 from the reference.
    layers : tuple of LayerCount
        One for each layer.
    seconds : Seconds
        Times of the phases.
    engine, mode : str
        What ran.
    threads, ranks : int
        How many ran it; threads of all ranks together.
    n_features, n_edges : int
        Input features, and stored weights of all layers.
    device : DeviceTime or None
        Times of an engine that runs on a device. Of several ranks they are those of the slowest,
        for which the others waited.
    work : Work or None
        Neurons, edges and additions that the plan has left for one feature, where it tells.
    is_emulated : bool
        Whether a GPU's instructions were executed on the CPU: the times are not a GPU's.
    by_rank : tuple of RankCount
        One for each rank, where there are several.
    resumed_after : int
        Layers that an earlier run had passed, from whose checkpoint this one has gone on. Counts
        and seconds of inference are then those of both runs.
    """

    live: npt.NDArray[np.int64]
    activations: npt.NDArray[np.float32] | npt.NDArray[np.float64] | None
    layers: tuple[LayerCount, ...]
    seconds: Seconds
    engine: str
    mode: str
    threads: int
    ranks: int
    n_features: int
    n_edges: int
    work: Work | None = None
    device: DeviceTime | None = None
    by_rank: tuple[RankCount, ...] = ()
    resumed_after: int = 0
    is_emulated: bool = False

    def after(self, before: Seconds, *, read: float = 0.0, total: float | None = None) -> "Result":
        """Return the same result with the seconds of what came before it.

        Parameters
        ----------
        before : Seconds
            Of the session: compiling and planning.
        read : float
            Seconds of reading network and features.
        total : float, optional
            Seconds of the whole run, where they are more than those of all phases.
        """
        seconds = before + self.seconds + Seconds(read=read, total=read - before.overlap)
        if total is not None:
            seconds = replace(seconds, total=total)
        return replace(self, seconds=seconds)

    @property
    def categories(self) -> npt.NDArray[np.int64]:
        """Live features counted from 1, ascending, as in the challenge's files."""
        return self.live + 1

    @property
    def edges_per_second(self) -> float:
        """The challenge's rate: all edges times all input features, by inference seconds."""
        seconds = self.seconds.inference
        return self.n_edges * self.n_features / seconds if seconds > 0 else 0.0

    @property
    def edges_evaluated(self) -> int:
        """Edges that were evaluated, summed over all layers and features."""
        return sum(layer.edges_evaluated for layer in self.layers)

    @property
    def factor_saved(self) -> float:
        """Edges that the rate counts for each edge that was evaluated."""
        return self.n_edges * self.n_features / max(self.edges_evaluated, 1)

    @property
    def imbalance(self) -> float:
        """Seconds of the slowest rank, divided by the mean of all ranks: 1 if they share evenly."""
        seconds = [rank.seconds for rank in self.by_rank]
        return max(seconds) * len(seconds) / sum(seconds) if sum(seconds) > 0 else 1.0


def categories_text(categories: Iterable[int]) -> bytes:
    """Return the content of a categories file: one number a line, as published.

    Without categories it is one newline: a file without bytes would be taken for an unfinished
    download.
    """
    return "".join(f"{category}\n" for category in categories).encode() or b"\n"


def categories_sha256(categories: Iterable[int]) -> str:
    """sha256 of the bytes of the categories' file, in hexadecimal."""
    return hashlib.sha256(categories_text(categories)).hexdigest()


@dataclass(frozen=True, eq=False)
class Comparison:
    """Categories against the truth: what is missing from them, and what is extra."""

    missing: npt.NDArray[np.int64]
    extra: npt.NDArray[np.int64]

    @property
    def is_equal(self) -> bool:
        """Whether both are the same set."""
        return not (self.missing.size or self.extra.size)


def compare(categories: npt.NDArray[np.int64], truth: npt.NDArray[np.int64]) -> Comparison:
    """Compare two sets of categories, whole."""
    return Comparison(np.setdiff1d(truth, categories), np.setdiff1d(categories, truth))
