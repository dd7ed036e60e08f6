"""What agreements on a run and on a fit have in common: their sites, what columns mean, and the digest to approve."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .._fields import convert, from_table
from .._validate import at_least
from ..algorithms.named import without_none
from ..errors import InvalidArgument
from ..privacy.trust import Trust

SERVER = Trust()
OTHER_VERSION = "the agreement is from another version of diff2; all parties need the same version"
SHARED = ("sites", "minimum_sites", "trust")


@dataclass(frozen=True)
class Column:
    """``[data.columns.NAME]``: a column by its agreed name. An agreement that says otherwise is refused.

    Args:
        name: of the column at this site, where it differs.
        bounds: its public range, of a number.
        missing: what stands in for a missing number; by default the middle of the bounds.
        unit: of measurement.
        classes: the public list, of a target that is a class; in a fit, of any column of categories.
    """

    name: str | None = None
    bounds: tuple[float, float] | None = None
    missing: float | None = None
    unit: str = ""
    classes: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        if self.bounds is not None and self.classes is not None:
            raise InvalidArgument("expected bounds, of a number, or classes, got both")
        if self.bounds is not None:
            low, high = self.bounds
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise InvalidArgument(f"expected bounds to be finite, low < high, got {list(self.bounds)}")
        elif self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise InvalidArgument(f"expected two or more different classes, got {list(self.classes)}")
        elif self.missing is not None or self.unit:
            raise InvalidArgument("missing and unit go with bounds")

    @property
    def pinned(self) -> bool:
        """Whether this says what the column means."""
        return self.bounds is not None or self.classes is not None


class AmongSites:
    """An agreement among named sites, of which some may be missing."""

    sites: tuple[str, ...]
    minimum_sites: int | None
    trust: Trust

    def __post_init__(self) -> None:
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise InvalidArgument(f"expected sites to be different names, got {list(self.sites)!r}")
        at_least("minimum_sites", self.minimum_sites, 1, optional=True)

    @property
    def required_sites(self) -> int:
        """How many sites must take part."""
        return len(self.sites) if self.minimum_sites is None else self.minimum_sites

    @property
    def digest(self) -> str:
        """The SHA-256 that a site approves: of everything that decides what leaves it, except its records."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the model reads."""
        raise NotImplementedError

    @property
    def target(self) -> str:
        """The column that it predicts."""
        raise NotImplementedError

    def meaning(self, name: str) -> Column | None:
        """Return what an input or the target is, as a site can pin it; None: it cannot."""
        raise NotImplementedError

    def agrees(self, name: str, column: Column) -> bool:
        """Whether a column is taken for what a site says that it is, if it is used at all."""
        return name not in (*self.inputs, self.target) or self.meaning(name) == replace(column, name=None)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"sites": list(self.sites), "minimum_sites": self.minimum_sites, "trust": asdict(self.trust)}


def read_shared(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every agreement has, from plain values."""
    least = fields["minimum_sites"]
    return {
        "sites": convert("sites", fields["sites"], tuple[str, ...]),
        "minimum_sites": convert("minimum_sites", least, int) if least else None,
        "trust": from_table(Trust, "trust", read_table(fields, "trust")),
    }


def read_table(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table of an agreement without its null values, as a TOML file would have it."""
    if not isinstance(fields[name], Mapping):
        raise InvalidArgument(f"expected [{name}] of the agreement to be a table")
    return without_none(fields[name])
