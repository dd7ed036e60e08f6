"""What the command line prints, and how it ends.

Results go to standard output, everything else (progress, warnings, errors) to standard error. With ``--json``, standard
output holds exactly one JSON document.
"""

import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .._files import to_json
from ..errors import (
    BudgetExceeded,
    Diff2Error,
    GradientFallbackWarning,
    PrivacyLeakWarning,
    WeakDeltaWarning,
    WeakEpsilonWarning,
)

FAILED, BUDGET, INTERRUPTED = 1, 3, 130


@contextmanager
def ending(advice: str = "") -> Iterator[None]:
    """Turn what goes wrong into one line on standard error and the exit status of the command."""
    with _readable_warnings():
        try:
            yield
        except BudgetExceeded as error:
            _say("privacy budget", error)
            raise typer.Exit(BUDGET) from None
        except (Diff2Error, OSError) as error:
            _say("error", error)
            raise typer.Exit(FAILED) from None
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            _say("error", "this command needs PyTorch; install it: pip install 'diff2[torch]'")
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            _say("interrupted", advice or "nothing was written")
            raise typer.Exit(INTERRUPTED) from None


def emit_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document; infinities become words, for JSON has none."""
    sys.stdout.write(to_json(document))


def command(*words: object) -> str:
    """Return a command line that can be pasted into a shell."""
    return shlex.join(str(word) for word in words)


def show_facts(title: str, facts: Mapping[str, str]) -> None:
    """Print a table of two columns."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(value))
    _out().print(table)


def show_rows(title: str, rows: Sequence[Sequence[str]], header: Sequence[str], *, width: int | None = None) -> None:
    """Print a table of figures; the first column is text, the others stand to the right.

    Args:
        width: in characters, where standard output is not a terminal.
    """
    table = Table(title=title, title_justify="left", title_style="bold", header_style="cyan")
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left", no_wrap=i == 0 and width is not None, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _out(width).print(table)


def show_guarantee(sentence: str) -> None:
    """Print the sentence a privacy officer can sign; in a frame that says so where it is not private."""
    style = "yellow" if sentence.startswith("NOT PRIVATE") else "green"
    _out().print(Panel(Text(sentence), title="guarantee", title_align="left", border_style=style))


def show_line(text: str, style: str = "", *, wrap: bool = False) -> None:
    """Print a line as it is, or wrapped between words."""
    _out().print(Text(text, style=style), soft_wrap=not wrap)


def show_warning(text: str) -> None:
    """Print a line on standard error."""
    _say("warning", text)


@contextmanager
def _readable_warnings() -> Iterator[None]:
    """Print each of our warnings once, as a line, without the place in the code."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            _say("warning", message)

    with warnings.catch_warnings():
        for category in (PrivacyLeakWarning, WeakDeltaWarning, WeakEpsilonWarning, GradientFallbackWarning):
            warnings.simplefilter("always", category)
        warnings.showwarning = show
        yield


def _say(kind: str, message: object) -> None:
    lines = [" ".join(line.split()) for line in str(message).split("\n- ")]  # a list of problems keeps its lines
    print(f"{kind}:", "\n- ".join(lines), file=sys.stderr, flush=True)


def _out(width: int | None = None) -> Console:
    # Made each time, because standard output may have been replaced since.
    return Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else width)
