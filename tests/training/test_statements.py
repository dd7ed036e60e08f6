"""The epsilon that is stated is that of the plan, whatever happened: when a run ends may depend on what it released."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

import diff2
from catalogue import run
from diff2 import DPGD, Budget, Diff2, GradientDescent
from diff2.privacy import Ledger

BUDGET = Budget(epsilon=2.0, delta=1e-3)
STEP = GradientDescent(learning_rate=0.05)
ALGORITHM = DPGD(rounds=20, clip_gradient=2.0, routine=STEP)


def test_a_run_that_a_callback_ends_states_the_plan():
    result = run(ALGORITHM, budget=BUDGET, seed=None, callbacks=[lambda state, info: state.round == 1])
    assert len(result.ledger) == 1
    assert result.epsilon == result.plan.epsilon == pytest.approx(2.0)  # 0.3341 before
    guarantee = result.ledger.guarantee()
    assert (guarantee.epsilon, guarantee.releases, guarantee.planned) == (result.epsilon, 1, 20)
    assert "satisfy (2, 0.001)" in result.guarantee
    assert "ended before its plan of 20 releases" in result.guarantee
    assert result.summary()["guarantee"]["epsilon"] == result.epsilon
    assert result.ledger.released_epsilon() < 0.5  # may be shown, and is no guarantee
    assert list(result.history["released_epsilon"]) == [result.ledger.released_epsilon()]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_breaks_off_states_the_plan(tmp_path, error):
    def fail(state, info):
        if state.round == 3:
            raise error

    with pytest.raises(error):
        run(ALGORITHM, budget=BUDGET, seed=None, directory=tmp_path, callbacks=[fail])
    ledger = Ledger.read(tmp_path / "ledger.jsonl")
    assert len(ledger) == 3
    assert ledger.epsilon() == ledger.guarantee().epsilon == pytest.approx(2.0)  # 0.6430 before
    assert "not complete: epsilon is that of its whole plan of 20 releases" in str(ledger.guarantee())
    assert ledger.epsilon(1e-6) > ledger.epsilon()


def test_fewer_planned_rounds_are_another_plan():
    """What is fixed beforehand may be counted: the same noise over fewer rounds costs less."""
    whole = diff2.plan(ALGORITHM, Budget(2.0, 1e-5), [1000])
    fewer = diff2.plan(DPGD(5, 2.0, STEP), Budget(2.0, 1e-5), [1000], multipliers=whole.multipliers)
    assert fewer.epsilon < 0.95 < whole.epsilon


def test_differences_that_are_free_lower_nothing():
    """Whether two iterates are equal depends on released values."""
    algorithm = Diff2(6, 3, clip_gradient=1.0, clip_smoothness=1.0, routine=GradientDescent(1e-30))
    result = run(algorithm, budget=BUDGET, seed=None, dtype=torch.float32)
    assert list(result.history["mechanism"]).count("zero") == 4
    assert result.epsilon == result.plan.epsilon == pytest.approx(2.0)  # 1.7476 before
    assert result.ledger.released_epsilon() < 1.9


def test_no_noise_is_still_infinite():
    result = run(ALGORITHM, budget=Budget(math.inf, 1e-3), callbacks=[lambda state, info: True])
    assert result.epsilon == math.inf


def needed_delta(epsilons, mu, step=0.01, width=9.0):
    """The delta that (epsilons[r], delta) needs when the run may end after any release r, chosen by what was seen.

    The privacy loss after r Gaussian releases is a walk with steps N(m^2/2, m^2). Whoever watches it ends the run where
    the loss is largest against what is stated: the best rule, found backwards, gives E max(0, 1 - exp(epsilon - loss)).
    """
    m = mu / math.sqrt(len(epsilons))
    losses = np.arange(-width, width, step)
    moves = scipy.stats.norm(m * m / 2, m).pdf(losses[None, :] - losses[:, None]) * step
    value = np.zeros_like(losses)
    for epsilon in reversed(epsilons):
        value = moves @ np.maximum(value, np.maximum(0, -np.expm1(epsilon - losses)))
    return float(np.interp(0.0, losses, value))


def test_no_stopping_rule_needs_more_than_the_stated_delta():
    """A rule that watches the likelihood ratio needed 4.3 times the stated delta when each round stated its own sum."""
    training = run(ALGORITHM, budget=BUDGET, seed=None, start=diff2.prepare)
    state, stated = training.init(), []
    for _ in range(ALGORITHM.rounds):
        state, _ = training.step(state)
        stated.append(training.mechanism.ledger.epsilon())
    mu = diff2.privacy.gdp_mu(BUDGET.epsilon, BUDGET.delta)
    fixed = needed_delta([math.inf] * 19 + [BUDGET.epsilon], mu)
    assert fixed == pytest.approx(BUDGET.delta, rel=1e-3)  # the method: exact where nobody chooses
    assert needed_delta(stated, mu) <= BUDGET.delta * (1 + 1e-3)
