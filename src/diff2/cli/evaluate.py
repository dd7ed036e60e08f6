"""``diff2 evaluate``: private scores of a model on held-out records."""

from pathlib import Path
from typing import Annotated

import typer

from .console import emit_json, ending, show_guarantee, show_line
from .options import Json, Quiet, Seed


def evaluate(
    model_folder: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder that diff2 fit wrote.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="CSV, CSV.gz or Parquet, with the same columns.")
    ],
    epsilon: Annotated[float, typer.Option(help="The budget, for the records in the files.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the ledger goes.")] = None,
    delta: Annotated[float | None, typer.Option(help="By default a power of ten, at most 1 / (10 x units).")] = None,
    unit: Annotated[
        str | None, typer.Option(help="What is protected: record, group or client; default: group if it names any.")
    ] = None,
    seed: Seed = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a model on records that it was not fitted to, with a privacy budget for these records.

    Every score has a 95 % interval that accounts for the noise and for the sampling of records.
    """
    with ending("what was released so far, if anything, stays spent"):
        from ..fitting import FittedModel
        from ..fitting import evaluate as evaluated
        from ..tables.files import read_tables

        model = FittedModel.load(model_folder)
        found = evaluated(
            model,
            read_tables(files, model.schema.file),
            epsilon=epsilon,
            delta="auto" if delta is None else delta,
            unit=unit or ("record" if model.schema.groups is None else "group"),
            seed=seed,
            directory=out,
        )
        if as_json:
            emit_json(found.to_json())
        elif not quiet:
            show_line(str(found).rpartition("\n")[0])
            show_guarantee(str(found.guarantee))
