"""A plan as facts and arrays, by name, and back: all of it, to be kept in a file."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, Self, get_origin

import numpy as np
import numpy.typing as npt


class Parts:
    """What a plan inherits so that it can be kept.

    The plan is a dataclass. Its fields are numbers, text, tuples of numbers, arrays, named tuples
    of arrays, and dataclasses of numbers.
    """

    def to_parts(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Take the plan apart.

        Returns
        -------
        dict
            Facts by name, ready for JSON.
        dict
            Arrays by name; one of a named tuple is ``field/name``.
        """
        facts: dict[str, Any] = {}
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name in _types(type(self)):
            value: Any = getattr(self, name)
            if isinstance(value, np.ndarray):
                arrays[name] = value
            elif hasattr(value, "_asdict"):
                arrays |= {f"{name}/{part}": array for part, array in value._asdict().items()}
            else:
                facts[name] = asdict(value) if _is_dataclass(value) else value
        return facts, arrays

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], array: Callable[[str], npt.NDArray[Any]]) -> Self:
        """Put together what `to_parts` took apart.

        Parameters
        ----------
        facts : mapping
            As they were written; tuples may have become lists.
        array : callable
            Gives an array by its name.

        Raises
        ------
        KeyError, TypeError
            If a fact is missing or of another kind.
        """
        kept: dict[str, Any] = {}
        for name, kind in _types(cls).items():
            if hasattr(kind, "_fields"):
                kept[name] = kind(*(array(f"{name}/{part}") for part in kind._fields))
            elif name not in facts:
                kept[name] = array(name)
            elif _is_dataclass(kind):
                kept[name] = kind(**facts[name])
            else:
                value = facts[name]
                value = tuple(value) if isinstance(value, list) else value  # JSON has lists
                if not isinstance(value, get_origin(kind) or kind):
                    raise TypeError(f"{name} is {value!r}")
                kept[name] = value
        return cls(**kept)


def _is_dataclass(thing: Any) -> bool:
    return hasattr(thing, "__dataclass_fields__")


def _types(plan_class: Any) -> dict[str, Any]:
    """The fields of a plan and their types."""
    return {field.name: field.type for field in fields(plan_class)}
