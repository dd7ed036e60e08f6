"""Options that several commands have, and how lists are written on a command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from .._progress import LINES, Show

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors: no progress bar, no report.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Make the noise repeatable. The run is then NOT private.")]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where to look for tables that are not beside the run file; then $DIFF2_DATA."),
]
RunToml = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file: data, model, algorithm and budget.")]


def shown(quiet: bool) -> Show:
    """Return how progress is shown: a bar on a terminal, lines in a log, nothing where none is wanted."""
    return False if quiet else LINES


def given(options: Mapping[str, object]) -> list[object]:
    """Return the options that were given, as words of a command line.

    >>> given({"seed": 3, "data-dir": None})
    ['--seed', 3]
    """
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", value)]


def parse_epsilons(text: str) -> list[float]:
    """Return budgets from ``"1,3"``.

    >>> parse_epsilons("0.5, 3")
    [0.5, 3.0]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"expected numbers like 1,3, got {text!r}", param_hint="--epsilon") from None


def parse_names(text: str | None) -> list[str] | None:
    """Return the names of ``"a,b"``; None where none are given."""
    return None if text is None else [word.strip() for word in text.split(",")]
