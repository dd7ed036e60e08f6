r"""How much noise a budget asks for.

The releases of a run have purposes, each with a share of the budget (the shares in use are scaled to sum to one). With
:math:`m_k` full releases and the share :math:`w_k`, purpose k gets the noise multiplier

.. math::
    z_k = \sqrt{m_k / w_k} / \mu^*                       \quad \text{(exact)}, \qquad
    z_k = \sqrt{m_k \alpha / (w_k \varepsilon)}           \quad \text{(paper)}

where :math:`\mu^*` is the GDP parameter of the budget, less what noise on whole numbers costs (``discrete.py``), and
:math:`\alpha = 1 + \lceil 2 \log(1/\delta)/\varepsilon \rceil`. The second line is the paper's "Minimum Noise Level"
proposition for every T and u, with :math:`\sigma = 2 z / (n_{min} P)`, :math:`w_1 = 1/u` and :math:`w_2 = 1 - 1/u`.

Releases on random batches have no such formula. *Exact*: their multiplier is first the one at which they alone cost
what a Gaussian with the share :math:`w_k` of :math:`\mu^{*2}` costs; then all multipliers are scaled together until the
whole costs the budget. *Paper*: Theorem 9 of Wang, Balle & Kasiviswanathan (2019) at the order :math:`\alpha`, with
:math:`w_k \varepsilon / 2` for all of them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from .._validate import one_of
from ..errors import InvalidArgument
from .accounting import gdp_epsilon, gdp_mu
from .budget import Budget
from .composition import by_exposure, gaussian_mu, price
from .discrete import continuous_budget
from .release import FIXED, FULL, POISSON, Release

ACCOUNTINGS = ("exact", "paper")
CLOSE = 2e-5  # share of the budget that numerical calibration may leave unused
MOST_GUESSES = 200  # then the bracket is halved: where the cost falls like 1/x^2, guesses alternate between its ends


Kind = tuple[str, str, float]  # purpose, sampling, rate
Profile = Mapping[Kind, int]  # the releases that one unit is exposed to


def calibrate(
    releases: Iterable[Release],
    shares: Mapping[str, float],
    budget: Budget,
    accounting: str = "exact",
    overcount: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return the noise multiplier of each purpose; for every unit the planned releases cost at most the budget.

    ``budget.epsilon = inf`` gives the multiplier 0, no noise.

    Args:
        shares: of the budget, by purpose; only their proportions matter.
        overcount: by how much the paper counts the releases of a purpose too often, for ``accounting="paper"``.

    >>> releases = [Release(r, "gradient" if r % 20 == 1 else "difference") for r in range(1, 2001)]
    >>> multipliers = calibrate(releases, {"gradient": 0.8, "difference": 0.2}, Budget(epsilon=3.0, delta=1e-5))
    >>> {purpose: round(value, 4) for purpose, value in multipliers.items()}
    {'gradient': 15.5473, 'difference': 135.5383}
    """
    one_of("accounting", accounting, ACCOUNTINGS)
    found = _profiles(releases)
    used = dict.fromkeys(purpose for profile in found for purpose, _, _ in profile)
    if not budget.private:
        return dict.fromkeys(used, 0.0)
    total = math.fsum(shares[purpose] for purpose in used)
    padding = overcount or {}
    most = max(sum(profile.values()) for profile in found)
    inner = Budget(*continuous_budget(budget.epsilon, budget.delta, most))
    own = budget if accounting == "paper" else inner
    base = {
        purpose: _alone(purpose, found, shares[purpose] / total, own, accounting, padding.get(purpose, 1.0))
        for purpose in used
    }
    sampled = any(sampling != FULL for profile in found for _, sampling, _ in profile)
    if accounting == "exact" and sampled:
        base = _scaled_to(base, found, budget)
    elif accounting == "exact" and len(found) > 1:
        # Nobody may be exposed to the most releases of every purpose.
        largest = max(gaussian_mu(_priced(profile, base)) for profile in found)
        base = {purpose: z * largest / gdp_mu(inner.epsilon, inner.delta) for purpose, z in base.items()}
    return _raise_until_within(base, found, budget)


def _profiles(releases: Iterable[Release]) -> list[Profile]:
    """Return what units are exposed to: one profile for all, or one for each client or part where they differ."""
    found = by_exposure(((release.purpose, release.sampling), release.rate, release.members) for release in releases)
    return [{(*kind, rate): count for (kind, rate), count in profile.items()} for profile in found]


