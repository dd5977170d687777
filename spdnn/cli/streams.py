"""Make the standard streams fit to be written to, whatever the caller has done to them."""

import io
import os
import sys

STREAMS = ("stdin", "stdout", "stderr")
"""Their names in `sys`, by file descriptor."""


def prepare_streams() -> None:
    """Open closed streams, and let streams write characters that their encoding does not have.

    Some schedulers start programs with closed streams. Python then has None in their place, and the
    next file that is opened takes the free descriptor. What a library writes to standard error
    would then end up in that file. So each closed stream is opened on the null device.

    A character that the encoding of a stream does not have is written as its code. Otherwise a
    path with such a character would be an error.
    """
    for descriptor, name in enumerate(STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (for as long as we run)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
