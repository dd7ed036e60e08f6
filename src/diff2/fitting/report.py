"""What a fit spent its budget on, read off its ledger."""

from __future__ import annotations

import math

from .._numbers import epsilon_text
from ..privacy import Ledger


def spending(ledger: Ledger) -> str:
    """Return a table of purposes, each with its releases and its share of the budget, and the guarantee.

    Shares are of the sum of squares of the prices in Gaussian differential privacy, which is what adds up.
    """
    prices: dict[str, list[float]] = {}
    for release in ledger.releases:
        price = 0.0 if math.isinf(release.multiplier) else release.multiplier**-2
        prices.setdefault(release.purpose, []).append(price)
    total = math.fsum(price for found in prices.values() for price in found) or 1.0
    lines = [f"epsilon {epsilon_text(ledger.epsilon())} at delta {ledger.delta:g} was spent on"]
    for purpose, found in prices.items():
        many = f"{len(found)} release{'s' if len(found) > 1 else ''}"
        lines.append(f"  {purpose:<14}{many:>13}{math.fsum(found) / total:>8.1%}")
    return "\n".join([*lines, str(ledger.guarantee())])
