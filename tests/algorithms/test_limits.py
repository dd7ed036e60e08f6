"""Without noise, without clipping and with all records, every private algorithm is a well-known one that is not."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import diff2
from catalogue import (
    CATALOGUE,
    HIDDEN,
    NO_NOISE,
    OPTIONS,
    ROUNDS,
    SERVER,
    SIZES,
    STEP,
    diff2_with,
    make_clients,
    run,
    start_vector,
)
from diff2 import DPGD, DPSGD, DPFedAvg, DPScaffold
from reference import Problem

EQUAL = (6, 6, 6)
START = start_vector().numpy()


def problem(weighting="clients"):
    clients = [(x.numpy(), y.numpy()[:, 0]) for x, y in make_clients(SIZES)]
    return Problem(clients, HIDDEN, weighting == "records")


def descend(rule, rounds=ROUNDS, weighting="clients"):
    """Run a rule (x, gradient, r) -> x on the exact gradient of the objective."""
    records, x = problem(weighting), START
    for r in range(1, rounds + 1):
        x = rule(x, records.gradient(x, math.inf), r)
    return x


def steps_of(build, schedule=lambda r: 1.0):
    """A rule that asks an optimiser of PyTorch."""
    point = torch.from_numpy(START.copy()).requires_grad_()
    optimiser = build([point])
    rate = optimiser.param_groups[0]["lr"]

    def rule(x, gradient, r):
        optimiser.param_groups[0]["lr"] = rate * schedule(r)
        with torch.no_grad():
            point.copy_(torch.from_numpy(x))
        point.grad = torch.from_numpy(gradient)
        optimiser.step()
        return point.detach().numpy().copy()

    return rule


def nesterov(rate=0.02, momentum=0.9):
    records = problem()
    x = y = START
    for _ in range(ROUNDS):
        reached = y - rate * records.gradient(y, math.inf)
        x, y = reached, reached + momentum * (reached - x)
    return x


def adam(rate=0.05, floor=0.02):
    m = q = np.zeros_like(START)

    def rule(x, gradient, r):
        nonlocal m, q
        m, q = 0.9 * m + 0.1 * gradient, 0.999 * q + 0.001 * gradient**2
        return x - rate * m / (1 - 0.9**r) / np.maximum(np.sqrt(q / (1 - 0.999**r)), floor)

    return descend(rule)


def averaged():
    rule, seen = steps_of(lambda points: torch.optim.SGD(points, lr=0.02, momentum=0.9)), []

    def watched(x, gradient, r):
        seen.append(rule(x, gradient, r))
        return seen[-1]

    descend(watched)
    return np.mean(seen[2:], axis=0)  # rounds above 0.3 x 7


def sgd(**options):
    return descend(steps_of(lambda points: torch.optim.SGD(points, **options)))


def adamw():
    def build(points):
        return torch.optim.AdamW(points, lr=0.02, weight_decay=0.1)

    return descend(steps_of(build, schedule=lambda r: (1 + math.cos(math.pi * (r - 1) / ROUNDS)) / 2))


def normalised(length=0.05, rounds=ROUNDS):
    return descend(lambda x, gradient, r: x - length * gradient / np.linalg.norm(gradient), rounds)


PLAIN = {  # what an algorithm is without noise, without clipping, and with all records in every batch
    **dict.fromkeys(
        [name for name in CATALOGUE if CATALOGUE[name].routine is STEP and "of 3" not in name], lambda: sgd(lr=0.05)
    ),
    "bvr, K = 1": lambda: sgd(lr=0.05),
    "diff2, one round": lambda: descend(lambda x, gradient, r: x - 0.05 * gradient, rounds=1),
    "diff2, momentum": lambda: sgd(lr=0.02, momentum=0.9),
    "diff2, nesterov": nesterov,
    "diff2, torch": adamw,
    "diff2, adam": adam,
    "diff2, averaging": averaged,
    "dpsrm": lambda: descend(lambda x, g, r: x - min(0.1 / np.linalg.norm(g), 0.05) * g),
    "srnsgd": normalised,
}
ELSEWHERE = {"srnsgd, 4 batches", "dpfedavg", "dpscaffold"} | {
    name for name in CATALOGUE if ("bvr" in name and name != "bvr, K = 1") or "of 3" in name
}


def unclipped(algorithm):
    """The same algorithm with infinite radii, on all records."""
    changes = dict.fromkeys(("clip_gradient", "clip_smoothness", "clip_difference"), math.inf)
    changes |= {"batch_size": 24, "batches": 1}
    return replace(algorithm, **{name: value for name, value in changes.items() if hasattr(algorithm, name)})


@pytest.mark.parametrize("name", PLAIN)
def test_no_clip_and_no_noise_is_the_method_that_is_not_private(name):
    found = run(unclipped(CATALOGUE[name]), **OPTIONS.get(name, {})).params.numpy()
    np.testing.assert_allclose(found, PLAIN[name](), rtol=1e-9, atol=1e-11)


def test_every_algorithm_has_a_limit():
    assert set(PLAIN) | ELSEWHERE == set(CATALOGUE)


@pytest.mark.parametrize("name", ["diff2", "recursive", "dpsgd, fixed"])
def test_without_clip_and_noise_records_weigh_as_stated(name):
    expected = descend(lambda x, gradient, r: x - 0.05 * gradient, weighting="records")
    found = run(unclipped(CATALOGUE[name]), weighting="records").params.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("algorithm", [DPFedAvg, DPScaffold])
@pytest.mark.parametrize(("options", "pull"), [({}, 2.0), ({"weighting": "records"}, (8 * 1 + 12 * 2 + 4 * 3) / 24)])
def test_clients_weigh_in_federated_averaging_as_stated(algorithm, options, pull):
    """The gradient is the same for all records of a client and everywhere: 1, 2 and 3 at the three."""
    clients = [(torch.ones(size, 1), torch.full((size, 1), p + 1.0)) for p, size in enumerate(SIZES)]
    model = torch.nn.Linear(1, 1, bias=False)
    with pytest.warns(diff2.PrivacyLeakWarning):
        result = diff2.train(
            model,
            lambda outputs, targets: (outputs * targets).squeeze(1),
            clients,
            algorithm(5, 2, 3, math.inf, 0.1, routine=SERVER),
            NO_NOISE,
            **options,
        )
    moved = model.weight.item() - result.model.weight.item()
    assert moved == pytest.approx(5 * 2 * 0.1 * pull, rel=1e-5)


def test_one_local_step_on_all_records_is_gradient_descent():
    """FedAvg and SCAFFOLD with K = 1, DP-SGD with b = N, and DP-GD are one method, clipped or not."""
    expected = run(DPGD(ROUNDS, 4.0, STEP), EQUAL).params
    for algorithm in (
        DPFedAvg(ROUNDS, 1, 6, 4.0, 0.05, routine=SERVER),
        DPScaffold(ROUNDS, 1, 6, 4.0, 0.05, routine=SERVER),
        DPSGD(ROUNDS, 18, 4.0, routine=STEP),
        DPSGD(ROUNDS, 18, 4.0, routine=STEP, sampling="poisson"),
        diff2_with(restart_interval=1, clip_gradient=4.0),
    ):
        torch.testing.assert_close(run(algorithm, EQUAL).params, expected, rtol=1e-9, atol=1e-11)
