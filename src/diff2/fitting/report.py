"""What a fit spent its budget on, read off its ledger."""

from __future__ import annotations

import math

from .._numbers import epsilon_text
from ..privacy import Ledger


def planned(ledger: Ledger) -> tuple[int, float]:
    """Return the most releases that a fit makes, and the sum of squares of their prices: all of its budget."""
    rows = ledger.header["planned"]["exposure"][0]
    return sum(row["releases"] for row in rows), math.fsum(row["releases"] * row["multiplier"] ** -2 for row in rows)


def spending(ledger: Ledger) -> str:
    """Return a table of purposes, each with its releases and its share of the budget, and the guarantee.

    Shares are of the sum of squares of the prices in Gaussian differential privacy, which is what adds up. What was not
    spent counts as spent in the guarantee.
    """
    prices: dict[str, list[float]] = {}
    for release in ledger.releases:
        prices.setdefault(release.purpose, []).append(release.multiplier**-2)
    total = planned(ledger)[1]
    lines = [f"epsilon {epsilon_text(ledger.epsilon())} at delta {ledger.delta:g} was spent on"]
    for purpose, found in prices.items():
        many = f"{len(found)} release{'s' if len(found) > 1 else ''}"
        lines.append(f"  {purpose:<14}{many:>13}{math.fsum(found) / total:>8.1%}")
    left = 1 - math.fsum(price for found in prices.values() for price in found) / total
    if left > 5e-4:
        lines.append(f"  {'unspent':<27}{left:>8.1%}")
    return "\n".join([*lines, str(ledger.guarantee())])
