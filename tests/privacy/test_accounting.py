"""What full releases cost: an independent high-precision formula, a second library, and properties."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2.privacy import Budget, Release, calibrate, epsilon_of
from diff2.privacy.accounting import epsilon_path, gdp_delta, gdp_epsilon, gdp_mu, total_mu
from diff2.privacy.calibration import CLOSE, MOST_GUESSES, _solve

DELTA = 1e-5


def reference_delta(mu, epsilon):
    """Balle & Wang's formula in 80 digits: the subtraction loses nothing."""
    with mpmath.workdps(80):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        upper = mpmath.ncdf(mu / 2 - epsilon / mu)
        return upper - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def test_mu_of_a_known_budget():
    assert gdp_mu(1.0, 1e-5) == pytest.approx(0.268051, abs=5e-7)
    assert 1 / gdp_mu(1.0, 1e-5) == pytest.approx(3.7306, abs=5e-5)


@pytest.mark.parametrize("mu", [1e-4, 1e-3, 0.0123, 0.268051, 1.0, 2.7, 13.0, 60.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 1e-3, 0.0371, 0.5, 1.0, 3.3, 17.0, 250.0])
def test_delta_is_that_of_the_formula_in_eighty_digits(mu, epsilon):
    expected = reference_delta(mu, epsilon)
    if expected < 1e-290:  # below what a double can hold with all its digits
        assert gdp_delta(mu, epsilon) < 1e-280
    else:
        # log(Phi) is a sum of up to 650 in a double, and the difference of two of them is of the order of mu.
        assert gdp_delta(mu, epsilon) == pytest.approx(float(expected), rel=1e-12 / min(mu, 1.0))


def test_delta_in_the_corners():
    assert gdp_delta(0.0, 1.0) == 0.0
    assert gdp_delta(math.inf, 1.0) == 1.0
    assert gdp_epsilon(0.0, DELTA) == 0.0
    assert gdp_epsilon(math.inf, DELTA) == math.inf
    assert gdp_epsilon(1e-9, DELTA) == 0.0  # even at epsilon = 0 its delta is below 1e-5
    assert gdp_mu(math.inf, DELTA) == math.inf


@pytest.mark.parametrize("delta", [0.0, -1e-5])
def test_no_finite_epsilon_without_a_delta(delta):
    assert gdp_epsilon(1.0, delta) == math.inf


def test_composition_in_the_corners():
    assert total_mu([]) == 0.0
    assert total_mu([math.inf]) == 0.0  # an identically zero release is free
    assert total_mu([1.0, 0.0]) == math.inf  # one release without noise spoils everything
    assert total_mu([3.0, math.inf, 4.0]) == pytest.approx(5 / 12)


@pytest.mark.parametrize("z", [0.7, 3.7306, 15.5473])
def test_one_gaussian_release_agrees_with_another_librarys_calibration(z):
    other = dp_accounting.gaussian_mechanism.get_epsilon_gaussian(z, DELTA)
    assert epsilon_of([z], DELTA) == pytest.approx(other, rel=1e-6)


def test_a_renyi_accountant_told_replace_one_is_not_to_be_trusted():
    """A multiplier is one of add/remove sensitivity there; the RDP accountant of dp-accounting forgets to double it."""
    steps = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 10)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    by_rdp = rdp.RdpAccountant(neighboring_relation=relation).compose(steps).get_epsilon(DELTA)
    by_pld = pld.PLDAccountant(neighboring_relation=relation).compose(steps).get_epsilon(DELTA)
    assert by_rdp == pytest.approx(8.08, abs=0.01)
    assert by_pld == pytest.approx(17.86, abs=0.01)
    # Replace-one sensitivity is twice the add/remove one, so the same noise has half the multiplier.
    assert epsilon_of([1.0] * 10, DELTA) == pytest.approx(by_pld, rel=1e-3)
    # Our multiplier is against the replace-one sensitivity itself: then the default relation is the one to use.
    default = pld.PLDAccountant().compose(steps).get_epsilon(DELTA)
    assert epsilon_of([2.0] * 10, DELTA) == pytest.approx(default, rel=1e-3)
    assert epsilon_of([2.0] * 10, DELTA) < by_rdp


