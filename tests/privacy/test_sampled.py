"""Releases on random batches: closed forms, high precision, independent compositions, tables, and properties."""

import functools
import itertools
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld, rdp
from dp_accounting.pld import pld_pmf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.signal import fftconvolve
from scipy.stats import norm

from diff2.errors import BudgetExceeded, InvalidArgument
from diff2.privacy import renyi
from diff2.privacy import sampled as module
from diff2.privacy.accounting import gdp_delta, gdp_epsilon
from diff2.privacy.renyi import paper_multiplier, renyi_epsilon, renyi_fixed
from diff2.privacy.sampled import fixed_delta, sampled_epsilon

DELTA = 1e-5
RECORDS, ROUNDS = 16510, 2000
ALMOST_ALL = 1 - 1e-9  # composed numerically, and as good as a Gaussian, whose price is known


@pytest.fixture
def only_numerical(monkeypatch):
    """Take away the bound by the price without sampling."""
    module._priced.cache_clear()
    monkeypatch.setattr(module, "gdp_epsilon", lambda mu, delta: 1e9)
    yield
    module._priced.cache_clear()


def smallest(works, low, high):
    """Return the smallest argument that works, to one part in 10^4."""
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if works(middle) else (middle, high)
    return high


def price(rate, multiplier, count, *, mu=0.0, delta=DELTA, sampling="fixed"):
    return sampled_epsilon(mu, {(sampling, rate, multiplier): count}, delta)


def reference_delta(epsilon, multiplier, rate):
    """The printed formula in 80 digits; the subtractions lose nothing."""
    with mpmath.workdps(80):
        e, z, g = mpmath.exp(abs(epsilon)), mpmath.mpf(multiplier), mpmath.mpf(rate)
        t = z * mpmath.log((e - 1 + g) / g) + 1 / (2 * z)
        value = g * mpmath.ncdf(1 / z - t) - (e - 1 + g) * mpmath.ncdf(-t)
        return value if epsilon >= 0 else 1 - 1 / e + value / e


