"""Replacing any record, by whatever, moves a mean by at most its sensitivity, and some replacement by all of it."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from diff2.cohorts import Client, LocalCohort, PerClientCohort
from diff2.cohorts.bounds import bounded, combined_rounding, sum_rounding
from diff2.gradients import Records
from diff2.questions import Population, Question
from helpers import make_case, paper_network, start_of, with_fast_engines
from probes import SIZES, Asked, adversaries, engine_of, make_clients, movement, plain_sum, replaced

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
PLACES = [(client, row) for client, size in enumerate(SIZES) for row in sorted({0, size // 2, size - 1})]

both_weightings = pytest.mark.parametrize("weighting", ["clients", "records"])
both_kinds = pytest.mark.parametrize("kind", ["gradient", "difference"])
both_fast = pytest.mark.parametrize("engine", ["ghost", "columns"])


# Half of all combinations: every three settings meet.
HALF = [
    (weighting, kind, dtype, engine)
    for weighting, kind, dtype, engine in itertools.product(
        ("clients", "records"), ("gradient", "difference"), (torch.float64, torch.float32), ("ghost", "columns")
    )
    if ((weighting == "clients") + (kind == "gradient") + (dtype == torch.float64) + (engine == "ghost")) % 2 == 0
]


@pytest.mark.parametrize(("weighting", "kind", "dtype", "engine"), HALF, ids=str)
def test_no_replacement_moves_the_mean_further_than_the_sensitivity(weighting, kind, dtype, engine):
    """Of any record by a bad one, nor of a bad one by another; +C u against -C u at the smallest client reaches it."""
    clients, limit = make_clients(dtype), 1 + TOLERANCE[dtype]
    radius = 1.0 if kind == "gradient" else 0.02
    ask = Asked(kind, Population(SIZES, weighting), radius=radius, dtype=dtype, engine=engine)
    before, reached = ask(clients), 0.0
    for place in PLACES:
        client, row = place
        own = clients[client].inputs[row], -clients[client].targets[row]
        after = {name: ask(replaced(clients, place, *bad)) for name, bad in ({"own": own} | adversaries(dtype)).items()}
        for name, mean in after.items():
            assert movement(before, mean) <= limit, (place, name)
        apart = movement(after["huge target"], after["huge opposite target"])
        assert apart <= limit, place
        reached = max(reached, apart)
    assert reached >= 0.99


@both_kinds
@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_the_slow_engines_keep_the_same_sensitivity(kind, engine):
    clients, place = make_clients(torch.float32), (1, 3)
    ask = Asked(kind, dtype=torch.float32, engine=engine)
    plus, minus = (replaced(clients, place, torch.ones(8), target) for target in (1e4, -1e4))
    assert 0.99 <= movement(ask(plus), ask(minus)) <= 1 + 1e-5
    for record in adversaries(torch.float32).values():
        assert movement(ask(clients), ask(replaced(clients, place, *record))) <= 1 + 1e-5


@both_weightings
def test_a_record_of_a_larger_client_has_its_own_smaller_share(weighting):
    clients, ones = make_clients(torch.float64), torch.ones(8, dtype=torch.float64)
    ask = Asked("gradient", Population(SIZES, weighting))
    for client, size in enumerate(SIZES):
        plus, minus = (replaced(clients, (client, 0), ones, target) for target in (1e6, -1e6))
        share = 4 / size if weighting == "clients" else 1.0
        assert movement(ask(plus), ask(minus)) == pytest.approx(share, rel=1e-9)


@both_weightings
def test_the_mean_is_that_of_the_definition(weighting):
    clients = make_clients(torch.float64)
    ask = Asked("gradient", Population(SIZES, weighting), radius=1.0)
    engine = engine_of("loop", ask.model, None)
    sums = [plain_sum(engine, ask.params, client, 1.0) for client in clients]
    if weighting == "clients":
        expected = sum(total / client.size for total, client in zip(sums, clients, strict=True)) / len(clients)
    else:
        expected = sum(sums) / sum(SIZES)
    mean = ask(clients)
    np.testing.assert_allclose(mean.value, expected, rtol=1e-10, atol=1e-13)
    count = 12 if weighting == "clients" else 26
    assert mean.release.sensitivity == pytest.approx(2 * 1.0 / count, rel=1e-15)
    assert (mean.release.clip, mean.adjacency, mean.release.label) == (1.0, "replace-one", (1, "gradient", 2))


@pytest.mark.parametrize("cohort", [LocalCohort, PerClientCohort])
def test_equal_iterates_give_an_exact_zero_without_sensitivity(cohort):
    mean = Asked("difference", radius=0.0, distance=0.0, dtype=torch.float32, cohort=cohort)(
        make_clients(torch.float32)
    )
    assert mean.release.sensitivity == 0.0
    assert not mean.value.any()
    assert mean.value.dtype == np.float64


def test_a_question_that_was_only_declared_has_no_answer():
    population = Population(SIZES)
    with pytest.raises(ValueError, match="declared but not asked"):
        bounded(population, Question.gradient(1.0), None, 0.0)


def test_the_probe_would_catch_a_mean_of_batch_means():
    """What the paper's own code does: batches of 200, averaged with equal weight although the last one is short."""
    clients = make_clients(torch.float64, sizes=(1651,))
    model = paper_network()
    engine, params = engine_of("columns", model, None), start_of(model)

    def mean_of_batch_means(client):
        batches = list(Records.of(*client).chunks(200))
        return sum(plain_sum(engine, params, batch[:2], 1.0) / batch.size for batch in batches) / len(batches)

    ones = torch.ones(8, dtype=torch.float64)
    plus, minus = (replaced(clients, (0, 1650), ones, target) for target in (1e6, -1e6))
    moved = float((mean_of_batch_means(plus[0]) - mean_of_batch_means(minus[0])).norm())
    assert moved / (2 / 1651) == pytest.approx(3.597, abs=1e-3)
    ask = Asked("gradient", radius=1.0, chunk_rows=200)
    assert movement(ask(plus), ask(minus)) == pytest.approx(1.0, abs=1e-9)


