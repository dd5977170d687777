"""`Team`: what the ranks of a run do together. `Team` itself is one process by itself."""

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from spdnn.engines.state import State
from spdnn.errors import DataError, SpdnnError
from spdnn.features import Features
from spdnn.machine.threads import default_threads
from spdnn.network import Network
from spdnn.run.options import Partition

_T = TypeVar("_T")


def require_fit(network: Network, n_neurons: int) -> None:
    """Refuse features of another number of neurons than the network has inputs (DataError)."""
    if n_neurons != network.n_inputs:
        raise DataError(
            f"the features have {n_neurons} neurons, "
            f"but the network's first layer takes {network.n_inputs} inputs"
        )


def part_of(n_features: int, rank: int, size: int, partition: Partition) -> range:
    """Return the features of a rank.

    Examples
    --------
    >>> [list(part_of(5, rank, 2, "contiguous")) for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    >>> [list(part_of(5, rank, 2, "interleaved")) for rank in range(2)]
    [[0, 2, 4], [1, 3]]
    """
    if partition == "interleaved":
        return range(rank, n_features, size)
    return range(rank * n_features // size, (rank + 1) * n_features // size)


class Team:
    """One process by itself.

    It is the first rank and the leader of its node, so that it does the work of every phase. The
    ranks of an MPI job are a subclass, in `spdnn.distributed`.
    """

    rank = 0
    size = 1
    nodes = 1
    library: str | None = None
    """MPI's library and version, where there is one."""

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def __enter__(self) -> "Team":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to leave behind."""

    def is_agreed(self, error: SpdnnError) -> bool:
        """Whether all ranks raise this error: only then may one catch it and go on."""
        return True

    def on_first(self, work: Callable[[], _T]) -> _T | None:
        """Have rank 0 do `work`. Its value is returned there, None elsewhere.

        Raises
        ------
        SpdnnError
            On all ranks, if one has failed: an `AgreedError` on the rank that prints it, an
            `ElsewhereError` on the others.
        """
        return work()

    def on_leaders(self, work: Callable[[], _T]) -> _T | None:
        """Have one rank of each node do `work`; otherwise like `on_first`."""
        return work()

    def on_others(self, work: Callable[[], _T]) -> _T | None:
        """Have the ranks that lead no node do `work`; otherwise like `on_first`."""
        return None

    def on_all(self, work: Callable[[], _T]) -> _T:
        """Have every rank do `work`; otherwise like `on_first`."""
        return work()

    def tell(self, value: _T | None) -> _T:
        """Give all ranks the value that rank 0 has."""
        assert value is not None
        return value

    def everyones(self, value: _T) -> list[_T]:
        """The value that each rank has."""
        return [value]

    def summed(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sums of every rank's counts."""
        return counts

    def barrier(self) -> None:
        """Wait for all."""

    def default_threads(self) -> int:
        """Threads of this rank, unless told otherwise."""
        return default_threads()

    def shared(self, work: Callable[[], _T]) -> _T:
        """Have each leader do `work`; all ranks of its node get the result."""
        return work()

    def structure_of(self, network: Network | None) -> Network:
        """Tell the ranks of a node the structure of the network that its leader has.

        It is a network without weights: its layers' sizes and edges can be asked for, no layer.
        """
        assert network is not None
        return network

    def own_features(
        self, network: Network, features: Features | None, partition: Partition
    ) -> tuple[Features, int]:
        """Give each rank its part of the features that its leader has, and their number."""
        assert features is not None
        require_fit(network, features.n_neurons)
        return features, features.n_features

    def moved(self, state: State, targets: npt.NDArray[np.int64]) -> State:
        """Give each row of a state to the rank in `targets`, with the features it stands for."""
        return state

    def gathered(self, live: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The live features of all ranks, ascending, on rank 0; none elsewhere."""
        return live
