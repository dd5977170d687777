"""Move rows between ranks, back and forth; run it under mpirun: python -m tests.mpi_moves."""

import numpy as np

from spdnn.distributed import join, ranks
from spdnn.engines.state import State
from tests.test_state import dense, random_state

ROUNDS = 5


def main() -> None:
    ranks.LARGEST_MESSAGE = 64  # bytes: a row or two
    with join() as team:
        state = random_state(np.random.default_rng(team.rank), 30, 20 * (team.rank > 0))
        state = State(4, state.ids + 1000 * team.rank, state.rows, state.activations)
        before = together(team.everyones(state))
        for number in range(ROUNDS):
            targets = np.random.default_rng([number, team.rank]).integers(
                team.size, size=state.n_carried
            )
            wanted = sum((t == team.rank).sum() for t in team.everyones(targets))
            state = team.moved(state, targets)
            assert state.n_carried == wanted
            assert (np.diff(state.ids) > 0).all()
            assert together(team.everyones(state)) == before
        if team.is_first:
            print(f"{len(before)} features moved among {team.size} ranks")


def together(states: list[State]) -> dict[int, list[float]]:
    """The activations of the features of all ranks; no two ranks have the same feature."""
    values: dict[int, list[float]] = {}
    for state in states:
        of_rank = dense(state)
        assert not values.keys() & of_rank
        values |= of_rank
    return values


if __name__ == "__main__":
    main()
