"""``diff2 init`` and ``diff2 run-schema``: a run file to begin with, and what an editor must know to help."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import emit_json, ending


def init(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, CSV.gz or Parquet; one per client.")],
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    task: Annotated[str, typer.Option(help="regression or classification.")] = "regression",
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 1.0,
    delta: Annotated[float, typer.Option(help="The budget; well below 1 / records.")] = 1e-5,
) -> None:
    """Print a commented run file for tables with the same columns, one per client.

    Only the names of the columns are read. Bounds are left to you: write what everybody knows.
    """
    with ending():
        from ..privacy import Budget
        from ..runfile.drafting import draft_run_file

        Budget(epsilon, delta)
        sys.stdout.write(draft_run_file(files, target, task, epsilon=epsilon, delta=delta))


def run_schema() -> None:
    """Print the JSON Schema of run files, for completion and checks in editors."""
    with ending():
        from ..runfile.json_schema import run_file_schema

        emit_json(run_file_schema())
