"""What a plan leaves to do."""

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
        Inputs that are added up before, without a weight.
    """

    neurons: int
    edges: int
    additions: int

    @property
    def operations(self) -> int:
        """Both together."""
        return self.edges + self.additions
