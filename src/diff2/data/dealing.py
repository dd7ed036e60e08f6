"""Which records of a table are held out, and to which clients the others are dealt.

Both work on units: records, or where a column names groups all records of a group, which is then on one side of the
split and at one client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import InvalidArgument
from ..tables.cells import Lookup
from .partition import Dirichlet, Partition, quantile_groups
from .settings import OWN, SCIKIT_LEARN
from .tables import ClientTable, classes_in, numbers, texts


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


def deal(
    tables: Sequence[ClientTable], partition: Partition, target: str, task: str, group_column: str | None = None
) -> list[ClientTable]:
    """Divide one table among the clients of a partition."""
    (table,) = tables
    unit_of = _units(table, group_column)
    count, groups = int(unit_of.max()) + 1, None
    if isinstance(partition, Dirichlet):
        if group_column is not None:
            raise InvalidArgument(
                f"partition 'dirichlet' splits records by their target, group_column={group_column!r} keeps those of a "
                "group together; leave one of them out"
            )
        if task == "classification":
            groups = table.frame[target].mapped(Lookup(classes_in([table], target)), np.int64)
        else:
            groups = quantile_groups(numbers(table, target), partition.quantiles)
    parts = partition.parts(count, groups)
    if group_column is not None:
        parts = [np.flatnonzero(np.isin(unit_of, part)) for part in parts]
    return [table.take(part, f"part {p + 1} of {len(parts)}") for p, part in enumerate(parts)]


def _units(table: ClientTable, group_column: str | None) -> np.ndarray:
    """Return the number of each record's unit, in the order in which they appear."""
    if group_column is None:
        return np.arange(table.frame.size)
    _, first, inverse = np.unique(texts(table, group_column), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
