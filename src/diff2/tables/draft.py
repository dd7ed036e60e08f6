"""A first schema, read off a table, for a person to confirm. Reading it off the data leaks, and it says so."""

import math
from datetime import date, timedelta
from typing import Any, NamedTuple

import numpy as np

from .._validate import nearest, one_of
from ..errors import InvalidArgument
from ..privacy.leaks import leak
from .cells import FALSE, MISSING, TRUE, Cells, category_key, days, number
from .file_format import FileFormat
from .frames import as_frame
from .kinds import DATA, LARGEST, TARGETS, Category, Classes, Column, Counts, Date, Flag, Number, Regression, Target
from .schema import Schema

MOST_CATEGORIES = 100  # of a text column; more are taken for names or free text
MOST_CLASSES = 30
MOSTLY = 0.95  # share of readable cells from which on a column is one of numbers or of dates
FORMATS = ("", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M")
_UNITS = "s sec min h hours days weeks months years mm cm m km g kg lb mg l ml usd eur gbp percent celsius bar hpa kwh"


class Draft(NamedTuple):
    """A schema to be confirmed, and the columns for which no kind was found, with the reason."""

    schema: Schema
    left_out: dict[str, str]

    def to_toml(self) -> str:
        """Return TOML that says at each line what was read off the data."""
        lines = [
            "# A draft. What is marked as read off the data LEAKS: it reveals something about the records.",
            "# Replace bounds and lists with what everybody knows without this table, delete columns you do not need,",
            '# then write source = "given". Values outside the bounds are moved to them; values that are not listed',
            '# become "other". Without low and high, bounds of a number are found privately, for some of the budget.',
        ]
        body = self.schema.to_toml()
        for name, reason in self.left_out.items():
            body += f"\n# left out: column {name!r}, {reason} (read off the data)\n"
        return "\n".join(lines) + "\n\n" + body


class _Values(NamedTuple):
    """The different values of a column that are there, and how often each is."""

    texts: list[str]
    counts: np.ndarray
    missing: bool

    def readable(self, meaning: np.ndarray) -> bool:
        """Return whether nearly all cells have a meaning."""
        return bool(self.counts[~np.isnan(meaning)].sum() >= MOSTLY * self.counts.sum())

    def number_the_rows(self, numbers: np.ndarray) -> bool:
        """Return whether these are the numbers from 0 or 1 on, each once."""
        steps = np.diff(np.sort(numbers))
        return len(numbers) > 10 and bool((self.counts == 1).all() and (steps == 1).all() and numbers.min() in (0, 1))


def draft(
    data: Any,
    target: str,
    *,
    task: str | None = None,
    clients: str | None = None,
    groups: str | None = None,
    file: FileFormat | None = None,
    strict: bool = False,
) -> Draft:
    """Read columns, types, bounds, categories and units off a table.

    Bounds are rounded outwards, so that they are easier to recognise: 97 becomes 100. A unit is that in the column's
    name. Under ``strict`` it is refused, for it leaks.

    Args:
        task: ``"regression"``, ``"classes"`` or ``"counts"``; by default what the target looks like.

    >>> import warnings; warnings.simplefilter("ignore")
    >>> draft({"age (years)": [18, 97], "sex": ["f", "m"], "visits": [0, 7]}, "visits", task="counts").schema.columns
    {'age (years)': Number(low=0, high=100, nullable=False, unit='years', source='data'),
     'sex': Category(values=('f', 'm'), source='data')}
    """
    leak(
        "LEAK-DRAFT",
        "the draft of a schema is read off the data and leaks; replace bounds and lists with what "
        "everybody knows before it leaves this machine.",
        strict=strict,
    )
    if task is not None:
        one_of("task", task, TARGETS)
    frame, file = as_frame(data), file or FileFormat()
    for role, name in (("target", target), ("clients", clients), ("groups", groups)):
        if name is not None and name not in frame.names:
            raise InvalidArgument(f"expected {role} to be a column, got {name!r}{nearest(name, frame.names)}")
    columns, left_out = {}, {}
    for name in frame.names:
        if name in (target, clients, groups):
            continue
        found = _column(_values(frame[name]), name, file.decimal) if name else "it has no name"
        if isinstance(found, str):
            left_out[name] = found
        else:
            columns[name] = found
    kind = _target(_values(frame[target]), target, task, file.decimal)
    return Draft(Schema(columns, target, kind, clients, groups, file), left_out)


def _values(cells: Cells) -> _Values:
    texts, places = cells.texts()
    counts = np.bincount(places, minlength=len(texts))
    merged: dict[str, int] = {}
    missing = 0
    for text, count in zip(texts, counts.tolist(), strict=True):
        if text is None or text.casefold() in MISSING:
            missing += count
        else:
            merged[text] = merged.get(text, 0) + count
    return _Values(list(merged), np.array(list(merged.values()), dtype=np.int64), missing > 0)


def _column(values: _Values, name: str, decimal: str) -> Column | str:
    """Return what a column looks like, or why it is left out."""
    if not values.texts:
        return "it has no values"
    if {category_key(text).casefold() for text in values.texts} <= TRUE | FALSE and len(values.texts) <= 2:
        return Flag(values.missing, source=DATA)
    numbers = np.array([number(text, decimal) for text in values.texts])
    if values.readable(numbers):
        low, high = _rounded(numbers)
        if values.number_the_rows(numbers):
            return "it numbers the rows"
        missing = values.missing or bool(np.isnan(numbers).any())
        return Number(low, high, nullable=missing, unit=unit_of(name), source=DATA)
    for format in FORMATS:
        found = np.array([days(text, format) for text in values.texts])
        if values.readable(found):
            first, last = (date(1970, 1, 1) + timedelta(math.floor(day)) for day in _range(found))
            missing = values.missing or bool(np.isnan(found).any())
            return Date(date(first.year, 1, 1), date(last.year, 12, 31), format, missing, DATA)
    if len(values.texts) > min(MOST_CATEGORIES, max(2, values.counts.sum() / 2)):
        return "it has many different texts; are they names?"
    return Category(tuple(sorted(values.texts)), source=DATA)


def _target(values: _Values, name: str, task: str | None, decimal: str) -> Target:
    numbers = np.array([number(text, decimal) for text in values.texts])
    numeric = bool(values.texts) and values.readable(numbers)
    if task is None:
        whole = numeric and bool(np.all(np.mod(numbers[~np.isnan(numbers)], 1) == 0))
        if not numeric or len(values.texts) <= 2:
            task = "classes"
        else:
            task = "counts" if whole and np.nanmin(numbers) == 0 else "regression"
    if task == "classes":
        if not 2 <= len(values.texts) <= MOST_CLASSES:
            raise InvalidArgument(
                f"the target {name!r} looks like neither numbers nor 2 to {MOST_CLASSES} classes; choose another target"
            )
        listed = [_as_number(text) for text in values.texts] if numeric else values.texts
        return Classes(tuple(sorted(listed)), source=DATA)
    if not numeric:
        raise InvalidArgument(f"the target {name!r} holds no numbers; task={task!r} needs some")
    low, high = _rounded(numbers)
    return Counts(high, source=DATA) if task == "counts" else Regression(low, high, unit_of(name), DATA)


def _as_number(text: str) -> float:
    found = number(text)
    return int(found) if found.is_integer() else found


def _rounded(numbers: np.ndarray) -> tuple[float, float]:
    """Return bounds rounded outwards; zero is a bound where it is near.

    >>> _rounded(np.array([18.0, 97.0])), _rounded(np.array([-0.23, 0.71])), _rounded(np.array([1991.0, 2019.0]))
    ((0, 100), (-0.3, 0.8), (1990, 2020))
    """
    low, high = _range(np.clip(numbers, -LARGEST, LARGEST))
    span = max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-90) if (low, high) != (0, 0) else 1.0
    exponent = math.floor(math.log10(span))
    step = 10.0**exponent
    down, up = math.floor(low / step), math.ceil(high / step)
    down, up = min(down, -1) if low < 0 else down, max(up, 1) if high > 0 else up  # where a quotient vanished
    if down > 0 and low < high / 2:
        down = 0
    if up < 0 and high > low / 2:
        up = 0
    if down == up:
        up += 1
    return _tidy(down, exponent), _tidy(up, exponent)


def _range(values: np.ndarray) -> tuple[float, float]:
    return float(np.nanmin(values)), float(np.nanmax(values))


def _tidy(steps: int, exponent: int) -> float:
    """Return steps of a power of ten, without rounding errors in the last digit."""
    value = float(f"{steps}e{exponent}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def unit_of(name: str) -> str:
    """Return the unit that a column's name states.

    >>> unit_of("height (cm)"), unit_of("weight_kg"), unit_of("Pressure [hPa]"), unit_of("age")
    ('cm', 'kg', 'hPa', '')
    """
    text = name.strip()
    for opening, closing in ("()", "[]"):
        if text.endswith(closing) and opening in text:
            return text[text.rindex(opening) + 1 : -1].strip()
    last = text.replace("-", "_").rsplit("_", 1)
    return last[1] if len(last) == 2 and last[1].casefold() in _UNITS.split() else ""
