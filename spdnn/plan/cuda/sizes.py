"""The sizes that the GPU engine's plan and kernels agree on, and which kernel they allow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RESIDENT_FEATURES = (16, 8, 4)
"""Features that a block of the resident kernel may carry."""

RESIDENT_STATIC_BYTES = 1 << 10
"""Shared memory of the resident kernel beside the activations: flags, and what the system keeps."""

BANK_CLASSES = 8
"""Rows of shared memory that may lie in banks of their own: 32 banks, and four floats a load."""


@dataclass(frozen=True)
class PlanSizes:
    """The sizes that plan and kernels agree on.

    Attributes
    ----------
    bundle : int
        Groups of a bundle: the warps of a thread block of the grouped kernel.
    rows : int
        Outputs of a group, a multiple of 4.
    warps : int
        Slices of an ELL block.
    buffer : int
        Inputs that the staged kernel holds in shared memory at a time.
    chunk : int
        Edges of a chunk of a long output.
    skew : int
        How many times the mean number of a layer's inputs a long output has at least; see
        `spdnn.plan.cuda.outputs.most_whole`.
    shared_bytes : int
        Shared memory that a thread block may have; 0 plans nothing for the resident kernel.
    """

    bundle: int = 8
    rows: int = 16
    warps: int = 4
    buffer: int = 240
    chunk: int = 64
    skew: int = 4
    shared_bytes: int = 163 << 10


def row_stride(features: int) -> int:
    """Floats from a row of the staged kernel's buffer to the next, for rows of `features` floats.

    Rows stay aligned for loads of four floats. Eight rows side by side begin in eight different
    quarters of the banks.
    """
    return features if features == 4 else features + 4


def row_of(position: Any) -> Any:
    """The row of shared memory in which the resident kernel keeps a neuron's activations.

    Rows follow each other without gaps, so that rows of 16 floats take one half of the banks or
    the other, by turns. The threads of a warp store the same output of several groups, 16 outputs
    apart, at once. Within eight rows these are exchanged, in another way for each 16 outputs, so
    that they do not meet in the same banks. The function is its own inverse.

    Parameters
    ----------
    position : int or ndarray, whole numbers
        The neuron's number in the plan's order.
    """
    return position ^ ((position >> 4) & (BANK_CLASSES - 1))


def resident_rows(max_width: int) -> int:
    """Rows of shared memory that so many neurons take, since `row_of` exchanges them by eights.

    Parameters
    ----------
    max_width : int
        Most neurons before or after any step.
    """
    return -(-max_width // BANK_CLASSES) * BANK_CLASSES


def resident_bytes(max_width: int, features: int) -> int:
    """Dynamic shared memory of a thread block of the resident kernel.

    Parameters
    ----------
    max_width : int
        Most neurons before or after any step.
    features : int
        Features that the block carries.
    """
    return 2 * 4 * resident_rows(max_width) * features


def resident_choices(max_width: int, shared_bytes: int) -> list[int]:
    """Features that a thread block of the resident kernel can carry, the most first.

    Parameters
    ----------
    max_width : int
        Most neurons before or after any step.
    shared_bytes : int
        Shared memory that a thread block may have.
    """
    room = shared_bytes - RESIDENT_STATIC_BYTES
    return [count for count in RESIDENT_FEATURES if resident_bytes(max_width, count) <= room]


def suits_resident(widths: Sequence[int], n_edges: int, sizes: PlanSizes) -> bool:
    """Whether the resident kernel moves fewer bytes than a launch a step would.

    The resident kernel reads all weights once for the features of a thread block. A launch a step
    moves every activation three times: two groups read it, and it is written.

    Parameters
    ----------
    widths : sequence of int
        Neurons before the first step and after each.
    n_edges : int
        Edges of all steps. A weight is 4 bytes; groups have few indices.
    sizes : PlanSizes
    """
    choices = resident_choices(max(widths), sizes.shared_bytes)
    return bool(choices) and 4 * n_edges / choices[0] <= 3 * 4 * sum(widths[1:])
