r"""How much noise a budget asks for.

A run makes groups of releases, each with a share of the budget (the shares sum to one). With :math:`m_k` releases and
the share :math:`w_k`, group k gets the noise multiplier

.. math::
    z_k = \sqrt{m_k / w_k} / \mu^*                       \quad \text{(exact)}, \qquad
    z_k = \sqrt{m_k \alpha / (w_k \varepsilon)}           \quad \text{(paper)}

where :math:`\mu^*` is the GDP parameter of the budget and
:math:`\alpha = 1 + \lceil 2 \log(1/\delta)/\varepsilon \rceil`. The second line is the paper's "Minimum Noise Level"
proposition for every T and u, with :math:`\sigma = 2 z / (n_{min} P)`, :math:`w_1 = 1/u` and :math:`w_2 = 1 - 1/u`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .._validate import one_of
from .accounting import epsilon_of, gdp_mu
from .budget import Budget

ACCOUNTINGS = ("exact", "paper")


@dataclass(frozen=True)
class ReleaseGroup:
    """Releases of one purpose that share one noise multiplier."""

    purpose: str
    count: int
    share: float  # of the budget, that is of mu^2


def calibrate(groups: Sequence[ReleaseGroup], budget: Budget, accounting: str = "exact") -> dict[str, float]:
    """Return the noise multiplier of each group's purpose; what they cost together is at most the budget.

    A group without releases is left out. ``budget.epsilon = inf`` gives the multiplier 0, no noise.

    >>> groups = [ReleaseGroup("gradient", 100, 0.8), ReleaseGroup("difference", 1900, 0.2)]
    >>> multipliers = calibrate(groups, Budget(epsilon=3.0, delta=1e-5))
    >>> {purpose: round(value, 4) for purpose, value in multipliers.items()}
    {'gradient': 15.5473, 'difference': 135.5383}
    """
    one_of("accounting", accounting, ACCOUNTINGS)
    used = [group for group in groups if group.count > 0]
    if not budget.private:
        return {group.purpose: 0.0 for group in used}
    total = math.fsum(group.share for group in used)
    if accounting == "exact":
        scale = 1 / gdp_mu(budget.epsilon, budget.delta)
    else:
        scale = math.sqrt(paper_order(budget) / budget.epsilon)
    multipliers = {group.purpose: scale * math.sqrt(group.count * total / group.share) for group in used}
    return _raise_until_within(multipliers, used, budget)


def paper_order(budget: Budget) -> int:
    """Return the Renyi order alpha of the paper's propositions."""
    return 1 + math.ceil(2 * math.log(1 / budget.delta) / budget.epsilon)


def _raise_until_within(
    multipliers: dict[str, float], groups: Sequence[ReleaseGroup], budget: Budget
) -> dict[str, float]:
    """Undo the rounding of the square roots: raise the noise by parts in 10^15 until the cost is within the budget."""
    step = 1e-15
    while True:
        # Priced as the ledger will price it: one summand a release.
        releases = [multipliers[group.purpose] for group in groups for _ in range(group.count)]
        if epsilon_of(releases, budget.delta) <= budget.epsilon:
            return multipliers
        multipliers = {purpose: value * (1 + step) for purpose, value in multipliers.items()}
        step *= 2
