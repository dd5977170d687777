"""What can go wrong, as exceptions whose text is one clear line for the user.

A text may advise to change a parameter of the library. The parameter's name then stands between
backquotes, "take fewer `features`", with a value if one is advised: name, equals sign, value in
double quotes. The command line puts its own options there; see `spdnn.cli.errors`.
"""

INTERNAL_ERROR = 70
"""Exit status of an error that no user has caused: EX_SOFTWARE of BSD's sysexits.h."""


class SpdnnError(Exception):
    """Base of all errors that a user can cause or correct."""


class DataError(SpdnnError):
    """A file, a network or features that cannot be used as given."""


class PlanError(SpdnnError):
    """A network that no plan of the chosen engine and mode can express."""


class DeviceError(SpdnnError):
    """An engine, device or amount of memory that this machine does not have."""


class AgreedError(SpdnnError):
    """An error that all ranks of a run know of and raise together; this rank prints it."""


class ElsewhereError(AgreedError):
    """An error that another rank of the same run prints; this one prints nothing."""


def user_text(error: Exception) -> str | None:
    """The line that tells the user of an error.

    Parameters
    ----------
    error : Exception
        What was raised.

    Returns
    -------
    str or None
        None for an error that the program itself has caused.
    """
    if isinstance(error, MemoryError):
        return "out of memory: take fewer `features`, `layers` or `threads`"
    # An OSError comes here if no other place has raised an SpdnnError instead.
    return str(error) if isinstance(error, SpdnnError | OSError) else None
