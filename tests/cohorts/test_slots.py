"""Slots: with Poisson batches nothing but the content of one slot changes when a record is added or removed."""

import numpy as np
import pytest
import torch

import diff2
from diff2.cohorts import Client, LocalCohort, PerClientCohort
from diff2.cohorts.draws import in_slots, slots_of
from diff2.errors import InvalidArgument, PrivacyLeakError, PrivacyLeakWarning
from diff2.models.losses import squared
from diff2.privacy import NoiseSource
from diff2.questions import Batch, Population, Question
from helpers import make_engine, paper_case, paper_network, start_of
from probes import SOURCE, make_clients

SLOTS = (12, 7, 20)
ADD_OR_REMOVE = {"adjacency": "add-or-remove-one"}
POISSON = diff2.DPSGD(4, 6, 2.0, routine=diff2.GradientDescent(learning_rate=0.1), sampling="poisson")
BUDGET = diff2.Budget(epsilon=1.0, delta=1e-3)
both_cohorts = pytest.mark.parametrize("kind", [LocalCohort, PerClientCohort])


def asked(rate, round=1, radius=0.5, model=None):
    params = start_of(paper_network() if model is None else model)
    return Question.gradient(radius, batch=Batch(rate=rate), step=2).at(round, params)


def engine_for(clients, **options):
    return make_engine("columns", paper_network(), squared, diff2.gradients.Records.of(*clients[0]), **options)


def watched(engine):
    """Return a list that will hold the shape of all that the engine is given."""
    seen, of_engine = [], engine.clipped_sum

    def clipped_sum(question, records, **options):
        seen.append((records.inputs.shape, options["count"]))
        return of_engine(question, records, **options)

    engine.clipped_sum = clipped_sum
    return seen


def test_every_record_has_a_slot_of_its_own_and_the_others_are_empty():
    client = make_clients(torch.float64)[0]
    records = in_slots(client, 1, Population((5, 12), **ADD_OR_REMOVE), SOURCE, torch.float64)
    filled = records.weights == 1
    assert (records.size, int(filled.sum()), float(records.weights.sum())) == (12, 9, 9.0)
    assert not records.inputs[~filled].any()
    assert not records.targets[~filled].any()
    found = {tuple(row) for row in torch.cat([records.inputs, records.targets], 1)[filled].tolist()}
    assert found == {tuple(row) for row in torch.cat([*client], 1).tolist()}


def test_a_record_is_in_any_slot_with_the_same_probability():
    """Then two tables of which one lacks a row, wherever it stood, can be drawn so that all others keep their slots."""
    client = Client(torch.arange(1.0, 4.0).unsqueeze(1), torch.zeros(3, 1))
    counts, population = np.zeros((4, 5)), Population((5,), **ADD_OR_REMOVE)
    for seed in range(4000):
        slots = in_slots(client, 0, population, NoiseSource.from_seed(seed), torch.float32).inputs[:, 0].long()
        counts[slots.numpy(), np.arange(5)] += 1
    assert np.abs(counts[1:] / 4000 - 0.2).max() < 0.03


@both_cohorts
@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_an_empty_slot_adds_exactly_nothing_and_the_slots_are_what_is_divided_by(kind, rate):
    clients = make_clients(torch.float64)
    cohort = kind(engine_for(clients), clients, Population(SLOTS, "records", **ADD_OR_REMOVE), source=SOURCE)
    mean = cohort.answer(asked(rate))
    assert mean.release.sensitivity == pytest.approx(0.5 / (rate * sum(SLOTS)))
    if rate == 1:
        plain = kind(
            engine_for(clients), clients, Population(tuple(len(client.inputs) for client in clients), "records")
        )
        expected = plain.answer(Question.gradient(0.5).at(1, start_of(paper_network()))).value * 26 / sum(SLOTS)
        np.testing.assert_allclose(mean.value, expected, rtol=1e-9, atol=1e-15)


