"""``diff2 data``: which public tables are here, and fetching those that are not."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .._progress import progress_bar
from .console import command, emit_json, ending, show_line, show_rows
from .options import Json, given, shown

data_app = typer.Typer(
    name="data",
    help="The public tables of the paper's experiments: list and fetch them.",
    no_args_is_help=True,
)


@data_app.command("list", epilog="Example: diff2 data list --data-dir tables")
def list_tables(
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Look there first.")] = None,
    as_json: Json = False,
) -> None:
    """List the public tables: where they are on this machine, their size and licence."""
    with ending():
        from ..data.catalogue import CATALOGUE
        from ..data.places import folders, found

        first = [] if data_dir is None else [data_dir]
        tables = [_described(entry, found(entry, first)) for entry in CATALOGUE.values()]
        if as_json:
            emit_json({"tables": tables, "folders": folders(first)})
            return
        rows = [
            [t["name"], f"{t['rows']:,}", str(t["inputs"]), t["task"], t["licence"].partition(" (")[0], _place(t)]
            for t in tables
        ]
        show_rows("public tables", rows, ["dataset", "rows", "inputs", "task", "licence", "where"], width=120)
        show_line(f"looked in {', '.join(str(folder) for folder in folders(first))}")
        if any(table["path"] is None for table in tables):
            show_line("fetch a missing table with: diff2 data fetch NAME")


@data_app.command(epilog="Example: diff2 data fetch gas_turbine covertype")
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names from 'diff2 data list', or all.")],
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write to; by default where the table is, or the user's cache."),
    ] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no report.")] = False,
) -> None:
    """Fetch public tables from their publishers, check them, and keep them for later runs."""
    again = command("diff2", "data", "fetch", *names, *given({"to": to}))
    with ending(f"nothing incomplete is kept; start again with: {again}"):
        from ..data.catalogue import CATALOGUE, entry_of
        from ..data.fetching import fetch as fetch_table
        from ..data.places import found

        wanted = list(CATALOGUE) if names == ["all"] else names
        entries = [entry_of(name) for name in wanted]  # a misspelt name is found before anything is fetched
        done = []
        for entry in entries:
            place = found(entry)  # one that is damaged there is replaced there
            with progress_bar(label=entry.name, unit="bytes", show=shown(quiet or as_json)) as report:
                path = fetch_table(entry, place.parent if to is None and place is not None else to, report)
            done.append(_described(entry, path))
            if not (quiet or as_json):
                show_line(f"{entry.name}: {path}")
                show_line(f"  {entry.provenance.publisher}; {entry.provenance.licence}. {entry.provenance.citation}")
        if as_json:
            emit_json({"tables": done})


def _described(entry: Any, path: Path | None) -> dict[str, Any]:
    from ..data.datasets import input_names

    return {
        "name": entry.name,
        "path": path,
        "rows": entry.rows,
        "inputs": len(input_names(entry, "one_hot")),
        "target": entry.target,
        "task": entry.task,
        "licence": entry.provenance.licence,
        "publisher": entry.provenance.publisher,
        "citation": entry.provenance.citation,
        "csv_sha256": entry.provenance.csv_sha256,
    }


def _place(table: dict[str, Any]) -> str:
    return "missing" if table["path"] is None else str(table["path"].parent)
