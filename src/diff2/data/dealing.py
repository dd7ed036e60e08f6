"""Which records of a table are held out, and to which clients the others are dealt.

Both work on units: records, or where a column names groups all records of a group, which is then on one side of the
split and at one client.
"""

import math
from collections.abc import Sequence

import numpy as np

from ..errors import InvalidArgument
from .settings import OWN, SCIKIT_LEARN
from .tables import ClientTable, texts


def hold_out(
    tables: Sequence[ClientTable], share: float, seed: int, group_column: str | None = None, *, split: str = OWN
) -> tuple[list[ClientTable], list[ClientTable]]:
    """Divide each table into records to train on and records held out, drawn without looking at them.

    Every client keeps at least one unit to train on; one too small for the share holds nothing out. The split
    ``"scikit_learn"`` is that of its ``train_test_split(test_size=share, random_state=seed)``, for each client.
    """
    kept, held = [], []
    for number, table in enumerate(tables):
        unit_of = _units(table, group_column)
        count = int(unit_of.max()) + 1
        if split == SCIKIT_LEARN:
            order, size = np.random.RandomState(seed).permutation(count), math.ceil(share * count)
        else:
            order, size = np.random.default_rng([seed, number]).permutation(count), round(share * count)
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
