"""Libraries that are needed for measuring and reporting only, asked for when they are used."""

import importlib
from typing import Any

from spdnn.errors import DeviceError


def optional(module: str, extra: str) -> Any:
    """Import a module that an extra of this package brings.

    Raises
    ------
    DeviceError
        If it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DeviceError(f"{module} is needed for this: pip install 'spdnn[{extra}]'") from error
