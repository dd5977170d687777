"""Import libraries that only measuring and reporting need, when they are used."""

import importlib
from types import ModuleType

from spdnn.errors import DeviceError


def optional(module: str, extra: str) -> ModuleType:
    """Import a module that an extra of this package installs.

    Parameters
    ----------
    module : str
        Its name.
    extra : str
        The extra.

    Raises
    ------
    DeviceError
        If it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DeviceError(f"{module} is needed for this: pip install 'spdnn[{extra}]'") from error
