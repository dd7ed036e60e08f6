"""``diff2 schema``: a first description of a table, for a person to confirm."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import ending, show_rows


def schema(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="CSV, CSV.gz or Parquet, with the same columns.")
    ],
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column to predict.")] = None,
    task: Annotated[
        str | None, typer.Option(help="regression, classes or counts; by default guessed from the data.")
    ] = None,
    clients: Annotated[str | None, typer.Option(metavar="COLUMN", help="The client of each record.")] = None,
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
            from ..tables.check import check as checked
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