def test_emptying_a_slot_moves_the_sum_of_many_records_by_what_is_paid_for():
    """A batch without the record had all the later ones in other blocks: 1.01 times the sensitivity at 64,000."""
    case, count = paper_case(1), 64_000
    lengths = torch.rand(64, 1, generator=torch.Generator().manual_seed(0)).repeat(count // 64, 1)
    client = Client(lengths * case.inputs, lengths * case.targets)
    engine = make_engine("columns", case.model, squared, case.records)
    population, excess = Population((count,), **ADD_OR_REMOVE), []
    for radius in (0.31, 0.37, 0.45):
        whole, less = (LocalCohort(engine, [client], population, source=SOURCE) for _ in range(2))
        for part in (less.records.inputs, less.records.targets, less._present):
            part[5] = 0
        means = [cohort.answer(asked(1.0, radius=radius, model=case.model)) for cohort in (whole, less)]
        moved = float(np.linalg.norm(means[0].value - means[1].value)) / means[0].release.sensitivity
        excess.append(moved - 1 - means[0].rounding)
    assert -0.01 < max(excess) <= 0
    # The bound of gradients/sums.py is a share of 2 C; here one record moves the sum by C.
    assert means[0].rounding == pytest.approx(2 * (5 * 64**2 / 2**24 + count * means[0].value.size ** 0.5 / 2**44))


@both_cohorts
def test_no_number_that_is_used_or_printed_changes_with_the_number_of_records(kind):
    """All but the values: shapes of batches, weights, noise, ledger and guarantee."""
    seen = []
    for missing in (0, 1, 3):
        clients = [Client(*(part[missing:] for part in client)) for client in make_clients(torch.float64)]
        run = diff2.prepare(
            paper_network(), "squared", clients, POISSON, BUDGET, public_sizes=SLOTS, weighting="records", seed=1,
            by_client=kind is PerClientCohort,
        )  # fmt: skip
        shapes = watched(run.engine)
        result = run.run(progress=False)
        lines = [release._replace(sha256="") for release in result.ledger.releases]  # the hash of what was released
        header = {**result.ledger.header, "time": None}
        seen.append((header, lines, str(result.ledger.guarantee()), result.plan, shapes))
        assert "among at most 39 of 3 clients" in seen[0][2]
    assert seen[0] == seen[1] == seen[2]


def test_without_a_public_size_the_exact_number_is_a_leak_with_a_name():
    clients = make_clients(torch.float64)
    with pytest.warns(PrivacyLeakWarning, match=r"exact number of records of each client \(public_sizes="):
        run = diff2.prepare(paper_network(), "squared", clients, POISSON, BUDGET)
    assert "NOT PRIVATE AS A WHOLE, because of the exact number" in str(run.mechanism.ledger.guarantee())
    with pytest.raises(PrivacyLeakError, match="public_sizes"):
        diff2.prepare(paper_network(), "squared", clients, POISSON, BUDGET, strict=True)
    private = diff2.prepare(paper_network(), "squared", clients, POISSON, BUDGET, strict=True, public_sizes=20)
    assert private.plan.client_sizes == (20, 20, 20)
    assert private.mechanism.ledger.guarantee().leaks == ()


@pytest.mark.parametrize(
    ("sizes", "adjacency", "message"),
    [
        ((9, 3, 13), "add-or-remove-one", r"clients\[1\] has more records than public_sizes\[1\]=3; choose a larger"),
        ((9, 4), "add-or-remove-one", "public_sizes has 2 numbers for 3 clients"),
        (0, "add-or-remove-one", r"public_sizes\[0\]"),
        (20, "replace-one", "public_sizes is for Poisson batches"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes, adjacency, message):
    with pytest.raises(InvalidArgument, match=message) as caught:
        slots_of(sizes, make_clients(torch.float64), adjacency)
    assert " 4 records" not in str(caught.value)  # how many there are is not told


@pytest.mark.parametrize("by_client", [False, True])
@pytest.mark.parametrize("weighting", ["clients", "records"])
def test_exact_metrics_are_those_of_the_records_there_are(weighting, by_client):
    """Red for the gradient, which was divided by the slots: 0.39 and 0.44 of its squared norm."""
    clients = make_clients(torch.float64)
    options = {"weighting": weighting, "by_client": by_client, "metrics_every": 1, "dtype": torch.float64}
    with pytest.warns(PrivacyLeakWarning, match="exact training metrics"):
        runs = [
            diff2.prepare(paper_network(), "squared", clients, POISSON, BUDGET, public_sizes=sizes, **options)
            for sizes in ((9, 4, 13), SLOTS)
        ]
    full, slots = (run.metrics(1, run.start) for run in runs)
    assert slots == pytest.approx(full, rel=1e-9)
