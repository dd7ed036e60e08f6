"""The agreement on a fit: the schema of the sites' tables and the budget. What is asked follows from releases.

A site that approved it answers any listed statistic, as long as the prices add up to no more than the agreed budget:
which ones are asked, and in which order, costs nothing beyond that (``planning/filter.py``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from .._fields import from_table
from .._files import plain
from ..errors import InvalidArgument
from ..planning.filter import FILTER, MOST_RELEASES, Filter
from ..privacy import Release
from ..privacy.release import REPLACE_ONE
from ..privacy.trust import Trust
from ..runfile.fit import FitSettings
from ..runfile.reader import PrivacySettings, RunSettings
from ..tables.files import FileFormat
from ..tables.kinds import Category, Classes, Counts, Flag, Number, Regression
from ..tables.schema import Schema
from .among_sites import OTHER_VERSION, SERVER, SHARED, AmongSites, Column, read_shared, read_table

FORMAT = 1
LARGEST_BOUND = 1e15  # of columns and target: all that is computed from them stays far from overflow
KEYS = ("fit", "schema", "settings", *SHARED)


class FitPlan(NamedTuple):
    """Sizes of the sites in units, and releases that cost what the whole budget costs."""

    client_sizes: tuple[int, ...]
    releases: list[Release]


@dataclass(frozen=True)
class FitAgreement(AmongSites):
    """What is fitted, to which columns, and under which guarantee."""

    schema: Schema
    settings: FitSettings
    sites: tuple[str, ...]
    trust: Trust = SERVER
    minimum_sites: int | None = None

    def __post_init__(self) -> None:
        self.settings.check(self.schema)
        super().__post_init__()
        if self.trust.sealed:
            raise InvalidArgument(
                "secure_aggregation is for training; in a fit sites can add their own noise: trust = 'sites' alone"
            )
        if self.schema.file != FileFormat():
            raise InvalidArgument("at sites tables are CSV in UTF-8 with commas, or Parquet; leave [file] out")
        bounds = [bound for one in self.schema.numeric for bound in (one.low, one.high)]
        bounds += [getattr(self.schema.target, name, None) for name in ("low", "high")]
        if any(bound is not None and abs(bound) > LARGEST_BOUND for bound in bounds):
            raise InvalidArgument(f"at sites bounds are at most {LARGEST_BOUND:g}; scale the column")

    method, adjacency, rounds = FILTER, REPLACE_ONE, MOST_RELEASES

    @property
    def privacy(self) -> PrivacySettings:
        """The budget, and whether whole sites are protected."""
        unit = "client" if self.settings.unit == "client" else "record"
        return PrivacySettings(self.settings.epsilon, self.settings.delta, unit=unit, strict=self.settings.strict)

    @property
    def run(self) -> RunSettings:
        """What else a run has."""
        return RunSettings(weighting=self.settings.weighting, seed=self.settings.seed)

    @property
    def leaks(self) -> tuple[str, ...]:
        """What was computed from records without noise, if anything."""
        return tuple(self.schema.leaks())

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.schema.columns)

    @property
    def target(self) -> str:
        return self.schema.target_name

    @property
    def group_column(self) -> str | None:
        """Holds the group of each record, where groups are protected."""
        return self.schema.groups if self.settings.unit == "group" else None

    def plan(self, sizes: Iterable[int]) -> FitPlan:
        """Return what the fit may cost at most."""
        return FitPlan(tuple(sizes), Filter(self.privacy.budget).most())

    def meaning(self, name: str) -> Column | None:
        """Return bounds and unit, or classes; a missing value stays missing."""
        part = self.schema.target if name == self.target else self.schema.columns.get(name)
        if isinstance(part, Category | Classes):
            return Column(classes=part.values) if len(part.values) > 1 else None
        if isinstance(part, Flag):
            return Column(bounds=(0.0, 1.0))
        if isinstance(part, Counts):
            return Column(bounds=(0.0, float(part.high)))
        if isinstance(part, Number | Regression) and part.low is not None and part.high is not None:
            return Column(bounds=(float(part.low), float(part.high)), unit=part.unit)
        return None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; the order of the columns is part of them."""
        schema = self.schema.to_json()
        return {
            "fit": FORMAT,
            "schema": plain({**schema, "columns": list(schema["columns"].items())}),
            "settings": plain(asdict(self.settings)),
            **super().to_json(),
        }


def read_fit_agreement(fields: Mapping[str, Any]) -> FitAgreement:
    """Read what :meth:`FitAgreement.to_json` wrote; unknown names and keys are refused, and nothing is imported."""
    if fields.get("fit") != FORMAT or set(fields) != set(KEYS):
        raise InvalidArgument(OTHER_VERSION)
    try:
        schema = dict(fields["schema"])
        pairs = [(name, table) for name, table in schema["columns"]]
        if len({name for name, _ in pairs}) < len(pairs) or not all(isinstance(name, str) for name, _ in pairs):
            raise ValueError("columns")
        found = Schema.from_json({**schema, "columns": dict(pairs)})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"the agreement on a fit is damaged ({type(error).__name__})") from None
    settings = from_table(FitSettings, "fit", read_table(fields, "settings"))
    return FitAgreement(found, settings, **read_shared(fields))
