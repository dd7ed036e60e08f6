r"""What a guarantee leaves to an attacker: epsilon of several units together, and guesses at who is in the data.

**Guesses.** Whoever knows all records but one, and both candidates for that one, has a test of one against the other.
With at most :math:`\alpha` false positives, its true positives are at most :math:`\Phi(\Phi^{-1}(\alpha) + \mu)` for
Gaussian releases. With random batches they are bounded by the curve :math:`\varepsilon(\delta)` of the composition:

.. math:: \min_\delta \min\{e^\varepsilon \alpha + \delta,\; 1 - e^{-\varepsilon} (1 - \alpha - \delta)\}

**Groups.** k units at a time cost :math:`k \mu`. With random batches, k replacements one after the other turn
:math:`(\varepsilon, \delta)` into :math:`k \varepsilon` and :math:`\delta (e^{k\varepsilon} - 1)/(e^\varepsilon - 1)`.

What noise on whole numbers costs (``discrete.py``) is in both, and both are rounded to the safe side.
"""

import math
from collections.abc import Iterable
from functools import partial
from statistics import NormalDist

from .accounting import gdp_epsilon
from .composition import Exposed, gaussian_mu, price
from .discrete import discrete_epsilon
from .release import FULL

_DELTAS = [10 ** (-k / 4) for k in range(1, 41)]  # at which a curve is looked at
_TINY = 1e-12  # what is given up to the tails of the noise


def gaussian_only(profile: Exposed) -> bool:
    """Whether a collection of releases is fully described by a mu."""
    return all(sampling == FULL for sampling, _, _ in profile)


def largest_mu(profiles: Iterable[Exposed]) -> float | None:
    """Return the GDP parameter of whoever is exposed most; None where random batches leave none."""
    found = list(profiles)
    return max(map(gaussian_mu, found), default=0.0) if all(map(gaussian_only, found)) else None


def group_epsilon(profiles: Iterable[Exposed], delta: float, size: int) -> float:
    """Return the epsilon for ``size`` units together, at ``delta``.

    >>> one = {("full", 1.0, 4.0): 1}
    >>> group_epsilon([one], 1e-5, 2) == price({("full", 1.0, 2.0): 1}, 1e-5)
    True
    """
    return max((_group(profile, delta, size) for profile in profiles), default=0.0)


def true_positives(profiles: Iterable[Exposed], false_positives: float) -> float:
    """Return the largest share of right guesses "it is in", for this share of wrong ones.

    >>> round(true_positives([{("full", 1.0, 1.0): 1}], 0.1), 4)
    0.3891
    """
    return max((_guessed(profile, false_positives) for profile in profiles), default=false_positives)


def noised(profile: Exposed) -> int:
    """Return how many releases have noise that is paid for."""
    return sum(count for (_, _, multiplier), count in profile.items() if multiplier != math.inf)


def _group(profile: Exposed, delta: float, size: int) -> float:
    if size == 1:
        return price(profile, delta)
    if gaussian_only(profile):
        return discrete_epsilon(partial(gdp_epsilon, size * gaussian_mu(profile)), delta, noised(profile))
    inner = delta / size  # epsilon grows as delta falls, so a few steps settle it; the last one is on the safe side
    for _ in range(50):
        epsilon = price(profile, inner)
        if not math.isfinite(size * epsilon) or size * epsilon > 500:
            return math.inf
        links = math.fsum(math.exp(i * epsilon) for i in range(size))
        if inner * links <= delta:
            return size * epsilon
        inner = delta / links * (1 - 1e-3)
    return math.inf


def _guessed(profile: Exposed, alpha: float) -> float:
    if gaussian_only(profile):
        mu = gaussian_mu(profile)
        if mu == 0 or math.isinf(mu):
            return 1.0 if mu else alpha
        added = math.exp(discrete_epsilon(lambda delta: 0.0, _TINY, noised(profile)))
        normal = NormalDist()
        return min(1.0, added * normal.cdf(normal.inv_cdf(min(added * alpha + _TINY, 1 - _TINY)) + mu))
    best = 1.0
    for delta in _DELTAS:
        epsilon = price(profile, delta)
        if math.isfinite(epsilon):
            upper = 1 - math.exp(-epsilon) * (1 - alpha - delta)
            best = min(best, upper, math.exp(min(epsilon, 500.0)) * alpha + delta)
    return best
