"""Which blocks of a step each thread of a group takes, so that all of them take equally long."""

from spdnn.engines.cpu.kernels.barrier import Party
from spdnn.machine.jit import jit_part
from spdnn.plan.cpu.blocks import MAX_ROWS, N_INPUTS, N_ROWS
from spdnn.plan.cpu.plan import END_BLOCK, FIRST_BLOCK, PlanArrays

ROW_COST = 20
"""Beginning and ending a row of a block, in multiply-adds of a row in a block of `MAX_ROWS`."""

FEW_ROWS_COST = 2
"""A multiply-add in a block of fewer rows, in the same unit: each waits for the one before it."""


@jit_part
def share_of(plan: PlanArrays, step: int, party: Party) -> tuple[int, int]:
    """The first of a step's blocks that a thread of a group takes, and the end of them."""
    first, end = plan.steps[step, FIRST_BLOCK], plan.steps[step, END_BLOCK]
    if party.parties == 1:
        return first, end
    cost = 0
    for block in range(first, end):
        cost += _cost(plan, block)
    begin = cost * party.number // party.parties
    stop = cost * (party.number + 1) // party.parties
    own_first, own_end = end, end
    cost = 0
    for block in range(first, end):
        if cost >= begin and own_first == end:
            own_first = block
        if cost >= stop:
            own_end = block
            break
        cost += _cost(plan, block)
    return own_first, own_end


@jit_part
def _cost(plan: PlanArrays, block: int) -> int:
    """What a block takes, in multiply-adds of a row in a block of `MAX_ROWS`."""
    n_rows = plan.blocks[block, N_ROWS]
    one = 1 if n_rows == MAX_ROWS else FEW_ROWS_COST
    cost: int = n_rows * (ROW_COST + one * plan.blocks[block, N_INPUTS])
    return cost
