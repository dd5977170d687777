"""Which GPU a process takes, without a GPU."""

import pytest

from spdnn import DeviceError
from spdnn.machine.gpus import LOCAL_RANK_VARIABLES, local_rank, pick_gpu


def test_ranks_of_a_node_take_one_each() -> None:
    assert [pick_gpu(4, rank) for rank in range(4)] == [0, 1, 2, 3]


def test_where_each_process_sees_its_own_it_is_number_0() -> None:
    assert {pick_gpu(1, rank) for rank in range(8)} == {0}


def test_what_the_user_asks_for_goes_before_all() -> None:
    assert pick_gpu(4, 3, asked=1) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0,), "no GPU is visible"),
        ((2, 2), r"process 2 of this node has no GPU of its own: 2 are visible"),
        ((2, 0, 2), r"no GPU 2: this process sees 2, counted from 0"),
        ((2, 0, -1), r"no GPU -1"),
    ],
)
def test_what_cannot_be_is_refused(given: tuple[int, ...], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        pick_gpu(*given)


@pytest.mark.parametrize("name", LOCAL_RANK_VARIABLES)
def test_every_launchers_local_rank_is_known(name: str) -> None:
    assert local_rank({name: "3"}) == 3


def test_the_innermost_launcher_says_it() -> None:
    assert local_rank({"SLURM_LOCALID": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}) == 2
    assert local_rank({"SLURM_LOCALID": "none"}) == 0
