"""The reference: scipy, double precision, short and obviously right."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from spdnn.engines.base import NO_FACTS, Output, OverflowingError, Progress, count_edges
from spdnn.engines.state import State
from spdnn.errors import PlanError
from spdnn.features import Features
from spdnn.network import Layer, Network, may_drop_after


@dataclass(frozen=True)
class ReferencePlan:
    """The network itself; its weights are widened layer by layer as they are used."""

    network: Network
    mode: str = "edges"

    work = None

    @property
    def n_layers(self) -> int:
        """TEMP"""
        return self.network.n_layers


class ReferenceEngine:
    """``Y <- min(max(Y W + b, 0), ymax)`` with scipy's sparse matrices in float64."""

    name = "scipy"
    modes = ("edges",)
    stops = True
    plan_class = None
    plan_facts = NO_FACTS
    tuning = None
    shapes = None
    shape_choices = None

    def __init__(self, threads: int | None = None) -> None:
        self.threads = 1

    resumes = True

    def close(self) -> None:
        """TEMP"""

    def compile(self, network: Network) -> None:
        """Nothing to compile."""

    def plan(self, network: Network, mode: str) -> ReferencePlan:
        """Nothing to do but to remember the network."""
        if mode not in self.modes:
            raise PlanError(f"the reference has no mode {mode}")
        return ReferencePlan(network)

    def load(self, plan: ReferencePlan, features: Features) -> Features:
        """Return them: they are taken as they are."""
        return features

    def run(
        self,
        plan: ReferencePlan,
        start: Features | State,
        *,
        until: int | None = None,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run all features through layers; none is dropped before a stop, dead ones are empty."""
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


def next_features(y: sp.csr_array, layer: Layer) -> sp.csr_array:
    """One layer: features x inputs to features x outputs, float64, no stored zeros.

    The challenge's rule adds the bias only where ``Y W`` is not zero, which are the
    stored entries once zeros are removed.
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
            z.data += 0 * z.data  # NaN where a sum is not finite: nothing after it may hide it
    if layer.activation == "relu":
        z.data = np.clip(z.data, 0.0, layer.ymax)
    z.eliminate_zeros()
    return z
