"""The clients' tables: one file per client, or one file with a column that names the client.

Nothing is filled in, dropped or guessed. A message about a bad table names the file or client and the column, never a
value or a count of the records behind it.

Records are held out, and dealt to clients, by units: records, or where a column names groups all records of a group,
which is then on one side of the split and at one client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._validate import nearest
from ..errors import InvalidArgument
from ..tables.cells import MISSING, number
from ..tables.file_format import FileFormat
from ..tables.files import read_tables
from ..tables.frames import Frame, as_frame
from .catalogue import CATALOGUE
from .settings import OWN, SCIKIT_LEARN, TableSettings


class ClientTable(NamedTuple):
    """One client's table."""

    name: str  # for messages: the file, or the value of the client column
    frame: Frame
    decimal: str = "."

    def take(self, rows: np.ndarray, name: str | None = None) -> ClientTable:
        """Return the records with these numbers, as those of another client if it has a name."""
        return self._replace(name=self.name if name is None else name, frame=self.frame.take(rows))


def as_table(table: Any) -> ClientTable:
    """Return any table as one client's."""
    return table if isinstance(table, ClientTable) else ClientTable("table", as_frame(table))


def read_clients(settings: TableSettings) -> list[ClientTable]:
    """Read the tables; every client has at least one record."""
    files = settings.files if settings.file is None else (settings.file,)
    short = [Path(file).name for file in files]
    names = short if len(set(short)) == len(short) else files
    clients = [read_table(file, name, settings.format) for file, name in zip(files, names, strict=True)]
    if settings.file is not None:
        clients = split_by_column(clients[0], settings)
    for client in clients:
        if client.frame.size == 0:
            raise InvalidArgument(f"client {client.name!r} holds no record; leave it out, or check its file")
    return clients


def split_by_column(whole: ClientTable, settings: TableSettings) -> list[ClientTable]:
    """Return one client for each value of ``client_column``, or the whole table where there is none."""
    if settings.client_column is None or whole.frame.size == 0:
        return [whole]
    names, first, which = np.unique(texts(whole, settings.client_column), return_index=True, return_inverse=True)
    parts = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
    return [whole.take(parts[k], str(names[k])) for k in np.argsort(first)]


def read_table(file: str, name: str, format: FileFormat) -> ClientTable:
    """Read one CSV, CSV.gz or Parquet file."""
    if not Path(file).is_file():
        public = [entry.name for entry in CATALOGUE.values() if entry.file == Path(file).name]
        fetch = f"; it is public, fetch it with: diff2 data fetch {public[0]}" if public else ""
        raise InvalidArgument(
            f"no file at {file}; relative names are looked up beside the run file, in --data-dir "
            f"and in the folder that the environment variable DIFF2_DATA names{fetch}"
        )
    return ClientTable(name, read_tables(file, format), format.decimal)


def input_columns(settings: TableSettings, clients: Sequence[ClientTable]) -> tuple[str, ...]:
    """Return the names of the inputs, after checking that every name used anywhere is a column of every client."""
    first = clients[0]
    others = {settings.target, settings.client_column, settings.group_column, *settings.drop}
    inputs = settings.columns or tuple(name for name in first.frame.names if name not in others)
    if "" in inputs:  # mostly the number of the row
        raise InvalidArgument(f"client {first.name!r} has a column without a name; leave it out: drop = ['']")
    if not inputs:
        raise InvalidArgument(f"client {first.name!r} has no column left to be an input; check target and drop")
    for client in clients:
        for name in (settings.target, *inputs, *settings.drop):
            require_column(client, name)
        extra = [name for name in client.frame.names if name not in others and name not in inputs]
        if extra and settings.columns is None:
            raise InvalidArgument(
                f"client {client.name!r} has column {extra[0]!r}, client {first.name!r} has not; list the inputs in "
                "columns, or leave it out with drop"
            )
    for name in settings.unscaled:
        if name not in inputs:
            raise InvalidArgument(f"unscaled names {name!r}, which is not an input{nearest(name, inputs)}")
    for name in settings.bounds:
        if name not in (*inputs, settings.target):
            hint = nearest(name, (*inputs, settings.target))
            raise InvalidArgument(f"bounds name {name!r}, which is neither an input nor the target{hint}")
    return inputs


