"""The progress bar of a run: rounds, epsilon spent so far, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ._numbers import epsilon_text


class Reporter(Protocol):
    """Is called after each round."""

    def __call__(self, round: int, epsilon: Callable[[], float]) -> None: ...


@contextmanager
def progress_bar(rounds: int, *, start: int, show: bool | None, label: str = "training") -> Iterator[Reporter]:
    """Yield a reporter; ``show=None`` shows the bar where standard error is a terminal."""
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        yield lambda round, epsilon: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds  epsilon {task.fields[epsilon]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=rounds, completed=start, epsilon="-")
        last, pause = 0.0, 0.2

        def report(round: int, epsilon: Callable[[], float]) -> None:
            nonlocal last, pause
            now = time.monotonic()
            if now - last > pause or round == rounds:  # pricing the ledger takes longer than a small round
                bar.update(task, completed=round, epsilon=epsilon_text(epsilon()))
                last = time.monotonic()
                pause = max(0.2, 20 * (last - now))

        yield report
