"""What is publicly known of a table: its columns, their bounds and categories, and the target.

>>> schema = Schema({"age": Number(0, 100), "sex": Category(("f", "m"))}, "ill", Classes((0, 1)))
>>> schema.numeric, schema.widths
((Numeric(name='age', low=0, high=100, nullable=True),), (4,))
>>> Schema({"age": Number(100, 0), "sex": Category(())}, "ill", Classes((0,)))
Traceback (most recent call last):
diff2.errors.InvalidArgument: the schema cannot be used as it is:
- column 'age' has low >= high (100 >= 0); give low < high, or leave a constant column out
- column 'sex' has fewer than one value in values; list the values that everybody knows to be possible
- target 'ill' has fewer than 2 different values in classes; list the values that everybody knows to be possible
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np

from .._files import AnyPath
from .._validate import nearest
from .file_format import FileFormat
from .kinds import (
    DATA,
    GIVEN,
    MANY_CATEGORIES,
    Category,
    Classes,
    Column,
    Counts,
    Date,
    Flag,
    Number,
    Numeric,
    Regression,
    Target,
)
from .problems import Problems


@dataclass(frozen=True)
class Schema:
    """Ordered columns and a target.

    Args:
        columns: the inputs by name.
        target_name: the column to predict.
        target: what it is.
        clients: the column with the client of each record.
        groups: the column that says which records belong together, say those of a person.
        file: how files with such tables are written.
    """

    columns: Mapping[str, Column]
    target_name: str
    target: Target
    clients: str | None = None
    groups: str | None = None
    file: FileFormat = field(default_factory=FileFormat)

    def __post_init__(self) -> None:
        problems = Problems("the schema")
        for name, column in self.columns.items():
            _add(problems, f"column {name!r}", column)
        _add(problems, f"target {self.target_name!r}", self.target)
        if not self.columns:
            problems.add("the schema", "has no column to predict from", "list at least one")
        roles = {"target": self.target_name, "clients": self.clients, "groups": self.groups}
        for role, column_name in roles.items():
            if column_name is not None and column_name in self.columns:
                problems.add(f"column {column_name!r}", f"is also the {role} column", "leave it out of the columns")
        named = [name for name in roles.values() if name is not None]
        for name in sorted({name for name in named if named.count(name) > 1}):
            problems.add(f"column {name!r}", "is named for two of target, clients and groups", "name it for one")
        problems.refuse()

    @property
    def numeric(self) -> tuple[Numeric, ...]:
        """The numeric columns of encoded records, in order."""
        return tuple(one for name, column in self.columns.items() for one in column.numeric(name))

    @property
    def bounds(self) -> np.ndarray:
        """The bounds of the numeric columns, (columns, 2); NaN where they are to be found privately."""
        pairs = [(one.low, one.high) for one in self.numeric]
        return np.array(pairs, dtype=np.float64).reshape(-1, 2)

    @property
    def nullable(self) -> tuple[int, ...]:
        """The places of the numeric columns that may be missing."""
        return tuple(j for j, one in enumerate(self.numeric) if one.nullable)

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of categories of each categorical column, ``other`` and ``missing`` among them."""
        return tuple(column.width for column in self.columns.values() if isinstance(column, Category))

    @property
    def width(self) -> int:
        """The number of inputs of a network: numeric columns, indicators of categories and of missing values."""
        return len(self.numeric) + sum(self.widths) + len(self.nullable)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that a table for training has."""
        extra = (self.target_name, self.clients, self.groups)
        return (*self.columns, *(name for name in extra if name is not None))

    def leaks(self) -> list[str]:
        """Return a sentence for each part that was read off the data and that nobody has confirmed since."""
        parts = [(f"column {name!r}", column) for name, column in self.columns.items()]
        parts.append((f"target {self.target_name!r}", self.target))  # type: ignore[arg-type]
        return [
            f"{place}: its {_facts(part)} are read off the data; replace them by what everybody knows and set "
            f'source = "{GIVEN}"'
            for place, part in parts
            if part.source == DATA
        ]

    def warnings(self) -> list[str]:
        """Return a sentence for each part that costs much accuracy."""
        return [
            f"column {name!r} has {len(column.values):,} categories; each is a parameter that noise is added to. Group "
            "rare ones, or leave the column out"
            for name, column in self.columns.items()
            if isinstance(column, Category) and len(column.values) > MANY_CATEGORIES
        ]

    @classmethod
    def from_arguments(
        cls,
        names: Sequence[str],
        *,
        bounds: Mapping[str, Any] | Sequence[Any] | None = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
        flags: Sequence[str] = (),
        classes: Sequence[Any] | None = None,
        target_bounds: tuple[float, float] | None = None,
        max_count: float | None = None,
        target: str = "target",
        clients: str | None = None,
        groups: str | None = None,
    ) -> Schema:
        """Return the schema that the arguments of an estimator state.

        Args:
            names: the columns of the table.
            bounds: (low, high) by name, or one pair for each column; a pair of dates makes a date. A column without
                bounds, categories and flag is a number whose bounds are found privately.
            categories: public lists by name.
            flags: columns that say yes or no.
            classes: the classes of a classification.
            target_bounds: of a regression; found privately where they are not given.
            max_count: the largest count, of a regression on counts.

        >>> Schema.from_arguments(["x0", "x1"], bounds=[(0, 1)] * 2, target_bounds=(0, 5)).target
        Regression(low=0, high=5, unit='', source='given')
        """
        problems = Problems("the schema")
        given: dict[str, list[Column]] = {str(name): [] for name in names}
        for argument, found in (
            ("bounds", _pairs(bounds, list(given), problems)),
            ("categories", {name: Category(tuple(_plain(v) for v in one)) for name, one in (categories or {}).items()}),
            ("flags", {name: Flag() for name in flags}),
        ):
            for name, column in found.items():
                if str(name) in given:
                    given[str(name)].append(column)
                else:
                    problems.add(
                        argument, f"name {name!r}, which is not a column{nearest(name, given)}", "leave it out"
                    )
        for name, found_here in given.items():
            if len(found_here) > 1:
                problems.add(f"column {name!r}", "is named in two of bounds, categories and flags", "choose one")
        if sum(one is not None for one in (classes, target_bounds, max_count)) > 1:
            problems.add("the target", "has two of classes, target_bounds and max_count", "choose one")
        problems.refuse()
        kind: Target = Regression() if target_bounds is None else Regression(*(_plain(v) for v in target_bounds))
        if classes is not None:
            kind = Classes(tuple(_plain(value) for value in classes))
        elif max_count is not None:
            kind = Counts(_plain(max_count))
        columns = {name: one[0] if one else Number() for name, one in given.items()}
        while target in columns:
            target += "_"
        return cls(columns, target, kind, clients, groups)

    @classmethod
    def read(cls, path: AnyPath) -> Schema:
        """Read a schema from a TOML file."""
        from .schema_file import read_schema

        return read_schema(path)

    def to_toml(self) -> str:
        """Return the schema as TOML, with a comment on each line that says where it comes from."""
        from .schema_file import to_toml

        return to_toml(self)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which :meth:`from_json` takes."""
        from .schema_file import to_plain

        return to_plain(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Schema:
        """Return the schema that :meth:`to_json`, or a TOML file, describes."""
        from .schema_file import from_plain

        return from_plain(document)


def _add(problems: Problems, place: str, part: Column | Target) -> None:
    for problem, remedy in part.faults():
        problems.add(place, problem, remedy)
    if part.source not in (GIVEN, DATA):
        problems.add(place, f"has source={part.source!r}", f'write "{GIVEN}" or "{DATA}"')


def _facts(part: Column | Target) -> str:
    if isinstance(part, Category | Classes):
        return "values"
    return "spellings" if isinstance(part, Flag) else "bounds"


def _pairs(bounds: Any, names: list[str], problems: Problems) -> dict[str, Column]:
    """Return numbers and dates by name from pairs of bounds."""
    if bounds is None:
        return {}
    if not isinstance(bounds, Mapping):
        if len(bounds) != len(names):
            problems.add("bounds", f"has {len(bounds)} pairs for {len(names)} columns", "give one pair for each column")
            return {}
        bounds = dict(zip(names, bounds, strict=True))
    found: dict[str, Column] = {}
    for name, pair in bounds.items():
        if pair is None:
            continue
        try:
            low, high = (_plain(bound) for bound in pair)
        except (TypeError, ValueError):
            problems.add(f"column {name!r}", "has bounds that are not a pair", "give (low, high)")
            continue
        found[str(name)] = Date(low, high) if isinstance(low, date) and isinstance(high, date) else Number(low, high)
    return found


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value
