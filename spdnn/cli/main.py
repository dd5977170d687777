"""The command ``spdnn``: its parser, and the place where errors become a line.

Exit status: 0 done and passed, 1 a check failed, 2 a mistake of the user or a machine that cannot
do it, 70 an error of the program itself, 130 interrupted.
"""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from spdnn.cli import bench, compare, data, info, predict, report, run
from spdnn.cli.arguments import Commands
from spdnn.cli.errors import print_error
from spdnn.cli.streams import prepare_streams
from spdnn.errors import INTERNAL_ERROR, ElsewhereError, SpdnnError, user_text
from spdnn.machine.launcher import end_job, launched_rank, wait_turn
from spdnn.machine.provenance import own_version

COMMANDS = (run, predict, bench, report, compare, info, data)
"""Modules with `add_parser`; each sets `command`, a function of the parsed arguments."""


_NEGATIVE_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # Older argparse takes -3e-1 for an option that does not exist.
        self._negative_number_matcher = _NEGATIVE_NUMBER

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        # What is wrong with the command is mostly wrong on every rank. The first rank prints it
        # and ends the others if it can. Those that are left print it, too.
        if message:
            wait_turn(launched_rank())
            self._print_message(message, sys.stderr)
            sys.stderr.flush()
        if status:
            end_job(status)
        super().exit(status)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command."""
    parser = _Parser(
        prog="spdnn",
        description="Fast and exact inference of very deep, very sparse neural networks.",
    )
    parser.add_argument("--version", action="version", version=f"spdnn {own_version()}")
    _add_commands(parser)
    return parser


def _add_commands(parser: argparse.ArgumentParser) -> None:
    commands: Commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What stands after ``spdnn``; by default the arguments of this process.

    Returns
    -------
    int
        The exit status.
    """
    try:
        parsed = make_parser().parse_args(arguments)
        status: int = parsed.command(parsed)
        sys.stdout.flush()
    except ElsewhereError:
        return 2
    except BrokenPipeError:
        return _give_up_output(2)
    except (SpdnnError, MemoryError, OSError) as error:
        print_error(user_text(error) or "")
        return 2
    except KeyboardInterrupt:
        print("spdnn: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        # Python's own status would be 1, which says that categories are wrong.
        traceback.print_exc()
        kind = type(error).__name__
        print(f"spdnn: internal error ({kind}): this is a bug, please report it", file=sys.stderr)
        return INTERNAL_ERROR
    return status


def _give_up_output(status: int) -> int:
    """Let Python's flush at the end go nowhere, because nobody reads what is printed."""
    with open(os.devnull, "wb") as nowhere, suppress(OSError, ValueError):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return status


def entry() -> NoReturn:
    """Run as a program."""
    prepare_streams()
    sys.exit(main())


if __name__ == "__main__":
    entry()