@pytest.mark.parametrize("multiplier", [0.1, 0.7, 3.3, 41.0, 500.0])
@pytest.mark.parametrize("rate", [1e-6, 0.0071, 0.3, 0.99])
def test_the_curve_is_that_of_the_formula_in_eighty_digits(multiplier, rate):
    for epsilon in (-30.0, -1.3, -0.01, -1e-6, 0.0, 1e-6, 1e-3, 0.0371, 0.5, 3.3, 17.0):
        expected = float(reference_delta(epsilon, multiplier, rate))
        assert fixed_delta(epsilon, multiplier, rate) == pytest.approx(expected, rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("epsilon", [-3.1, -0.57, 0.0, 1e-3, 0.0371, 1.9, 7.7])
def test_one_release_at_the_limits(epsilon):
    for multiplier in (0.0, 0.3, 0.9, 1.7, 70.0):
        assert fixed_delta(epsilon, multiplier, 1) == gdp_delta(1 / multiplier if multiplier else math.inf, epsilon)
    free = max(0.0, -math.expm1(epsilon))
    assert fixed_delta(epsilon, math.inf, 0.3) == pytest.approx(free, rel=1e-14)
    assert fixed_delta(epsilon, 1e12, 0.3) == pytest.approx(free, abs=1e-10)
    for multiplier in (0.0, 1e-9):  # without noise, all is known where the record is in the batch
        seen = 0.3 if epsilon >= 0 else 1 - 0.7 * math.exp(epsilon)
        assert fixed_delta(epsilon, multiplier, 0.3) == pytest.approx(seen, rel=1e-14)
    assert fixed_delta(math.inf, 1.0, 0.3) == 0


@pytest.mark.parametrize("epsilon", [-0.7, 0.0, 0.2, 0.9])
def test_no_data_set_exceeds_the_curve_and_one_attains_it(epsilon):
    """All batches of 2 of 4 records in {-1, 0, 1}: the mechanism itself, for every pair of neighbours."""
    multiplier, worst, shifts = 0.8, 0.0, np.array([-1, -0.5, 0, 0.5, 1])  # of the mean, whose sensitivity is 1
    x, step = np.linspace(-12, 12, 40_001, retstep=True)
    density = norm.pdf(x, shifts[:, None], multiplier) * step
    for others in itertools.combinations_with_replacement((-1, 0, 1), 3):
        mixtures = []
        for value in (1, -1):
            means = [sum(batch) / 2 for batch in itertools.combinations((*others, value), 2)]
            mixtures.append(np.array([means.count(shift) for shift in shifts]) / len(means) @ density)
        for first, second in itertools.permutations(mixtures):
            worst = max(worst, np.maximum(0.0, first - math.exp(epsilon) * second).sum())
    assert worst == pytest.approx(fixed_delta(epsilon, multiplier, 0.5), rel=1e-6)


def test_what_costs_nothing_and_what_costs_all():
    assert sampled_epsilon(0.5, {}, DELTA) == price(0.1, math.inf, 100, mu=0.5) == gdp_epsilon(0.5, DELTA)
    for sampling in ("fixed", "poisson"):
        assert price(0.1, math.inf, 100, sampling=sampling) == 0
        assert price(0.1, 0.0, 0, sampling=sampling) == 0
        assert price(0.1, 0.0, 1, sampling=sampling) == math.inf
        assert price(0.1, 2.0, 5, sampling=sampling, delta=0.0) == math.inf
        assert price(0.1, 2.0, 5, sampling=sampling, delta=1.0) == 0
        assert price(1e-7, 0.5, 90, sampling=sampling) == 0  # hardly ever in a batch
        assert price(1.0, 4.0, 4, sampling=sampling) == gdp_epsilon(0.5, DELTA)
    assert price(1.0, 4.0, 4, mu=1.2) == pytest.approx(gdp_epsilon(1.3, DELTA), rel=1e-14)
    assert price(0.1, 2.0, 1, mu=math.inf) == math.inf
    assert 1e4 < price(0.5, 1e-6, 10) <= gdp_epsilon(math.sqrt(10) * 1e6, DELTA)


@pytest.mark.parametrize(("rate", "multiplier"), [(0.002, 0.6), (0.03, 1.0), (0.3, 3.0), (0.97, 5.0)])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_one_release_costs_what_its_curve_says(rate, multiplier, sampling):
    """Removal costs more than addition, so that Poisson sampling has the same curve at positive epsilon."""
    exact = smallest(lambda epsilon: fixed_delta(epsilon, multiplier, rate) <= DELTA, 1e-6, 50.0)
    assert price(rate, multiplier, 1, sampling=sampling) == pytest.approx(exact, rel=3e-4)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8, 1e-10, 1e-12, 1e-13, 1e-20])
@pytest.mark.parametrize(("count", "mu", "other"), [(1, 0.7, 0.0), (30, 2.0, 0.0), (2000, 0.3, 0.4), (100_000, 0.7, 0)])
@pytest.mark.usefixtures("only_numerical")
def test_many_releases_on_almost_all_records_cost_what_gaussians_cost(count, mu, other, delta):
    """Fourier transforms err by about 1e-17 x releases: percents of epsilon at a tiny delta, if not paid for."""
    exact = gdp_epsilon(math.hypot(mu, other), delta)
    found = price(ALMOST_ALL, math.sqrt(count) / mu, count, mu=other, delta=delta)
    assert exact <= found < exact * (1.0003 if delta > count * 1e-12 else 1.25)


