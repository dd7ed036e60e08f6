r"""What releases on random batches cost.

A release on a batch of b of n records, drawn afresh and in secret, costs less than one on all records. The cost is
described by a hockey-stick curve :math:`h(\varepsilon)`, the smallest delta at each epsilon. With the sampling rate
:math:`\gamma`, the noise multiplier z and the curve :math:`\delta_\mu` of a Gaussian (``accounting.py``):

.. math::
    h(\varepsilon) = \gamma\, \delta_{1/z}\big(\log(1 + (e^\varepsilon - 1)/\gamma)\big), \quad \varepsilon \ge 0,
    \qquad h(\varepsilon) = 1 - e^\varepsilon + e^\varepsilon h(-\varepsilon), \quad \varepsilon < 0

* ``"fixed"``: b records without replacement, :math:`\gamma = b/n`, *replace one record*, z = noise std / (2C/b)
  (Balle, Barthe & Gaboardi 2018). The curve is that of one pair of distributions (Zhu, Dong & Wang 2022), which may
  therefore be composed.
* ``"poisson"``: every record with probability :math:`\gamma`, *add or remove one record*, z = noise std / C. The first
  formula is the curve of removal for every epsilon, its mirror image that of addition; each is composed by itself.

Curves are composed as privacy-loss distributions, discretised by "connect the dots" (Doroshenko et al. 2022), which
errs to the safe side, as does every truncation here. The second accountant, Renyi, is what the paper uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from .._validate import at_least, one_of, positive
from ..errors import BudgetExceeded, InvalidArgument
from .accounting import _bisect, gdp_delta, gdp_epsilon

SAMPLINGS = ("fixed", "poisson")
ORDERS = range(2, 257)

_SIDES = {"fixed": ("both",), "poisson": ("remove", "add")}
_GRID = 0.03  # grid interval / deviation of the loss of one release: epsilon is then about 1e-4 too large
_COARSEST = 0.25
_POINTS = 2**17  # of one release, at most
_TAIL = 1e-5  # share of delta given up to truncation
_ROUNDING = 2.0**-52  # of the Fourier transform, per release: ten times what was seen

Sampled = Mapping[tuple[str, float, float], int]  # (sampling, rate, multiplier) -> number of releases


def fixed_delta(epsilon: float, multiplier: float, rate: float) -> float:
    """Return the smallest delta of one Gaussian release on a batch drawn without replacement; replace-one.

    ``multiplier`` is z = noise std / (2C/b), ``rate`` is b/n. At ``rate=1`` this is ``gdp_delta(1/z, epsilon)``;
    without noise it is the probability to be in the batch.

    >>> round(fixed_delta(epsilon=0.5, multiplier=1.0, rate=0.1), 6)
    0.002033
    """
    _check(multiplier, rate)
    if rate == 1:
        return gdp_delta(1 / multiplier if multiplier else math.inf, epsilon)
    curve = _removal if epsilon >= 0 else _addition
    return float(curve(np.array([epsilon], dtype=float), multiplier, rate)[0])


def sampled_epsilon(mu: float, sampled: Sampled, delta: float) -> float:
    """Return the epsilon at ``delta`` of a mu-GDP part (0: none) together with releases on random batches.

    ``sampled`` maps (sampling, rate, multiplier) to the number of such releases. The result is an upper bound, about
    one part in 10^4 too large, and never more than the releases would cost without sampling. Below
    delta = 5e-16 x releases it is a Renyi bound.

    >>> round(sampled_epsilon(0.0, {("fixed", 512 / 16510, 5.55): 2000}, 1e-5), 2)
    1.0
    >>> sampled_epsilon(0.5, {}, 1e-5) == gdp_epsilon(0.5, 1e-5)
    True
    """
    sampling, parts = _parts(mu, sampled, delta)
    if any(multiplier == 0 for _, multiplier, _ in parts):
        return math.inf
    return _priced(float(mu), sampling, parts, float(delta))


def renyi_epsilon(mu: float, sampled: Sampled, delta: float) -> float:
    r"""Return another upper bound of ``sampled_epsilon``, by Renyi accounting.

    The Renyi curve is that of the mu-GDP part, :math:`\alpha \mu^2/2`, plus ``renyi_fixed`` or ``renyi_poisson`` for
    each release; the smallest epsilon over the orders 2..256 (Canonne, Kamath & Steinke 2020) is

    .. math:: \varepsilon = \min_\alpha \rho(\alpha) + \log\frac{\alpha-1}{\alpha}
              - \frac{\log \delta + \log \alpha}{\alpha - 1}

    >>> round(renyi_epsilon(0.0, {("fixed", 128 / 16510, 3.23): 2000}, 1e-5), 2)
    1.0
    """
    sampling, parts = _parts(mu, sampled, delta)
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
            spent += count * min(one(order, multiplier, rate), order / 2 * _inverse_square(multiplier))
        best = min(best, spent + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return max(0.0, best)


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
    _check(multiplier, rate)
    if multiplier == 0:
        return math.inf
    index = np.arange(2, order + 1)
    exponent = _inverse_square(multiplier)
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


def renyi_poisson(order: int, multiplier: float, rate: float) -> float:
    r"""Return the Renyi divergence of one release on a Poisson sample, at an integer ``order``; add-or-remove-one.

    .. math:: \frac{1}{\alpha-1} \log \sum_{j=0}^{\alpha} \binom{\alpha}{j} (1-\gamma)^{\alpha-j} \gamma^j
              e^{j(j-1)/(2 z^2)}

    (Mironov, Talwar & Zhang 2019).

    >>> round(renyi_poisson(order=9, multiplier=2.0, rate=0.03), 6)
    0.001229
    """
    at_least("order", order, 2)
    _check(multiplier, rate)
    exponent = _inverse_square(multiplier)
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
    return _bisect(lambda z: count * renyi_fixed(order, z, rate) <= allowance, 0.0, high)[1]


def _parts(mu: float, sampled: Sampled, delta: float) -> tuple[str, tuple[tuple[float, float, int], ...]]:
    """Check the arguments; return the sampling and (rate, multiplier, count) of the releases that there are."""
    if not mu >= 0:
        raise InvalidArgument(f"expected mu >= 0, got mu={mu!r}")
    if not 0 <= delta <= 1:
        raise InvalidArgument(f"expected 0 <= delta <= 1, got delta={delta!r}")
    for (sampling, rate, multiplier), count in sampled.items():
        one_of("sampling", sampling, SAMPLINGS)
        _check(multiplier, rate)
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


def _check(multiplier: float, rate: float) -> None:
    if not multiplier >= 0:  # true for NaN
        raise InvalidArgument(f"expected multiplier >= 0, got multiplier={multiplier!r}")
    if not 0 < rate <= 1:
        raise InvalidArgument(f"expected 0 < rate <= 1, the share of the records in a batch, got rate={rate!r}")


@lru_cache(maxsize=4096)
def _priced(mu: float, sampling: str, parts: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Return the smallest upper bound at hand."""
    squares = [(rate, count * _inverse_square(multiplier)) for rate, multiplier, count in parts]
    unsampled = gdp_epsilon(math.sqrt(math.fsum([mu * mu, *(square for _, square in squares)])), delta)
    drawn = [part for part in parts if part[0] < 1 and math.isfinite(part[1])]
    rounding = _ROUNDING * sum(count for _, _, count in drawn)
    if not drawn or unsampled in (0.0, math.inf):
        return unsampled
    if delta <= 2 * rounding:
        return min(unsampled, renyi_epsilon(mu, {(sampling, rate, z): count for rate, z, count in parts}, delta))
    # What is released on all records is a Gaussian, exactly.
    whole = math.sqrt(math.fsum([mu * mu, *(square for rate, square in squares if rate == 1)]))
    return min(unsampled, _composed(whole, sampling, drawn, delta - rounding))


