"""What can go wrong, as exceptions whose text is one clear line for the user."""


class SpdnnError(Exception):
    """Base of all errors that a user can cause or mend."""


class DataError(SpdnnError):
    """A file, a network or features that cannot be used as given."""


class PlanError(SpdnnError):
    """A network that no plan of the chosen engine and mode can express."""


class DeviceError(SpdnnError):
    """An engine, device or amount of memory that this machine does not have."""