def buckets(rate, multiplier, interval, side, rounded_up):
    """Bin the privacy loss of one release, rounded down or up, by differences of distribution functions.

    With Q = N(0, z^2), M = (1 - g) Q + g N(1, z^2) and the loss l = log(M / Q), removal is the pair (M, Q), addition
    (Q, M). Replacement is dominated by the pair that has the losses l > 0 with the mass of M, the losses -l < 0 with
    the mass that Q gives to l > 0, and no loss otherwise: its curve is that of removal for epsilon >= 0, and for
    epsilon < 0 the mirror image, which is that of addition: the larger of the two everywhere.
    """
    half = round(8 / interval)
    edges = np.arange(-half, half + 1) * interval
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.nan_to_num(multiplier**2 * np.log1p(np.expm1(edges) / rate) + 0.5, nan=-np.inf)  # where l = edge
    below_q = norm.cdf(place, 0, multiplier)
    below_m = (1 - rate) * below_q + rate * norm.cdf(place, 1, multiplier)
    removal, addition = np.diff(below_m), np.diff(below_q)[::-1]
    mass = {"remove": removal, "add": addition, "both": np.append(addition[:half], removal[half:])}[side]
    mass = np.append(0.0, mass) if rounded_up else np.append(mass, 0.0)
    mass[half] += 1 - mass.sum() if side == "both" else 0.0
    return mass


def epsilon_of_buckets(side, releases, interval, rounded_up):
    """Compose by repeated convolution, and invert the hockey stick by bisection."""
    mass = np.ones(1)
    for rate, multiplier, count in releases:
        one = buckets(rate, multiplier, interval, side, rounded_up)
        for _ in range(count):
            mass = fftconvolve(mass, one)
            excess = (len(mass) - len(one)) // 2  # losses beyond 8 have no mass that matters here
            mass = mass[excess : len(mass) - excess]
    loss = (np.arange(len(mass)) - len(mass) // 2) * interval
    return smallest(lambda epsilon: mass @ np.maximum(0.0, -np.expm1(epsilon - loss)) <= DELTA, 1e-4, 8.0)


@pytest.mark.parametrize(("sampling", "sides"), [("fixed", ["both"]), ("poisson", ["remove", "add"])])
@pytest.mark.parametrize("releases", [[(0.1, 1.5, 8)], [(0.02, 1.1, 12)], [(0.4, 6.0, 4), (0.05, 1.5, 5)]])
def test_an_independent_composition_brackets_the_price(sampling, sides, releases):
    found = sampled_epsilon(0.0, {(sampling, rate, z): count for rate, z, count in releases}, DELTA)
    low, high = (max(epsilon_of_buckets(side, releases, 2e-4, up) for side in sides) for up in (False, True))
    assert low * (1 - 2e-4) < found < high * (1 + 2e-4) < low + 0.004
    assert found == pytest.approx((low + high) / 2, rel=1e-3)


@pytest.mark.parametrize("side", ["both", "remove", "add"])
def test_the_discrete_curve_is_exact_on_the_grid_and_above_between(side):
    interval, rate, multiplier, x = 0.05, 0.2, 1.1, np.linspace(-14, 15, 60_001)
    without = norm.pdf(x, 0, multiplier)
    mixed = (1 - rate) * without + rate * norm.pdf(x, 1, multiplier)
    pairs = {"remove": [(mixed, without)], "add": [(without, mixed)], "both": [(mixed, without), (without, mixed)]}

    def curve(epsilon):
        return max(np.maximum(0.0, p - math.exp(epsilon) * q).sum() for p, q in pairs[side]) * (x[1] - x[0])

    losses = module._losses(multiplier, rate, side, 2.0, interval)
    for epsilon in interval * np.array([-30, -7, -4, -1, 0, 1, 3, 4, 9, 30]):
        assert losses.get_delta_for_epsilon(epsilon) == pytest.approx(curve(epsilon), abs=1e-7)
        assert losses.get_delta_for_epsilon(epsilon + interval / 2) > curve(epsilon + interval / 2) - 1e-9


def test_a_second_library_composes_to_the_same():
    for rate, multiplier, count in [(0.008, 0.83, 2000), (0.03, 2.1, 300), (0.5, 20.0, 50)]:
        accountant = pld.PLDAccountant()
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier)), count)
        found = price(rate, multiplier, count, sampling="poisson")
        assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=3e-4)
    interval, rate, multiplier, count, mu = 1e-3, 0.05, 1.5, 100, 0.6
    points = np.arange(-3000, 3001)
    deltas = [fixed_delta(point * interval, multiplier, rate) for point in points]
    distribution = pld.privacy_loss_distribution
    one = distribution.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(interval, points, deltas))
    full = distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
    expected = one.self_compose(count).compose(full).get_epsilon_for_delta(DELTA)
    assert price(rate, multiplier, count, mu=mu) == pytest.approx(expected, rel=5e-4)


