"""For the owner of a table, at home: how well a schema fits it. Exact counts, hence NOT private."""

from typing import Any, NamedTuple

import numpy as np

from ..privacy.leaks import leak
from .cell_column import Cells
from .cells import MISSING, Lookup, flag
from .encode import refuse_table
from .frames import as_frame
from .kinds import Category, Classes, Counts, Date, Flag
from .schema import Schema


class ColumnCheck(NamedTuple):
    """How many cells of a column are missing, cannot be read, or lie outside of bounds or list."""

    name: str
    missing: int
    unreadable: int
    outside: int


def check(data: Any, schema: Schema, *, strict: bool = False) -> list[ColumnCheck]:
    """Count what the encoding would treat silently, column by column.

    >>> import warnings; warnings.simplefilter("ignore")
    >>> from diff2.tables.kinds import Number, Regression
    >>> check({"age": ["31", "old", "", "120"], "visits": [0, 1, 2, 3]}, Schema({"age": Number(0, 100)}, "visits",
    ...     Regression(0, 9)))[0]
    ColumnCheck(name='age', missing=1, unreadable=1, outside=1)
    """
    leak(
        "LEAK-CHECK",
        "these counts are exact and leak information about the records; they are only for the owner of the data.",
        strict=strict,
    )
    frame = as_frame(data)
    refuse_table(frame, schema, with_target=True, least=0)
    parts = [*schema.columns.items(), (schema.target_name, schema.target)]
    return [_checked(name, frame[name], part, schema.file.decimal) for name, part in parts]


def _checked(name: str, cells: Cells, part: Any, decimal: str) -> ColumnCheck:
    missing = cells.mapped(lambda text: text is None or text.casefold() in MISSING, bool)
    if isinstance(part, Category | Classes):
        codes = cells.mapped(Lookup(part.values), np.int64)
        listed = codes < len(part.values)
        return ColumnCheck(name, int((missing & ~listed).sum()), 0, int((~missing & ~listed).sum()))
    if isinstance(part, Flag):
        values, low, high = cells.mapped(flag, np.float64), 0.0, 1.0
    elif isinstance(part, Date):
        values, (low, high) = cells.days(part.format), part.days
    else:
        values = cells.numbers(decimal)
        low, high = (0, part.high) if isinstance(part, Counts) else (part.low, part.high)
    unreadable = ~missing & np.isnan(values)
    outside = np.zeros(len(values), bool) if low is None or high is None else (values < low) | (values > high)
    return ColumnCheck(name, int((missing & np.isnan(values)).sum()), int(unreadable.sum()), int(outside.sum()))