@np.errstate(all="ignore")  # what overflows is a bound that is then not used
def _composed(mu: float, sampling: str, parts: list[tuple[float, float, int]], delta: float) -> float:
    """Compose on a common grid of privacy losses.

    Connecting the dots adds about interval^2 / 6 to the variance of each loss. The interval is a share of the deviation
    per release, so that all of it together is a small part of the variance of the sum.
    """
    total = sum(count for _, _, count in parts)
    variance = mu * mu + math.fsum(count * _loss_variance(multiplier, rate) for rate, multiplier, count in parts)
    lost = _TAIL * delta / (total + 1)
    if mu > 0:
        parts = [*parts, (1.0, 1 / mu, 1)]
    tops = [_top(multiplier, rate, lost) for rate, multiplier, _ in parts]
    interval = max(min(_GRID * math.sqrt(variance / max(total, 100)), _COARSEST), max(tops) / _POINTS)
    if not interval <= _COARSEST:
        return math.inf  # an epsilon of ten thousands
    epsilon = 0.0
    for side in _SIDES[sampling]:
        composed: Any = None
        for top, (rate, multiplier, count) in zip(tops, parts, strict=True):
            losses = _losses(multiplier, rate, side, top, interval).self_compose(count, _TAIL * delta)
            composed = losses if composed is None else composed.compose(losses, _TAIL * delta)
        if composed.get_delta_for_epsilon(epsilon) > delta:
            epsilon = float(composed.get_epsilon_for_delta(delta))
    return epsilon


