"""How the command line prints errors: the library's parameters become options."""

import re

from spdnn.distributed import joining

OPTIONS = {
    "allows_singleton": "--allow-singleton",
    "device": "--device",
    "engine": "--engine",
    "features": "--features",
    "folder": "--data",
    "inputs": "--inputs",
    "layers": "--layers",
    "out": "--out",
    "rivals": "--rivals",
    "threads": "--threads",
    "truth": "--truth",
    "tuning": "--tuning",
}
"""The option of each parameter that an error advises to change."""

_PARAMETER = re.compile(r'`(\w+)(?:="(\w+)")?`')
"""A parameter in the text of an error, with or without a value."""


def with_options(text: str) -> str:
    """Name options in place of the library's parameters; see `spdnn.errors`.

    Parameters
    ----------
    text : str
        The text of an error, or of a check.

    Returns
    -------
    str
        What else stands between backquotes is kept as it is.

    Examples
    --------
    >>> with_options('engine cpu has no devices: use `engine="cuda"` or fewer `threads`')
    'engine cpu has no devices: use --engine cuda or fewer --threads'
    """

    def as_option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in OPTIONS:
            return found[0]
        return f"{OPTIONS[name]} {value}" if value else OPTIONS[name]

    return _PARAMETER.sub(as_option, text)


def print_error(text: str) -> None:
    """Print the text of an error, with options in place of parameters."""
    joining.print_error(with_options(text))
