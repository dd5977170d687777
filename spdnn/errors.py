"""Exceptions whose text is one clear line for the user."""

INTERNAL_ERROR = 70
"""Exit status of an error in this program: EX_SOFTWARE of BSD's sysexits.h."""


class SpdnnError(Exception):
    """Base of all errors that a user can cause or correct."""


class DataError(SpdnnError):
    """A file, a network or features that cannot be used as given."""


class PlanError(SpdnnError):
    """A network that no plan of the chosen engine and mode can express."""


class DeviceError(SpdnnError):
    """An engine, device or amount of memory that this machine does not have."""


class AgreedError(SpdnnError):
    """An error that all ranks of a run raise together, and that this rank prints."""


class ElsewhereError(AgreedError):
    """An error that another rank of the same run prints, so that this one prints nothing."""


def user_text(error: Exception) -> str | None:
    """Message for the user in one line.

    Parameters
    ----------
    error : Exception
        Any error.

    Returns
    -------
    str or None
        None for an error in this program.
    """
    if isinstance(error, MemoryError):
        return "out of memory: take fewer --features, --layers or --threads"
    # An OSError that no other place has turned into an error of this package has a clear text, too.
    return str(error) if isinstance(error, SpdnnError | OSError) else None
