r"""What noise on whole numbers costs more than continuous noise of the same deviation.

A release is whole numbers of grid steps with noise :math:`P(k) \propto \exp(-k^2 / 2\sigma^2)`,
:math:`\sigma = 2^{32}` (``discrete_gaussian.py``). Let Q be a normal number of deviation :math:`\sigma`, rounded.
Rounding comes after the noise and costs nothing, as the value under the noise is whole: with Q for P, whatever an
accountant states of Gaussian noise holds, random batches included. P is this near to Q. With f the normal density,

.. math::
    Q(k) = f(k) \int_{-1/2}^{1/2} e^{-s^2/2\sigma^2} \cosh(ks/\sigma^2)\, ds, \qquad
    1 \le f(k) / P(k) \le 1 + \theta, \qquad \theta = 2 \sum_{i \ge 1} e^{-2 \pi^2 \sigma^2 i^2}

(the second by Poisson summation). Since :math:`1 - s^2 / 2\sigma^2` is at most the integrand, and this at most
:math:`\exp(k^2 / 8\sigma^4)`,

.. math::
    P(k) \le Q(k)\, (1 - 1/24\sigma^2)^{-1}, \qquad Q(k) \le P(k)\, (1 + \theta) \exp(k^2 / 8 \sigma^4).

**Theorem.** Let a run draw n such numbers, each after the releases before it, and let the same run with normal noise be
:math:`(\varepsilon', \delta')`-DP. Then for every :math:`y > 0` it is :math:`(\varepsilon, \delta)`-DP with

.. math::
    \varepsilon = \varepsilon' + a + \frac{(\sqrt n\, (1 + 1/2\sigma) + \sqrt{2y})^2}{8 \sigma^2} + n \theta, \qquad
    \delta = e^a (\delta' + e^{\varepsilon' - y}), \qquad a = \frac{n}{24\sigma^2 - 1}.

*Proof.* Let A and B be the outcomes for neighbours, A' and B' with normal noise. By the first ratio in each draw,
:math:`A(S) \le e^a A'(S) \le e^a (e^{\varepsilon'} B'(S) + \delta')`. The n normal numbers are longer than
:math:`\sigma (\sqrt n + \sqrt{2y})` with a probability below :math:`e^{-y}` (Laurent & Massart 2000); rounding adds
:math:`\sqrt n / 2`. Where they are not, B' is at most B times the second ratio in each draw. []

Where the sum of the noise of h parties is seen, P is that of the sum, :math:`\sigma^2` becomes :math:`h \sigma^2`, and
both ratios grow by what :func:`sum_divergence` bounds. Draws of releases that a unit cannot move are the same for
neighbours and do not count. A release is counted as ``MOST_DRAWS`` numbers whatever its dimension, so that a plan,
which knows no model, costs what its run will cost. For 2,000 releases that is 2.4e-9 of epsilon, and 6e-10 of delta.

What holds with nothing added is :math:`\tfrac12 \mu^2`-zCDP (Canonne, Kamath & Steinke 2020), but not :math:`\mu`-GDP.
"""

import math
from collections.abc import Callable

from .._validate import at_least
from ..errors import InvalidArgument

SCALE_BITS = 32
SCALE = 2.0**SCALE_BITS  # sigma, in grid steps
MOST_DRAWS = 2**27  # of a release: its dimension, times its nodes in a tree
TAIL = 40 * math.log(2)  # y is chosen so that e^(epsilon' - y) is this far below delta, in logarithm


def discrete_epsilon(
    continuous: Callable[[float], float],
    delta: float,
    releases: int,
    draws: int = MOST_DRAWS,
    parties: int = 1,
    scale: float = SCALE,
) -> float:
    """Return the epsilon of releases with exact noise, at ``delta``: the theorem above.

    Args:
        continuous: returns the epsilon of the same releases with normal noise, at any delta.
        draws: numbers in each release.
        parties: whose noise together is that of a release, each of deviation ``scale``.

    >>> discrete_epsilon(lambda delta: 1.0, 1e-5, releases=2000) - 1.0
    2.4...e-09
    """
    if releases == 0:
        return continuous(delta)
    n, variance, divergence = releases * draws, parties * scale**2, sum_divergence(parties, scale)
    found = continuous(_inner_delta(delta, n, variance, divergence))
    return found if math.isinf(found) else found + _added(found, delta, n, variance, divergence) + math.ulp(found)


def continuous_budget(epsilon: float, delta: float, releases: int) -> tuple[float, float]:
    """Return what releases may cost with normal noise, so that with exact noise they cost these."""
    n, variance = releases * MOST_DRAWS, SCALE**2
    added = _added(epsilon, delta, n, variance, 0.0)
    if not added < epsilon:
        raise InvalidArgument(
            f"epsilon={epsilon!r} is not more than the {added:.2g} that noise on whole numbers costs in {releases} "
            "releases; raise it"
        )
    return epsilon - added, _inner_delta(delta, n, variance, 0.0)


def _inner_delta(delta: float, n: int, variance: float, divergence: float) -> float:
    raised = n / (24 * variance - 1) + n * divergence
    return delta * (math.exp(-raised) - math.exp(-TAIL)) * (1 - 2.0**-50)


def _added(epsilon: float, delta: float, n: int, variance: float, divergence: float) -> float:
    y = epsilon + math.log(1 / delta) + TAIL
    length = math.sqrt(n) * (1 + 0.5 / math.sqrt(variance)) + math.sqrt(2 * y)
    theta = 3 * math.exp(-2 * math.pi**2 * variance)
    total = n / (24 * variance - 1) + 2 * n * divergence + length**2 / (8 * variance) + n * theta
    return total * (1 + 2.0**-40)


def sum_divergence(parties: int, scale: float = SCALE) -> float:
    r"""Return a bound of :math:`\sup_k |\log P(k)/Q(k)|`: P the sum of h such draws, Q one of h times the variance.

    It is :math:`10 \sum_{j<h} \exp(-2 \pi^2 \sigma^2 j/(j+1))` (Kairouz, Liu & Steinke 2021), for
    :math:`\sigma^2 \ge 1/2`. Why: the sum of two draws, of variances :math:`\sigma^2` and :math:`\tau^2`, is z with the
    probability that one draw of both variances has, times a constant, times :math:`\sum_x \exp(-(x - c_z)^2 / 2 s^2)`,
    :math:`1/s^2 = 1/\sigma^2 + 1/\tau^2`. By Poisson summation that is a constant times :math:`1 \pm \theta`,
    :math:`\theta = 2 \sum_{i \ge 1} \exp(-2 \pi^2 s^2 i^2)`. Both add up to one, so their ratio is at most
    :math:`(1 + \theta) / (1 - \theta)`, in logarithm :math:`5 \exp(-2\pi^2 s^2)`. Then the next draw is added to both,
    which brings them no further apart.

    At :math:`\sigma = 2^{32}` it is below :math:`10^{-7.9 \cdot 10^{19}}` for 1,000 parties, so that sums are priced
    as one draw. What is returned then is the least positive double.
    """
    at_least("parties", parties, 1)
    if parties == 1:
        return 0.0
    if not scale**2 >= 0.5:
        raise InvalidArgument(f"expected scale**2 >= 0.5, got scale={scale!r}")
    terms = (math.exp(-2 * math.pi**2 * scale**2 * j / (j + 1)) for j in range(1, parties))
    return max(10 * math.fsum(terms) * (1 + 2.0**-40), math.ulp(0.0))
