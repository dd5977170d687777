"""What a layer does to its sums: what planning needs of it beside its weights and biases."""

import math
from typing import NamedTuple

from spdnn.network import Layer

NONZERO, FINITE = 1, 2
"""Bits of `Rules.tests`, and of column TESTS of a step table.

`NONZERO`: the bias is added only where the sum is not zero. `FINITE`: there is no cap, so that a
sum that is not finite could pass as a result; it becomes NaN, which no later layer hides.
"""


class Rules(NamedTuple):
    """What happens to the sums of a step.

    Attributes
    ----------
    is_relu : bool
        Whether negative ones become 0.
    tests : int
        The bits `NONZERO` and `FINITE`.
    cap : float
        Largest activation; infinite for none.
    maps_zero_to_zero : bool
        Whether a feature without activations has none after the step, either.
    """

    is_relu: bool
    tests: int
    cap: float
    maps_zero_to_zero: bool


PLAIN_SUMS = Rules(False, 0, math.inf, True)
"""The rules of a step that only takes sums."""


def rules_of(layer: Layer) -> Rules:
    """The rules of the step that ends a layer."""
    return Rules(
        layer.activation == "relu",
        NONZERO * layer.needs_nonzero_test | FINITE * (layer.ymax is None),
        math.inf if layer.ymax is None else layer.ymax,
        layer.maps_zero_to_zero,
    )
