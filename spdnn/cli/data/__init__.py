"""``spdnn data``: make, fetch, convert, fuse and check networks and inputs, and list them."""

import argparse

from spdnn.cli.data import check, convert, fetch, fuse, make, show

VERBS = (make, fetch, convert, fuse, check, show)
"""Modules with `add_parser`; each sets `command`, a function of the parsed arguments."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its subcommands to the parser."""
    parser = commands.add_parser(
        "data", help="make, fetch, convert, fuse and check networks and inputs", description=__doc__
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        verb.add_parser(verbs)
