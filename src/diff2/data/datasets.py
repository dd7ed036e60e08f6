"""Public tables by name: read, checked against their checksum, and turned into numbers.

>>> from diff2.data.catalogue import CATALOGUE
>>> sorted(CATALOGUE)
['blog_feedback', 'california_housing', 'covertype', 'gas_turbine', 'kddcup99']
"""

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._files import AnyPath
from .._validate import one_of
from ..errors import InvalidArgument
from ..tables.cells import Cells, Lookup
from ..tables.files import read_tables
from ..tables.frames import Frame
from .catalogue import Entry, Provenance, entry_of
from .places import found, require

ROWS = ("all", "train")
SYMBOLIC = ("one_hot", "codes")
TOTALS = ("keep", "average")


@dataclass(frozen=True)
class Dataset:
    """A public table as arrays, nothing scaled; ``inputs[i, j]`` is column ``columns[j]`` of record i."""

    name: str
    inputs: np.ndarray  # (records, columns), float32
    targets: np.ndarray  # (records, 1) float32 of a regression, (records,) class numbers otherwise
    columns: tuple[str, ...]
    target: str
    task: str
    classes: tuple[Any, ...] | None  # class number k is classes[k]
    provenance: Provenance
    path: Path


def load_dataset(
    name: str,
    data_dir: AnyPath | None = None,
    download: bool = False,
    *,
    rows: str = "all",
    symbolic: str = "one_hot",
    totals: str = "keep",
) -> Dataset:
    """Return a table of the catalogue.

    Args:
        name: ``"california_housing"``, ``"gas_turbine"``, ``"blog_feedback"``, ``"covertype"`` or ``"kddcup99"``.
        data_dir: look there first, then in the folder that DIFF2_DATA names, then in the user's cache.
        download: if it is nowhere, fetch it from its publisher, into ``data_dir`` or the user's cache; otherwise that
            is an error.
        rows: ``"train"``: only the publisher's own training part, where there is one.
        symbolic: columns of text as ``"one_hot"`` indicators or as ``"codes"`` 0, 1, ....
        totals: ``"average"``: averages in the place of totals, where the catalogue knows them (California Housing:
            rooms, bedrooms and people by household, as in scikit-learn's copy).
    """
    entry = entry_of(name)
    first = [data_dir] if data_dir is not None else []
    path = found(entry, first) if download else require(entry, first)
    if path is None:
        from .fetching import fetch

        path = fetch(entry, data_dir)
    frame = read_frame(entry, path, rows=rows, symbolic=symbolic, totals=totals)
    columns = input_names(entry, symbolic, totals=totals)
    if entry.classes is None:
        targets = frame[entry.target].values.astype(np.float32).reshape(-1, 1)
    else:
        targets = _codes(entry, entry.target, frame[entry.target], entry.classes)
    inputs = np.empty((frame.size, len(columns)), np.float32)
    for j, column in enumerate(columns):
        inputs[:, j] = frame[column].values
    return Dataset(
        entry.name, inputs, targets, columns, entry.target, entry.task, entry.classes, entry.provenance, path
    )


def input_names(entry: Entry, symbolic: str, plain: Sequence[str] = (), *, totals: str = "keep") -> tuple[str, ...]:
    """Return the names of the inputs; a symbolic column becomes ``column=value`` for each of its values."""
    check_totals(entry, totals)
    names: list[str] = []
    for name in entry.columns:
        if name == entry.target or name in entry.drop:
            continue
        values = entry.symbolic.get(name) if symbolic == "one_hot" and name not in plain else None
        names += [name] if values is None else [f"{name}={value}" for value in values]
    return tuple(_renamed(entry, totals).get(name, name) for name in names)


def check_totals(entry: Entry, totals: str) -> None:
    """Refuse averages of a table for which none are known."""
    one_of("totals", totals, TOTALS)
    if totals == "average" and not entry.averages:
        raise InvalidArgument(f"dataset={entry.name!r} has no totals to average, got totals={totals!r}; leave it out")


