r"""What to expect of a fit, before anything is spent: from public numbers alone.

Of what can be explained, a private model explains about

.. math::
    0.9 \,/\, \big(1 + (A\, p^b (K - 1)^c / N\mu)^d\big)

with N one over the heaviest weight of a unit, mu the budget in Gaussian differential privacy, p columns and K classes
(two, of a regression). A, b, c, d were fitted to 400 fits of synthetic tables, half of them of classes: 2 to 30 columns
that depend on some factors, 80 to 6,000 records, epsilon .3 to 8, 2 to 10 classes, a linear truth or one with a sine
and a product (``python -m benchmarks.fit_numbers expectation``). The rule is off by .18 on them (root mean square). No
real table was used. It is for telling "nothing" from "something".
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..privacy.accounting import gdp_mu

LITTLE = 0.15  # share of what can be explained below which a fit warns
ENOUGH = 0.6
EXPLAINABLE = 0.5  # where nothing is known: half of the deviance
MOST_EPSILON = 10.0


class Rule(NamedTuple):
    """The constants of the formula."""

    scale: float
    columns: float
    classes: float
    power: float


REGRESSION, CLASSIFICATION = Rule(21.0, 0.77, 0.0, 1.5), Rule(18.0, 0.57, 0.73, 0.94)


def expected_share(units: float, mu: float, columns: int, classes: int | None = None, fewest: float = 0.0) -> float:
    """Return the share of what can be explained that a private model will explain, about.

    Args:
        fewest: units times mu below which the model is a constant.

    >>> [round(expected_share(n, 0.3, 8), 2) for n in (300, 3000, 30_000)]
    [0.4, 0.87, 0.9]
    """
    if units * mu < fewest:
        return 0.0
    rule = REGRESSION if classes is None else CLASSIFICATION
    needed = rule.scale * max(2, columns) ** rule.columns * max(1, (classes or 2) - 1) ** rule.classes
    return 0.9 / (1 + (needed / (units * mu)) ** rule.power)


def warning_of(
    epsilon: float, delta: float, weight: float, columns: int, classes: int | None = None, fewest: float = 0.0
) -> str | None:
    """Return what to say where a model will be little better than a constant; None where it should be."""
    found = expectation(epsilon, delta, weight, columns, classes, fewest)
    return None if found.share >= LITTLE else str(found)


class Expectation(NamedTuple):
    """What to expect of a fit. ``str()`` says it."""

    units: float
    epsilon: float
    what: str  # is measured, with its article
    share: float  # of what can be explained
    enough_units: float | None  # for a good share; None where there are enough
    enough_epsilon: float | None  # likewise; None also where none would do

    def __str__(self) -> str:
        little = (
            " little more than a constant"
            if self.share < LITTLE
            else f" about {self.share:.0%} of what can be explained"
        )
        text = (
            f"with {self.units:,.0f} records and epsilon {self.epsilon:g} expect{little}: where half could be "
            f"explained, {self.what} of about {EXPLAINABLE * self.share:.2f}"
        )
        if self.enough_units is None:
            return text
        either = "" if self.enough_epsilon is None else f" or epsilon {_rounded(self.enough_epsilon):g}"
        return f"{text}; {_rounded(self.enough_units):,.0f} records{either} would give about {EXPLAINABLE * ENOUGH:.1f}"


def expectation(
    epsilon: float, delta: float, weight: float, columns: int, classes: int | None = None, fewest: float = 0.0
) -> Expectation:
    """Return what to expect, and what would be enough."""
    units = 1 / weight

    def share(units: float, epsilon: float) -> float:
        return expected_share(units, gdp_mu(epsilon, delta), columns, classes, fewest)

    now, what = share(units, epsilon), "an R^2" if classes is None else "a share of the deviance"
    if now >= ENOUGH:
        return Expectation(units, epsilon, what, now, None, None)
    more = units
    while share(more, epsilon) < ENOUGH:
        more *= 1.05
    enough = epsilon
    while enough <= MOST_EPSILON and share(units, enough) < ENOUGH:
        enough *= 1.05
    return Expectation(units, epsilon, what, now, more, enough if enough <= MOST_EPSILON else None)


def _rounded(value: float) -> float:
    """Return a number rounded up to its first two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit - 1e-9) * unit