@with_fast_engines("conv2d", "sequence, wide", "group norm", "layer norm", "mlp without biases", "mlp", "frozen layer")
@pytest.mark.parametrize("question", ["gradient", "difference"])
def test_other_layers_keep_the_sensitivity_too(name, kind, question):
    case = make_case(name, dtype=torch.float32)
    clients = [Client(case.inputs[:8], case.targets[:8]), Client(case.inputs[8:], case.targets[8:])]
    ask = Asked(question, model=case.model, engine=kind)
    far = 1e4 * torch.ones_like(case.targets[0])
    plus, minus = (ask(replaced(clients, (1, 3), case.inputs[0], target)) for target in (far, -far))
    assert 0.99 <= movement(plus, minus) <= 1 + 1e-5
    assert movement(ask(clients), ask(replaced(clients, (1, 3), 1e6 * case.inputs[0], far))) <= 1 + 1e-5


@both_fast
def test_many_records_in_single_precision_keep_the_sensitivity(engine):
    """All records push the same way, so the sum is large, and replacing one changes how the rest of it is rounded."""
    model, count = nn.Linear(8, 1, bias=False), 50_000
    nn.init.zeros_(model.weight)  # with the target -1/2 the gradient of a record is its input
    worst = 0.0
    for length in torch.linspace(1.1, 1.9, 3):
        inputs = torch.full((count, 8), float(length / 8**0.5))
        clients = [Client(inputs, torch.full((count, 1), -0.5))]
        ask = Asked("gradient", radius=1.0, model=model, chunk_rows=None, distance=0.0, engine=engine)
        before = ask(clients)
        for row in (0, count // 2, count - 1):
            worst = max(worst, movement(before, ask(replaced(clients, (0, row), -inputs[0], -0.5))))
    assert worst <= 1 + before.rounding  # which the mechanism covers with noise


@pytest.mark.parametrize("outputs", [1, 2])
@both_fast
def test_records_whose_two_terms_cancel_keep_the_sensitivity_in_single_precision(engine, outputs):
    """Where da (x) g and a' (x) dg nearly cancel, what is summed is hundreds of times longer than what is left."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, outputs, bias=False))
    inputs = 1e-4 * torch.randn(1, 6, generator=generator) * (1 + 0.1 * torch.rand(256, 1, generator=generator))
    with torch.no_grad():
        model[0].weight.copy_(1e4 * torch.eye(6) + 1e3 * torch.randn(6, 6, generator=generator))
        model[1].weight.copy_(torch.randn(outputs, 6, generator=generator))
        outputs = model(inputs).double()
    ask, excess = Asked("difference", model=model, engine=engine, chunk_rows=None), []
    for growth, spread in ((1e-3, 2e-3), (1e-2, 1e-3), (1e-3, 1e-3), (1e-1, 5e-4)):
        ask.params = torch.cat([ask.previous[:36] * (1 + growth), ask.previous[36:]])
        share = 1 + spread * (0.5 + torch.rand(256, 1, generator=generator, dtype=torch.float64))
        targets = (outputs + outputs * (1 + growth) * share).float()
        clients, ask.radius = [Client(inputs, targets)], float("inf")
        ask.radius = 0.3 * float(np.linalg.norm(ask([Client(inputs[:1], targets[:1])]).value))
        for row in range(0, 64, 7):
            plus, minus = (ask(replaced(clients, (0, row), inputs[row], sign * 1e5)) for sign in (1, -1))
            excess.append(movement(plus, minus) - 1 - plus.rounding)
    assert max(excess) <= 0


def test_the_rounding_of_the_sum_over_clients_is_covered():
    """Each addition is off by 2^-53 of a length of at most one radius; the sensitivity is 2 radii / 1e9 here."""
    population = Population((10**9,) * 8)
    question = Question.gradient(1.0).at(1, torch.zeros(3, dtype=torch.float64))
    extra = combined_rounding(population, question) - sum_rounding(population, question)
    sensitivity = bounded(population, question, None, 0.0).release.sensitivity
    assert extra * sensitivity == pytest.approx(2 * 9 * 2.0**-53, rel=1e-6)
