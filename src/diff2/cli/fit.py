"""``diff2 fit``: from a table and a confirmed schema to a private model in a folder."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .console import command, emit_json, ending, show_guarantee, show_line
from .options import Json, Quiet, Seed, shown


def fit(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="CSV, CSV.gz or Parquet, with the same columns.")
    ],
    schema_file: Annotated[Path, typer.Option("--schema", metavar="SCHEMA.toml", help="What is publicly known.")],
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where model and ledger go.")],
    delta: Annotated[float | None, typer.Option(help="By default a power of ten, at most 1 / (10 x units).")] = None,
    clients: Annotated[str | None, typer.Option(metavar="COLUMN", help="The client of each record.")] = None,
    groups: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The group of each record, say a person; protected as one.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="What is protected: record, group or client; default: group with --groups.")
    ] = None,
    weighting: Annotated[str, typer.Option(help="Equal weight for all records, or for all clients.")] = "records",
    seed: Seed = None,
    score: Annotated[
        bool, typer.Option("--score/--no-score", help="Spend 2 % of the budget on a private score of the model.")
    ] = True,
    method: Annotated[str, typer.Option(help="features or network; auto is features.")] = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse leaks instead of warning.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a private model to a table, within a budget. There is nothing to tune.

    The schema says what is publicly known: columns, bounds, categories and the target. Draft one with diff2 schema.
    """
    with ending(f"what was released so far is in {out}; the same command resumes, and pays for nothing twice"):
        from .._progress import progress_bar
        from ..fitting import fit as fit_table
        from ..fitting.directory import is_unfinished
        from ..fitting.saving import refuse_folder
        from ..tables.files import read_tables
        from ..tables.schema import Schema

        if not is_unfinished(out):
            refuse_folder(out)
        known = Schema.read(schema_file)
        known = replace(known, clients=clients or known.clients, groups=groups or known.groups)
        table = read_tables(files, known.file)
        with progress_bar(100, show=shown(quiet or as_json), label="fitting", unit="% of the budget") as report:
            model = fit_table(
                table,
                known,
                epsilon=epsilon,
                delta="auto" if delta is None else delta,
                unit=unit or ("record" if known.groups is None else "group"),
                weighting=weighting,
                seed=seed,
                directory=out,
                strict=strict,
                score=score,
                method=method,
                progress=lambda spent, purpose: report(min(100, round(100 * spent)), note=purpose),
            )
        guarantee = model.guarantee
        if as_json:
            emit_json(
                {
                    "directory": str(out),
                    "epsilon": guarantee.epsilon,
                    "delta": guarantee.delta,
                    "unit": guarantee.unit,
                    "private": guarantee.private,
                    "guarantee": str(guarantee),
                    "health": None if model.health is None else model.health.to_json(),
                }
            )
        elif not quiet:
            show_line(str(model.health))
            show_line(model.report().rpartition("\n")[0])
            show_guarantee(str(guarantee))
            show_line(f"model:   {out}")
            show_line(f"predict: {command('diff2', 'predict', out, 'new.csv', '--out', 'predictions.csv')}")