def test_a_finer_grid_changes_little_and_only_downwards(monkeypatch):
    cases = [("fixed", 0.03, 5.5, 2000, 0), ("fixed", 0.03, 1.5, 2000, 0.5), ("fixed", 0.03, 60.0, 50_000, 0)]
    cases += [("fixed", 2.3e-5, 0.6, 1, 1e-4), ("poisson", 0.008, 0.83, 2000, 0), ("poisson", 1e-3, 20.0, 20_000, 0)]
    found = [sampled_epsilon(mu, {(kind, rate, z): count}, DELTA) for kind, rate, z, count, mu in cases]
    module._priced.cache_clear()
    monkeypatch.setattr(module, "_GRID", module._GRID / 4)
    finer = [sampled_epsilon(mu, {(kind, rate, z): count}, DELTA) for kind, rate, z, count, mu in cases]
    module._priced.cache_clear()
    assert all(fine * (1 - 1e-6) < coarse < fine * (1 + 2e-4) for coarse, fine in zip(found, finer, strict=True))


def test_releases_add_up_and_are_priced_once():
    together, hits = price(0.05, 2.0, 60, mu=0.5), module._priced.cache_info().hits
    assert price(0.05, 2.0, 60, mu=0.5) == together
    assert module._priced.cache_info().hits == hits + 1
    apart = {("fixed", 0.05, 2.0): 25, ("fixed", 0.05, 2.0 * (1 + 1e-12)): 35, ("fixed", 1.0, 4.0): 4}
    assert sampled_epsilon(0.0, apart, DELTA) == pytest.approx(together, rel=1e-5)


