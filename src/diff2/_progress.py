"""The progress bar, for all that takes time: rounds of a run, runs of a comparison, bytes of a download.

Importing this is cheap; rich is imported when a bar is shown.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

PAUSE = 0.2  # seconds between two updates
LINES = "lines"  # a bar on a terminal, elsewhere a line now and then
BETWEEN_LINES = 5.0  # seconds
Show = bool | str | None


class Reporter(Protocol):
    """Is called with what is done so far."""

    def __call__(self, done: int, total: int | None = None, note: str | Callable[[], str] = "") -> None:
        """Show ``done`` of ``total``, and a note; one that takes time to compute is a function, called when due."""
        ...


@contextmanager
def progress_bar(
    total: int | None = None, *, show: Show, label: str = "training", start: int = 0, unit: str = "rounds"
) -> Iterator[Reporter]:
    """Yield a reporter.

    Args:
        total: None until the reporter is given one.
        show: None shows the bar where standard error is a terminal; ``"lines"`` prints a line every few seconds, too,
            where it is none: in the log of a job.
        start: what is done already.
        unit: what is counted; ``"bytes"`` are shown as sizes.
    """
    watched = sys.stderr.isatty()
    if show == LINES and not watched:
        yield _lines(total, label, unit)
        return
    if not (watched if show is None else show):
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


def _lines(total: int | None, label: str, unit: str) -> Reporter:
    """Return a reporter that prints a line when the last one is a few seconds ago; nothing for what ends before."""
    last, whole = time.monotonic(), total

    def report(done: int, total: int | None = None, note: str | Callable[[], str] = "") -> None:
        nonlocal last, whole
        whole = whole if total is None else total
        if time.monotonic() - last < BETWEEN_LINES:
            return
        text = note if isinstance(note, str) else note()
        of = "" if whole is None else f" of {whole:,}"
        print(f"{label}: {done:,}{of} {unit}{', ' if text else ''}{text}", file=sys.stderr, flush=True)
        last = time.monotonic()

    return report
