"""What can go wrong, as exceptions whose text is one clear line for the user."""

INTERNAL_ERROR = 70
"""Exit status of an error that no user has caused: EX_SOFTWARE of BSD's sysexits.h."""


class SpdnnError(Exception):
    """Base of all errors that a user can cause or mend."""


class DataError(SpdnnError):
    """A file, a network or features that cannot be used as given."""


class PlanError(SpdnnError):
    """A network that no plan of the chosen engine and mode can express."""


class DeviceError(SpdnnError):
    """An engine, device or amount of memory that this machine does not have."""


class AgreedError(SpdnnError):
    """An error that all ranks of a run know of and raise together; this one tells it."""


class ElsewhereError(AgreedError):
    """An error of another process of the same run, which tells it: nothing is to be printed."""


def user_text(error: Exception) -> str | None:
    """What to tell the user of an error, in one line; None for errors that are our own."""
    if isinstance(error, MemoryError):
        return "out of memory: take fewer --features, --layers or --threads"
    # OSError: what no other place has put into words.
    return str(error) if isinstance(error, SpdnnError | OSError) else None
