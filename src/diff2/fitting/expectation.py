r"""What to expect of a fit, before anything is spent: from public numbers alone.

Of what can be explained, a private model explains about

.. math::
    0.9 \,/\, \big(1 + (A\, p^b (K - 1)^c / N\mu)^d\big)

with N one over the heaviest weight of a unit, mu the budget in Gaussian differential privacy, p columns and K classes
(two, of a regression). A, b, c, d were fitted to 229 fits of synthetic tables, 102 of regression and 127 of
classification: 2 to 30 correlated normal columns, 80 to 6,000 records, epsilon .3 to 8, a linear truth or one with a
sine and a product, half of the deviance to be explained. The rule is off by .18 (root mean square). No real table was
used. It is for telling "nothing" from "something".
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


REGRESSION, CLASSIFICATION = Rule(170.0, 0.4, 0.0, 2.9), Rule(24.0, 0.8, 0.3, 1.6)


def expected_share(units: float, mu: float, columns: int, classes: int | None = None) -> float:
    """Return the share of what can be explained that a private model will explain, about.

    >>> [round(expected_share(n, 0.3, 8), 2) for n in (300, 3000, 30_000)]
    [0.01, 0.83, 0.9]
    """
    rule = REGRESSION if classes is None else CLASSIFICATION
    needed = rule.scale * columns**rule.columns * max(1, (classes or 2) - 1) ** rule.classes
    return 0.9 / (1 + (needed / (units * mu)) ** rule.power)


def warning_of(epsilon: float, delta: float, weight: float, columns: int, classes: int | None = None) -> str | None:
    """Return what to say where a model will be little better than a constant; None where it should be."""
    units = 1 / weight

    def share(units: float, epsilon: float) -> float:
        return expected_share(units, gdp_mu(epsilon, delta), columns, classes)

    now = share(units, epsilon)
    if now >= LITTLE:
        return None
    more = units
    while share(more, epsilon) < ENOUGH:
        more *= 1.05
    enough = epsilon
    while enough <= MOST_EPSILON and share(units, enough) < ENOUGH:
        enough *= 1.05
    what = "R^2" if classes is None else "share of the deviance"
    either = f" or epsilon {_rounded(enough):g}" if enough <= MOST_EPSILON else ""
    return (
        f"with {units:,.0f} records and epsilon {epsilon:g} expect little more than a constant: where half could be "
        f"explained, a {what} of about {EXPLAINABLE * now:.2f}; {_rounded(more):,.0f} records{either} would give about "
        f"{EXPLAINABLE * ENOUGH:.1f}"
    )


def _rounded(value: float) -> float:
    """Return a number rounded up to its first two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit - 1e-9) * unit
