"""The command ``spdnn``: its parser, and the one place where errors become a line.

Exit status: 0 done and passed, 1 a check failed, 2 a user's mistake or a machine that
cannot, 70 an error of the program's own, 130 interrupted.
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
from spdnn.cli.streams import prepare_streams
from spdnn.errors import INTERNAL_ERROR, ElsewhereError, SpdnnError, user_text
from spdnn.machine.launcher import end_job, launched_rank, wait_turn
from spdnn.machine.provenance import own_version

COMMANDS = (run, predict, bench, report, compare, info, data)
"""Modules with `add_parser`; each sets `command`, a function of the parsed arguments."""


_NEGATIVE_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # Older argparse takes -3e-1 for an option that does not exist.
        self._negative_number_matcher = _NEGATIVE_NUMBER

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        # What is wrong with the command is mostly wrong on every rank: the first says it, and
        # ends the others where it can. Each that is left says it, too.
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
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        parsed = make_parser().parse_args(arguments)
        status: int = parsed.command(parsed)
        sys.stdout.flush()
    except ElsewhereError:
        return 2
    except BrokenPipeError:
        return _give_up_output(2)
    except (SpdnnError, MemoryError, OSError) as error:
        print(f"spdnn: error: {user_text(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("spdnn: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        # Not Python's own status 1, which would say that categories are wrong.
        traceback.print_exc()
        kind = type(error).__name__
        print(f"spdnn: internal error ({kind}): this is a bug, please report it", file=sys.stderr)
        return INTERNAL_ERROR
    return status


def _give_up_output(status: int) -> int:
    """Nobody reads what is printed: let Python's own flush at the end go nowhere."""
    with open(os.devnull, "wb") as nowhere, suppress(OSError, ValueError):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return status


def entry() -> NoReturn:
    """Run as a program."""
    prepare_streams()
    sys.exit(main())


if __name__ == "__main__":
    entry()
