"""An audit from outside: train with a worst-case record and with its opposite, and measure what tells them apart.

The canary's gradient and difference are as long as clipping allows in every round, and point one way in one world and
the opposite way in the other. The best statistic of somebody who sees every release then differs between the worlds by
exactly mu of its deviations. If the library added less noise than its ledger says, it would be more.
"""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import diff2
from diff2.privacy import Ledger, Mechanism, NoiseSource
from diff2.privacy.accounting import total_mu

SIZES = (6, 9)
BUDGET = diff2.Budget(epsilon=4.0, delta=1e-3)
ALGORITHM = diff2.Diff2(
    rounds=8, restart_interval=4, clip_gradient=1.0, clip_smoothness=2.0, routine=diff2.GradientDescent(0.05)
)
pytestmark = pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")


def signed_square(outputs, targets):
    """A loss whose curvature has the sign of the target: so the canary's difference can point either way."""
    return (outputs.square() * targets).squeeze(1)


def world(sign):
    """All records are silent but the canary, the last of the smallest client."""
    clients = [(torch.zeros(n, 3, dtype=torch.float64), torch.ones(n, 1, dtype=torch.float64)) for n in SIZES]
    clients[0][0][-1] = torch.tensor([1e4, 2e4, -1e4], dtype=torch.float64)
    clients[0][1][-1] = sign
    return clients


def start():
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3, -0.1, 0.2]]))
    return model


def statistics(sign, runs):
    """Return, for many runs, the log-likelihood ratio of the worlds from what a run releases, up to constants."""
    direction = world(1)[0][0][-1] / world(1)[0][0][-1].norm()
    prepared = diff2.prepare(start(), signed_square, world(sign), ALGORITHM, BUDGET)
    totals = []
    for _ in range(runs):
        fresh = Mechanism(Ledger(prepared.mechanism.ledger.header), NoiseSource.from_system())
        run = dataclasses.replace(prepared, mechanism=fresh)
        states, total = [run.init()], 0.0
        for _ in range(ALGORITHM.rounds):
            state, info = run.step(states[-1])
            if info.purpose == "gradient":
                released, motion = state.estimator["estimate"], states[-1].params
            else:
                released = state.estimator["estimate"] - states[-1].estimator["estimate"]
                motion = states[-1].params - states[-2].params
            towards = float(torch.sign(motion @ direction))  # known to whoever sees the iterates
            total += info.sensitivity / info.noise_std**2 * towards * float(released @ direction)
            states.append(state)
        totals.append(total)
    return np.array(totals)


@pytest.mark.parametrize("runs", [150, pytest.param(6000, marks=pytest.mark.slow)])
def test_the_distance_of_the_worlds_is_what_the_ledger_says(runs):
    ledger = diff2.train(start(), signed_square, world(1.0), ALGORITHM, BUDGET).ledger
    claimed = total_mu(entry.multiplier for entry in ledger.entries)
    plus, minus = statistics(1.0, runs), statistics(-1.0, runs)
    measured = (plus.mean() - minus.mean()) / np.sqrt((plus.var(ddof=1) + minus.var(ddof=1)) / 2)
    deviation = np.sqrt((2 + claimed**2 / 2) / runs)
    assert measured == pytest.approx(claimed, abs=4 * deviation)
