"""What an attacker gains, against formulas that are written anew here."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from diff2.privacy.accounting import gdp_delta
from diff2.privacy.attacks import group_epsilon, largest_mu, true_positives
from diff2.privacy.composition import price

PLAIN = {("full", 1.0, 4.0): 9, ("full", 1.0, math.inf): 3}  # mu = 0.75; a difference of equal iterates is free
SAMPLED = {("fixed", 0.05, 2.0): 200, ("full", 1.0, 8.0): 4}
POISSON = {("poisson", 0.05, 1.5): 100}


def test_mu_is_the_root_of_the_sum_of_squares_and_none_with_random_batches():
    assert largest_mu([PLAIN, {("full", 1.0, 4.0): 1}]) == pytest.approx(0.75, rel=1e-12)
    assert largest_mu([PLAIN, SAMPLED]) is None
    assert largest_mu([{("full", 1.0, 0.0): 1}]) == math.inf


@pytest.mark.parametrize("alpha", [0.001, 0.01, 0.1, 0.5])
def test_guesses_against_gaussian_noise_are_those_of_two_normals(alpha):
    """The power of the likelihood-ratio test, counted out on a fine grid; never below it."""
    x = np.linspace(-12, 12, 2_000_001)
    null, other = (np.exp(-((x - shift) ** 2) / 2) for shift in (0.0, 0.75))
    rejected = 1 - np.cumsum(null) / null.sum() <= alpha
    power = other[rejected].sum() / other.sum()
    found = true_positives([PLAIN], alpha)
    assert found == pytest.approx(power, rel=1e-4)
    assert found >= NormalDist().cdf(NormalDist().inv_cdf(alpha) + 0.75)
    assert found > alpha


@pytest.mark.parametrize("profile", [SAMPLED, POISSON], ids=["fixed", "poisson"])
def test_guesses_on_random_batches_keep_to_every_point_of_the_curve(profile):
    for alpha in (0.01, 0.1):
        found = true_positives([profile], alpha)
        for delta in (1e-7, 1e-4, 1e-2, 0.1):
            epsilon = price(profile, delta)
            assert found <= math.exp(epsilon) * alpha + delta + 2e-3
        assert alpha < found < 1


def test_a_sampled_profile_at_rate_nearly_one_is_nearly_gaussian():
    nearly = {("fixed", 0.999, 4.0): 9}
    whole = {("full", 1.0, 4.0): 9}
    for alpha in (0.01, 0.1):
        assert true_positives([nearly], alpha) == pytest.approx(true_positives([whole], alpha), abs=0.012)
        assert true_positives([nearly], alpha) > true_positives([whole], alpha) - 1e-3


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_group_of_k_costs_k_mu(size):
    epsilon = group_epsilon([PLAIN], 1e-5, size)
    assert gdp_delta(0.75 * size, epsilon) == pytest.approx(1e-5, rel=1e-4)
    assert gdp_delta(0.75 * size, epsilon) <= 1e-5


@pytest.mark.parametrize("size", [2, 5])
def test_a_group_with_random_batches_is_a_chain(size):
    """Some (epsilon', delta') of one unit gives what is stated, and what is stated is not far above twice one unit."""
    total = group_epsilon([SAMPLED], 1e-5, size)
    one = total / size
    inner = 1e-5 * math.expm1(one) / math.expm1(size * one)
    assert price(SAMPLED, inner) <= one * (1 + 1e-6)
    assert size * price(SAMPLED, 1e-5) < total


def test_without_noise_all_is_lost():
    bare = [{("full", 1.0, 0.0): 1}]
    assert group_epsilon(bare, 1e-5, 2) == math.inf
    assert true_positives(bare, 0.01) == 1.0
    assert true_positives([], 0.01) == 0.01
