r"""Renyi accounting of releases on random batches: what the paper uses, and a bound where delta is tiny.

It is looser than ``sampled.py``, for it looks at integer orders only, and its lemma for batches of fixed size does not
vanish however large the noise.
"""

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from .._validate import at_least, one_of, positive
from ..errors import BudgetExceeded, InvalidArgument
from .accounting import bisect

SAMPLINGS = ("fixed", "poisson")
ORDERS = range(2, 257)

Sampled = Mapping[tuple[str, float, float], int]  # (sampling, rate, multiplier) -> number of releases


def renyi_epsilon(mu: float, sampled: Sampled, delta: float) -> float:
    r"""Return another upper bound of ``sampled_epsilon``, by Renyi accounting.

    The Renyi curve is that of the mu-GDP part, :math:`\alpha \mu^2/2`, plus ``renyi_fixed`` or ``renyi_poisson`` for
    each release; the smallest epsilon over the orders 2..256 (Canonne, Kamath & Steinke 2020) is

    .. math:: \varepsilon = \min_\alpha \rho(\alpha) + \log\frac{\alpha-1}{\alpha}
              - \frac{\log \delta + \log \alpha}{\alpha - 1}

    >>> round(renyi_epsilon(0.0, {("fixed", 128 / 16510, 3.23): 2000}, 1e-5), 2)
    1.0
    """
    sampling, parts = parts_of(mu, sampled, delta)
    if mu == 0 and all(math.isinf(multiplier) for _, multiplier, _ in parts):
        return 0.0
    if delta == 0:
        return math.inf
    one = renyi_poisson if sampling == "poisson" else renyi_fixed
    best = math.inf
    for order in ORDERS:
        spent = order * mu * mu / 2
        for rate, multiplier, count in parts:
            # Sampling never costs: what a Gaussian costs without it is a bound too.
            spent += count * min(one(order, multiplier, rate), order / 2 * inverse_square(multiplier))
        best = min(best, spent + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return max(0.0, best)


@lru_cache(maxsize=4096)
def renyi_fixed(order: int, multiplier: float, rate: float) -> float:
    r"""Return the Renyi divergence of one release on a batch drawn without replacement, at an integer ``order``.

    Theorem 9 of Wang, Balle & Kasiviswanathan (2019), the paper's subsampling lemma, for the Gaussian:
    :math:`\varepsilon(j) = j / (2 z^2)` and :math:`\varepsilon(\infty) = \infty`, hence

    .. math:: \frac{1}{\alpha-1} \log\Big(1 + \gamma^2 \binom{\alpha}{2}
              \min\{4(e^{\varepsilon(2)}-1), 2 e^{\varepsilon(2)}\}
              + 2 \sum_{j=3}^{\alpha} \gamma^j \binom{\alpha}{j} e^{(j-1)\varepsilon(j)}\Big)

    >>> round(renyi_fixed(order=9, multiplier=2.0, rate=0.03), 6)
    0.00579
    """
    at_least("order", order, 2)
    check(multiplier, rate)
    if multiplier == 0:
        return math.inf
    index = np.arange(2, order + 1)
    exponent = inverse_square(multiplier)
    terms = _log_binomial(order, index) + index * math.log(rate) + index * (index - 1) / 2 * exponent + math.log(2)
    # log(4 (e^x - 1)) - log(2 e^x), which is below zero where the first of the two is the smaller.
    with np.errstate(divide="ignore"):
        terms[0] += min(0.0, float(np.log(-2 * np.expm1(-exponent))))
    return float(np.logaddexp(0.0, logsumexp(terms))) / (order - 1)


def renyi_floor(order: int, rate: float) -> float:
    """Return what ``renyi_fixed`` costs however large the noise: its terms j >= 3 do not vanish (order 2 has none).

    >>> renyi_floor(25, 0.03) > 5e-4
    True
    """
    return renyi_fixed(order, math.inf, rate)


@lru_cache(maxsize=4096)
def renyi_poisson(order: int, multiplier: float, rate: float) -> float:
    r"""Return the Renyi divergence of one release on a Poisson sample, at an integer ``order``; add-or-remove-one.

    .. math:: \frac{1}{\alpha-1} \log \sum_{j=0}^{\alpha} \binom{\alpha}{j} (1-\gamma)^{\alpha-j} \gamma^j
              e^{j(j-1)/(2 z^2)}

    (Mironov, Talwar & Zhang 2019).

    >>> round(renyi_poisson(order=9, multiplier=2.0, rate=0.03), 6)
    0.001229
    """
    at_least("order", order, 2)
    check(multiplier, rate)
    exponent = inverse_square(multiplier)
    if math.isinf(exponent) or rate == 1:
        return order / 2 * exponent
    index = np.arange(order + 1)
    # sum of binomial weights (e^x - 1): they sum to one, and one is added again by logaddexp.
    growth = index[2:] * (index[2:] - 1) / 2 * exponent
    with np.errstate(divide="ignore"):
        terms = growth + np.log(-np.expm1(-growth))
    terms += _log_binomial(order, index[2:]) + index[2:] * math.log(rate) + (order - index[2:]) * math.log1p(-rate)
    return float(np.logaddexp(0.0, logsumexp(terms))) / (order - 1)


def paper_multiplier(count: int, rate: float, order: int, allowance: float) -> float:
    """Return the smallest noise multiplier with ``count * renyi_fixed(order, z, rate) <= allowance``, rounded up.

    >>> round(paper_multiplier(count=2000, rate=128 / 16510, order=25, allowance=0.5), 3)
    4.641
    """
    at_least("count", count, 1)
    positive("allowance", allowance)
    least = count * renyi_floor(order, rate)
    if least >= allowance:
        raise BudgetExceeded(
            f"no noise level reaches this epsilon: by Theorem 9 of Wang et al., count={count} releases at "
            f"rate={rate:.4g} cost at least {least:.4g} at order={order} however large the noise, and "
            f'allowance={allowance:.4g}; use accounting="exact", a smaller batch_size, or fewer steps'
        )
    high = 1.0
    while count * renyi_fixed(order, high, rate) > allowance:
        high *= 2
    return bisect(lambda z: count * renyi_fixed(order, z, rate) <= allowance, 0.0, high)[1]


def parts_of(mu: float, sampled: Sampled, delta: float) -> tuple[str, tuple[tuple[float, float, int], ...]]:
    """Check the arguments; return the sampling and (rate, multiplier, count) of the releases that there are."""
    if not mu >= 0:
        raise InvalidArgument(f"expected mu >= 0, got mu={mu!r}")
    if not 0 <= delta <= 1:
        raise InvalidArgument(f"expected 0 <= delta <= 1, got delta={delta!r}")
    for (sampling, rate, multiplier), count in sampled.items():
        one_of("sampling", sampling, SAMPLINGS)
        check(multiplier, rate)
        at_least("count", count, 0)
    kinds = {sampling for sampling, _, _ in sampled}
    if len(kinds) > 1 or (kinds == {"poisson"} and mu > 0):
        others = "releases on batches of fixed size" if len(kinds) > 1 else f"full releases (mu={mu!r})"
        raise InvalidArgument(
            f"expected releases for one adjacency, got sampling='poisson', which is priced for adding or removing a "
            f"record, together with {others}, priced for replacing one; sample all of them in the same way"
        )
    parts = sorted((float(rate), float(z), int(count)) for (_, rate, z), count in sampled.items() if count > 0)
    return next(iter(kinds), "fixed"), tuple(parts)


def check(multiplier: float, rate: float) -> None:
    """Refuse what is no noise multiplier, or no sampling rate."""
    if not multiplier >= 0:  # true for NaN
        raise InvalidArgument(f"expected multiplier >= 0, got multiplier={multiplier!r}")
    if not 0 < rate <= 1:
        raise InvalidArgument(f"expected 0 < rate <= 1, the share of the records in a batch, got rate={rate!r}")


def inverse_square(multiplier: float) -> float:
    """Return 1 / multiplier^2; infinity without noise."""
    inverse = 1 / multiplier if multiplier else math.inf
    return inverse * inverse


def _log_binomial(order: int, index: np.ndarray) -> np.ndarray:
    return gammaln(order + 1) - gammaln(index + 1) - gammaln(order - index + 1)
