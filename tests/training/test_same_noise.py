"""The same noise never hides two means: after other steps, other records, in a copy, resumed with other code."""

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import diff2
from diff2.planning.verify import verify
from diff2.privacy import Ledger, Mechanism, epsilon_of
from diff2.privacy.release import Release

INPUTS = 300
BUDGET = diff2.Budget(1.0, 1e-5)


class Made(NamedTuple):
    release: Release
    noise: np.ndarray  # in deviations


@pytest.fixture
def made(monkeypatch):
    """All that mechanisms release from here on."""
    found, release = [], Mechanism.release

    def spied(self, mean, multiplier):
        released = release(self, mean, multiplier)
        found.append(Made(released.release, (released.value - mean.value) / released.release.noise_std))
        return released

    monkeypatch.setattr(Mechanism, "release", spied)
    return found


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, INPUTS, generator=generator)
    return x, x.sum(1, keepdim=True)


class Model(nn.Linear):
    """What it computes depends on what no checkpoint knows."""

    def __init__(self, shift=0.0, factor=0.0):
        super().__init__(INPUTS, 1)
        self.hidden = torch.full((INPUTS,), shift)  # neither parameter nor buffer
        self.skip = lambda inputs: factor * inputs[:, :1]
        with torch.no_grad():
            self.weight.zero_(), self.bias.zero_()

    def forward(self, inputs):
        return super().forward(inputs + self.hidden) + self.skip(inputs)


def prepared(directory=None, model=None, loss="squared", clients=None, accounting="paper", **options):
    """A private run. The paper's noise leaves a bit of the budget, exact accounting nothing."""
    algorithm = diff2.DPGD(20, 1.0, routine=diff2.GradientDescent(0.1))
    return diff2.prepare(
        Model() if model is None else model, loss, data() if clients is None else clients, algorithm, BUDGET,
        directory=directory, accounting=accounting, engine="vmap", **options,
    )  # fmt: skip


def other_parameters(directory, accounting):
    run = prepared(accounting=accounting)
    state = run.init()
    run.step(state._replace(params=state.params + 1))
    run.mechanism.ledger.rewind(0)  # as ``run.run()`` does
    run.step(state)
    return run


def a_changed_record(directory, accounting):
    clients = data()
    run = prepared(clients=clients, accounting=accounting)
    run.step(run.init())
    clients[0][7] += 1
    run.mechanism.ledger.rewind(0)
    run.step(run.init())
    return run


def resumed(first, second):
    def scenario(directory, accounting):
        run = prepared(directory, accounting=accounting, **first)
        run.step(run.init())
        run = prepared(directory, accounting=accounting, resume=True, **second)
        run.mechanism.ledger.rewind(0)
        run.step(run.init())
        return run

    return scenario


def squared(factor):
    return lambda outputs, targets: factor * ((outputs - targets) ** 2).sum(1)


SECOND = {
    "a step with other parameters": other_parameters,
    "a record changed in between": a_changed_record,
    "resumed with another lambda": resumed({"loss": squared(1.0)}, {"loss": squared(0.01)}),
    "resumed with other frozen weights": resumed({}, {"model": Model(shift=1.0)}),
    "resumed with another forward": resumed({}, {"model": Model(factor=100.0)}),
}


def correlation(one, other):
    return abs(np.corrcoef(one.noise, other.noise)[0, 1])


@pytest.mark.parametrize("name", SECOND)
def test_a_second_release_of_a_round_has_noise_of_its_own_and_is_paid_for(made, tmp_path, name):
    """Red with noise by round, purpose and step alone: a correlation of 1, or no line and no price."""
    run = SECOND[name](tmp_path / "run", "paper")
    one, other = made
    assert one.release.label == other.release.label
    assert correlation(one, other) < 0.3
    ledger = run.mechanism.ledger
    assert ledger.releases == [one.release, other.release]
    # Beside the whole plan: stopping early saves nothing.
    assert ledger.epsilon() == epsilon_of([run.plan.multipliers["gradient"]] * 21, BUDGET.delta) > run.plan.epsilon
    if ledger.path is not None:
        assert verify(ledger.path).ledger.epsilon() == ledger.epsilon()


def test_a_step_with_other_parameters_and_then_the_whole_run_cost_both(tmp_path):
    run = prepared(tmp_path)
    state = run.init()
    run.step(state._replace(params=state.params + 1))
    result = run.run(progress=False)
    assert len(result.ledger) == 21
    assert result.epsilon == epsilon_of([run.plan.multipliers["gradient"]] * 21, BUDGET.delta) < BUDGET.epsilon
    assert verify(tmp_path / "ledger.jsonl").ledger.guarantee() == result.ledger.guarantee()


@pytest.mark.parametrize("name", SECOND)
def test_a_second_release_that_the_budget_does_not_allow_is_refused_and_nothing_lost(made, tmp_path, name):
    with pytest.raises(diff2.BudgetExceeded, match="second"):
        SECOND[name](tmp_path / "run", "exact")
    assert len(made) == 1
    if (tmp_path / "run").exists():
        assert Ledger.read(tmp_path / "run" / "ledger.jsonl").releases == [made[0].release]


def test_copies_of_a_run_have_noise_of_their_own(made):
    run = prepared()
    other = copy.deepcopy(run)
    run.step(run.init())
    state = other.init()
    other.step(state._replace(params=state.params + 1))
    assert correlation(*made) < 0.3


def test_another_question_has_noise_of_its_own_even_where_the_mean_is_the_same(made):
    """No record has the first feature, so its weight changes no gradient. Equal releases would say so for certain."""
    x, y = data()
    x[:, 0] = 0
    run = prepared(clients=(x, y))
    state = run.init()
    run.step(state)
    changed = state.params.clone()
    changed[0] += 1
    run.mechanism.ledger.rewind(0)
    run.step(state._replace(params=changed))
    assert correlation(*made) < 0.3


@pytest.mark.parametrize("seed", [None, 3])
def test_the_same_release_again_is_the_same_line(made, tmp_path, seed):
    for resume in (False, True):
        run = prepared(tmp_path, resume=resume, seed=seed)
        for _ in range(2):
            run.mechanism.ledger.rewind(0)
            run.step(run.init())
    assert len({one.release for one in made}) == len(run.mechanism.ledger) == 1
    assert min(correlation(made[0], other) for other in made) > 0.999
