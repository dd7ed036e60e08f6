"""What releases cost: check values, an independent high-precision formula, a second library, and properties."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
import torch
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

import diff2
from diff2.privacy import BoundedMean, Kind, Mechanism, NoiseSource, calibrate, epsilon_of
from diff2.privacy.accounting import epsilon_path, gdp_delta, gdp_epsilon, gdp_mu, total_mu
from diff2.privacy.calibration import paper_order
from helpers import in_memory_ledger

DELTA = 1e-5
ROUTINE = diff2.GradientDescent(learning_rate=0.1)


def noise_plan(epsilon, restart_interval, accounting="exact", *, rounds=2000, sizes=(16512,), delta=DELTA, **options):
    algorithm = diff2.Diff2(rounds, restart_interval, 3.0, 10.0, ROUTINE, **options)
    return diff2.plan(algorithm, diff2.Budget(epsilon, delta), sizes, accounting=accounting)


def reference_delta(mu, epsilon):
    """Balle & Wang's formula in 80 digits: the subtraction loses nothing."""
    with mpmath.workdps(80):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        upper = mpmath.ncdf(mu / 2 - epsilon / mu)
        return upper - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("restart_interval", "accounting", "sigma_1", "sigma_2"),
    [
        (20, "paper", 0.002345556775, 0.02044808989),
        (20, "exact", 0.001883152555, 0.01641694336),
        (1, "paper", 0.009382227098, None),
        (1, "exact", 0.007532610218, None),
    ],
)
def test_check_values_hold_to_nine_digits(restart_interval, accounting, sigma_1, sigma_2):
    plan = noise_plan(3.0, restart_interval, accounting)
    assert plan.sigma_1 == pytest.approx(sigma_1, rel=5e-10)
    assert plan.sigma_2 == (None if sigma_2 is None else pytest.approx(sigma_2, rel=5e-10))
    assert plan.sigma_3 is None
    assert len(plan.releases) == 2000


# epsilon, T, restarts, then sigma_1 and sigma_2 of the paper's closed form and of exact accounting; five digits.
TABLE = [
    (0.5, 1, 2000, 5.3074e-2, None, 3.8090e-2, None),
    (0.5, 6, 334, 2.4249e-2, 1.0832e-1, 1.7403e-2, 7.7736e-2),
    (0.5, 20, 100, 1.3268e-2, 1.1567e-1, 9.5226e-3, 8.3016e-2),
    (0.5, 60, 34, 7.7368e-3, 1.1766e-1, 5.5526e-3, 8.4445e-2),
    (0.5, 200, 10, 4.1959e-3, 1.1838e-1, 3.0113e-3, 8.4959e-2),
    (1, 1, 2000, 2.7084e-2, None, 2.0208e-2, None),
    (1, 6, 334, 1.2375e-2, 5.5274e-2, 9.2330e-3, 4.1242e-2),
    (1, 20, 100, 6.7710e-3, 5.9029e-2, 5.0521e-3, 4.4043e-2),
    (1, 60, 34, 3.9482e-3, 6.0045e-2, 2.9458e-3, 4.4801e-2),
    (1, 200, 10, 2.1412e-3, 6.0410e-2, 1.5976e-3, 4.5074e-2),
    (3, 1, 2000, 9.3822e-3, None, 7.5326e-3, None),
    (3, 6, 334, 4.2867e-3, 1.9148e-2, 3.4416e-3, 1.5373e-2),
    (3, 20, 100, 2.3456e-3, 2.0448e-2, 1.8832e-3, 1.6417e-2),
    (3, 60, 34, 1.3677e-3, 2.0800e-2, 1.0981e-3, 1.6700e-2),
    (3, 200, 10, 7.4173e-4, 2.0927e-2, 5.9551e-4, 1.6801e-2),
    (5, 1, 2000, 5.9338e-3, None, 4.8311e-3, None),
    (5, 6, 334, 2.7111e-3, 1.2110e-2, 2.2073e-3, 9.8595e-3),
    (5, 20, 100, 1.4835e-3, 1.2933e-2, 1.2078e-3, 1.0529e-2),
    (5, 60, 34, 8.6500e-4, 1.3155e-2, 7.0425e-4, 1.0710e-2),
    (5, 200, 10, 4.6911e-4, 1.3235e-2, 3.8193e-4, 1.0776e-2),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"epsilon={row[0]},T={row[1]}")
def test_noise_of_both_accountings_is_that_of_the_table(row):
    epsilon, restart_interval, restarts, *sigmas = row
    plans = [noise_plan(float(epsilon), restart_interval, accounting) for accounting in ("paper", "exact")]
    for plan, (sigma_1, sigma_2) in zip(plans, (sigmas[:2], sigmas[2:]), strict=True):
        assert plan.sigma_1 == pytest.approx(sigma_1, rel=5e-5)
        assert plan.sigma_2 == (None if sigma_2 is None else pytest.approx(sigma_2, rel=5e-5))
        assert sum(release.purpose == "gradient" for release in plan.releases) == restarts
        assert plan.epsilon <= epsilon