def read_frame(
    entry: Entry,
    path: Path,
    *,
    rows: str = "all",
    symbolic: str = "one_hot",
    totals: str = "keep",
    plain: Sequence[str] = (),
) -> Frame:
    """Read a table whose bytes are the ones expected, with symbolic columns but the ``plain`` ones as numbers."""
    one_of("rows", rows, ROWS)
    one_of("symbolic", symbolic, SYMBOLIC)
    check_totals(entry, totals)
    if rows == "train" and entry.train_rows is None:
        raise InvalidArgument(
            f"dataset={entry.name!r} has no training part of its publisher's, got rows={rows!r}; leave it out"
        )
    verified_csv(entry, path)
    frame = read_tables(path)
    if rows == "train" and entry.train_rows is not None:
        frame = frame.take(np.arange(entry.train_rows))
    columns: dict[str, Any] = {}
    for name in frame.names:
        values = entry.symbolic.get(name)
        if (name == entry.target and entry.classes is not None) or (values is not None and name in plain):
            columns[name] = frame[name]
        elif values is None:
            columns[name] = Cells(frame[name].numbers().astype(entry.dtype))
        else:
            codes = _codes(entry, name, frame[name], values)
            hot = symbolic == "one_hot"
            columns |= (
                {f"{name}={value}": Cells(codes == k) for k, value in enumerate(values)}
                if hot
                else {name: Cells(codes)}
            )
    if totals == "average":
        columns = _averaged(entry, columns)
    return Frame(tuple(columns), tuple(columns.values()), frame.size)


def verified_csv(entry: Entry, path: Path) -> bytes:
    """Return the uncompressed table, or say what is wrong with the file and what to do about it."""
    remedy = f"remove it and fetch it again: diff2 data fetch {entry.name}"
    try:
        content = gzip.decompress(path.read_bytes())
    except EOFError:
        raise InvalidArgument(f"{path} is truncated; {remedy}") from None
    except (gzip.BadGzipFile, zlib.error):
        raise InvalidArgument(f"{path} is not a gzip file, or is damaged; {remedy}") from None
    check_content(entry, content, str(path), remedy)
    return content


def check_content(entry: Entry, content: bytes, where: str, remedy: str) -> None:
    """Refuse a table that is not the one that was published, after saying which column is another, if one is."""
    _check_header(entry, content, where, remedy)
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry.provenance.csv_sha256:
        raise InvalidArgument(
            f"{where} is not the table that was published: expected sha256 {entry.provenance.csv_sha256} of its "
            f"uncompressed bytes, got {digest}; {remedy}"
        )


def _check_header(entry: Entry, content: bytes, where: str, remedy: str) -> None:
    """Refuse a table with other columns, and name the first that differs."""
    line = content[: content.find(b"\n")].decode("utf-8", "replace").rstrip("\r")
    names = line.split(",")
    if names == list(entry.columns):
        return
    count = f"expected {len(entry.columns)} columns, got {len(names)}"
    for expected, got in zip(entry.columns, names, strict=False):
        if expected != got:
            count += f"; the first that differs should be {expected!r} and is {got[:40]!r}"
            break
    raise InvalidArgument(f"{where} has other columns than {entry.name}: {count}; {remedy}")


def _averaged(entry: Entry, columns: dict[str, Cells]) -> dict[str, Cells]:
    """Return the table with averages in the places of the columns that they replace."""
    values = {
        column: Cells(columns[average.total].values / columns[average.per].values)
        for column, average in entry.averages.items()
    }
    names = _renamed(entry, "average")
    return {names.get(column, column): values.get(column, cells) for column, cells in columns.items()}


def _renamed(entry: Entry, totals: str) -> dict[str, str]:
    return {column: average.name for column, average in entry.averages.items()} if totals == "average" else {}


def _codes(entry: Entry, name: str, column: Cells, values: tuple[Any, ...]) -> np.ndarray:
    """Return the place of each value in the public list."""
    codes = column.mapped(Lookup(values), np.int64)
    if (codes >= len(values)).any():
        raise InvalidArgument(f"column {name!r} of {entry.name} holds a value that is not among its {len(values)}")
    return codes
