"""How the CPU engine cuts a run: widths of tiles, ends of segments, and what is worth a thread."""

from dataclasses import dataclass
from itertools import pairwise

from spdnn.engines.base import Widths
from spdnn.engines.cpu.kernels.step import FULL_LANES
from spdnn.engines.cpu.kernels.vectors import LANES
from spdnn.errors import PlanError
from spdnn.machine.memory import l2_bytes
from spdnn.plan.cpu.plan import CpuPlan


@dataclass(frozen=True)
class CpuSizes:
    """Sizes that decide how a run is cut. No result depends on them.

    The defaults were measured with 1024 to 65536 neurons; see docs/performance.md.

    Attributes
    ----------
    waiting_bytes : int
        Activations, in bytes for each thread, that may wait for a segment before it is run. The
        default is some tiles of 65536 neurons. It is a number for each thread so that many
        processes of one thread take as much memory as one process of many.
    l2_share : float
        Share of a core's L2 cache that a tile may fill. There are two tiles, and weights pass
        through the cache beside them.
    weight_uses : float
        A tile may outgrow its share up to so many bytes for each byte of weights that passes.
    largest_l2_share : float
        But not beyond this share of the L2 cache: then loading weights again costs less.
    narrow_l2_share : float
        A tile takes all lanes that full shared blocks compute at once, unless it would then outgrow
        this share of the L2 cache: weights that are read once for more features cost more than
        activations that come from the next cache.
    first_times : int
        How many times as wide the tiles of the first segment are. They become narrower, as
        features die.
    widest_tile : int
        Most features of a tile. Enough to make the work around a tile small.
    segment_ends : tuple of int
        Layers after which live features are gathered into full tiles again. The first segments
        are short, since most features die there.
    look_ends : tuple of int
        Layers after which mode ``merge`` looks for equal features.
    early_look_bytes : int
        Activations, in bytes, up to which it also looks before the first of `segment_ends`.
    unchecked_bytes : int
        Tiles up to this size are made without asking the system for the memory that is left.
        Asking takes longer than a run of few features.
    tasks_a_thread : int
        Tasks for each thread into which the tiles of a segment are cut. More tasks are more even,
        but there is more to hand out.
    most_tiles : int
        Most tiles of a task.
    worth_waking : int
        Multiply-adds of vectors in a segment from which it is worth waking a second thread, and
        for each thread more: about 0.2 ms.
    worth_barrier : int
        Multiply-adds of vectors in a layer, on average, from which threads that share a tile
        are worth the barrier after each layer.
    worth_fetching : int
        Edges of a neuron, on average, from which a tile is worth sharing. What one thread has
        written the others fetch from its cache, which takes as long as 10 to 30 multiply-adds.
    """

    waiting_bytes: int = 128 << 20
    l2_share: float = 0.25
    weight_uses: float = 3.0
    largest_l2_share: float = 3.0
    narrow_l2_share: float = 4.0
    first_times: int = 2
    widest_tile: int = 1024
    segment_ends: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 512)
    look_ends: tuple[int, ...] = (
        *(1, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024),
    )
    early_look_bytes: int = 16 << 20
    unchecked_bytes: int = 64 << 20
    tasks_a_thread: int = 4
    most_tiles: int = 16
    worth_waking: int = 1 << 18
    worth_barrier: int = 1 << 14
    worth_fetching: int = 96

    def __post_init__(self) -> None:
        if self.widest_tile < LANES or self.widest_tile % LANES:
            raise PlanError(
                f"a widest tile of {self.widest_tile} features: expected a multiple of {LANES}"
            )
        for ends in (self.segment_ends, self.look_ends):
            if not ends or ends[0] < 1 or any(one >= other for one, other in pairwise(ends)):
                raise PlanError(f"segments that end after layers {ends}: expected them ascending")

    def own_widths(self, plan: CpuPlan) -> Widths:
        """The widths of tiles for a plan: in the first segment, and in the later ones."""
        return self.tile_width(plan, self.first_times), self.tile_width(plan)

    def tile_width(self, plan: CpuPlan, times: int = 1) -> int:
        """Features of a tile, a multiple of the kernels' lanes.

        Parameters
        ----------
        plan : CpuPlan
            The widest layer, and the bytes of weights, are what counts.
        times : int
            Make the tile so many times as wide.
        """
        of_l2 = times * l2_bytes() / (4 * max(plan.max_width, 1))
        wanted = times * self.weight_uses * plan.bytes_per_neuron / 4
        most = min(wanted, self.largest_l2_share * of_l2)
        least = min(FULL_LANES, self.narrow_l2_share * l2_bytes() / (4 * max(plan.max_width, 1)))
        return self.in_lanes(int(max(self.l2_share * of_l2, most, least)))

    def in_lanes(self, width: int) -> int:
        """Round a tile's width down to one that the kernels take without a remainder."""
        unit = FULL_LANES if width >= FULL_LANES else LANES
        return max(LANES, min(self.widest_tile, width) // unit * unit)

    def checked_widths(self, widths: tuple[int, ...]) -> Widths:
        """Return two widths of tiles, or raise PlanError if there can be no such tiles."""
        if len(widths) != 2 or not all(
            0 < width <= self.widest_tile and width % LANES == 0 for width in widths
        ):
            raise PlanError(
                f"tiles of {list(widths)} features: expected two multiples of {LANES} up to "
                f"{self.widest_tile}"
            )
        return widths[0], widths[1]


DEFAULT_SIZES = CpuSizes()