@settings(max_examples=8, deadline=None)
@given(st.booleans(), st.floats(1e-3, 0.95), st.floats(0.6, 30.0), st.integers(1, 3000), st.sampled_from([0, 0.1, 1.0]))
def test_more_noise_fewer_records_fewer_releases_and_a_larger_delta_cost_less(fixed, rate, multiplier, count, mu):
    sampling, mu = ("fixed", mu) if fixed else ("poisson", 0.0)
    cost = functools.partial(price, mu=mu, sampling=sampling)
    base = cost(rate, multiplier, count)
    assume(base < 500)  # above, where exp(-epsilon) is no number any more, bounds are rough
    slack = base * (1 + 5e-4) + 1e-5
    assert cost(rate, 1.1 * multiplier, count) <= slack
    assert cost(0.9 * rate, multiplier, count) <= slack
    assert cost(rate, multiplier, max(0, count - count // 9 - 1)) <= slack
    assert cost(rate, multiplier, count, delta=1.1 * DELTA) <= slack
    assert gdp_epsilon(mu, DELTA) <= base <= gdp_epsilon(math.hypot(mu, count**0.5 / multiplier), DELTA)
    assert base <= renyi_epsilon(mu, {(sampling, rate, multiplier): count}, DELTA) * (1 + 2e-4)


def reference_renyi(order, multiplier, rate):
    """Theorem 9 as the paper prints it, and the sum for Poisson samples, with 50 digits and numbers of any size."""
    with mpmath.workdps(50):
        z, g = mpmath.mpf(multiplier), mpmath.mpf(rate)
        growth = [mpmath.exp(j * (j - 1) / (2 * z**2)) for j in range(order + 1)]
        chosen = [mpmath.binomial(order, j) * g**j for j in range(order + 1)]
        fixed = 1 + chosen[2] * min(4 * (growth[2] - 1), 2 * growth[2])
        fixed += 2 * sum(chosen[j] * growth[j] for j in range(3, order + 1))
        poisson = sum(chosen[j] * (1 - g) ** (order - j) * growth[j] for j in range(order + 1))
        return [float(mpmath.log(value) / (order - 1)) for value in (fixed, poisson)]


@pytest.mark.parametrize("order", [2, 3, 9, 25, 256])
@pytest.mark.parametrize("rate", [1e-5, 0.03, 0.9, 1.0])
def test_renyi_curves_are_those_of_the_formulas_in_fifty_digits(order, rate):
    for multiplier in (0.05, 0.4, 1.0, 1.3, 7.0, 1e3):  # of the two in the minimum, both are the smaller somewhere
        found = renyi_fixed(order, multiplier, rate), renyi.renyi_poisson(order, multiplier, rate)
        assert found == pytest.approx(reference_renyi(order, multiplier, rate), rel=1e-10, abs=0)
    total = math.fsum(2 * math.comb(order, j) * rate**j for j in range(3, order + 1))  # nothing for order 2
    assert renyi.renyi_floor(order, rate) == pytest.approx(math.log1p(total) / (order - 1), rel=1e-12, abs=0)
    assert renyi_fixed(order, 0.0, rate) == renyi.renyi_poisson(order, 0.0, rate) == math.inf


def test_renyi_of_a_gaussian_is_that_of_a_second_library():
    accountant = rdp.RdpAccountant(orders=list(range(2, 257)))
    accountant.compose(dp_accounting.GaussianDpEvent(1 / 0.7))
    for found in (renyi_epsilon(0.7, {}, DELTA), renyi_epsilon(0.0, {("fixed", 1.0, 1 / 0.7): 1}, DELTA)):
        assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)
    assert renyi_epsilon(0.0, {("fixed", 0.1, math.inf): 9}, 0.0) == 0
    assert renyi_epsilon(0.7, {}, 0.0) == math.inf


# Noise deviation of the mean of a batch in units of C/b: Theorem 9, Theorem 27, exact; then Poisson samples.
TABLE = [
    (128, 1.0, 6.46, 5.87, 3.40, 1.50),
    (128, 3.0, 2.51, 2.51, 1.80, 0.828),
    (512, 1.0, None, 22.8, 11.1, 5.26),
    (512, 3.0, 11.5, 8.52, 4.64, 2.08),
    (2048, 1.0, None, 90.8, 42.1, 20.7),
    (2048, 3.0, None, 33.6, 16.1, 7.78),
]


@pytest.mark.parametrize(("batch", "epsilon", "theorem_9", "replace", "fixed", "poisson"), TABLE)
def test_noise_is_that_of_the_table(batch, epsilon, theorem_9, replace, fixed, poisson):
    rate = batch / RECORDS

    def agrees(printed, unit, cost):
        """Whether the smallest noise of this cost is the printed one, to three digits."""
        digit = 0.6 * 10.0 ** (math.floor(math.log10(printed)) - 2)
        return cost((printed + digit) / unit) <= epsilon < cost((printed - digit) / unit)

    assert agrees(fixed, 2, lambda z: price(rate, z, ROUNDS))
    assert agrees(poisson, 1, lambda z: price(rate, z, ROUNDS, sampling="poisson"))
    if theorem_9 is None:
        for a in range(2, 257):
            assert ROUNDS * renyi.renyi_floor(a, rate) - math.log(DELTA * a) / (a - 1) + math.log1p(-1 / a) > epsilon
    else:
        assert agrees(theorem_9, 2, lambda z: renyi_epsilon(0.0, {("fixed", rate, z): ROUNDS}, DELTA))
    # Of this accountant, only the sampled event is for replacement in our sense.
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.GaussianDpEvent(replace / 2)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(RECORDS, batch, event), ROUNDS)
    assert price(rate, replace / 2, ROUNDS) < accountant.get_epsilon(DELTA) == pytest.approx(epsilon, rel=0.01)


