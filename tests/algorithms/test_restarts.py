"""Early restarts: where they come, what they cost, and what they are for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diff2 import DPGD, Budget, Diff2, GradientDescent, plan, train
from diff2.algorithms.restarts import Restarts

STEP = GradientDescent(0.1)


def in_turn(T: int, rounds: int, early: bool) -> list[int]:
    """Return the rounds that restart, one after the other: after round r the next cycle has min(T, 3 r) rounds."""
    found, r = [], 1
    while r <= rounds:
        found.append(r)
        r += min(T, 3 * r) if early else T
    return found


@given(T=st.integers(1, 300), rounds=st.integers(1, 700), early=st.booleans())
def test_a_cycle_is_at_most_three_times_as_long_as_the_run_before_it(T: int, rounds: int, early: bool) -> None:
    restarts, expected = Restarts(T, early), in_turn(T, rounds, early)
    assert [r for r in range(1, rounds + 1) if restarts.at(r)] == expected
    assert restarts.count(rounds) == len(expected)
    lengths = [later - r for r, later in zip(expected, [*expected[1:], rounds + 1], strict=True)]
    assert [length for length, many in restarts.cycles(rounds) for _ in range(many)] == lengths


@given(T=st.integers(1, 1000))
def test_they_are_about_log4_of_the_interval(T: int) -> None:
    assert Restarts(T, early=True).count(10**6) - Restarts(T).count(10**6) <= math.log(T, 4) + 1


@pytest.mark.parametrize("accounting", ["exact", "paper"])
def test_each_is_priced(accounting: str) -> None:
    """Red with a plan that counts ceil(R / T) gradients: the ledger would go beyond the budget."""
    algorithm = Diff2(200, 50, 1.0, 1.0, STEP, early_restarts=True)
    budget, inputs = Budget(1.0, 1e-5), torch.linspace(-1, 1, 60).reshape(-1, 1)
    result = train(
        torch.nn.Linear(1, 1), "squared", [(inputs, inputs)], algorithm, budget, accounting=accounting, seed=0
    )
    gradients = [release.round for release in result.ledger.releases if release.purpose == "gradient"]
    assert gradients == [1, 4, 16, 64, 114, 164] == in_turn(50, 200, early=True)
    noise = plan(algorithm, budget, [60], accounting=accounting)
    assert result.ledger.epsilon() == pytest.approx(noise.epsilon, rel=1e-9)
    assert result.ledger.epsilon() <= 1.0
    every = plan(Diff2(200, 50, 1.0, 1.0, STEP), budget, [60], accounting=accounting)
    assert (noise.sigma_1 / every.sigma_1) ** 2 == pytest.approx(6 / 4)


def test_with_an_interval_of_one_they_are_dpgd() -> None:
    sizes, budget = [60], Budget(1.0, 1e-5)
    single = plan(Diff2(30, 1, 1.0, 1.0, STEP, early_restarts=True), budget, sizes)
    assert single.sigma_1 == plan(DPGD(30, 1.0, STEP), budget, sizes).sigma_1


@pytest.mark.filterwarnings("ignore::diff2.errors.PrivacyLeakWarning")
def test_the_first_cycle_does_not_use_up_a_gradient_that_was_clipped() -> None:
    """(x - 40)^2: the gradient of -80 counts as -1, and its changes in full: after half a unit the estimate is zero.

    Each restart gives it another half.
    """

    def moved(**settings: bool) -> float:
        model, inputs = torch.nn.Linear(1, 1, bias=False), torch.ones(4, 1)
        torch.nn.init.zeros_(model.weight)
        algorithm = Diff2(60, 60, 1.0, 2.0, STEP, **settings)
        result = train(model, "squared", [(inputs, 40 * inputs)], algorithm, Budget(math.inf, 1e-5))
        return float(result.params)

    assert moved() == pytest.approx(0.5, abs=0.01)
    assert 1.2 < moved(early_restarts=True) < 1.5
