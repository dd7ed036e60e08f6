"""Who is in a batch: a cohort whose answers tell, drawn as stated, equally likely, independent, and in secret."""

import math
from itertools import combinations

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from diff2.cohorts import Client, LocalCohort
from diff2.gradients import Records
from diff2.privacy import NoiseSource
from diff2.questions import ALL, Batch, Population, Question
from diff2.questions.population import part_range
from probes import engine_of

COUNTS = (6, 9, 5)
SINGLE = (1,) * 5
DRAWN = Population(SINGLE, unit="client", clients_per_round=2, client_order="random")
PARTS = [[first + row for first, size in ((0, 6), (6, 9), (15, 5)) for row in part_range(size, j, 5)] for j in range(5)]


def telling_cohort(population, seed=0, source=True):
    """A cohort whose answers show who was in the batch: the gradient of record i points along coordinate i."""
    counts, total = population.sizes, sum(population.sizes)
    model = nn.Linear(total, 1, bias=False).double()
    nn.init.zeros_(model.weight)  # with the target -1/2 the gradient of a record is its input
    inputs = torch.eye(total, dtype=torch.float64)
    targets = torch.full((total, 1), -0.5, dtype=torch.float64)
    clients = [Client(*pair) for pair in zip(inputs.split(counts), targets.split(counts), strict=True)]
    engine = engine_of("columns", model, Records.of(*clients[0]))
    return LocalCohort(engine, clients, population, source=NoiseSource.from_seed(seed) if source else None)


def ask(cohort, round, batch=ALL, step=0):
    params = torch.zeros(sum(cohort.population.sizes), dtype=torch.float64)
    return cohort.answer(Question.gradient(1.0, batch=batch, step=step).at(round, params)).value


def drawn(cohort, round, batch, step=0):
    """Return the rows in the batch, and check that each is in it once, with its weight."""
    answer, population = ask(cohort, round, batch, step), cohort.population
    clients = range(len(population.sizes)) if batch.clients is None else batch.clients
    weights = dict(zip(clients, population.weights(tuple(clients), batch), strict=True))
    rows = np.flatnonzero(answer)
    client_of = np.repeat(np.arange(len(population.sizes)), population.sizes)
    np.testing.assert_allclose(answer[rows], [weights[client_of[row]] for row in rows], rtol=1e-12)
    return tuple(int(row) for row in rows)


@pytest.mark.parametrize("weighting", ["clients", "records"])
@pytest.mark.parametrize("step", [0, 3])
def test_batches_have_their_size_and_hold_a_record_once(weighting, step):
    cohort = telling_cohort(Population(COUNTS, weighting))
    for r in range(1, 20):
        rows = drawn(cohort, r, Batch(size=7), step)
        counts = [sum(start <= row < end for row in rows) for start, end in ((0, 6), (6, 15), (15, 20))]
        assert counts == cohort.population.batch_sizes(7, (0, 1, 2)) == [2, 3, 2]
        rows = drawn(cohort, r, Batch(clients=(1,), size=4), step)
        assert len(rows) == 4
        assert set(rows) <= set(range(6, 15))
        assert drawn(cohort, r, Batch(part=(r % 5, 5)), step) == tuple(PARTS[r % 5])
    assert drawn(cohort, 1, ALL) == drawn(cohort, 1, Batch(size=20)) == tuple(range(20))


def test_the_same_round_and_step_draw_the_same_batch_and_no_others_do():
    one, again, other = (telling_cohort(Population(COUNTS), seed) for seed in (0, 0, 1))
    asked, batch = [(r, step) for r in range(1, 8) for step in range(3)], Batch(size=9)
    batches = {at: drawn(one, at[0], batch, at[1]) for at in asked}
    assert batches == {at: drawn(again, at[0], batch, at[1]) for at in reversed(asked)}
    assert len(set(batches.values())) == len(asked)
    assert all(drawn(other, at[0], batch, at[1]) != batches[at] for at in asked)


def test_gradient_and_difference_of_one_round_and_step_are_of_the_same_records():
    """DP-SRM and recursive momentum release their sum as one."""
    cohort, zero = telling_cohort(Population(COUNTS)), torch.zeros(sum(COUNTS), dtype=torch.float64)
    for r in range(1, 10):
        question = Question.difference(1.0, batch=Batch(size=7), step=2).at(r, zero + 1, zero)
        assert tuple(np.flatnonzero(cohort.answer(question).value)) == drawn(cohort, r, Batch(size=7), 2)


DRAWS = 700


@pytest.mark.parametrize("kind", ["records", "clients"])
def test_all_batches_are_equally_likely_and_independent(kind):
    """Two records of a client, or two clients of five where clients are the unit; twice a round."""
    if kind == "records":
        cohort, choices, batch = telling_cohort(Population(COUNTS)), combinations(range(6), 2), Batch((0,), 2)
    else:
        cohort, choices, batch = telling_cohort(DRAWN, seed=2), combinations(range(5), 2), ALL
    index = {choice: i for i, choice in enumerate(choices)}
    count = len(index)
    found = np.array(
        [[index[tuple(np.flatnonzero(ask(cohort, r, batch, step)))] for step in (1, 2)] for r in range(1, DRAWS + 1)]
    )
    tally = np.bincount(found[:, 0], minlength=count)
    assert scipy.stats.chisquare(tally).pvalue > 0.001
    skewed = np.full(count, DRAWS / count) * np.where(np.arange(count) % 2, 1.2, 0.8)
    assert scipy.stats.chisquare(tally, skewed * DRAWS / skewed.sum()).pvalue < 0.001  # the test has power
    for first, second in ((found[:, 0], found[:, 1]), (found[:-1, 0], found[1:, 0]), (found[:-1, 1], found[1:, 0])):
        table = np.zeros((count, count))
        np.add.at(table, (first, second), 1)
        assert scipy.stats.chi2_contingency(table).pvalue > 0.001


def test_batches_of_two_clients_are_independent():
    cohort, table = telling_cohort(Population(COUNTS)), np.zeros((6, 9))
    for r in range(1, DRAWS + 1):
        rows = drawn(cohort, r, Batch(size=3))
        table[rows[0], rows[1] - 6] += 1
    assert scipy.stats.chi2_contingency(table).pvalue > 0.001


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_poisson_batches_hold_each_record_independently_at_the_rate(rate):
    cohort = telling_cohort(Population(COUNTS, adjacency="add-or-remove-one"))
    inside = np.zeros((DRAWS, 20))
    for r in range(DRAWS):
        inside[r, list(drawn(cohort, r + 1, Batch(rate=rate)))] = 1
    total, sizes = int(inside.sum()), inside.sum(1)
    assert scipy.stats.binomtest(total, inside.size, rate).pvalue > 0.001
    assert scipy.stats.binomtest(total, inside.size, 1.2 * rate).pvalue < 0.001
    assert scipy.stats.chisquare(inside.sum(0)).pvalue > 0.001  # all records alike
    assert sizes.var() == pytest.approx(20 * rate * (1 - rate), rel=0.2)  # not of a fixed size
    assert np.abs(np.corrcoef(inside.T) - np.eye(20)).max() < 5 / math.sqrt(DRAWS)
    if rate == 0.05:
        assert 0 in sizes  # an empty batch is an answer like any other


@pytest.mark.parametrize(("population", "batch"), [(Population(COUNTS), Batch(size=3)), (DRAWN, ALL)])
def test_a_cohort_without_a_secret_draws_nothing(population, batch):
    with pytest.raises(ValueError, match="source of random bits"):
        ask(telling_cohort(population, source=False), 1, batch)
