"""An audit from outside with inputs of 1e18 and rows that are normalised: errors of 1e-20 whose squares underflow.

In one world a record has the target +10, in the other -10. Whoever sees the iterates, which callbacks get, knows both
releases of the run; along the record's own gradient and difference, computed in double precision, they differ between
the worlds by at most mu deviations, whatever the inputs are.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

import diff2

POSITIONS, INPUTS, WIDTH, RATE = 2, 20, 30, 0.1


class Matrix(nn.Module):
    """A linear layer as a bare parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, INPUTS) / math.sqrt(INPUTS))

    def forward(self, x):
        return x @ self.weight.mT


FIRST = {"linear": lambda: nn.Linear(INPUTS, WIDTH, bias=False), "bare": Matrix}


def model(first, head):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = nn.Sequential(
            FIRST[first](), nn.LayerNorm(WIDTH, elementwise_affine=False), nn.Flatten(),
            nn.Linear(POSITIONS * WIDTH, 1, bias=False),
        )  # fmt: skip
    with torch.no_grad():
        made[3].weight.mul_(head)
    made[3].requires_grad_(False)  # else its own gradient outweighs the other
    return made


def world(sign, scale):
    x, y = torch.zeros(8, POSITIONS, INPUTS), torch.zeros(8, 1)
    x[0] = torch.randn(POSITIONS, INPUTS, generator=torch.Generator().manual_seed(3)) * scale
    y[0] = 10.0 * sign
    return x, y


def seen(sign, first, scale, head):
    """Return how far along the record the releases of one run are, in deviations, weighted best; and mu."""
    start, rows = model(first, head), []
    iterates = [start[0].weight.detach().double().flatten()]

    def watch(state, info):
        iterates.append(state.params.double())
        rows.append(info)

    algorithm = diff2.Diff2(2, 2, clip_gradient=1e-5, clip_smoothness=0.01, routine=diff2.GradientDescent(RATE))
    result = diff2.train(
        start, "squared", world(sign, scale), algorithm, diff2.Budget(1.0, 1e-5), strict=True, progress=False,
        callbacks=[watch],
    )  # fmt: skip
    assert result.ledger.epsilon() <= 1.0
    double, record = model(first, head).double(), world(1, scale)[0][:1].double()
    slope = grad(lambda w: functional_call(double, {"0.weight": w.view(WIDTH, INPUTS)}, (record,)).sum())
    gradient = (iterates[0] - iterates[1]) / RATE
    difference = (iterates[1] - iterates[2]) / RATE - gradient
    along = -slope(iterates[0]), slope(iterates[0]) - slope(iterates[1])
    mu = math.hypot(*(1 / row.multiplier for row in rows))
    found = sum(
        float(release @ (towards / towards.norm())) / row.noise_std / row.multiplier
        for release, towards, row in zip((gradient, difference), along, rows, strict=True)
    )
    return found / mu, mu


@pytest.mark.parametrize(
    ("scale", "head", "runs"),
    [(1e18, 1.0, 4), (3e18, 1.0, 4), (1e19, 1.0, 4), pytest.param(1e18, 0.1, 40, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("first", FIRST)
def test_a_record_of_huge_inputs_shows_no_more_than_is_stated(first, scale, head, runs):
    """Red where squares underflow (commit 89c0f7b): 19, 65, not, and 6.6 deviations for a stated 0.268."""
    worlds = [[seen(sign, first, scale, head) for _ in range(runs)] for sign in (1, -1)]
    mu = worlds[0][0][1]
    assert mu == pytest.approx(0.268, abs=1e-3)
    measured = np.diff([np.mean([found for found, _ in made]) for made in worlds])[0]
    assert abs(measured) <= mu + 4 * math.sqrt(2 / runs)
