"""The planner against the closed forms it stands on, against a simulation, and at its limits."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diff2 import Budget, Diff2, GradientDescent, InvalidArgument, Protection, plan
from diff2.planning.prediction import best_interval, best_share, cycle_growth, predict_noise, relative_error

# rho, then the noise of DIFF2 in units of DP-GD's in a long run: T = 6, 20, 60, 200 at u = 1.25; the best T at u = 1.25
# and its noise; the best T and share of restarts, and their noise.
TABLE = [
    (0.3, (1.15, 4.12, 13.1, 44.6), (3, 0.717), (4, 0.61, 0.669)),
    (0.1, (0.313, 0.514, 1.47, 4.96), (7, 0.307), (13, 0.54, 0.263)),
    (0.03, (0.218, 0.103, 0.151, 0.452), (24, 0.102), (46, 0.51, 0.083)),
    (0.01, (0.209, 0.067, 0.035, 0.056), (71, 0.0349), (142, 0.50, 0.0281)),
    (0.003, (0.208, 0.063, 0.022, 0.0107), (237, 0.0106), (470, 0.50, 0.0085)),
]
ROUTINE = GradientDescent(learning_rate=0.1)
BUDGET = Budget(epsilon=1.0, delta=1e-5)


def rounds_to(value: float, printed: float) -> bool:
    """Whether a value, rounded to as many digits as were printed, is the printed one."""
    digits = len(f"{printed:g}".rstrip("0").split(".")[-1])
    return abs(value - printed) <= 0.51 * 10.0**-digits


@pytest.mark.parametrize(("rho", "fixed", "interval", "both"), TABLE)
def test_long_run_table(rho, fixed, interval, both):
    for T, printed in zip((6, 20, 60, 200), fixed, strict=True):
        assert rounds_to(relative_error(T, 1 / 1.25, rho), printed), T
    T, share, error = best_interval(rho, share=0.8)
    assert share == pytest.approx(0.8)
    assert abs(T - interval[0]) <= 0.02 * interval[0]  # flat around the best T; the printed ones are 1 % off
    assert rounds_to(error, interval[1])
    assert error <= relative_error(interval[0], 0.8, rho)
    T, share, error = best_interval(rho)
    assert abs(T - both[0]) <= 0.02 * both[0]
    assert rounds_to(share, both[1])
    assert rounds_to(error, both[2])
    assert error <= relative_error(both[0], best_share(both[0], rho), rho)


@pytest.mark.parametrize("rho", [0.3, 0.1, 0.03, 0.01, 0.003])
def test_best_interval_is_where_the_derivative_vanishes(rho):
    """With the best share that is at sqrt(2)/rho - 1, with the share w at sqrt(1 + 2(1-w)/(w rho^2))."""
    assert abs(best_interval(rho)[0] - (math.sqrt(2) / rho - 1)) < 1
    assert abs(best_interval(rho, share=0.8)[0] - math.sqrt(1 + 0.5 / rho**2)) < 1


def test_asymptotically_the_noise_is_proportional_to_rho():
    assert best_interval(1e-4, share=0.8)[2] / 1e-4 == pytest.approx(3.54, abs=0.01)
    assert best_interval(1e-4)[2] / 1e-4 == pytest.approx(2.83, abs=0.01)


def test_interval_one_is_dpgd():
    assert relative_error(1, 0.8, rho=0.5) == relative_error(1, 0.8, rho=0.5, rounds=7) == 1.0
    assert best_interval(1.9, rounds=50)[0] == 1


@given(
    T=st.integers(1, 40), rounds=st.integers(1, 120), rho=st.floats(0.001, 2.0), share=st.floats(0.05, 0.95),
    early=st.booleans(),
)  # fmt: skip
def test_finite_run_is_the_mean_over_its_rounds(T, rounds, rho, share, early):
    places, restart, length = [], 1, 0  # of rounds in their cycles
    while restart <= rounds:
        length = min(T, 3 * restart) if early else T
        places += range(length)
        restart += length
    places = np.array(places[:rounds])
    restarts, differences = np.sum(places == 0), np.sum(places > 0)
    if differences == 0:
        assert relative_error(T, share, rho, rounds, early=early) == 1.0
        return
    expected = (restarts / share + differences * rho**2 / (1 - share) * np.mean(places)) / rounds
    assert relative_error(T, share, rho, rounds, early=early) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("accounting", ["exact", "paper"])
def test_early_restarts_are_in_the_prediction_as_in_the_plan(accounting):
    algorithm, protection = Diff2(400, 40, 3.0, 10.0, ROUTINE, early_restarts=True), Protection(accounting=accounting)
    noise = plan(algorithm, BUDGET, [900], protection)
    view = predict_noise(algorithm, BUDGET, [900], protection, step_length=0.02)
    summed = (3 * 2 / 2 + 12 * 11 / 2 + 9 * 40 * 39 / 2 + 25 * 24 / 2) / 400  # cycles of 3, 12, nine times 40, and 25
    formula = (3.0 * noise.sigma_1) ** 2 + (10.0 * 0.02 * noise.sigma_2) ** 2 * summed
    assert view.given.error == pytest.approx(formula, rel=1e-9)


@given(T=st.integers(2, 60), rounds=st.integers(61, 400), rho=st.floats(0.001, 2.0), other=st.floats(0.01, 0.99))
def test_best_share_is_the_best(T, rounds, rho, other):
    best = relative_error(T, best_share(T, rho, rounds), rho, rounds)
    assert best <= relative_error(T, other, rho, rounds) * (1 + 1e-12)


@pytest.mark.parametrize("accounting", ["exact", "paper"])
@pytest.mark.parametrize("weighting", ["clients", "records"])
def test_error_is_the_formula_with_the_sigmas_of_the_plan(accounting, weighting):
    algorithm = Diff2(400, 20, 3.0, 10.0, ROUTINE)
    sizes, d, step = [900, 1200], 51, 0.02
    protection = Protection(weighting=weighting, accounting=accounting)
    noise = plan(algorithm, BUDGET, sizes, protection)
    view = predict_noise(algorithm, BUDGET, sizes, protection, step_length=step, dimension=d)
    formula = d * ((3.0 * noise.sigma_1) ** 2 + (10.0 * step * noise.sigma_2) ** 2 * (20 - 1) / 2)
    assert view.given.error == pytest.approx(formula, rel=1e-9)
    assert view.dpgd.error * view.given.relative_error == pytest.approx(view.given.error)
    assert view.best.error <= view.best_interval.error <= view.given.error


def test_error_is_the_noise_that_accumulates():
    """Reference: simulate the estimator's noise over cycles; a formula 5 % off is told apart."""
    generator = np.random.default_rng(7)
    T, rounds, rho, share = 8, 40_000, 0.2, 0.7
    restarts, differences = rounds / T, rounds - rounds / T
    first = generator.normal(scale=math.sqrt(restarts / share / rounds), size=(rounds // T, 1, 40))
    rest = generator.normal(scale=rho * math.sqrt(differences / (1 - share) / rounds), size=(rounds // T, T - 1, 40))
    measured = np.mean(np.cumsum(np.concatenate([first, rest], axis=1), axis=1) ** 2)
    assert measured == pytest.approx(relative_error(T, share, rho, rounds), rel=0.02)


def test_radius_is_capped_as_the_algorithm_caps_it():
    capped = predict_noise(Diff2(100, 5, 1.0, 10.0, ROUTINE), BUDGET, [500], step_length=3.0)
    free = predict_noise(Diff2(100, 5, 1.0, 10.0, ROUTINE, cap=False), BUDGET, [500], step_length=3.0)
    assert (capped.rho, free.rho) == (2.0, 30.0)


def test_cycle_growth_is_that_of_noise_fed_back():
    """Reference: feed the noise back, in simulation; a gain 5 % off is told apart."""
    generator = np.random.default_rng(3)
    rate, smoothness, sigma, d, T = 0.25, 3.0, 0.18, 51, 8
    algorithm = Diff2(400, T, 1.0, smoothness, GradientDescent(rate))
    estimate = np.zeros((10_000, d))
    estimate[:, 0] = 1.0
    for _ in range(T - 1):
        step = rate * np.linalg.norm(estimate, axis=1, keepdims=True)
        estimate = estimate + generator.normal(size=estimate.shape) * smoothness * sigma * step
    measured = math.sqrt(np.mean(np.sum(estimate**2, axis=1)))
    assert measured == pytest.approx(cycle_growth(algorithm, sigma, d), rel=0.02)
    assert measured != pytest.approx(cycle_growth(algorithm, 1.05 * sigma, d), rel=0.02)
    assert cycle_growth(Diff2(400, 1, 1.0, 3.0, ROUTINE), sigma, d) == 1.0


def test_without_noise_there_is_no_error():
    view = predict_noise(Diff2(100, 5, 1.0, 1.0, ROUTINE), Budget(math.inf, 1e-5), [500], step_length=0.1)
    assert view.given.error == view.dpgd.error == 0.0


@pytest.mark.parametrize("step_length", [0.0, -1.0, math.nan, math.inf])
def test_step_length_must_be_a_length(step_length):
    with pytest.raises(InvalidArgument, match="step_length"):
        predict_noise(Diff2(100, 5, 1.0, 1.0, ROUTINE), BUDGET, [500], step_length=step_length)