def _losses(multiplier: float, rate: float, side: str, top: float, interval: float) -> Any:
    """Return the discretised privacy-loss distribution of one release; losses above ``top`` count as infinite.

    A curve that is straight in exp(epsilon) between the points of a grid lies above the true one, and is that of losses
    on the grid. They are taken from the curve of removal alone, where it is small: those of addition have the other
    sign and exp(-loss) of the mass, and so have the negative ones of replacement. One point has what is left.
    """
    from dp_accounting.pld import pld_pmf  # takes a second to import

    symmetric = side == "both" or rate == 1
    high = math.ceil(top / interval)
    low = 0 if symmetric else max(-high, math.floor(math.log1p(-rate) / interval))  # no loss of removal is below that
    loss = np.arange(low, high + 1) * interval
    deltas = _removal(loss, multiplier, rate)
    falls = np.maximum(0.0, -np.diff(deltas))
    mass = np.maximum(0.0, falls / -math.expm1(-interval) - np.append(falls[1:], 0.0) / math.expm1(interval))
    mirrored = mass * np.exp(-loss[1:])
    infinite = float(deltas[-1])
    if symmetric:
        low, mass = -high, np.concatenate([mirrored[::-1], [1 - infinite - mass.sum() - mirrored.sum()], mass])
    elif side == "remove":
        mass = np.append(1 - infinite - mass.sum(), mass)
    else:
        infinite = float(_addition(-loss[:1], multiplier, rate)[0])
        low, mass = -high, np.append(mirrored[::-1], 1 - infinite - mirrored.sum())
    return pld_pmf.DensePLDPmf(interval, low, np.maximum(0.0, mass), infinite, True)


def _removal(epsilon: np.ndarray, multiplier: float, rate: float) -> np.ndarray:
    r"""Return the curve of :math:`\gamma P + (1-\gamma) Q` against Q, the Gaussians with and without the record."""
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = np.expm1(np.minimum(epsilon, 500.0))
        shifted = np.where(epsilon < 500, np.log1p(grown / rate), epsilon - math.log(rate))
        return np.where(grown > -rate, rate * _gaussian(shifted, multiplier), -grown)


def _addition(epsilon: np.ndarray, multiplier: float, rate: float) -> np.ndarray:
    r"""Return the curve of Q against :math:`\gamma P + (1-\gamma) Q`; for replacement, where epsilon is negative."""
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = rate * np.exp(epsilon) - np.expm1(epsilon)
        shifted = math.log(rate) + epsilon - np.log(weight)
        return np.where(weight > 0, weight * _gaussian(shifted, multiplier), 0.0)


def _gaussian(epsilon: np.ndarray, multiplier: float) -> np.ndarray:
    """Return ``gdp_delta(1 / multiplier, epsilon)`` of each epsilon."""
    if multiplier == 0:
        return np.ones_like(epsilon)
    if math.isinf(multiplier):
        return np.maximum(0.0, -np.expm1(epsilon))
    upper = log_ndtr(-epsilon * multiplier + 0.5 / multiplier)
    lower = epsilon + log_ndtr(-epsilon * multiplier - 0.5 / multiplier)
    return np.where(lower < upper, -np.exp(upper) * np.expm1(lower - upper), 0.0)


def _top(multiplier: float, rate: float, lost: float) -> float:
    """Return the loss above which a release puts no more than the mass ``lost``."""
    high = 1.0
    while fixed_delta(high, multiplier, rate) > lost:
        high *= 2
    return _bisect(lambda epsilon: fixed_delta(epsilon, multiplier, rate) <= lost, 0.0, high)[1]


def _loss_variance(multiplier: float, rate: float) -> float:
    """Return the second moment of the privacy loss of one release, about."""
    shift = 1 / multiplier  # between the Gaussians with and without the record, of deviation 1
    x = np.linspace(shift / 2, shift + 9, 1001)  # from the point where the loss is zero
    loss = np.logaddexp(math.log1p(-rate), math.log(rate) + (x - shift / 2) * shift)
    density = ((2 - rate) * np.exp(-(x**2) / 2) + rate * np.exp(-((x - shift) ** 2) / 2)) / math.sqrt(2 * math.pi)
    return float(np.sum(loss**2 * density) * (x[1] - x[0]))


def _inverse_square(multiplier: float) -> float:
    inverse = 1 / multiplier if multiplier else math.inf
    return inverse * inverse


def _log_binomial(order: int, index: np.ndarray) -> np.ndarray:
    return gammaln(order + 1) - gammaln(index + 1) - gammaln(order - index + 1)
