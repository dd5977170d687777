"""The engine's face: compiling, planning, loading, running."""

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from spdnn.engines.base import Output, Progress
from spdnn.engines.cuda.device import Device, open_device
from spdnn.engines.cuda.placing import (
    INPUT_SHARE,
    Loaded,
    Weights,
    has_values,
    place_inputs,
    place_weights,
)
from spdnn.engines.cuda.run import Run
from spdnn.engines.cuda.sizes import Sizes, kernels_of, sizes_for
from spdnn.errors import PlanError
from spdnn.features import Features
from spdnn.network import Layer, Network
from spdnn.plan.cuda import CudaPlan, plan_cuda


class CudaEngine:
    """Modes ``edges`` and ``merge`` on one GPU.

    Parameters
    ----------
    threads : int, optional
        Not used: one thread of the host launches all.
    device : int or Device, optional
        Which of the GPUs that this process sees; by default the one for its rank on the node.
    sizes : Sizes, optional
    """

    name = "cuda"
    modes = ("edges", "merge")
    threads = 1
    stops = False
    plan_class = None
    tuning = None
    shapes = None
    shape_choices = None

    def __init__(
        self,
        threads: int | None = None,
        device: int | Device | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        self.device = device if isinstance(device, Device) else open_device(device)
        self.sizes = sizes or sizes_for(self.device.shared_bytes)
        self.kernels = kernels_of(self.sizes)
        self._weights: tuple[CudaPlan, Weights] | None = None

    def compile(self, network: Network) -> None:
        """Run tiny networks with the same types through all kernels."""
        eye = sp.eye_array(8, dtype=np.float32)
        shared = np.ones((8, 8), dtype=np.float32)
        layers = [Layer(weights, bias=-0.01) for weights in (eye, shared, eye)]
        features = Features(8, np.arange(9), np.arange(8) % 8)
        for shared_bytes in (0, self.sizes.shape.shared_bytes):
            shape = replace(self.sizes.shape, shared_bytes=shared_bytes)
            plan = plan_cuda(Network(layers), "edges", shape)
            self.run(plan, self.load(plan, features))
        self._weights = None

    def plan(self, network: Network, mode: str) -> CudaPlan:
        """Cut all layers for the kernels, in mode ``merge`` after merging neurons."""
        if mode not in self.modes:
            raise PlanError(f"engine cuda has no mode {mode}")
        return plan_cuda(network, mode, self.sizes.shape)

    def load(self, plan: CudaPlan, features: Features) -> Loaded:
        """Bring weights and inputs to the device, as far as they fit.

        The weights stay for further features.
        """
        with self.device.errors():
            if self._weights is None or self._weights[0] is not plan:
                self._weights = None  # what is not wanted any more makes room first
                self._weights = plan, place_weights(self.device, plan)
            inputs = None
            n_bytes = features.n_nonzeros * (features.indices.itemsize + 4 * has_values(features))
            if n_bytes <= INPUT_SHARE * self.device.free_bytes():
                inputs = place_inputs(self.device, features, 0, features.n_features)
            self.device.wait()
            return Loaded(features, self._weights[1], inputs)

    def run(
        self,
        plan: CudaPlan,
        start: Loaded,
        *,
        until: int | None = None,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through all layers; see `spdnn.engines.base.Engine`."""
        if until not in (None, plan.n_layers):
            raise PlanError("engine cuda cannot stop between layers")
        with self.device.errors():
            return Run(self.device, self.kernels, plan, start, activations, progress).output()
