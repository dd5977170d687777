"""The GPU engine: compiling, planning, loading, running."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spdnn.engines import DeviceChoice
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
from spdnn.engines.cuda.run import Room, Run
from spdnn.engines.cuda.sizes import CudaSizes, kernels_of, sizes_for
from spdnn.errors import PlanError
from spdnn.features import Features
from spdnn.network import Layer, Network
from spdnn.plan.cuda.plan import LAYOUT, CudaPlan, plan_cuda
from spdnn.plan.cuda.sizes import RESIDENT_FEATURES, PlanSizes, suits_resident

TRIED = 8
"""Neurons of the networks that are run to compile kernels."""


class CudaEngine:
    """Modes ``edges`` and ``merge`` on one GPU.

    Parameters
    ----------
    threads : int, optional
        Not used: one thread of the host launches all.
    device : int, {"emulated", "emulated-checked"} or Device, optional
        Which of the GPUs that this process sees, or an emulated one; by default the GPU for the
        process's rank on the node.
    sizes : CudaSizes, optional
    """

    name = "cuda"
    modes = ("edges", "merge")
    threads = 1

    def __init__(
        self,
        threads: int | None = None,
        device: DeviceChoice | Device | None = None,
        sizes: CudaSizes | None = None,
    ) -> None:
        self.device = device if isinstance(device, Device) else open_device(device)
        self.sizes = sizes or sizes_for(self.device.shared_bytes)
        self.kernels = kernels_of(self.sizes)
        self.plan_facts = {"layout": LAYOUT, **asdict(self.sizes.plan)}
        self._weights: tuple[CudaPlan, Weights] | None = None
        self._room: Room | None = None

    def compile(self, network: Network, mode: str | None = None) -> None:
        """Compile the kernels that a network needs: tiny networks of the same types are run.

        What merging leaves of the network is not known yet. Mostly it suits the resident kernel,
        and has no groups. Any other kernel is compiled when it is first launched.
        """
        sizes = self.sizes.plan
        widths = [network.n_inputs, *(n_outputs for _, n_outputs in network.shapes)]
        if not suits_resident(widths, network.n_edges, sizes):
            sizes = replace(sizes, shared_bytes=0)
        eye = sp.eye_array(TRIED, dtype=np.float32)
        shared = np.ones((TRIED, TRIED), dtype=np.float32)
        self._try([shared, eye], "edges", sizes, has_values=False)
        self._try([eye, eye], "merge", self.sizes.plan, has_values=True)
        # Inputs with equal weights are added up while they are loaded.
        added = np.arange(1, 2 * TRIED + 1, dtype=np.float32).reshape(2, TRIED)
        for valued in (False, True):
            self._try(
                [added.repeat(TRIED // 2, axis=0)], "merge", self.sizes.plan, has_values=valued
            )
        if not sizes.shared_bytes:  # where long outputs are cut
            in_chunks = replace(sizes, chunk=1, skew=0)
            self._try([shared], "edges", in_chunks, has_values=False)
        self._weights = self._room = None

    def _try(self, weights: list[Any], mode: str, sizes: PlanSizes, *, has_values: bool) -> None:
        """Run a network of some weights with each number of features that has its own kernel."""
        network = Network([Layer(of_layer, bias=-0.01) for of_layer in weights])
        plan = plan_cuda(network, mode, sizes)
        enough = -(-self.device.n_multiprocessors // 2)  # blocks, see `Run`
        of_blocks = RESIDENT_FEATURES if plan.is_resident else ()
        # One thread block lists features, or several do, which have kernels of their own.
        listed = self.sizes.listed, self.sizes.listed + 1
        for n_features in (*(of_block * enough for of_block in of_blocks), *listed):
            indices = np.arange(n_features) % TRIED
            values = np.ones(indices.size, dtype=np.float32) if has_values else None
            features = Features(TRIED, np.arange(indices.size + 1), indices, values)
            self.run(plan, self.load(plan, features))

    def plan(self, network: Network, mode: str) -> CudaPlan:
        """Cut all layers for the kernels, in mode ``merge`` after merging neurons."""
        if mode not in self.modes:
            raise PlanError(f"engine cuda has no mode {mode}")
        return plan_cuda(network, mode, self.sizes.plan)

    def plan_from_parts(
        self, facts: Mapping[str, Any], array: Callable[[str], npt.NDArray[Any]]
    ) -> CudaPlan:
        """Put together a plan that `CudaPlan.to_parts` took apart."""
        return CudaPlan.from_parts(facts, array)

    def load(self, plan: CudaPlan, features: Features) -> Loaded:
        """Bring weights and inputs to the device, as far as they fit, and take room for a run.

        The weights stay for further features, and so does the room for as many of them. Several
        batches of features that are loaded at a time share the room of one.
        """
        with self.device.errors():
            # What is not wanted any more makes room first. A run that was ended early may have left
            # work that is still going on.
            self.device.wait()
            self._room = None
            if self._weights is None or self._weights[0] is not plan:
                self._weights = None
                self._weights = plan, place_weights(self.device, plan)
            inputs = None
            n_bytes = features.n_nonzeros * (features.indices.itemsize + 4 * has_values(features))
            if n_bytes <= INPUT_SHARE * self.device.free_bytes():
                inputs = place_inputs(self.device, features, 0, features.n_features)
            loaded = Loaded(features, self._weights[1], inputs)
            self._room = Room(self.device, self.kernels, plan, loaded)
            self.device.wait()
            return loaded

    def _room_for(self, plan: CudaPlan, loaded: Loaded) -> Room:
        """The room that was taken last, or other room if that is for something else."""
        if self._room is None or not self._room.suits(loaded):
            self._room = None
            self._room = Room(self.device, self.kernels, plan, loaded)
        return self._room

    def run(
        self,
        plan: CudaPlan,
        loaded: Loaded,
        *,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through all layers; see `spdnn.engines.base.Engine`."""
        with self.device.errors():
            room = self._room_for(plan, loaded)
            run = Run(self.device, self.kernels, plan, loaded, room, activations, progress)
            return run.output()

    def close(self) -> None:
        """Give back the device memory of weights and runs. It may be called twice."""
        with self.device.errors():
            self.device.wait()
            self._weights = self._room = None