exponents = st.floats(-12, -2)
mus = st.floats(1e-3, 30)


@settings(max_examples=60, deadline=None)
@given(mu=mus, factor=st.floats(1.01, 3), exponent=exponents)
def test_epsilon_grows_with_mu_and_falls_with_delta(mu, factor, exponent):
    delta = 10**exponent
    here = gdp_epsilon(mu, delta)
    assert gdp_epsilon(mu * factor, delta) >= here
    assert gdp_epsilon(mu, delta / factor) >= here
    if here > 0:
        assert gdp_epsilon(mu * factor, delta) > here
        assert gdp_epsilon(mu, delta / factor) > here


@settings(max_examples=40, deadline=None)
@given(mu=mus, epsilon=st.floats(1e-3, 50), exponent=exponents)
def test_conversions_round_to_the_safe_side(mu, epsilon, exponent):
    delta = 10**exponent
    tolerance = 1e-12 / min(mu, gdp_mu(epsilon, delta), 1.0)  # what double precision knows of delta
    assert reference_delta(mu, gdp_epsilon(mu, delta)) <= delta * (1 + tolerance)
    assert reference_delta(gdp_mu(epsilon, delta), epsilon) <= delta * (1 + tolerance)
    # Neither gives away more than rounding.
    assert reference_delta(gdp_mu(epsilon, delta) * (1 + 1e-9), epsilon) > delta * (1 - tolerance)
    assert gdp_epsilon(gdp_mu(epsilon, delta), delta) <= epsilon * (1 + tolerance)


SHARES = {"gradient": 0.8, "difference": 0.2}
GRADIENTS = [Release(r, "gradient") for r in range(7)]
DIFFERENCES = [Release(r, "difference") for r in range(93)]


def test_shares_divide_the_budget_as_stated():
    z = calibrate(GRADIENTS + DIFFERENCES, SHARES, Budget(2.0, DELTA))
    total = total_mu([z["gradient"]] * 7 + [z["difference"]] * 93) ** 2
    assert 7 / z["gradient"] ** 2 == pytest.approx(0.8 * total)
    assert 93 / z["difference"] ** 2 == pytest.approx(0.2 * total)


def test_a_purpose_without_releases_leaves_its_share_to_the_others():
    alone = calibrate(GRADIENTS, {"gradient": 1.0}, Budget(2.0, DELTA))
    assert calibrate(GRADIENTS, SHARES, Budget(2.0, DELTA)) == alone


def test_the_epsilon_shown_after_each_round_is_never_below_the_true_one():
    multipliers = [15.5 if r % 20 == 0 else 135.5 for r in range(300)]
    path = epsilon_path(multipliers, DELTA)
    exact = np.array([epsilon_of(multipliers[: r + 1], DELTA) for r in range(0, 300, 13)])
    assert (path[::13] >= exact * (1 - 1e-9)).all()
    assert path[::13] == pytest.approx(exact, rel=0.05, abs=0.01)
    assert path[-1] == pytest.approx(epsilon_of(multipliers, DELTA), rel=1e-12)


@pytest.mark.parametrize("power", [0.5, 1.9, 1.99, 1.999])
def test_noise_is_found_after_few_prices(power):
    """DP-SRM, 4 rounds with 12 of 72 records, was priced 3,098 times, which took 41 s of processor time."""
    prices = []

    def cost(multiplier):
        prices.append(multiplier**-power)
        return prices[-1]

    assert 2.7 * (1 - CLOSE) <= cost(_solve(cost, 2.7, CLOSE)) <= 2.7
    assert len(prices) < MOST_GUESSES + 30
