"""What a column may be: a number, a category, a flag or a date; and what a target may be.

Every kind states public facts: bounds and lists that everybody may know. ``source`` says where they come from:
``"given"`` by a person, or read off the ``"data"``, which leaks.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from numbers import Real
from typing import Any, ClassVar, NamedTuple, TypeAlias

from .cells import text_of

GIVEN, DATA = "given", "data"
LARGEST = 1e100  # squares of bounds, and sums of squares, stay finite
MANY_CATEGORIES = 1000

Fault: TypeAlias = tuple[str, str]  # a problem, and what to do about it


class Numeric(NamedTuple):
    """One numeric column of encoded records; its bounds are None where they are unknown."""

    name: str
    low: float | None
    high: float | None
    nullable: bool


@dataclass(frozen=True)
class Number:
    """A number between bounds.

    Without both bounds they are to be found privately, for a share of the budget. ``nullable``: being missing gets a
    column of its own.
    """

    low: float | None = None
    high: float | None = None
    nullable: bool = True
    unit: str = ""
    source: str = GIVEN
    kind: ClassVar[str] = "number"

    def faults(self) -> Iterator[Fault]:
        return bound_faults(self.low, self.high)

    def numeric(self, name: str) -> tuple[Numeric, ...]:
        return (Numeric(name, self.low, self.high, self.nullable),)


@dataclass(frozen=True)
class Category:
    """One of a public list of values. All others are ``other``, missing ones ``missing``: two further categories."""

    values: tuple[Any, ...]
    source: str = GIVEN
    kind: ClassVar[str] = "category"

    def faults(self) -> Iterator[Fault]:
        return list_faults(self.values, "values", least=1)

    def numeric(self, name: str) -> tuple[Numeric, ...]:
        return ()

    @property
    def width(self) -> int:
        """The number of categories with ``other`` and ``missing``."""
        return len(self.values) + 2


@dataclass(frozen=True)
class Flag:
    """Yes or no, in usual spellings; becomes the number 1 or 0."""

    nullable: bool = True
    source: str = GIVEN
    kind: ClassVar[str] = "flag"

    def faults(self) -> Iterator[Fault]:
        return iter(())

    def numeric(self, name: str) -> tuple[Numeric, ...]:
        return (Numeric(name, 0.0, 1.0, self.nullable),)


@dataclass(frozen=True)
class Date:
    """A date between bounds: the number of days after ``low`` and, if they span over a year, the day of the year.

    ``format`` is one of ``strptime``; by default ISO 8601.
    """

    low: date
    high: date
    format: str = ""
    nullable: bool = True
    source: str = GIVEN
    kind: ClassVar[str] = "date"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            if isinstance(getattr(self, name), datetime):
                object.__setattr__(self, name, getattr(self, name).date())

    def faults(self) -> Iterator[Fault]:
        if not isinstance(self.low, date) or not isinstance(self.high, date):
            yield "needs two dates low and high", "give them as 2000-01-31"
        elif not self.low < self.high:
            yield f"has low >= high ({self.low} >= {self.high})", "give low < high"

    @property
    def days(self) -> tuple[float, float]:
        """The bounds as days since 1970."""
        epoch = date(1970, 1, 1)
        return float((self.low - epoch).days), float((self.high - epoch).days)

    @property
    def seasonal(self) -> bool:
        """Whether the day of the year is a column, too."""
        return self.days[1] - self.days[0] > 366

    def numeric(self, name: str) -> tuple[Numeric, ...]:
        first = Numeric(name, 0.0, self.days[1] - self.days[0], self.nullable)
        return (first, Numeric(f"{name} (day of the year)", 1.0, 366.0, False)) if self.seasonal else (first,)


@dataclass(frozen=True)
class Regression:
    """A numeric target between bounds; without both, they are to be found privately."""

    low: float | None = None
    high: float | None = None
    unit: str = ""
    source: str = GIVEN
    kind: ClassVar[str] = "regression"

    def faults(self) -> Iterator[Fault]:
        return bound_faults(self.low, self.high)


@dataclass(frozen=True)
class Classes:
    """A target that is one of a public list of classes."""

    values: tuple[Any, ...]
    source: str = GIVEN
    kind: ClassVar[str] = "classes"

    def faults(self) -> Iterator[Fault]:
        return list_faults(self.values, "classes", least=2)


@dataclass(frozen=True)
class Counts:
    """A target that counts: 0, 1, 2, ..., at most ``high``."""

    high: float
    source: str = GIVEN
    kind: ClassVar[str] = "counts"

    def faults(self) -> Iterator[Fault]:
        return bound_faults(0, self.high)


Column: TypeAlias = Number | Category | Flag | Date
Target: TypeAlias = Regression | Classes | Counts
COLUMNS: dict[str, type] = {one.kind: one for one in (Number, Category, Flag, Date)}
TARGETS: dict[str, type] = {one.kind: one for one in (Regression, Classes, Counts)}


def bound_faults(low: Any, high: Any) -> Iterator[Fault]:
    """Yield what is wrong with a pair of bounds."""
    if low is None and high is None:
        return
    if low is None or high is None:
        yield "has one bound only", "give low and high, or none of them to have both found privately"
    elif not all(isinstance(bound, Real) and not isinstance(bound, bool) for bound in (low, high)):
        yield f"has bounds that are not numbers ({low!r}, {high!r})", "give low and high as numbers"
    elif math.isnan(low) or math.isnan(high):
        yield f"has a bound that is not a number ({low!r}, {high!r})", "give low and high as numbers"
    elif max(abs(low), abs(high)) > LARGEST:
        yield (
            f"has a bound beyond {LARGEST:g} ({low!r}, {high!r})",
            "give the range that values usually have; those outside are moved to its ends",
        )
    elif not low < high:
        yield f"has low >= high ({low!r} >= {high!r})", "give low < high, or leave a constant column out"
    elif high - low < 1e-9 * max(abs(low), abs(high), 1 / LARGEST):
        yield f"has bounds that are too close to be distinguished ({low!r}, {high!r})", "subtract the lower one first"


def list_faults(values: tuple[Any, ...], name: str, *, least: int) -> Iterator[Fault]:
    """Yield what is wrong with a public list of values."""
    texts = [text_of(value) for value in values]
    if len(set(texts)) < least:
        some = "one value" if least == 1 else f"{least} different values"
        yield f"has fewer than {some} in {name}", "list the values that everybody knows to be possible"
    if len(set(texts)) < len(texts):
        yield f"has a value twice in {name}", "list each value once"
    if None in texts:
        yield f"lists a missing value in {name}", "leave it out; missing values have a category of their own"
