r"""The exponential mechanism: one of many public candidates, chosen by whole-number scores.

Candidate i is chosen with a probability proportional to :math:`\exp(a s_i)`. Replacing one unit moves every score by at
most :math:`\Delta`. So the logarithm of a candidate's probability changes by :math:`a (s_i' - s_i)`, less a constant
that is the same for all. These changes lie within an interval of length :math:`\eta = 2 a \Delta`: the choice has
*bounded range* :math:`\eta` (Durfee and Rogers 2019).

**Price.** A mechanism of bounded range :math:`\eta` is a post-processing of a generalised randomised response (Dong,
Durfee and Rogers 2020, Lemma 3.4): for some t in :math:`[0, \eta]` a coin that shows heads with the probabilities

.. math::
    q e^{t} \text{ and } q, \qquad q = \frac{1 - e^{t - \eta}}{e^{t} - e^{t - \eta}},

on the two data sets. Its trade-off curve has one corner, so it is above that of Gaussians :math:`\mu` apart where the
corner is: for :math:`\mu \ge \Phi^{-1}(q e^t) - \Phi^{-1}(q)`. The largest of these over t is what the choice costs,
about :math:`0.627 \eta`, and it adds up with Gaussian releases: :math:`\mu^2 = \sum \mu_i^2`.

**Exactness.** Scores are whole numbers and a is a whole number of :math:`2^{-40}`. A candidate is drawn uniformly and
taken with probability :math:`\exp(-a (s_{max} - s_i))`, compared bit by bit with bounds of the exponential from both
sides, until it is decided. No float takes part.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import TYPE_CHECKING

from .accounting import bisect
from .mechanism import Mechanism
from .noise import NoiseSource
from .release import EXPONENTIAL, Release

if TYPE_CHECKING:
    import numpy as np

RATE_BITS = 40  # a is a whole number of 2^-40
_WORD = 64


def choose(source: NoiseSource, scores: np.ndarray, rate: int, *label: object) -> int:
    r"""Return the place of a candidate, drawn with probability proportional to :math:`\exp(rate\, 2^{-40} s_i)`.

    >>> import numpy as np
    >>> choose(NoiseSource.from_seed(1), np.array([0, 100, 3]), 2**40, "tree", 0)
    1
    """
    best = int(scores.max())
    for attempt in range(1 << 62):
        place = source.integer(len(scores), *label, attempt, "place")
        if _below_exp(source, rate * (best - int(scores[place])), *label, attempt):
            return place
    raise AssertionError("unreachable: the best candidate is always taken")


@lru_cache(maxsize=256)  # the choices of a fit have one price
def rate_of(mu: float, sensitivity: int) -> int:
    r"""Return the largest rate a, in units of :math:`2^{-40}`, whose choice costs at most ``mu``."""
    eta, _ = bisect(lambda eta: bounded_range_mu(eta) > mu, 0.0, 4.0 * mu)
    return math.floor(eta / (2 * sensitivity) * 2**RATE_BITS)


def choice_mu(rate: int, sensitivity: int) -> float:
    """Return what a choice by scores of this sensitivity costs."""
    return bounded_range_mu(2 * sensitivity * rate * 2.0**-RATE_BITS)


def bounded_range_mu(eta: float) -> float:
    r"""Return the smallest :math:`\mu` for which every choice of bounded range ``eta`` is :math:`\mu`-GDP, rounded up.

    >>> round(bounded_range_mu(1.0), 4), round(bounded_range_mu(0.01) / 0.01, 3)
    (0.6239, 0.627)
    """
    if eta == 0:
        return 0.0
    if eta > 500:
        return math.inf  # beyond what doubles hold
    low, high = 0.0, eta  # the function of t has one maximum; golden section
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(80):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if _corner_mu(left, eta) < _corner_mu(right, eta):
            low = left
        else:
            high = right
    return _corner_mu((low + high) / 2, eta) * (1 + 1e-9)


def _corner_mu(t: float, eta: float) -> float:
    from statistics import NormalDist

    # q, p = q e^t and 1 - p, written so that nothing cancels
    whole = -math.expm1(-eta)
    p, rest = -math.expm1(t - eta) / whole, math.exp(-eta) * math.expm1(t) / whole
    q = p * math.exp(-t)
    if not (0 < q < p and rest > 0):
        return 0.0
    normal = NormalDist()
    return (normal.inv_cdf(p) if p < 0.999 else -normal.inv_cdf(rest)) - normal.inv_cdf(q)


def _below_exp(source: NoiseSource, numerator: int, *label: object) -> bool:
    r"""Return True with probability :math:`\exp(-numerator\, 2^{-40})`, exactly."""
    if numerator == 0:
        return True
    from .discrete_gaussian import exp_bounds

    precision = _WORD
    while True:
        drawn = int.from_bytes(source.bytes(precision // 8, *label, "exp"), "big")
        low, high = exp_bounds(numerator, RATE_BITS, precision)
        if drawn + 1 <= low:
            return True
        if drawn >= high:
            return False
        precision *= 2  # a longer draw begins with the bits of the shorter one


def release_choice(
    mechanism: Mechanism, scores: np.ndarray, sensitivity: int, mu: float, round: int, purpose: str
) -> int:
    """Choose a candidate at the price ``mu``; its line is in the ledger before it leaves."""
    rate = rate_of(mu, sensitivity)
    release = Release(
        round, purpose, sensitivity=float(sensitivity), mechanism=EXPONENTIAL, multiplier=1 / mu,
        noise_std=rate * 2.0**-RATE_BITS, dimension=len(scores),
    )  # fmt: skip
    digest = mechanism.noise.digest(scores.astype("<i8").data, b"choice")
    chosen = choose(mechanism.noise, scores, rate, "choice", *release.label, digest)
    mechanism.ledger.record(release._replace(sha256=hashlib.sha256(str(chosen).encode()).hexdigest()))
    return chosen


def paid(release: Release) -> bool:
    """Return whether the price of a choice is at least what its rate and sensitivity cost."""
    rate = round(release.noise_std * 2**RATE_BITS)
    return release.multiplier > 0 and choice_mu(rate, int(release.sensitivity)) * release.multiplier <= 1 + 1e-9
