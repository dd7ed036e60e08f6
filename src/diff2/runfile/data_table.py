"""``[data]`` of a run file: a public table, a built-in one, or files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._fields import from_table
from .._files import AnyPath
from ..data.places import DATA_VARIABLE
from ..data.settings import TableSettings
from ..errors import InvalidArgument
from ..tables.file_format import FileFormat

if TYPE_CHECKING:
    from ..data.loading import DataSettings

AT_SITES = "(at the sites)"  # stands for the file where a run file of a federation names none


def data_folders(path: AnyPath, data_dir: AnyPath | None) -> list[Path]:
    """Return where tables are looked up: beside the file, in ``data_dir``, in the folder of the environment."""
    return [Path(path).parent, *(Path(folder) for folder in (data_dir, os.environ.get(DATA_VARIABLE)) if folder)]


def data_settings(table: Mapping[str, Any], folders: list[Path], *, at_sites: bool = False) -> DataSettings:
    """Return ``[data]``; files are looked up in the folders, in this order."""
    sources = [key for key in ("dataset", "builtin", "file", "files") if key in table]
    if at_sites and not sources:
        return from_table(TableSettings, "data", {**table, "file": AT_SITES})
    if len(sources) > 1 and sources != ["file", "files"]:
        raise InvalidArgument(f"[data] has both {sources[0]} and {sources[1]}; leave one of them out")
    if "builtin" in table:
        from ..data.named import BuiltinSettings

        return from_table(BuiltinSettings, "data", table)
    if "dataset" in table:
        from ..data.named import DatasetSettings

        return from_table(DatasetSettings, "data", table, folders=tuple(str(f) for f in folders))
    table = dict(table)
    given: dict[str, Any] = {"format": _format(table.pop("format"))} if "format" in table else {}
    settings = from_table(TableSettings, "data", table, **given)
    files = tuple(found_file(file, folders) for file in settings.files)
    return replace(settings, files=files, file=None if settings.file is None else found_file(settings.file, folders))


def found_file(file: str, folders: list[Path]) -> str:
    """Return the first place where a table is; where it is nowhere, the first where it could have been."""
    places = [folder / file for folder in folders]
    return str(next((place for place in places if place.is_file()), places[0]))


def _format(table: Any) -> FileFormat:
    if not isinstance(table, dict):
        raise InvalidArgument(f"[data] expected format = {{ ... }}, a table, got {table!r}")
    return from_table(FileFormat, "data.format", table)
