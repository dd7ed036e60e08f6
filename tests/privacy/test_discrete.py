"""What noise on whole numbers costs: ratios and deltas counted out for small deviations, and sums of shares."""

import math
from functools import partial

import numpy as np
import pytest
import scipy.stats
from scipy.special import logsumexp

from diff2.errors import InvalidArgument
from diff2.privacy import gdp_delta, gdp_epsilon
from diff2.privacy.discrete import MOST_DRAWS, discrete_epsilon, sum_divergence

DELTAS = (1e-2, 1e-4, 1e-6)
SHIFTS = [(1, 0), (2, 0), (1, 1), (3, -2), (8, 3)]


def probabilities(scale, reach):
    """Return P(-reach), ..., P(reach) of the discrete Gaussian."""
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * scale**2))
    return weights / weights.sum()


def rounded_normal(scale, reach):
    """Return the same of a rounded normal number; from the left, where the tail is precise."""
    left = np.diff(scipy.stats.norm.cdf((np.arange(-reach, 2) - 0.5) / scale))
    return np.concatenate([left, left[-2::-1]])


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 8.0, 64.0])
def test_ratios_to_a_rounded_normal(scale):
    reach = math.ceil(20 * scale)
    exact, rounded, k = probabilities(scale, reach), rounded_normal(scale, reach), np.arange(-reach, reach + 1)
    theta = 2 * sum(math.exp(-2 * (math.pi * scale * i) ** 2) for i in range(1, 9))
    assert (exact * (1 - 1 / (24 * scale**2)) <= rounded * (1 + 1e-12)).all()
    assert (rounded <= exact * (1 + theta) * np.exp(k**2 / (8 * scale**4)) * (1 + 1e-12)).all()


def hockey_stick(first, second, epsilon):
    return np.maximum(first - math.exp(epsilon) * second, 0).sum()


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("scale", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("shift", SHIFTS)
def test_the_stated_epsilon_holds_counted_out(scale, shift, parties):
    """Two numbers with noise, of one party or the sum of several, moved by whole steps."""
    one = total = probabilities(scale, math.ceil(12 * scale) + 10)
    for _ in range(parties - 1):
        total = np.convolve(total, one)
    first = np.multiply.outer(total, total)
    second = np.roll(first, shift, axis=(0, 1))
    continuous = partial(gdp_epsilon, math.hypot(*shift) / (scale * math.sqrt(parties)))
    for delta in DELTAS:
        epsilon = discrete_epsilon(continuous, delta, 1, draws=2, parties=parties, scale=scale)
        assert hockey_stick(first, second, epsilon) <= delta
        assert continuous(delta) < epsilon < continuous(delta) + 40 / (parties * scale**2)


def test_the_discrete_gaussian_is_not_gdp():
    """So something has to be added: for a shift by one step at sigma 1 there are larger deltas than a normal's."""
    one = probabilities(1.0, 40)
    worst = max(hockey_stick(one, np.roll(one, 1), e) - gdp_delta(1.0, e) for e in np.linspace(0, 3, 61))
    assert worst > 0.001


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("shift", SHIFTS)
def test_renyi_divergence_of_a_whole_shift_is_at_most_that_of_a_normal(scale, shift):
    k = np.arange(-300, 301)
    for order in (1.5, 2.0, 8.0):
        total = 0.0
        for move in shift:
            exponents = -(order * k**2 + (1 - order) * (k - move) ** 2) / (2 * scale**2)
            total += (logsumexp(exponents) - logsumexp(-(k**2) / (2 * scale**2))) / (order - 1)
        normal = order * math.hypot(*shift) ** 2 / (2 * scale**2)
        assert total <= normal * (1 + 1e-12)
        assert total == pytest.approx(normal, rel=1e-12) or order == 1.5  # equal where order times shift is whole


@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("scale", [math.sqrt(0.5), 0.8, 1.0])
def test_divergence_of_sums(parties, scale):
    one = total = probabilities(scale, 60)
    for _ in range(parties - 1):
        total = np.convolve(total, one)
    reach = (total.size - 1) // 2
    expected = probabilities(scale * math.sqrt(parties), reach)
    middle = np.abs(np.arange(-reach, reach + 1)) <= 4 * scale * math.sqrt(parties)  # elsewhere doubles are too coarse
    divergence = np.abs(np.log(total[middle] / expected[middle])).max()
    assert divergence <= sum_divergence(parties, scale)
    if parties == 2:
        assert sum_divergence(parties, scale) < 6 * divergence


@pytest.mark.parametrize("mu", [0.01, 0.268051, 5.0, 300.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-12, 1e-200])
def test_at_our_scale_the_price_is_next_to_nothing(mu, delta):
    normal = partial(gdp_epsilon, mu)
    found = discrete_epsilon(normal, delta, 2000)
    n = 2000 * MOST_DRAWS
    least = n / 2.0**64 / 6
    assert least < found - normal(delta) < (2 + mu) * least + 1e-11 * normal(delta)
    assert discrete_epsilon(normal, delta, 2000, parties=1000) < found  # so that a sum is priced as one draw
    assert discrete_epsilon(normal, delta, 0) == normal(delta)
    assert discrete_epsilon(lambda _: math.inf, delta, 1) == math.inf


def test_what_is_priced_at_a_smaller_delta():
    asked = []
    discrete_epsilon(lambda delta: asked.append(delta) or 1.0, 1e-5, 2000)
    assert 1e-5 * (1 - 1e-7) < asked[0] < 1e-5


def test_the_least_divergence_of_sums_is_not_zero():
    assert sum_divergence(1) == 0.0
    assert 0 < 10**7 * sum_divergence(1000) < 1e-300
    with pytest.raises(InvalidArgument, match="scale"):
        sum_divergence(2, 0.5)
