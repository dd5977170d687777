"""The CPU engine's face: compiling, planning, loading, running."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from spdnn.engines.base import Json, Output, Progress, Widths
from spdnn.engines.cpu.calibrate import measured_costs
from spdnn.engines.cpu.compiling import PLANNERS, compile_ahead, compile_all
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.engines.cpu.packed import is_worth_packing, pack
from spdnn.engines.cpu.run import Loaded, Run
from spdnn.engines.cpu.scores import Scorer, score_width
from spdnn.engines.cpu.sizes import DEFAULT_SIZES, CpuSizes
from spdnn.engines.state import State
from spdnn.errors import PlanError
from spdnn.features import Features
from spdnn.machine.memory import available_bytes, require_bytes
from spdnn.machine.thread_pool import KeptThreads
from spdnn.machine.threads import checked_threads
from spdnn.network import Network
from spdnn.plan.cpu.blocks import ROWS, BlockCosts
from spdnn.plan.cpu.plan import CpuPlan


class CpuEngine:
    """Modes ``edges`` and ``merge`` with numba kernels on several threads.

    An engine does not change. Its threads are started by the first run that needs them, and
    kept; engines that `with_costs` and `with_widths` return share them. A run after `close`
    starts new ones. Runs may be made from several Python threads at once.

    Parameters
    ----------
    threads : int, optional
        Threads of a run; by default `spdnn.machine.threads.default_threads`.
    sizes : CpuSizes
        How runs are cut.

    Attributes
    ----------
    threads : int
        Threads of a run.
    sizes : CpuSizes
        How runs are cut.
    widths : tuple of int, or None
        Features of a tile in the first segment and in the later ones; None if they are chosen
        for each plan.
    """

    name = "cpu"
    modes = tuple(PLANNERS)
    plan_facts: Mapping[str, Json] = {}

    def __init__(self, threads: int | None = None, *, sizes: CpuSizes = DEFAULT_SIZES) -> None:
        self.threads = checked_threads(threads)
        self.sizes = sizes
        self.widths: Widths | None = None
        self._kept_threads = KeptThreads(self.threads)
        self._scorers: WeakKeyDictionary[CpuPlan, Scorer] = WeakKeyDictionary()

    @property
    def kept_threads(self) -> KeptThreads:
        """The threads that plan and run."""
        return self._kept_threads

    def close(self) -> None:
        """End the threads. A later run starts new ones; it may be called twice."""
        self._kept_threads.close()
        for scorer in self._scorers.values():
            scorer.close()

    @cached_property
    def _costs(self) -> BlockCosts:
        return measured_costs()

    @property
    def costs(self) -> list[list[list[float]]]:
        """What blocks cost on this machine, measured when it is first asked for."""
        return [costs.tolist() for costs in self._costs]

    def with_costs(self, costs: Json) -> Self:
        """Return the same engine with other costs of blocks; it shares the threads.

        Raises
        ------
        PlanError
            If these are not the costs of blocks.
        """
        shape = (len(BlockCosts._fields), 2, len(ROWS))
        try:
            numbers = np.array(costs, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.empty(0)
        if numbers.shape != shape or not np.isfinite(numbers).all():
            raise PlanError(f"no costs of blocks: expected {' x '.join(map(str, shape))} numbers")
        return self._with(_costs=BlockCosts(*numbers))

    def with_widths(self, widths: Sequence[int] | None) -> Self:
        """Return the same engine with other widths of tiles; it shares the threads.

        Parameters
        ----------
        widths : sequence of int, or None
            Features of a tile in the first segment and in the later ones; None to have them
            chosen for each plan.

        Raises
        ------
        PlanError
            If there can be no such tiles.
        """
        checked = None if widths is None else self.sizes.checked_widths(tuple(widths))
        return self._with(widths=checked)

    def _with(self, **changed: Any) -> Self:
        """A copy that shares the threads, with other attributes."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), **changed)
        return other

    def width_choices(self, plan: CpuPlan, n_features: int) -> list[list[int]]:
        """Widths that are worth a trial: powers of two, an even split, and all features in one.

        Parameters
        ----------
        plan : CpuPlan
            Widths whose tiles do not fit into memory are left out.
        n_features : int
            Features that are to be run.

        Returns
        -------
        list of list of int
            For the first segment and for the later ones, the engine's own choice first.
        """
        sizes = self.sizes
        all_in_one, share = (-(-n_features // (LANES * n)) * LANES for n in (1, self.threads))
        most = min(all_in_one, sizes.in_lanes(sizes.widest_tile))
        powers = range(sizes.widest_tile.bit_length())
        widths = {sizes.in_lanes(LANES << power) for power in powers} | {most, share}
        available = available_bytes()
        fitting = [
            width
            for width in sorted(widths)
            if width <= most and self._tile_bytes(plan, width) <= available
        ]
        own = [min(width, most) for width in sizes.own_widths(plan)]
        return [[width, *(other for other in fitting if other != width)] for width in own]

    def _tile_bytes(self, plan: CpuPlan, width: int) -> int:
        """Memory that the threads' tiles take."""
        return 2 * 4 * plan.max_width * width * (self.threads + 1)

    def compile_ahead(self) -> None:
        """Have a second process compile; see `spdnn.engines.cpu.compiling`."""
        compile_ahead(self.threads)

    def compile(self, network: Network, mode: str | None = None) -> None:
        """Compile what a network needs; see `spdnn.engines.cpu.compiling`."""
        modes = self.modes if mode is None else (mode,)
        compile_all(network, modes, self.sizes, self._kept_threads)

    def plan(self, network: Network, mode: str) -> CpuPlan:
        """Cut all layers into blocks, in mode ``merge`` after merging neurons."""
        if mode not in PLANNERS:
            raise PlanError(f"engine cpu has no mode {mode}")
        return PLANNERS[mode](network, self._costs, self._kept_threads)

    def plan_from_parts(
        self, facts: Mapping[str, Any], array: Callable[[str], npt.NDArray[Any]]
    ) -> CpuPlan:
        """Put together a plan that `CpuPlan.to_parts` took apart."""
        return CpuPlan.from_parts(facts, array)

    def load(self, plan: CpuPlan, features: Features) -> Loaded:
        """Pack features of 0 and 1 as bits, unless they are so sparse that indices are shorter."""
        return pack(features, self._kept_threads) if is_worth_packing(features) else features

    def run(
        self,
        plan: CpuPlan,
        loaded: Loaded,
        *,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through all layers; see `spdnn.engines.base.Engine`."""
        return self.run_part(plan, loaded, activations=activations, progress=progress)

    def run_part(
        self,
        plan: CpuPlan,
        start: Loaded | State,
        *,
        until: int | None = None,
        activations: bool = False,
        progress: Progress | None = None,
    ) -> Output:
        """Run features through some layers; see `spdnn.engines.base.Resumable`."""
        widths = self.widths or self.sizes.own_widths(plan)
        n_bytes = self._tile_bytes(plan, max(widths))
        if n_bytes > self.sizes.unchecked_bytes:
            what = f"{self.threads} tiles of {max(widths)} features"
            require_bytes(n_bytes, what, "take fewer `threads`")
        end = plan.n_layers if until is None else until
        run = Run(plan, start, end, widths, self.sizes, self._kept_threads, activations, progress)
        return run.output()

    def scores(self, plan: CpuPlan, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Compute the last layer's activations of dense features; see `Scoring`.

        They are the same bits as `run` gives. The first call lays the plan out for it.

        Parameters
        ----------
        plan : CpuPlan
            A plan of this engine.
        inputs : ndarray, shape (n_features, n_inputs), float32
            C order.

        Returns
        -------
        ndarray, shape (n_features, n_outputs), float32
            Zeros for features that died.

        Raises
        ------
        DataError
            If an input is NaN or infinite.
        DeviceError
            If what it works in does not fit into memory.
        OverflowingError
            If activations are not finite; see `run`.
        """
        scorer = self._scorers.get(plan)
        if scorer is None:
            scorer = Scorer(plan, self.threads, score_width(plan))
            self._scorers[plan] = scorer
        return scorer(inputs)
