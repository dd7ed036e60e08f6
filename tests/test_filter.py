"""Noise chosen on the way: whatever is released and whatever is chosen, the sum of mu^2 stays within the plan's."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diff2
from diff2 import Budget, Diff2, DriftDiff2, GradientDescent
from diff2.privacy import BoundedMean, Mechanism, NoiseSource, epsilon_of, gdp_epsilon
from helpers import DELTA, in_memory_ledger, quiet_plan, stub_run

BUDGET = Budget(epsilon=2.0, delta=1e-3)
SIZES = (30, 70)


def squares(ledger):
    return [1 / entry.multiplier**2 for entry in ledger.entries]


steps = st.floats(-8, 3).map(lambda exponent: GradientDescent(10.0**exponent))
common = {
    "rounds": st.integers(1, 14),
    "restart_interval": st.integers(1, 16),
    "clip_gradient": st.floats(0.01, 10),
    "clip_smoothness": st.floats(0.001, 100),
    "routine": steps,
    "clipping": st.just("separate"),
}
autos = st.builds(
    Diff2, **common, budget_split=st.just("auto"), noise_schedule=st.sampled_from(["constant", "position"])
)
drifts = st.builds(DriftDiff2, **common, threshold=st.floats(1e-3, 1e3), budget_split=st.floats(1.01, 40))


@settings(max_examples=150, deadline=None)
@given(
    algorithm=st.one_of(autos, drifts),
    curvature=st.floats(0, 30),
    start=st.floats(-5, 5),
    seed=st.integers(0, 9),
    epsilon=st.floats(0.05, 20),
    accounting=st.sampled_from(["exact", "paper"]),
)
def test_no_choice_exceeds_the_filter(algorithm, curvature, start, seed, epsilon, accounting):
    plan = quiet_plan(algorithm, Budget(epsilon, 1e-5), SIZES, accounting=accounting)
    ledger = stub_run(plan, curvature=curvature, start=start, seed=seed).ledger
    if algorithm.adaptive:
        assert math.fsum(squares(ledger)) <= plan.mu**2
    assert {entry.round for entry in ledger.entries} == set(range(1, algorithm.rounds + 1))
    if algorithm.adaptive:
        assert ledger.epsilon() == plan.epsilon  # of the filter, not of what happened to be spent
    assert ledger.epsilon() <= plan.epsilon <= epsilon


@pytest.mark.parametrize("split", [1.1, 2.0, 5.0, 30.0])
@pytest.mark.parametrize("interval", [1, 2, 3, 11])
def test_restarts_by_drift_can_always_be_paid_to_the_end(split, interval):
    """Also where a gradient is cheaper than a difference, so that too many differences would be too dear."""
    for rate in (1e-6, 0.01, 0.3, 1.9):
        plan = quiet_plan(DriftDiff2(10, interval, 1.0, 1.0, GradientDescent(rate), budget_split=split), BUDGET, SIZES)
        ledger = stub_run(plan).ledger
        assert len(ledger) == 10
        assert math.fsum(squares(ledger)) <= plan.mu**2


def test_drift_restarts_where_the_noise_of_differences_reaches_that_of_a_gradient():
    """The rule again, from the noise that the ledger states; both kinds of rounds are met."""
    met = set()
    for threshold in (0.5, 1.0, 3.0):
        algorithm = DriftDiff2(40, 8, 1.0, 1.5, GradientDescent(0.1), threshold=threshold, budget_split=2.0)
        plan = quiet_plan(algorithm, BUDGET, SIZES)
        states, ledger, _ = stub_run(plan, dimension=20, curvature=0.5)
        z_gradient, z_difference = plan.multipliers["gradient"], plan.multipliers["difference"]
        assert z_gradient < z_difference
        fresh = drift = spent = 0.0
        last = 1
        for r, entry in enumerate(ledger.entries, start=1):
            left, later = plan.mu**2 - spent, 40 - r
            if r > 1:
                apart = float((states[r - 1].params - states[r - 2].params).norm())
                std = z_difference * min(1.5 * apart, 2.0) * 2 / 60
                wanted = drift + std**2 > threshold * fresh
                reserve = later // 16  # a restart each 2T rounds can still be paid afterwards
                rest = reserve * z_gradient**-2 + (later - reserve) * z_difference**-2
                affordable = left - z_gradient**-2 >= rest
                rich = left >= (later + 1) * z_gradient**-2
                due = r - last == 16
                assert (entry.purpose == "gradient") == (due or (affordable and (wanted or rich))), r
                met.add((entry.purpose, wanted, affordable))
            if entry.purpose == "gradient":
                fresh, drift, last = entry.noise_std**2, 0.0, r
            else:
                drift += entry.noise_std**2
            assert r - last < 16
            spent += 1 / entry.multiplier**2
            assert states[r].estimator["drift"] == pytest.approx(drift, rel=1e-9)
    assert ("gradient", True, True) in met
    assert ("difference", False, True) in met


@pytest.mark.parametrize("schedule", ["constant", "position"])
def test_auto_divides_each_cycle_by_the_radii_of_the_one_before(schedule):
    interval, rounds, clip = 4, 14, 1.0
    algorithm = Diff2(
        rounds, interval, clip, 2.0, GradientDescent(0.05), budget_split="auto", noise_schedule=schedule
    )  # fmt: skip
    plan = quiet_plan(algorithm, BUDGET, SIZES)
    ledger = stub_run(plan, dimension=10).ledger
    spent, shares = 0.0, []
    for first in range(0, rounds, interval):
        cycle = ledger.entries[first : first + interval]
        length = len(cycle)
        costs = [1 / entry.multiplier**2 for entry in cycle]
        # Every cycle gets its part of what is left, by its rounds.
        assert sum(costs) == pytest.approx((plan.mu**2 - spent) * length / (rounds - first), rel=1e-8)
        spent += sum(costs)
        shares.append(costs[0] / sum(costs))
        if first == 0:
            assert shares[0] == pytest.approx(0.5)
        else:
            before = ledger.entries[first - interval + 1 : first]
            rho = sum(entry.clip for entry in before) / (interval - 1) / clip
            assert shares[-1] == pytest.approx(min(max(1 / (1 + rho * (length - 1) / math.sqrt(2)), 0.05), 0.95))
        assert [entry.purpose for entry in cycle] == ["gradient"] + ["difference"] * (length - 1)
        later = [1 / cost for cost in costs[1:]]  # in proportion to the variance
        rule = [(length - j + 1) ** -0.5 if schedule == "position" else 1.0 for j in range(2, length + 1)]
        assert later == pytest.approx([value * later[0] / rule[0] for value in rule], rel=1e-9)
    assert len(set(shares)) > 2


def mean(sensitivity=0.1):
    return BoundedMean(torch.zeros(3, dtype=torch.float64), sensitivity, clip=1.0)


def test_the_mechanism_refuses_what_would_exceed_the_limit_and_writes_nothing():
    ledger = in_memory_ledger()
    mechanism = Mechanism(ledger, NoiseSource.from_seed(0), limit=0.5)
    mechanism.gaussian(mean(), 2.0, round=1, purpose="gradient")
    for multiplier in (1.9999999, 1.0, 1e-9, 0.0):
        with pytest.raises(diff2.BudgetExceeded, match="nothing was released"):
            mechanism.gaussian(mean(), multiplier, round=2, purpose="gradient")
        with pytest.raises(diff2.BudgetExceeded, match="nothing was released"):
            mechanism.tree(mean(), multiplier, round=2, purpose="gradient", leaf=0, leaves=4)
    assert len(ledger) == 1
    mechanism.gaussian(mean(0.0), 1.0, round=2, purpose="gradient")  # zero whatever the data: free
    mechanism.gaussian(mean(), 2.0, round=3, purpose="gradient")  # exactly what is left
    with pytest.raises(diff2.BudgetExceeded):
        mechanism.gaussian(mean(), 1e4, round=4, purpose="gradient")


def test_the_ledger_charges_the_filter_and_believes_no_smaller_one():
    for filter_mu, expected in ((0.5, gdp_epsilon(0.5, DELTA)), (0.1, epsilon_of([4.0], DELTA))):
        ledger = in_memory_ledger(filter_mu=filter_mu)
        assert ledger.epsilon() == 0.0  # before the first release
        Mechanism(ledger, NoiseSource.from_seed(0)).gaussian(mean(), 4.0, round=1, purpose="gradient")
        assert ledger.epsilon() == expected


def test_the_first_rounds_computed_again_after_a_crash_are_not_charged_twice():
    ledger = in_memory_ledger()
    mechanism = Mechanism(ledger, NoiseSource.from_seed(0), limit=0.5)
    for _ in range(3):
        ledger.rewind(0)
        for r in (1, 2):
            mechanism.gaussian(mean(), 2.0, round=r, purpose="gradient")
    assert len(ledger) == 2
