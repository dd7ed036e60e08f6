r"""What the best of a random number of repetitions costs, where nothing else of them is seen.

A mechanism is repeated K times, each time afresh, and the output with the best score is published. K is geometric with
mean m, :math:`P(K = k) = (1 - 1/m)^{k-1} / m`, and secret. Where the mechanism has the Renyi divergence
:math:`\varepsilon(\lambda)`, the whole has, for all :math:`\hat\lambda \ge 1` (Papernot & Steinke 2022, Theorem 2, with
:math:`\eta = 1`)

.. math::
    \varepsilon(\lambda) + 2 (1 - 1/\hat\lambda)\, \varepsilon(\hat\lambda) + \frac{2 \log m}{\hat\lambda}
    + \frac{\log m}{\lambda - 1}.

Here :math:`\varepsilon(\lambda) = \lambda \mu^2 / 2`. A release with noise on whole numbers of multiplier 1/mu has at
most that (Canonne, Kamath & Steinke 2020), with nothing added; so has a choice that costs mu in Gaussian differential
privacy, being computable from two Gaussians that far apart; and so have releases chosen adaptively whose squares add up
to no more (Feldman & Zrnic 2021).

Divergences add up: several selections, and Gaussian releases beside them, cost the sum at every order.
"""

from functools import lru_cache

from .._validate import at_least
from .accounting import gdp_mu
from .noise import NoiseSource

ORDERS = [1.01 * 1.05**j for j in range(165)]  # lambda, to 3,000
REPEATED = "repeated"  # in the place of how units were drawn: the rate is then the mean number of repetitions


def repeated_epsilon(mu: float, mean: int, delta: float) -> float:
    """Return what the best of about ``mean`` repetitions costs, each ``mu``.

    >>> round(repeated_epsilon(0.1174, 10, 1e-5), 2)
    1.0
    """
    return selections_epsilon(frozenset({((mean, mu), 1)}), 0.0, delta)


@lru_cache(maxsize=256)
def selections_epsilon(selections: frozenset[tuple[tuple[float, float], int]], mu: float, delta: float) -> float:
    """Return what selections cost together with releases that cost ``mu``.

    Args:
        selections: the mean number of repetitions and the price of each, with how many such selections there are.
    """
    from dp_accounting.dp_event import GaussianDpEvent, RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS)
    for (mean, each), count in selections:
        accountant.compose(RepeatAndSelectDpEvent(GaussianDpEvent(1 / each), float(mean), 1.0), count)
    if mu > 0:
        accountant.compose(GaussianDpEvent(1 / mu))
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=64)
def repeated_mu(epsilon: float, delta: float, mean: int) -> float:
    """Return the largest price of one repetition for which the best of them is within a budget, rounded down."""
    at_least("repetitions", mean, 1)
    high = gdp_mu(epsilon, delta)
    low = 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if repeated_epsilon(middle, mean, delta) <= epsilon else (low, middle)
    return low


def repetitions(source: NoiseSource, mean: int) -> int:
    """Return a geometric number of this mean, exactly but for a bias below 2^-120."""
    count = 1
    while source.integer(mean, "repetitions", count) != 0:
        count += 1
    return count
