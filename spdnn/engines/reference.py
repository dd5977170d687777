"""The reference: scipy, double precision, short and obviously right."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from spdnn.engines.base import Output, Progress, count_edges
from spdnn.errors import PlanError
from spdnn.features import Features
from spdnn.network import Layer, Network, may_drop_after


@dataclass(frozen=True)
class ReferencePlan:
    """The network itself; its weights are widened layer by layer as they are used."""

    network: Network
    mode: str = "edges"


class ReferenceEngine:
    """``Y <- min(max(Y W + b, 0), ymax)`` with scipy's sparse matrices in float64."""

    name = "scipy"
    modes = ("edges",)

    def __init__(self, threads: int | None = None) -> None:
        self.threads = 1

    def compile(self, network: Network) -> None:
        """Nothing to compile."""

    def plan(self, network: Network, mode: str) -> ReferencePlan:
        """Nothing to do but to remember the network."""
        if mode not in self.modes:
            raise PlanError(f"the reference has no mode {mode}")
        return ReferencePlan(network)

    def load(self, features: Features) -> Features:
        """Return them: they are taken as they are."""
        return features

    def run(
        self,
        plan: ReferencePlan,
        features: Features,
        *,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run all features through all layers; none is dropped, dead ones are empty rows."""
        y = features.to_csr(np.float64)
        n_live = np.empty(plan.network.n_layers, dtype=np.int64)
        maps_zero_to_zero = []
        for number, layer in enumerate(plan.network.layers):
            y = next_features(y, layer)
            n_live[number] = np.count_nonzero(np.diff(y.indptr))
            maps_zero_to_zero.append(layer.maps_zero_to_zero)
            if progress is not None:
                progress((number + 1) / n_live.size)
        may_drop = may_drop_after(maps_zero_to_zero)
        live = np.flatnonzero(np.diff(y.indptr)).astype(np.int64)
        return Output(
            live,
            n_live,
            n_live,
            count_edges(features.n_features, n_live, may_drop, plan.network.layer_edges),
            y[live].toarray() if activations else None,
        )


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
    if layer.activation == "relu":
        z.data = np.clip(z.data, 0.0, layer.ymax)
    z.eliminate_zeros()
    return z
