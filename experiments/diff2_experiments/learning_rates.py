"""The learning-rate search of the paper's appendix: the first rate with which a run survives is taken.

Rates are tried from the largest downwards. A run is stopped as soon as its rate is deemed inappropriate: its train loss
is no longer a number, or a patience count reaches its end. The count grows by one when the loss is above ``tolerance``
times the least so far, and starts again from zero when the loss is below the least so far.

A loss above ``DIVERGED`` counts as no number: squared norms of such gradients are infinite in single precision, records
with such gradients count as zero, and so a run could stand still there and survive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from diff2._validate import at_least, one_of
from diff2.errors import InvalidArgument

DIVERGED = 1e18
CRITERIA = {"train_loss": "train loss", "squared_gradient_norm": "gradient norm"}


@dataclass(frozen=True)
class RateSearch:
    """``[tune]``: which rates are tried, and when a run is stopped. The defaults are the paper's.

    >>> RateSearch(rates=4).values()
    [1.0, 0.5, 0.25, 0.125]
    """

    first_rate: float = 1.0
    factor: float = 0.5
    rates: int = 10
    every: int = 20  # rounds from one look at the loss to the next
    patience: int = 5
    tolerance: float = 1.05

    def __post_init__(self) -> None:
        for name in ("rates", "every", "patience"):
            at_least(name, getattr(self, name), 1)
        for name, good, wanted in (
            ("first_rate", 0 < self.first_rate < math.inf, "above 0"),
            ("factor", 0 < self.factor < 1, "between 0 and 1"),
            ("tolerance", 1 <= self.tolerance < math.inf, "of at least 1"),
        ):
            if not good:
                raise InvalidArgument(f"expected {name} to be a number {wanted}, got {getattr(self, name)!r}")

    def values(self) -> list[float]:
        """Return the rates, the largest first."""
        return [self.first_rate * self.factor**i for i in range(self.rates)]


@dataclass(frozen=True)
class Halving:
    """``[halving]``: after so many rounds, only the best settings of a grid go on; see ``halving.py``.

    Args:
        rounds: when settings are compared, each with the first rate that survived until then.
        keep: how many go on each time, by each criterion.
        by: the criteria, of which each chooses settings of its own.
        each_seed: each seed decides for itself, not the first for all.
    """

    rounds: tuple[int, ...] = (200, 600)
    keep: tuple[int, ...] = (4, 1)
    by: tuple[str, ...] = tuple(CRITERIA)
    each_seed: bool = False

    def __post_init__(self) -> None:
        if len(self.rounds) != len(self.keep) or not self.rounds:
            raise InvalidArgument(
                f"expected a number to keep for each of rounds, got rounds={list(self.rounds)!r}, "
                f"keep={list(self.keep)!r}"
            )
        if not self.by:
            raise InvalidArgument(f"expected by to name at least one of {', '.join(CRITERIA)}, got by=[]")
        for criterion in self.by:
            one_of("by", criterion, CRITERIA)
        for name, values, order in (("rounds", self.rounds, 1), ("keep", self.keep, -1)):
            for value in values:
                at_least(name, value, 1)
            if list(values) != sorted(set(values), key=lambda value: order * value):
                way = "rise" if order > 0 else "fall"
                raise InvalidArgument(f"expected {name} to {way} from one to the next, got {name}={list(values)!r}")

    def __str__(self) -> str:
        steps = [
            f"after {rounds:,} rounds the best {keep}" for rounds, keep in zip(self.rounds, self.keep, strict=True)
        ]
        seeds = "each seed by itself" if self.each_seed else "with the first seed for all seeds"
        first, *others = (CRITERIA[criterion] for criterion in self.by)
        by = "".join([f"by {first}", *(f" and as many by {other}" for other in others)])
        return f"{', '.join(steps)} {by} go on, {seeds}"


class EarlyStopping:
    """Given the losses of one run, says when to stop it: if its rate is inappropriate, or after ``looks`` of them."""

    def __init__(self, search: RateSearch, looks: int | None = None):
        self._search = search
        self._looks = looks
        self._least = math.inf
        self._count = 0
        self.stopped = False  # because the rate is inappropriate

    def __call__(self, loss: float) -> bool:
        """Take the next loss; return whether the run ends here."""
        if self._looks is not None:
            self._looks -= 1
        if loss < self._least:
            self._least, self._count = loss, 0
        elif loss > self._search.tolerance * self._least:
            self._count += 1
        self.stopped = not loss < DIVERGED or self._count >= self._search.patience
        return self.stopped or self._looks == 0
