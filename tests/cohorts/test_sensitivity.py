"""Replacing any record, by whatever, moves a mean by at most its sensitivity, and some replacement by all of it."""

import pytest
import torch
from torch import nn

from diff2.cohorts.clients import Client
from diff2.cohorts.pooled import LocalCohort
from diff2.gradients import ColumnsEngine, GhostEngine, LoopEngine, Records, VmapEngine
from diff2.models.losses import squared
from diff2.questions.population import Population
from helpers import fast_engine, make_case, paper_network, start_of, step_from, with_fast_engines
from probes import SIZES, adversaries, make_clients, movement, replaced

CHUNK = 5  # leaves a last chunk of a single record
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
PLACES = [(client, row) for client, size in enumerate(SIZES) for row in sorted({0, size // 2, size - 1})]

both_weightings = pytest.mark.parametrize("weighting", ["clients", "records"])
both_kinds = pytest.mark.parametrize("kind", ["gradient", "difference"])
both_fast = pytest.mark.parametrize("engine", [GhostEngine, ColumnsEngine])
both_dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


class Question:
    """One request to a cohort, asked of any clients: a gradient, or a difference between two points near each other."""

    def __init__(self, model, kind, weighting, *, radius=1.0, distance=0.01, engine=GhostEngine, chunk_rows=CHUNK):
        self.model, self.kind, self.weighting, self.radius = model, kind, weighting, radius
        self.previous = start_of(model)
        self.params = step_from(self.previous, distance)
        self.engine, self.chunk_rows = engine, chunk_rows

    def __call__(self, clients):
        if isinstance(self.engine, type):  # one engine for all the questions
            example = (Records.of(*clients[0]),) if self.engine is GhostEngine else ()
            self.engine = self.engine(self.model, squared, *example, chunk_rows=self.chunk_rows)
        cohort = LocalCohort(self.engine, clients, Population(tuple(client.size for client in clients), self.weighting))
        if self.kind == "gradient":
            return cohort.clipped_gradient(self.params, self.radius, round=1)
        return cohort.clipped_difference(self.params, self.previous, self.radius, round=1)


@both_weightings
@both_kinds
@both_dtypes
@both_fast
def test_no_replacement_moves_the_mean_further_than_the_sensitivity(weighting, kind, dtype, engine):
    clients = make_clients(dtype)
    radius = 1.0 if kind == "gradient" else 0.02
    question = Question(paper_network(dtype=dtype), kind, weighting, radius=radius, engine=engine)
    before = question(clients)
    for client, row in PLACES:
        own = clients[client].inputs[row], -clients[client].targets[row]
        records = {"flipped": own, **adversaries(dtype)}
        after = {name: question(replaced(clients, (client, row), *record)) for name, record in records.items()}
        for name, mean in after.items():
            assert movement(before, mean) <= 1 + TOLERANCE[dtype], (client, row, name)
        # Neither do two bad records against each other.
        assert movement(after["huge target"], after["huge opposite target"]) <= 1 + TOLERANCE[dtype], (client, row)


@both_weightings
@both_kinds
@both_dtypes
@both_fast
def test_the_sensitivity_is_attained(weighting, kind, dtype, engine):
    """+C u against -C u, for a record of the smallest client: the stated sensitivity is not larger than it need be."""
    clients = make_clients(dtype)
    question = Question(paper_network(dtype=dtype), kind, weighting, radius=0.02, engine=engine)
    plus, minus = (replaced(clients, (1, 3), torch.ones(8, dtype=dtype), target) for target in (1e4, -1e4))
    assert 0.99 <= movement(question(plus), question(minus)) <= 1 + TOLERANCE[dtype]


@both_kinds
@pytest.mark.parametrize("engine", [VmapEngine, LoopEngine])
def test_the_slow_engines_keep_the_same_sensitivity(kind, engine):
    clients = make_clients(torch.float32)
    question = Question(paper_network(dtype=torch.float32), kind, "clients", radius=0.02, engine=engine)
    ones = torch.ones(8)
    for place in [(1, 3), (2, 12)]:
        plus, minus = (replaced(clients, place, ones, target) for target in (1e4, -1e4))
        assert movement(question(plus), question(minus)) <= 1 + 1e-5
        for record in adversaries(torch.float32).values():
            assert movement(question(clients), question(replaced(clients, place, *record))) <= 1 + 1e-5


@both_weightings
def test_a_record_of_a_larger_client_has_its_own_smaller_share(weighting):
    clients = make_clients(torch.float64)
    question = Question(paper_network(), "gradient", weighting, radius=0.02)
    ones = torch.ones(8, dtype=torch.float64)
    for client, size in enumerate(SIZES):
        plus, minus = (replaced(clients, (client, 0), ones, target) for target in (1e6, -1e6))
        share = 4 / size if weighting == "clients" else 1.0
        assert movement(question(plus), question(minus)) == pytest.approx(share, rel=1e-9)


@both_weightings
def test_the_mean_is_that_of_the_definition(weighting):
    clients = make_clients(torch.float64)
    question = Question(paper_network(), "gradient", weighting, radius=1.0)
    engine = LoopEngine(question.model, squared)
    sums = [engine.clipped_gradient_sum(question.params, Records.of(*client), 1.0) for client in clients]
    if weighting == "clients":
        expected = sum(total / client.size for total, client in zip(sums, clients, strict=True)) / len(clients)
    else:
        expected = sum(sums) / sum(SIZES)
    assert float((question(clients).value - expected).norm() / expected.norm()) < 1e-12


def test_sensitivity_counts_records_as_the_paper_does():
    assert Population(SIZES, "clients").exposure(1).sensitivity == pytest.approx(2 / 12, rel=1e-15)
    assert Population(SIZES, "records").exposure(1).sensitivity == pytest.approx(2 / 26, rel=1e-15)
    for weighting, count in (("clients", 12), ("records", 26)):
        mean = Question(paper_network(), "gradient", weighting, radius=3.0)(make_clients(torch.float64))
        assert mean.sensitivity == pytest.approx(2 * 3.0 / count, rel=1e-15)
        assert mean.clip == 3.0
        assert mean.adjacency == "replace-one"


def test_equal_iterates_give_an_exact_zero_without_sensitivity():
    clients, model = make_clients(torch.float32), paper_network(dtype=torch.float32)
    cohort = LocalCohort(GhostEngine(model, squared, Records.of(*clients[0])), clients)
    mean = cohort.clipped_difference(start_of(model), start_of(model), 0.0, round=2)
    assert mean.sensitivity == 0.0
    assert not mean.value.any()


def test_the_probe_would_catch_a_mean_of_batch_means():
    """What the paper's own code does: batches of 200, averaged with equal weight although the last one is short."""
    clients = make_clients(torch.float64, sizes=(1651,))
    model = paper_network()
    engine, params = GhostEngine(model, squared, Records.of(*clients[0])), start_of(model)

    def mean_of_batch_means(client):
        batches = Records.of(*client).chunks(200)
        means = [engine.clipped_gradient_sum(params, batch, 1.0) / batch.size for batch in batches]
        return sum(means) / len(means)

    ones = torch.ones(8, dtype=torch.float64)
    plus, minus = (replaced(clients, (0, 1650), ones, target) for target in (1e6, -1e6))
    moved = float((mean_of_batch_means(plus[0]) - mean_of_batch_means(minus[0])).norm())
    assert moved / (2 / 1651) == pytest.approx(3.597, abs=1e-3)
    question = Question(model, "gradient", "clients", chunk_rows=200)
    assert movement(question(plus), question(minus)) == pytest.approx(1.0, abs=1e-9)


@with_fast_engines("conv2d", "sequence, wide", "group norm", "layer norm", "mlp without biases", "mlp", "frozen layer")
@pytest.mark.parametrize("question_of", ["gradient", "difference"])
def test_other_layers_keep_the_sensitivity_too(name, kind, question_of):
    case = make_case(name, dtype=torch.float32)
    clients = [Client(case.inputs[:8], case.targets[:8]), Client(case.inputs[8:], case.targets[8:])]
    engine = ColumnsEngine if kind == "columns" else GhostEngine
    question = Question(case.model, question_of, "clients", radius=0.02, engine=engine)
    far = 1e4 * torch.ones_like(case.targets[0])
    plus, minus = (question(replaced(clients, (1, 3), case.inputs[0], target)) for target in (far, -far))
    assert 0.99 <= movement(plus, minus) <= 1 + 1e-5
    assert movement(question(clients), question(replaced(clients, (1, 3), 1e6 * case.inputs[0], far))) <= 1 + 1e-5


@both_fast
def test_many_records_in_single_precision_keep_the_sensitivity(engine):
    """All records push the same way, so the sum is large, and replacing one changes how the rest of it is rounded."""
    model, count = nn.Linear(8, 1, bias=False), 100_000
    nn.init.zeros_(model.weight)  # with the target -1/2 the gradient of a record is its input
    worst = 0.0
    for length in torch.linspace(1.1, 1.9, 5):
        inputs = torch.full((count, 8), float(length / 8**0.5))
        clients = [Client(inputs, torch.full((count, 1), -0.5))]
        question = Question(model, "gradient", "clients", chunk_rows=None, distance=0.0, engine=engine)
        before = question(clients)
        for row in (0, count // 2, count - 1):
            worst = max(worst, movement(before, question(replaced(clients, (0, row), -inputs[0], -0.5))))
    assert worst <= 1 + before.rounding  # which the mechanism covers with noise


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", ["ghost", "columns"])
def test_records_whose_two_terms_cancel_keep_the_sensitivity_in_single_precision(kind, outputs):
    """Where da (x) g and a' (x) dg nearly cancel, what is summed is hundreds of times longer than what is left."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, outputs, bias=False))
    inputs = 1e-4 * torch.randn(1, 6, generator=generator) * (1 + 0.1 * torch.rand(256, 1, generator=generator))
    with torch.no_grad():
        model[0].weight.copy_(1e4 * torch.eye(6) + 1e3 * torch.randn(6, 6, generator=generator))
        model[1].weight.copy_(torch.randn(outputs, 6, generator=generator))
        outputs = model(inputs).double()
    previous = start_of(model)
    excess = []
    for growth, spread in ((1e-3, 2e-3), (1e-2, 1e-3), (1e-3, 1e-3), (1e-1, 5e-4)):
        params = torch.cat([previous[:36] * (1 + growth), previous[36:]])
        share = 1 + spread * (0.5 + torch.rand(256, 1, generator=generator, dtype=torch.float64))
        targets = (outputs + outputs * (1 + growth) * share).float()
        engine = fast_engine(kind, model, squared, Records.of(inputs, targets))
        one = Records.of(inputs[:1], targets[:1])
        radius = 0.3 * float(engine.clipped_difference_sum(params, previous, one, float("inf")).norm())
        clients = [Client(inputs, targets)]
        for row in range(0, 64, 7):
            plus, minus = (
                LocalCohort(engine, replaced(clients, (0, row), inputs[row], sign * 1e5)).clipped_difference(
                    params, previous, radius, round=1
                )
                for sign in (1, -1)
            )
            excess.append(movement(plus, minus) - 1 - plus.rounding)
    assert max(excess) <= 0
