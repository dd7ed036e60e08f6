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
errs to the safe side, as does every truncation here. ``renyi.py`` is a second accountant.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from .accounting import bisect, gdp_delta, gdp_epsilon
from .renyi import Sampled, check, inverse_square, parts_of, renyi_epsilon

_SIDES = {"fixed": ("both",), "poisson": ("remove", "add")}
_GRID = 0.03  # grid interval / deviation of the loss of one release: epsilon is then about 1e-4 too large
_COARSEST = 0.25
_POINTS = 2**17  # of one release, at most
_TAIL = 1e-5  # share of delta given up to truncation
_ROUNDING = 2.0**-52  # of the Fourier transform, per release: ten times what was seen


def fixed_delta(epsilon: float, multiplier: float, rate: float) -> float:
    """Return the smallest delta of one Gaussian release on a batch drawn without replacement; replace-one.

    ``multiplier`` is z = noise std / (2C/b), ``rate`` is b/n. At ``rate=1`` this is ``gdp_delta(1/z, epsilon)``;
    without noise it is the probability to be in the batch.

    >>> round(fixed_delta(epsilon=0.5, multiplier=1.0, rate=0.1), 6)
    0.002033
    """
    check(multiplier, rate)
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
    sampling, parts = parts_of(mu, sampled, delta)
    if any(multiplier == 0 for _, multiplier, _ in parts):
        return math.inf
    return _priced(float(mu), sampling, parts, float(delta))


@lru_cache(maxsize=4096)
def _priced(mu: float, sampling: str, parts: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Return the smallest upper bound at hand."""
    squares = [(rate, count * inverse_square(multiplier)) for rate, multiplier, count in parts]
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
        return math.inf  # an epsilon in the tens of thousands
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
    return bisect(lambda epsilon: fixed_delta(epsilon, multiplier, rate) <= lost, 0.0, high)[1]


def _loss_variance(multiplier: float, rate: float) -> float:
    """Return approximately the second moment of the privacy loss of one release."""
    shift = 1 / multiplier  # between the Gaussians with and without the record, of deviation 1
    x = np.linspace(shift / 2, shift + 9, 1001)  # from the point where the loss is zero
    loss = np.logaddexp(math.log1p(-rate), math.log(rate) + (x - shift / 2) * shift)
    density = ((2 - rate) * np.exp(-(x**2) / 2) + rate * np.exp(-((x - shift) ** 2) / 2)) / math.sqrt(2 * math.pi)
    return float(np.sum(loss**2 * density) * (x[1] - x[0]))
