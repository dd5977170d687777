"""What a plan leaves to compute."""

from typing import NamedTuple


class Work(NamedTuple):
    """What is computed for one feature, all layers together.

    Attributes
    ----------
    neurons : int
        Outputs of layers.
    edges : int
        Multiplications by a weight.
    additions : int
        Inputs that are added up before a layer, without a weight.
    """

    neurons: int
    edges: int
    additions: int