def require_column(client: ClientTable, name: str) -> None:
    """Refuse a column that the client's table does not have."""
    names = client.frame.names
    if name not in names:
        raise InvalidArgument(f"client {client.name!r} has no column {name!r}{nearest(name, names)}")
    if names.count(name) > 1:
        raise InvalidArgument(f"client {client.name!r} has the column {name!r} twice; rename one of them")


def numbers(client: ClientTable, name: str) -> np.ndarray:
    """Return a column as finite double-precision numbers; truth values become 0 and 1."""
    require_column(client, name)
    values = client.frame[name].numbers(client.decimal)
    if np.isnan(values).any():
        raise InvalidArgument(
            f"column {name!r} of client {client.name!r} holds missing or infinite values, or is not numeric; at the "
            "client, fill them in, remove those records, or encode categories as one 0/1 column each; or leave the "
            "column out with drop"
        )
    return values


def texts(client: ClientTable, name: str) -> np.ndarray:
    """Return a column as texts, say the group of each record: equal texts mean the same."""
    require_column(client, name)
    found = client.frame[name].mapped(lambda text: text or "", object)
    if any(text.casefold() in MISSING for text in set(found)):
        raise InvalidArgument(
            f"column {name!r} of client {client.name!r} holds missing values; each record needs one, so fill them in "
            "or remove those records at the client"
        )
    return found


def classes_in(clients: Sequence[ClientTable], name: str) -> tuple[Any, ...]:
    """Return the different values of a column, sorted: truth values or numbers where all are, or else texts."""
    found = {text for client in clients for text in texts(client, name)}
    if {text.casefold() for text in found} <= {"true", "false"}:
        return tuple(sorted({text.casefold() == "true" for text in found}))
    meant = [number(text) for text in found]
    if np.isnan(meant).any():
        return tuple(sorted(found))
    return tuple(sorted({int(value) if value.is_integer() else value for value in meant}))


def hold_out(
    tables: Sequence[ClientTable], share: float, seed: int, group_column: str | None = None, *, split: str = OWN
) -> tuple[list[ClientTable], list[ClientTable]]:
    """Divide each table into records to train on and records held out, drawn without looking at them.

    Every client keeps at least one unit to train on; one too small for the share holds nothing out. The split
    ``"scikit_learn"`` is that of its ``train_test_split(test_size=share, random_state=seed)``, for each client.
    """
    kept, held = [], []
    for place, table in enumerate(tables):
        unit_of = _units(table, group_column)
        count = int(unit_of.max()) + 1
        if split == SCIKIT_LEARN:
            order, size = np.random.RandomState(seed).permutation(count), math.ceil(share * count)
        else:
            order, size = np.random.default_rng([seed, place]).permutation(count), round(share * count)
        drawn = order[: min(size, count - 1)]
        out = np.isin(unit_of, drawn)
        kept.append(table.take(np.flatnonzero(~out)))
        held.append(table.take(np.flatnonzero(out)))
    if all(table.frame.size == 0 for table in held):
        raise InvalidArgument(f"holdout={share!r} holds out no record of any client; raise it, or leave it out")
    return kept, [table for table in held if table.frame.size]


def deal(tables: Sequence[ClientTable], clients: int, group_column: str | None = None) -> list[ClientTable]:
    """Deal the units of one table to clients in turn: unit i to client i mod ``clients``."""
    (table,) = tables
    unit_of = _units(table, group_column)
    if int(unit_of.max()) + 1 < clients:
        raise InvalidArgument(f"clients={clients} is more than the records or groups there are; lower it")
    parts = [np.flatnonzero(unit_of % clients == p) for p in range(clients)]
    return [table.take(part, f"part {p + 1} of {clients}") for p, part in enumerate(parts)]


def _units(table: ClientTable, group_column: str | None) -> np.ndarray:
    """Return the number of each record's unit, in the order in which they appear."""
    if group_column is None:
        return np.arange(table.frame.size)
    _, first, inverse = np.unique(texts(table, group_column), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