def paper_order(budget: Budget) -> int:
    """Return the Renyi order alpha of the paper's propositions."""
    return 1 + math.ceil(2 * math.log(1 / budget.delta) / budget.epsilon)


def _alone(
    purpose: str, profiles: Sequence[Profile], share: float, budget: Budget, accounting: str, overcount: float
) -> float:
    """Return the multiplier at which this purpose alone costs its share, for whoever is exposed most."""
    parts = [{kind: n for kind, n in profile.items() if kind[0] == purpose} for profile in profiles]
    full = max(sum(n for (_, sampling, _), n in part.items() if sampling == FULL) for part in parts)
    drawn = [part for part in parts if any(sampling != FULL for _, sampling, _ in part)]
    if accounting == "paper":
        if any(sampling == POISSON for part in drawn for _, sampling, _ in part):
            raise InvalidArgument(
                "accounting='paper' has no formula for Poisson batches, which the paper does not use; use "
                "accounting='exact', or sampling='fixed'"
            )
        from .renyi import paper_multiplier

        order = paper_order(budget)
        gaussian = math.sqrt(full * order / (share * budget.epsilon))
        fixed = [
            paper_multiplier(round(n * overcount), rate, order, share * budget.epsilon / 2)
            for part in drawn
            for (_, sampling, rate), n in part.items()
            if sampling == FIXED
        ]
        return max([gaussian, *fixed])
    mu = math.sqrt(share) * gdp_mu(budget.epsilon, budget.delta)
    if not drawn:
        return math.sqrt(full) / mu
    epsilon = gdp_epsilon(mu, budget.delta)
    return max(_solve(partial(_cost_alone, part, purpose, budget.delta), epsilon, CLOSE) for part in drawn)


def _scaled_to(base: dict[str, float], profiles: Sequence[Profile], budget: Budget) -> dict[str, float]:
    """Scale all multipliers so that the profile that costs most costs the budget."""
    scale = 1.0
    for profile in profiles:
        if _cost([profile], base, budget, scale) > budget.epsilon or scale == 1.0:
            scale = _solve(partial(_cost, [profile], base, budget), budget.epsilon, CLOSE, start=scale)
    return {purpose: value * scale for purpose, value in base.items()}


def _cost(profiles: Sequence[Profile], base: Mapping[str, float], budget: Budget, scale: float = 1.0) -> float:
    multipliers = {purpose: value * scale for purpose, value in base.items()}
    return max(price(_priced(profile, multipliers), budget.delta) for profile in profiles)


def _cost_alone(part: Profile, purpose: str, delta: float, multiplier: float) -> float:
    return price(_priced(part, {purpose: multiplier}), delta)


def _priced(profile: Profile, multipliers: Mapping[str, float]) -> dict[tuple[str, float, float], int]:
    """Return the profile as the accountant sees it, as the ledger will."""
    exposed: dict[tuple[str, float, float], int] = {}
    for (purpose, sampling, rate), count in profile.items():
        key = (sampling, rate, multipliers[purpose])
        exposed[key] = exposed.get(key, 0) + count
    return exposed


def _solve(cost: Callable[[float], float], target: float, close: float, start: float = 1.0) -> float:
    """Return x with cost(x) in [target (1 - close), target]; cost falls in x."""
    low, high = 0.0, math.inf  # cost(low) > target >= cost(high)
    x, guesses = start, 0
    while True:
        value = cost(x)
        if value > target:
            low = x
        else:
            high = x
            if value >= target * (1 - close) or high - low <= 1e-12 * high:
                return x
        # Where the cost is about a power of x, this is Newton's step; kept inside the bracket.
        guess = x * min(max((value / target) * (1 + close / 2), 0.25), 4.0)
        guesses += 1
        if not low < guess < high or guesses > MOST_GUESSES:
            guess = (low + high) / 2 if math.isfinite(high) else 2 * low
        x = guess


def _raise_until_within(multipliers: dict[str, float], profiles: Sequence[Profile], budget: Budget) -> dict[str, float]:
    """Undo rounding: raise the noise by parts in 10^15 until the cost is within the budget."""
    step = 1e-15
    while _cost(profiles, multipliers, budget) > budget.epsilon:
        multipliers = {purpose: value * (1 + step) for purpose, value in multipliers.items()}
        step *= 2
    return multipliers
