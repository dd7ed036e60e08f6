"""From a table as people have it to records within public bounds.

A record's row of the encoding is a function of that record and the schema. Hence no error depends on the values of
records, and no value moves the row of another record:

* a number outside its bounds becomes the nearest bound; infinite and unreadable ones are missing;
* a category that is not listed is ``other``, a missing one ``missing``;
* a record whose target cannot be used (missing, or a class that is not listed) becomes a *null record*: all its inputs
  are missing, its target is a fixed one, and ``usable`` is False, so that it gets the weight zero. It still counts as a
  record, for the number of records is public.

A table is refused for what the schema, its header and its shape say, all at once. Types are not looked at: a library
guesses them from values. That a column holds nothing, or a target is constant, is for releases to find out.

>>> from diff2.tables.kinds import Category, Classes, Number
>>> from diff2.tables.schema import Schema
>>> schema = Schema({"age": Number(0, 100), "sex": Category(("f", "m"))}, "ill", Classes(("no", "yes")))
>>> found = encode({"age": [31, "120", "?"], "sex": ["f", "x", None], "ill": ["yes", "no", "perhaps"]}, schema, least=0)
>>> found.rows.numeric.ravel().tolist(), found.rows.codes.ravel().tolist(), found.rows.target.tolist()
([31.0, 100.0, nan], [0, 2, 3], [1.0, 0.0, 0.0])
>>> found.usable.tolist()
[True, True, False]
"""

import warnings
from typing import Any, NamedTuple

import numpy as np

from .._validate import nearest
from ..privacy.leaks import leak
from .cells import MISSING, Cells, Lookup, flag, text_of
from .frames import Frame, as_frame
from .kinds import LARGEST, Category, Classes, Counts, Date, Flag, Number, Target
from .problems import Problems
from .rows import Rows
from .schema import Schema

LEAST_RECORDS = 50


class Encoded(NamedTuple):
    """Encoded records, and what is known about each."""

    rows: Rows
    usable: np.ndarray  # False: a null record, of weight zero
    clients: np.ndarray | None  # whose each record is, as texts; records without an entry belong together
    groups: np.ndarray | None


def encode(data: Any, schema: Schema, *, with_target: bool = True, least: int = LEAST_RECORDS) -> Encoded:
    """Return the records of a table as the schema describes them.

    Args:
        data: any table, see ``frames.py``; columns that the schema does not name are not looked at.
        with_target: to train or to evaluate; without it, to predict.
        least: a table with fewer records, or with more columns than records, is refused; 0 refuses neither, say to
            evaluate.
    """
    frame = as_frame(data, tuple(schema.columns))
    refuse_table(frame, schema, with_target=with_target, least=least)
    if with_target:
        for warning in schema.warnings():
            warnings.warn(warning, stacklevel=2)
    decimal = schema.file.decimal
    numeric, codes = [], []
    for name, column in schema.columns.items():
        if isinstance(column, Category):
            codes.append(frame[name].mapped(Lookup(column.values), np.int64))
        else:
            numeric += encode_numeric(frame[name], column, decimal)
    usable = np.ones(frame.size, dtype=bool)
    target = np.zeros(frame.size)
    if with_target:
        target, usable = encode_target(frame[schema.target_name], schema.target, decimal)
    rows = Rows(_stacked(numeric, frame.size, np.float64), _stacked(codes, frame.size, np.int64), target)
    rows.numeric[~usable] = np.nan
    rows.codes[~usable] = np.array(schema.widths, dtype=np.int64) - 1
    return Encoded(rows, usable, _labels(frame, schema.clients), _labels(frame, schema.groups))


def encode_numeric(cells: Cells, column: Number | Flag | Date, decimal: str = ".") -> list[np.ndarray]:
    """Return one or two numeric columns, within their bounds; NaN: missing."""
    if isinstance(column, Flag):
        return [cells.mapped(flag, np.float64)]
    if isinstance(column, Number):
        low, high = (-LARGEST, LARGEST) if column.low is None or column.high is None else (column.low, column.high)
        return [np.clip(cells.numbers(decimal), low, high)]
    low, high = column.days
    days = np.clip(cells.days(column.format), low, high)
    if not column.seasonal:
        return [days - low]
    dates = np.floor(np.nan_to_num(days)).astype("datetime64[D]")
    of_year = (dates - dates.astype("datetime64[Y]")).astype(np.int64) + 1.0
    return [days - low, np.where(np.isnan(days), np.nan, of_year)]


def encode_target(cells: Cells, target: Target, decimal: str = ".") -> tuple[np.ndarray, np.ndarray]:
    """Return the target, and of which records it can be used; it is a fixed number for the others."""
    if isinstance(target, Classes):
        found = cells.mapped(Lookup(target.values), np.float64)
        usable, fixed = found < len(target.values), 0.0
    else:
        found = cells.numbers(decimal)
        usable, fixed = ~np.isnan(found), 0.0
        if isinstance(target, Counts):
            found = np.clip(np.rint(found), 0.0, target.high)
        elif target.low is None or target.high is None:
            found = np.clip(found, -LARGEST, LARGEST)
        else:
            found, fixed = np.clip(found, target.low, target.high), (target.low + target.high) / 2
    return np.where(usable, found, fixed), usable


def refuse_table(frame: Frame, schema: Schema, *, with_target: bool, least: int = LEAST_RECORDS) -> None:
    """Refuse a table for its header and shape, with all problems at once."""
    problems = Problems("the table")
    needed = schema.names if with_target else tuple(schema.columns)
    for name in needed:
        if name not in frame.names:
            problems.add(f"column {name!r}", f"is missing{nearest(name, frame.names)}", "add it, or fit without it")
        elif frame.names.count(name) > 1:
            problems.add(f"column {name!r}", "is there twice", "rename one of them")
    if not with_target or not least:
        return problems.refuse()
    if frame.size < least:
        problems.add("the table", f"has fewer than {least} records", "gather more; noise would hide all they say")
    if len(schema.columns) > frame.size:
        problems.add("the table", "has more columns than records", "choose the columns that matter most beforehand")
    problems.refuse()


def _labels(frame: Frame, name: str | None) -> np.ndarray | None:
    if name is None or name not in frame.names:
        return None
    return frame[name].mapped(lambda text: text_of(text) or "", object)


def _stacked(columns: list[np.ndarray], size: int, dtype: Any) -> np.ndarray:
    return np.stack(columns, axis=1) if columns else np.zeros((size, 0), dtype)


class ColumnCheck(NamedTuple):
    """How many cells of a column are missing, cannot be read, or lie outside of bounds or list."""

    name: str
    missing: int
    unreadable: int
    outside: int


def check(data: Any, schema: Schema, *, strict: bool = False) -> list[ColumnCheck]:
    """Count what the encoding would treat silently, column by column: for the owner of a table, NOT private.

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
