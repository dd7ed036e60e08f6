r"""What releases cost: exact Gaussian differential privacy.

Every full-batch release is a Gaussian mechanism. With the multiplier :math:`z = \text{noise std} / \text{sensitivity}`
it is :math:`(1/z)`-GDP, and adaptive composition (Dong, Roth & Su 2022) is exact:

.. math::
    \mu^2 = \sum_r 1/z_r^2, \qquad
    \delta(\varepsilon) = \Phi(-\varepsilon/\mu + \mu/2) - e^\varepsilon \Phi(-\varepsilon/\mu - \mu/2)

(Balle & Wang 2018). Adjacency is *replace one record* throughout, because the sensitivities are stated for it.
Conversions round to the safe side: ``gdp_epsilon`` up, ``gdp_mu`` down. What the noise of releases, which is on whole
numbers, costs more than continuous noise (``discrete.py``) is in ``epsilon_of`` and ``epsilon_path``.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial

from .discrete import discrete_epsilon

_STEPS = 200  # bisection halves the bracket; the loop stops when no float lies between its ends


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta for which a mu-GDP mechanism is (epsilon, delta)-DP.

    >>> round(gdp_delta(mu=1.0, epsilon=1.0), 6)
    0.126937
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    upper = log_normal(-epsilon / mu + mu / 2)
    lower = epsilon + log_normal(-epsilon / mu - mu / 2)
    # exp(upper) - exp(lower), without the cancellation of the plain form.
    return max(0.0, -math.exp(upper) * math.expm1(lower - upper)) if lower < upper else 0.0


def log_normal(x: float) -> float:
    """Return the logarithm of the standard normal distribution function; right to 1e-15, far out in the left tail too.

    >>> round(log_normal(-40.0), 6)
    -804.608442
    """
    if x >= -1:
        return math.log1p(-math.erfc(x * math.sqrt(0.5)) / 2)
    if x > -37:
        return math.log(math.erfc(-x * math.sqrt(0.5)) / 2)
    inverse = 1 / (x * x)  # beyond it erfc underflows; the first term left out of the series is below 1e-13
    series = inverse * (1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse)))
    return -x * x / 2 - math.log(-x) - math.log(2 * math.pi) / 2 + math.log1p(-series)


@lru_cache(maxsize=4096)
def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which a mu-GDP mechanism is (epsilon, delta)-DP, rounded up.

    >>> round(gdp_epsilon(mu=0.268051, delta=1e-5), 4)
    1.0
    """
    if mu == 0 or gdp_delta(mu, 0.0) <= delta:
        return 0.0
    if math.isinf(mu) or not delta > 0:
        return math.inf  # no Gaussian is (epsilon, 0)-DP
    high = 1.0
    while gdp_delta(mu, high) > delta:
        high *= 2
    return bisect(lambda epsilon: gdp_delta(mu, epsilon) <= delta, 0.0, high)[1]


@lru_cache(maxsize=4096)
def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which every mu-GDP mechanism is (epsilon, delta)-DP, rounded down.

    >>> round(gdp_mu(epsilon=1.0, delta=1e-5), 6)
    0.268051
    """
    if math.isinf(epsilon):
        return math.inf
    high = 1.0
    while gdp_delta(high, epsilon) <= delta:
        high *= 2
    return bisect(lambda mu: gdp_delta(mu, epsilon) > delta, 0.0, high)[0]


def total_mu(multipliers: Iterable[float]) -> float:
    """Compose Gaussian releases with these noise multipliers; infinity for one without noise, nothing for ``inf``.

    >>> total_mu([2.0, 2.0, 2.0, 2.0])
    1.0
    """
    values = list(multipliers)
    if any(value == 0 for value in values):
        return math.inf
    return math.sqrt(math.fsum(1 / value**2 for value in values))


def epsilon_of(multipliers: Iterable[float], delta: float) -> float:
    """Return the epsilon that releases with these noise multipliers cost together, at ``delta``."""
    noised = [value for value in multipliers if value != math.inf]
    return discrete_epsilon(partial(gdp_epsilon, total_mu(noised)), delta, len(noised))


def epsilon_path(multipliers: Iterable[float], delta: float, points: int = 64) -> Sequence[float]:
    """Return the epsilon spent after each release in turn.

    The curve is smooth in mu, so it is solved at ``points`` values and interpolated; the last value is exact.
    """
    import numpy as np

    values = list(multipliers)
    multiplier = np.asarray(values, dtype=float)
    if multiplier.size == 0:
        return []
    total = epsilon_of(values, delta)
    with np.errstate(divide="ignore"):
        mu = np.sqrt(np.cumsum(1 / multiplier**2))
    finite = mu[np.isfinite(mu)]
    path = np.full(mu.shape, math.inf)
    if finite.size:
        grid = np.unique(np.linspace(finite[0], finite[-1], points))
        solved = [discrete_epsilon(partial(gdp_epsilon, value), delta, len(values)) for value in grid.tolist()]
        path[: finite.size] = np.interp(finite, grid, solved)
    return [*np.minimum(path[:-1], total).tolist(), total]


def bisect(above: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return neighbours around the point where ``above`` turns true; it is false at ``low``, true at ``high``."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if above(middle):
            high = middle
        else:
            low = middle
    return low, high
