"""``diff2 schema``, ``fit``, ``predict`` and ``evaluate``: from a table to a private model, and its worth."""

import csv
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .._progress import progress_bar
from .console import command, emit_json, ending, show_guarantee, show_line, show_rows
from .options import Json, Quiet, Seed, shown

Tables = Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, CSV.gz or Parquet, with the same columns.")]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder that diff2 fit wrote.")]
Clients = Annotated[str | None, typer.Option(metavar="COLUMN", help="The client of each record.")]
Delta = Annotated[float | None, typer.Option(help="By default a power of ten, at most 1 / (10 x units).")]


def schema(
    files: Tables,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column to predict.")] = None,
    task: Annotated[
        str | None, typer.Option(help="regression, classes or counts; by default guessed from the data.")
    ] = None,
    clients: Clients = None,
    groups: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The group of each record, say a person.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="In CSV files; default ',', \\t for a tab.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Of CSV files; default utf-8.")] = None,
    decimal: Annotated[str | None, typer.Option(help="Decimal sign in CSV files; default '.'.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare the table with --schema. NOT private.")] = False,
    schema_file: Annotated[
        Path | None, typer.Option("--schema", metavar="SCHEMA.toml", help="The schema to compare with.")
    ] = None,
) -> None:
    """Print a draft of the schema of a table: columns, types, bounds, categories and units.

    It is read off the data, which leaks, and each line says so: replace it with what everybody knows. With --check,
    count instead how many cells do not fit a confirmed schema; the counts are exact, for the owner's eyes only.
    """
    if check != (schema_file is not None):
        raise typer.BadParameter("--check and --schema go together")
    if not check and target is None:
        raise typer.BadParameter("name the column to predict: --target COLUMN")
    given = {"delimiter": delimiter, "encoding": encoding, "decimal": decimal}
    options = {name: value.replace("\\t", "\t") for name, value in given.items() if value is not None}
    with ending():
        from ..tables.file_format import FileFormat
        from ..tables.files import read_tables

        if schema_file is not None:
            from ..tables.encode import check as checked
            from ..tables.schema import Schema

            confirmed = Schema.read(schema_file)
            found = checked(read_tables(files, confirmed.file), confirmed)
            rows = [[one.name, *(f"{count:,}" for count in one[1:])] for one in found]
            show_rows("NOT PRIVATE: exact counts", rows, ["column", "missing", "unreadable", "outside"], width=100)
            return
        from ..tables.draft import draft

        format = FileFormat(**options)
        made = draft(read_tables(files, format), str(target), task=task, clients=clients, groups=groups, file=format)
        sys.stdout.write(made.to_toml())


def fit(
    files: Tables,
    schema_file: Annotated[Path, typer.Option("--schema", metavar="SCHEMA.toml", help="What is publicly known.")],
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where model and ledger go.")],
    delta: Delta = None,
    clients: Clients = None,
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


def predict(
    model_folder: Model,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, CSV.gz or Parquet, of any length.")],
    out: Annotated[Path, typer.Option(metavar="FILE.csv", help="Where the predictions go.")],
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Keep this column beside the predictions.")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Also the probability of each class.")] = False,
    quiet: Quiet = False,
) -> None:
    """Predict for the raw rows of a file that has the columns of the model; other columns are ignored.

    Predictions for private rows are private: the guarantee of the model does not cover them.
    """
    with ending("no predictions were written"):
        from ..errors import InvalidArgument
        from ..fitting import FittedModel
        from ..tables.files import stream_table
        from ..tables.kinds import Classes

        model = FittedModel.load(model_folder)
        target = model.schema.target
        if probabilities and not isinstance(target, Classes):
            raise InvalidArgument("--probabilities is for classes; this model predicts numbers")
        if out.exists() and file.exists() and out.samefile(file):
            raise InvalidArgument(f"--out {out} is the table itself; choose another name")
        header = ["prediction"]
        if probabilities and isinstance(target, Classes):
            header += [f"probability of {value}" for value in target.values]
        done, temporary = 0, out.with_name(out.name + ".tmp")
        try:
            with (
                temporary.open("w", encoding="utf-8", newline="") as made,
                progress_bar(show=shown(quiet), label="predicting", unit="rows") as report,
            ):
                writer = csv.writer(made)
                writer.writerow(header if id_column is None else [id_column, *header])
                for frame in stream_table(file, model.schema.file):
                    columns = [model.predict(frame).tolist()]
                    if probabilities:
                        columns += model.predict_proba(frame).T.tolist()
                    if id_column is not None:
                        if id_column not in frame.names:
                            raise InvalidArgument(f"{file} has no column {id_column!r} for --id")
                        texts, places = frame[id_column].texts()
                        columns.insert(0, [texts[place] for place in places])
                    writer.writerows(zip(*columns, strict=True))
                    done += frame.size
                    report(done)
            os.replace(temporary, out)
        finally:
            temporary.unlink(missing_ok=True)
        if not quiet:
            show_line(f"{done:,} predictions are in {out}")


def evaluate(
    model_folder: Model,
    files: Tables,
    epsilon: Annotated[float, typer.Option(help="The budget, for the records in the files.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the ledger goes.")] = None,
    delta: Delta = None,
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
