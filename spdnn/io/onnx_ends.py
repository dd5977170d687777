"""Nodes after the scores in an ONNX model, which make probabilities and classes of them.

They do not change the class of a feature, so they are checked and left out. A classifier of two
classes, as scikit-learn's converter writes it, has one score. Sigmoid makes a probability of it,
Sub the probability of the other class, and Concat joins the two.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spdnn.io.onnx_shapes import Dims, UnsupportedError
from spdnn.io.onnx_tensors import REALS, Constants

if TYPE_CHECKING:  # onnx is imported when a model is read
    from onnx import NodeProto


@dataclass(frozen=True)
class _End:
    """A tensor made of the scores.

    Attributes
    ----------
    kind : {"scores", "probabilities", "rest", "classes", "table"}
        "scores" and "probabilities" order the classes as the scores do. "rest" is one minus a
        probability. "classes" are the classes or their names. "table" maps names to probabilities.
    n_columns : int or None
        Numbers for each feature; None where unknown.
    """

    kind: Literal["scores", "probabilities", "rest", "classes", "table"]
    n_columns: int | None


class Ends:
    """Tensors made of the scores, by name.

    Parameters
    ----------
    constants : Constants
        The constants of the model.
    """

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._ends: dict[str, _End] = {}
        self._dropped: dict[str, None] = {}  # an ordered set

    def __contains__(self, name: str) -> bool:
        return name in self._ends

    @property
    def notes(self) -> tuple[str, ...]:
        """Texts for people on the nodes that are left out."""
        if not self._dropped:
            return ()
        names = ", ".join(self._dropped)
        return (f"left out behind the scores: {names}; classes stay the same, counted from 0",)

    def may_go_out(self, name: str) -> bool:
        """Whether a tensor may be an output of the model, which agrees with the scores."""
        return name in self._ends and self._ends[name].kind != "rest"

    def require_none(self, taken: Sequence[str] | None = None) -> None:
        """Refuse a layer if nodes were left out before it.

        Parameters
        ----------
        taken : sequence of str, optional
            Operands of the layer. It is refused only if one of them was made of the scores.
        """
        if self._dropped and (taken is None or not self._ends.keys().isdisjoint(taken)):
            raise UnsupportedError(
                f"follows {', '.join(self._dropped)}, which may stand at the end only"
            )

    def read(self, node: "NodeProto", taken: Sequence[str], scores: Mapping[str, Dims]) -> None:
        """Read a node that takes scores, or tensors made of them.

        Parameters
        ----------
        node : onnx.NodeProto
            A node of an operator in `ENDS`.
        taken : sequence of str
            Names of its operands that are no constants.
        scores : mapping of str to Dims
            Tensors of the scores and their dimensions.

        Raises
        ------
        UnsupportedError
            If the node could change the class of a feature.
        """
        ends = []
        for name in taken:
            dims = scores.get(name)
            ends.append(self._ends.get(name) or _End("scores", dims[0] if dims else None))
        strange = [name for name in taken if name not in self._ends and name not in scores]
        found = None if strange else ENDS[node.op_type](self, node, ends)
        if found is None:
            raise UnsupportedError(
                f"of {', '.join(taken)} makes neither probabilities nor classes of the scores"
            )
        self._ends[node.output[0]] = found
        if node.op_type in DROPPED:
            self._dropped[node.op_type] = None

    def _require_columns(self, node: "NodeProto", default: int) -> None:
        if self._constants.attributes(node).get("axis", default) not in (1, -1):
            raise UnsupportedError("is along another axis than 1, which classes lie along")

    def _softmax(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        self._require_columns(node, -1)
        if not _is_order(ends):
            return None
        if ends[0].n_columns in (None, 1):
            raise UnsupportedError("is of one score a feature, of which it makes the same always")
        return _End("probabilities", ends[0].n_columns)

    def _sigmoid(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        is_score = ends[0].kind == "scores"  # the Sigmoid of a probability is always above a half
        return _End("probabilities", ends[0].n_columns) if is_score else None

    def _argmax(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        self._require_columns(node, 0)
        if not _is_order(ends):
            return None
        if ends[0].n_columns in (None, 1):
            raise UnsupportedError("is of one score a feature, which is always the largest")
        return _End("classes", 1)

    def _sub(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        one = node.input[0]
        is_probability = len(ends) == 1 and ends[0].kind == "probabilities"
        if not is_probability or one not in self._constants or self._constants.number(one) != 1:
            return None
        return _End("rest", ends[0].n_columns)

    def _concat(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        self._require_columns(node, 1)
        if [end.kind for end in ends] != ["rest", "probabilities"]:
            return None
        if [end.n_columns for end in ends] != [1, 1]:
            return self._several(node, ends)
        return _End("probabilities", 2)

    def _several(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        raise UnsupportedError(
            "gives a feature several labels, each by a probability of its own: expected one class"
        )

    def _names(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        is_lookup = len(ends) == 1 and ends[0].kind == "classes"
        return ends[0] if is_lookup and node.input[0] in self._constants else None

    def _table(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        return _End("table", ends[0].n_columns) if _is_order(ends) else None

    def _same(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        return ends[0]

    def _cast(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        is_kept = ends[0].kind == "classes" or self._constants.cast_to(node) in REALS
        return ends[0] if is_kept else None

    def _shaped(self, node: "NodeProto", ends: list[_End]) -> _End | None:
        """A tensor of another shape: one number for each feature has only one order."""
        return ends[0] if ends[0].n_columns in (None, 1) else None


def _is_order(ends: list[_End]) -> bool:
    """Whether the operand is one tensor whose largest number in a row tells the class."""
    return [end.kind for end in ends] in (["scores"], ["probabilities"])


DROPPED: dict[str, Callable[[Ends, "NodeProto", list[_End]], _End | None]] = {
    "Softmax": Ends._softmax,
    "LogSoftmax": Ends._softmax,
    "Sigmoid": Ends._sigmoid,
    "ArgMax": Ends._argmax,
    "ArrayFeatureExtractor": Ends._names,
    "ZipMap": Ends._table,
}
"""Operators that may follow the scores, and that notes name."""

ENDS: dict[str, Callable[[Ends, "NodeProto", list[_End]], _End | None]] = {
    **DROPPED,
    "Gather": Ends._names,
    "Sub": Ends._sub,
    "Concat": Ends._concat,
    "Binarizer": Ends._several,
    "Identity": Ends._same,
    "Cast": Ends._cast,
    "Reshape": Ends._shaped,
    "Flatten": Ends._shaped,
    "Squeeze": Ends._shaped,
}
"""Operators that may follow the scores."""
