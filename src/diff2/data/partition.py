"""Which records are held out, and to whom the others are dealt.

Both work on units: records, or where a column names owners all records of an owner, who is then on one side of the
split and at one client.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import InvalidArgument
from .tables import ClientTable, owners


def hold_out(
    tables: Sequence[ClientTable], share: float, seed: int, group_column: str | None = None
) -> tuple[list[ClientTable], list[ClientTable]]:
    """Divide each table into records to train on and records held out, drawn without looking at them.

    Every client keeps at least one unit to train on; one too small for the share holds nothing out.
    """
    kept, held = [], []
    for number, table in enumerate(tables):
        unit_of = _units(table, group_column)
        count = int(unit_of.max()) + 1
        drawn = np.random.default_rng([seed, number]).permutation(count)[: min(round(share * count), count - 1)]
        out = np.isin(unit_of, drawn)
        kept.append(ClientTable(table.name, table.frame[~out]))
        held.append(ClientTable(table.name, table.frame[out]))
    if all(len(table.frame) == 0 for table in held):
        raise InvalidArgument(f"holdout={share!r} holds out no record of any client; raise it, or leave it out")
    return kept, [table for table in held if len(table.frame)]


def deal(table: ClientTable, clients: int, group_column: str | None = None) -> list[ClientTable]:
    """Deal the records of a table in turn: record i to client i mod ``clients``."""
    unit_of = _units(table, group_column)
    count = int(unit_of.max()) + 1
    if count < clients:
        what = "records" if group_column is None else "owners"
        raise InvalidArgument(f"clients={clients} is more than the {what} there are; lower it")
    return [ClientTable(f"part {p + 1} of {clients}", table.frame[unit_of % clients == p]) for p in range(clients)]


def _units(table: ClientTable, group_column: str | None) -> np.ndarray:
    """Return the number of each record's unit, in the order in which they appear."""
    if group_column is None:
        return np.arange(len(table.frame))
    _, first, inverse = np.unique(owners(table, group_column), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
