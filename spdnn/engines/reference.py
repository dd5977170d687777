"""The reference: scipy, double precision, short and obviously right."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from spdnn.engines.base import Output, OverflowingError, Progress, count_edges
from spdnn.engines.state import State
from spdnn.errors import PlanError
from spdnn.features import Features
from spdnn.network import Layer, Network, may_drop_after
from spdnn.plan.work import Work


@dataclass(frozen=True)
class ReferencePlan:
    """The network itself. Its weights are converted to float64 layer by layer as they are used.

    Attributes
    ----------
    network : Network
        The network.
    mode : str
        Always "edges".
    """

    network: Network
    mode: str = "edges"

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self.network.n_layers

    @property
    def work(self) -> Work | None:
        """None: the network is computed as it is."""
        return None


class ReferenceEngine:
    """``Y <- min(max(Y W + b, 0), ymax)`` with scipy's sparse matrices in float64.

    Parameters
    ----------
    threads : int, optional
        Not used: scipy takes one thread.
    """

    name = "scipy"
    modes = ("edges",)
    threads = 1

    def __init__(self, threads: int | None = None) -> None:
        pass

    def compile(self, network: Network, mode: str | None = None) -> None:
        """Do nothing: nothing is compiled."""

    def plan(self, network: Network, mode: str) -> ReferencePlan:
        """Remember the network."""
        if mode not in self.modes:
            raise PlanError(f"the reference has no mode {mode}")
        return ReferencePlan(network)

    def load(self, plan: ReferencePlan, features: Features) -> Features:
        """Return the features as they are."""
        return features

    def run(
        self,
        plan: ReferencePlan,
        loaded: Features,
        *,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through all layers; see `spdnn.engines.base.Engine`."""
        return self.run_part(plan, loaded, activations=activations, progress=progress)

    def run_part(
        self,
        plan: ReferencePlan,
        start: Features | State,
        *,
        until: int | None = None,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through some layers; see `spdnn.engines.base.Resumable`.

        No feature is dropped before the end: dead features are empty rows.
        """
        network = plan.network
        if isinstance(start, State):
            y = sp.csr_array(start.activations[start.rows])
            first, ids = start.layer, start.ids
        else:
            y = start.to_csr(np.float64)
            first, ids = 0, np.arange(start.n_features, dtype=np.int64)
        end = network.n_layers if until is None else until
        n_live = np.zeros(network.n_layers, dtype=np.int64)
        for number in range(first, end):
            y = next_features(y, network.layers[number])
            if not np.isfinite(y.data).all():
                wrong = np.flatnonzero(~np.isfinite(y.data))[0]
                raise OverflowingError(int(ids[np.searchsorted(y.indptr, wrong, side="right") - 1]))
            n_live[number] = np.count_nonzero(np.diff(y.indptr))
            if progress is not None:
                progress((number + 1 - first) / (end - first))
        may_drop = may_drop_after([layer.maps_zero_to_zero for layer in network.layers])
        edges = np.zeros_like(n_live)
        edges[first:end] = count_edges(
            ids.size, n_live[first:end], may_drop[first:end], network.layer_edges[first:end]
        )
        kept = np.flatnonzero(np.diff(y.indptr)) if may_drop[end - 1] else np.arange(ids.size)
        state = None
        if end < network.n_layers:
            state = State(end, ids[kept], np.arange(kept.size), y[kept].toarray())
        wanted = y[kept].toarray() if activations and state is None else None
        return Output(ids[kept], n_live, n_live, edges, wanted, state)

    def close(self) -> None:
        """Do nothing: nothing is held."""


def next_features(y: sp.csr_array, layer: Layer) -> sp.csr_array:
    """Compute one layer.

    Parameters
    ----------
    y : csr_array, shape (n_features, n_inputs), float64
        Activations before the layer.
    layer : Layer
        The layer.

    Returns
    -------
    csr_array, shape (n_features, n_outputs), float64
        Activations after the layer, without stored zeros.

    Notes
    -----
    The challenge's rule adds the bias only where ``Y W`` is not zero. These are the stored
    entries once zeros are removed.
    """
    z = y @ layer.weights.astype(np.float64)
    bias = np.broadcast_to(layer.bias.astype(np.float64), layer.n_outputs)
    if layer.bias_rule == "always":
        z = sp.csr_array(z.toarray() + bias)
    else:
        z.eliminate_zeros()
        z.data += bias[z.indices]
    if layer.ymax is None:
        with np.errstate(invalid="ignore"):
            z.data += 0 * z.data  # NaN if a sum is not finite, so that no later layer hides it
    if layer.activation == "relu":
        z.data = np.clip(z.data, 0.0, layer.ymax)
    z.eliminate_zeros()
    return z
