"""What the kernels and their variants are called in tables and records."""

from collections.abc import Callable
from typing import Any

_TITLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "grouped": lambda has: f"grouped {has['rows']} x {has['features']}",
    "staged": lambda has: f"staged {'with' if has['has_chunks'] else 'without'} chunks",
    "resident": lambda has: f"resident {has['features']}{', groups' * bool(has['has_groups'])}",
    "load_ones": lambda has: f"load ones {has['bits']} bit{'s' * (has['bits'] > 1)}",
    "load_values": lambda has: f"load values {'with' if has['in_order'] else 'without'} sums",
}
"""By the names of the kernels' functions: what a variant is called, from what it is made of."""


def title_of(kernel: Any) -> str:
    """A kernel's name, and which of its variants it is.

    Parameters
    ----------
    kernel : kernel
        As `spdnn.engines.cuda.kernels.gpu.kernel` makes it.
    """
    function = kernel.py_func
    name = str(function.__name__)
    if name not in _TITLES:
        return name.replace("_", " ")
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return _TITLES[name](dict(zip(function.__code__.co_freevars, cells, strict=True)))
