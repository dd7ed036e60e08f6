"""The progress bar, for all that takes time: rounds of a run, runs of a comparison, bytes of a download.

Importing this is cheap; rich is imported when a bar is shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

PAUSE = 0.2  # seconds between two updates


class Reporter(Protocol):
    """Is called with what is done so far."""

    def __call__(self, done: int, total: int | None = None, note: str | Callable[[], str] = "") -> None:
        """Show ``done`` of ``total``, and a note; one that takes time to compute is a function, called when due."""
        ...


@contextmanager
def progress_bar(
    total: int | None = None, *, show: bool | None, label: str = "training", start: int = 0, unit: str = "rounds"
) -> Iterator[Reporter]:
    """Yield a reporter.

    Args:
        total: None until the reporter is given one.
        show: None shows the bar where standard error is a terminal.
        start: what is done already.
        unit: what is counted; ``"bytes"`` are shown as sizes.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda done, total=None, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = (DownloadColumn(),) if unit == "bytes" else (MofNCompleteColumn(), TextColumn(unit))
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        *count,
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, completed=start, note="")
        last, pause = 0.0, PAUSE

        def report(done: int, total: int | None = None, note: str | Callable[[], str] = "") -> None:
            nonlocal last, pause
            now, goal = time.monotonic(), bar.tasks[0].total if total is None else total
            if now - last > pause or done == goal:
                text = note if isinstance(note, str) else note()
                bar.update(task, completed=done, total=goal, note=text)
                last = time.monotonic()
                pause = max(PAUSE, 20 * (last - now))

        yield report
