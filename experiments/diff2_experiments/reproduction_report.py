"""What a reproduction leaves: tables, figures and a page in its directory, and a summary on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diff2.cli.console import show_facts, show_line, show_rows

from .findings import Row, conditions, notes, rows_at, summaries
from .report_page import write_page
from .reproduced import Reproduced, Run
from .reproduction_figures import draw_figures
from .tabulation import table_cells, write_tables

ABOUT = {
    "runs.jsonl": "every run with its curves",
    "table.csv": "every metric of every method, for machines",
    "settings.csv": "the settings chosen at each seed",
    "table.md": "the tables, for a report",
    "report.html": "all of it in one page, with curves to explore; open it in a browser",
}


def write_files(found: Reproduced, runs: Sequence[Run]) -> tuple[list[Row], list[Path]]:
    """Write everything; return the rows of the tables and the paths."""
    rows = summaries(found)
    return rows, [*write_tables(found, rows), *draw_figures(found, rows), write_page(found, rows, runs)]


def show(found: Reproduced, rows: Sequence[Row], files: Sequence[Path]) -> None:
    """Print a table for each accounting and epsilon, what the numbers mean, and where the files are."""
    for condition in conditions(found):
        header, cells = table_cells(found, rows_at(rows, condition))
        show_rows(f"{found.title}, {condition}", cells, header, width=150)
    first, *others = notes(found)
    show_line(first, style="bold red", wrap=True)
    for note in others:
        show_line(f"- {note}", wrap=True)
    about = {"runs.jsonl": f"{ABOUT['runs.jsonl']}; {found.trained} trained now"}
    about |= {path.name: ABOUT.get(path.name, "curves: the mean and every seed") for path in files}
    show_facts(f"in {found.directory}", about)
