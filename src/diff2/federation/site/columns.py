"""What the columns of a site mean: pinned in its site.toml, compared with an agreement without touching a record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...data.scaling import Encoding, Scaling
from ...errors import InvalidArgument
from ..agreement import AnyAgreement
from ..faults import Refusal


def check_columns(pinned: Mapping[str, Column], agreement: AnyAgreement) -> None:
    """Refuse an agreement that takes a pinned column for something else."""
    for name, column in pinned.items():
        if column.pinned and not agreement.agrees(name, column):
            raise Refusal(f"the column {name!r} does not mean at this site what the agreement says of it")


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

    def means(self, name: str, encoding: Encoding) -> bool:
        """Whether an agreement takes the column for what it is."""
        if name in encoding.inputs:
            return self._numbers(Scaling.of_input) == encoding.inputs[name]
        if name != encoding.target:
            return True  # the agreement does not use it, or as the name of groups
        if encoding.classes is not None:
            return self.classes == encoding.classes
        return self._numbers(Scaling.of_target) == encoding.target_scaling

    def _numbers(self, scaling: Any) -> Scaling | None:
        return None if self.bounds is None else scaling(self.bounds, self.missing, self.unit)