@pytest.mark.parametrize(("epsilon", "batch", "true"), [(1.0, 1, 0.58), (3.0, 13, 1.91), (5.0, 26, 3.21)])
def test_the_papers_noise_for_bvr_costs_less_than_it_says(epsilon, batch, true):
    """n_min = 1651, P = 10, R = 2000, u_1 = u_2 = 3, and the closed form of sigma_3."""
    order = 1 + math.ceil(2 * math.log(1 / DELTA) / epsilon)
    for steps in (5, 10, 50):
        least = 8 / 3 * (4 + math.e) * order**2 / (order - 1) * 6 * steps * 200 / (1651**2 * epsilon)
        multiplier, mu = math.sqrt(max(least, 6 * order / batch**2)) * batch / 2, math.sqrt(2 / 3 * epsilon / order)
        assert price(batch / 1651, multiplier, (steps - 1) * 200, mu=mu) == pytest.approx(true, rel=0.012)
        assert steps * 200 * renyi_fixed(order, multiplier, batch / 1651) <= epsilon / 6


def test_the_papers_multiplier_is_the_smallest_if_there_is_one():
    rate = 512 / RECORDS
    floor = ROUNDS * renyi.renyi_floor(25, rate)
    cases = [(2000, 0.0077, 25, 0.5), (1, 0.5, 2, 1e-6), (9, 1.0, 3, 40.0), (ROUNDS, rate, 25, 1.001 * floor)]
    for count, share, order, allowance in cases:
        found = paper_multiplier(count, share, order, allowance)
        assert count * renyi_fixed(order, found, share) <= allowance
        assert count * renyi_fixed(order, found * (1 - 1e-12), share) > allowance
    for allowance in (0.5, floor):  # what epsilon = 1 leaves is below the floor
        with pytest.raises(BudgetExceeded, match=r"no noise level reaches this epsilon.*exact.*batch_size.*fewer"):
            paper_multiplier(ROUNDS, rate, 25, allowance)


WRONG = [
    (lambda: price(0.1, 2.0, 1, mu=-1.0), "expected mu >= 0, got mu=-1.0"),
    (lambda: price(0.1, 2.0, 1, delta=1.5), "expected 0 <= delta <= 1, got delta=1.5"),
    (lambda: price(0.1, -2.0, 1), "expected multiplier >= 0, got multiplier=-2.0"),
    (lambda: price(0.1, math.nan, 1), "expected multiplier >= 0"),
    (lambda: price(0.0, 2.0, 1), "expected 0 < rate <= 1"),
    (lambda: price(0.1, 2.0, -1), "expected count >= 0, got count=-1"),
    (lambda: price(0.1, 2.0, 1.5), "expected count to be a whole number"),
    (lambda: price(0.1, 2.0, 1, sampling="poison"), "did you mean 'poisson'"),
    (lambda: price(0.1, 2.0, 1, mu=0.1, sampling="poisson"), "one adjacency.*mu=0.1"),
    (lambda: sampled_epsilon(0.0, {("fixed", 0.1, 2.0): 1, ("poisson", 0.1, 2.0): 1}, 0.1), "batches of fixed"),
    (lambda: fixed_delta(0.1, 2.0, 1.1), "expected 0 < rate <= 1"),
    (lambda: renyi_fixed(1, 2.0, 0.1), "expected order >= 2"),
    (lambda: renyi_fixed(2.5, 2.0, 0.1), "expected order to be a whole number"),
    (lambda: paper_multiplier(0, 0.1, 2, 1.0), "expected count >= 1"),
    (lambda: paper_multiplier(1, 0.1, 2, 0.0), "expected allowance > 0"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_a_wrong_argument_is_named(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()