@pytest.mark.parametrize(
    ("epsilon", "order", "mu_paper", "mu_exact", "ratio", "true_epsilon"),
    [
        (0.5, 48, 0.10206, 0.14221, 1.3934, 0.348),
        (1.0, 25, 0.20000, 0.26805, 1.3403, 0.726),
        (3.0, 9, 0.57735, 0.71912, 1.2455, 2.341),
        (5.0, 6, 0.91287, 1.12124, 1.2283, 3.940),
    ],
)
@pytest.mark.parametrize("restart_interval", [1, 7, 20])
def test_the_papers_noise_is_larger_by_one_ratio_per_epsilon(
    epsilon, order, mu_paper, mu_exact, ratio, true_epsilon, restart_interval
):
    paper, exact = (noise_plan(epsilon, restart_interval, accounting) for accounting in ("paper", "exact"))
    assert paper_order(paper.budget) == order
    assert total_mu(release.multiplier for release in paper.releases) == pytest.approx(mu_paper, abs=6e-6)
    assert total_mu(release.multiplier for release in exact.releases) == pytest.approx(mu_exact, abs=6e-6)
    for purpose in exact.multipliers:
        assert paper.multipliers[purpose] / exact.multipliers[purpose] == pytest.approx(ratio, abs=6e-5)
    assert paper.epsilon == pytest.approx(true_epsilon, abs=6e-4)
    assert exact.epsilon == pytest.approx(epsilon, rel=1e-12)


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


@pytest.mark.parametrize(
    ("epsilon", "rounds", "restart_interval", "accounting"),
    [(3.0, 60, 10, "exact"), (3.0, 60, 10, "paper"), (1.0, 2000, 20, "exact"), (0.5, 45, 7, "exact")],
)
def test_epsilon_agrees_with_numerical_composition(epsilon, rounds, restart_interval, accounting):
    plan = noise_plan(epsilon, restart_interval, accounting, rounds=rounds)
    composed = None
    for purpose, z in plan.multipliers.items():
        one = pld.privacy_loss_distribution.from_gaussian_mechanism(z, value_discretization_interval=1e-4)
        group = one.self_compose(sum(release.purpose == purpose for release in plan.releases))
        composed = group if composed is None else composed.compose(group)
    assert plan.epsilon == pytest.approx(composed.get_epsilon_for_delta(DELTA), rel=1e-3)


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


@settings(max_examples=40, deadline=None)
@given(
    rounds=st.integers(1, 120),
    restart_interval=st.integers(1, 150),
    budget_split=st.floats(1.001, 50),
    epsilon=st.floats(0.01, 40),
    exponent=st.floats(-12, -6),
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=5),
    accounting=st.sampled_from(["exact", "paper"]),
)
def test_the_ledger_never_shows_more_than_the_budget(
    rounds, restart_interval, budget_split, epsilon, exponent, sizes, accounting
):
    delta = 10**exponent
    plan = noise_plan(
        epsilon, restart_interval, accounting, rounds=rounds, sizes=sizes, delta=delta, budget_split=budget_split
    )
    ledger = in_memory_ledger(delta=delta)
    mechanism = Mechanism(ledger, NoiseSource.from_seed(0))
    for release in plan.releases:
        mean = BoundedMean(torch.zeros(1, dtype=torch.float64), sensitivity=0.1 / release.round, clip=1.0)
        mechanism.gaussian(mean, release.multiplier, round=release.round, purpose=release.purpose)
    assert len(ledger) == rounds
    assert ledger.epsilon() <= epsilon
    assert ledger.epsilon() == plan.epsilon
    if accounting == "exact":
        assert ledger.epsilon() >= epsilon * (1 - 1e-9)  # and nothing of the budget is wasted


SHARES = {"gradient": 0.8, "difference": 0.2}


def test_shares_divide_the_budget_as_stated():
    z = calibrate([{Kind("gradient"): 7, Kind("difference"): 93}], SHARES, diff2.Budget(2.0, DELTA))
    total = total_mu([z["gradient"]] * 7 + [z["difference"]] * 93) ** 2
    assert 7 / z["gradient"] ** 2 == pytest.approx(0.8 * total)
    assert 93 / z["difference"] ** 2 == pytest.approx(0.2 * total)


def test_a_purpose_without_releases_leaves_its_share_to_the_others():
    alone = calibrate([{Kind("gradient"): 7}], {"gradient": 1.0}, diff2.Budget(2.0, DELTA))
    assert calibrate([{Kind("gradient"): 7}], SHARES, diff2.Budget(2.0, DELTA)) == alone


def test_an_infinite_budget_asks_for_no_noise():
    plan = noise_plan(math.inf, 20)
    assert plan.sigma_1 == plan.sigma_2 == 0.0
    assert plan.epsilon == math.inf


def test_restarts_are_counted_also_where_t_does_not_divide_r():
    purposes = [release.purpose for release in noise_plan(1.0, 4, rounds=10).releases]
    assert [r for r, purpose in enumerate(purposes, start=1) if purpose == "gradient"] == [1, 5, 9]


def test_the_epsilon_shown_after_each_round_is_never_below_the_true_one():
    multipliers = [15.5 if r % 20 == 0 else 135.5 for r in range(300)]
    path = epsilon_path(multipliers, DELTA)
    exact = np.array([epsilon_of(multipliers[: r + 1], DELTA) for r in range(0, 300, 13)])
    assert (path[::13] >= exact * (1 - 1e-9)).all()
    assert path[::13] == pytest.approx(exact, rel=0.05, abs=0.01)
    assert path[-1] == pytest.approx(epsilon_of(multipliers, DELTA), rel=1e-12)
