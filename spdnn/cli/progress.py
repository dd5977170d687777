"""A progress bar, shown only on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, *, is_shown: bool = True) -> Iterator[Callable[[float], None] | None]:
    """Show a bar on stderr while the block runs.

    Parameters
    ----------
    what : str
        The phase that is shown.
    is_shown : bool
        Whether to show the bar at all.

    Yields
    ------
    callable or None
        Takes the fraction that is done. None if stderr is not a terminal, or `is_shown` is false.
    """
    if not (is_shown and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    # What is printed meanwhile goes above the bar, but only if stdout is a terminal, too.
    console, is_same = Console(stderr=True), sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=is_same) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)
