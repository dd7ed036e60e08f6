"""Where tables are looked for: the folder of ``--data-dir``, the one of DIFF2_DATA, and the user's cache."""

import os
from collections.abc import Iterable
from pathlib import Path

from .._files import AnyPath
from ..errors import InvalidArgument
from .catalogue import Entry

DATA_VARIABLE = "DIFF2_DATA"  # names a folder in which tables are looked up, too


def cache_folder() -> Path:
    """Return the user's cache folder for fetched tables, where the operating system puts it."""
    from platformdirs import user_cache_path

    return user_cache_path("diff2", appauthor=False)


def folders(first: Iterable[AnyPath] = ()) -> list[Path]:
    """Return the folders to look in, in order; those of the caller come first."""
    named = [*first, os.environ.get(DATA_VARIABLE)]
    return list(dict.fromkeys([*(Path(folder) for folder in named if folder), cache_folder()]))


def found(entry: Entry, first: Iterable[AnyPath] = ()) -> Path | None:
    """Return the first place where the table is."""
    places = (folder / entry.file for folder in folders(first))
    return next((place for place in places if place.is_file()), None)


def require(entry: Entry, first: Iterable[AnyPath] = ()) -> Path:
    """Return where the table is, or say how to get it."""
    path = found(entry, first)
    if path is None:
        looked = ", ".join(str(folder) for folder in folders(first))
        raise InvalidArgument(
            f"dataset={entry.name!r}: no {entry.file} in {looked}. Fetch it from its publisher with: diff2 data fetch "
            f"{entry.name}; or name its folder with --data-dir or the environment variable {DATA_VARIABLE}"
        )
    return path
