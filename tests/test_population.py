"""Who takes part: exposures by their definition, batches and clients drawn as stated, and whoever is exposed most."""

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import diff2
from diff2 import Budget, Diff2, DPFedAvg, GradientDescent, RecursiveDiff2
from diff2.cohorts.clients import Client
from diff2.cohorts.pooled import LocalCohort
from diff2.gradients import GhostEngine, Records
from diff2.models.losses import squared
from diff2.privacy import NoiseSource, Spend, epsilon_of, total_epsilon
from diff2.privacy.composition import by_exposure
from diff2.questions.population import ALL, Batch, Population, part_range
from helpers import DELTA, quiet_plan, stub_run

STEP = GradientDescent(0.05)
sizes_of_clients = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(tuple)


def weight_by_definition(population, p, clients, batch):
    """The factor of a record of client p in the answer, if it is in it."""
    sizes = population.sizes
    share = 1 / len(clients) if population.weighting == "clients" else sizes[p] / sum(sizes[q] for q in clients)
    if batch.rate is not None:
        return share / (batch.rate * sizes[p])
    if batch.size is not None:
        return share / dict(zip(clients, population.batch_sizes(batch.size, clients), strict=True))[p]
    if batch.part is not None:
        least = min(len(part_range(sizes[p], j, batch.part[1])) for j in range(batch.part[1]))
        return share / least
    return share / sizes[p]


@settings(max_examples=200, deadline=None)
@given(sizes=sizes_of_clients, weighting=st.sampled_from(["clients", "records"]), data=st.data())
def test_sensitivity_is_that_of_the_heaviest_record(sizes, weighting, data):
    everyone = tuple(range(len(sizes)))
    kinds = {
        "all": ALL,
        "one client": Batch(clients=(data.draw(st.sampled_from(everyone)),)),
        "fixed": Batch(size=data.draw(st.integers(1, sum(sizes)))),
        "fixed, one client": Batch(clients=(sizes.index(max(sizes)),), size=data.draw(st.integers(1, max(sizes)))),
        "poisson": Batch(rate=data.draw(st.floats(0.01, 1.0))),
        "part": Batch(part=(0, data.draw(st.integers(1, min(sizes))))),
    }
    kind = data.draw(st.sampled_from(sorted(kinds)))
    batch = kinds[kind]
    adjacency = "add-or-remove-one" if kind == "poisson" else "replace-one"
    population = Population(sizes, weighting, adjacency=adjacency)
    clients = everyone if batch.clients is None else batch.clients
    heaviest = max(weight_by_definition(population, p, clients, batch) for p in clients)
    exposure = population.exposure(1, batch)
    assert exposure.sensitivity == pytest.approx((1 if kind == "poisson" else 2) * heaviest, rel=1e-12)
    drawn = population.batch_sizes(batch.size, clients) if batch.size is not None else []
    rates = [count / sizes[p] for count, p in zip(drawn, clients, strict=False)] or [batch.rate or 1.0]
    assert exposure.rate == pytest.approx(max(rates))
    assert all(1 <= count <= sizes[p] for count, p in zip(drawn, clients, strict=False))
    assert exposure.sampling == ("poisson" if kind == "poisson" else "fixed" if max(rates) < 1 else "full")
    expected = (0,) if kind == "part" else None if clients == everyone else clients
    assert exposure.members == expected


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 60), data=st.data())
def test_parts_divide_the_records(size, data):
    parts = data.draw(st.integers(1, size))
    ranges = [part_range(size, j, parts) for j in range(parts)]
    assert [row for part in ranges for row in part] == list(range(size))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@settings(max_examples=100, deadline=None)
@given(clients=st.integers(1, 12), data=st.data())
def test_every_client_has_its_turn_equally_often(clients, data):
    m = data.draw(st.integers(1, clients))
    population = Population((5,) * clients, clients_per_round=m)
    met = Counter()
    for r in range(1, 3 * clients + 2):
        chosen = population.participants(r)
        assert len(set(chosen)) == len(chosen) == m
        met.update(chosen)
        counts = [met[p] for p in range(clients)]
        assert set(counts) <= {math.floor(r * m / clients), math.ceil(r * m / clients)}


def test_the_order_of_clients_is_shuffled_and_public():
    population = Population((5,) * 8, clients_per_round=3)
    orders = [tuple(population.participants(r) for r in range(first, first + 8)) for first in (1, 9, 17)]
    assert len(set(orders)) == 3
    assert orders[0] == tuple(Population((9,) * 8, clients_per_round=3).participants(r) for r in range(1, 9))


@pytest.mark.parametrize("algorithm", [Diff2(10, 3, 2.0, 3.0, STEP), RecursiveDiff2(10, 2.0, 3.0, STEP)])
@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_a_client_pays_for_the_rounds_it_was_in(algorithm, unit, m):
    plan = quiet_plan(algorithm, Budget(2.0, 1e-3), (8, 30, 12, 8, 9), unit=unit, clients_per_round=m)
    ledger = stub_run(plan).ledger
    everyone = range(5)
    paid = {
        p: [entry.multiplier for entry in ledger.entries if entry.members is None or p in entry.members]
        for p in everyone
    }
    assert all(len(paid[p]) in (math.floor(10 * m / 5), math.ceil(10 * m / 5)) for p in everyone)
    expected = max(epsilon_of(paid[p], 1e-3) for p in everyone)
    assert ledger.epsilon() == plan.epsilon == pytest.approx(expected, rel=1e-12)
    assert 2.0 * (1 - 1e-9) <= plan.epsilon <= 2.0


def test_fedavg_asks_and_prices_the_participants_only():
    plan = quiet_plan(DPFedAvg(6, 2, 8, 2.0, 0.1, STEP), Budget(2.0, 1e-3), (8, 8, 8), clients_per_round=2)
    ledger = stub_run(plan).ledger
    for r in range(1, 7):
        members = [entry.members for entry in ledger.entries if entry.round == r]
        assert members == [(p,) for p in plan.population.participants(r) for _ in range(2)]
    # Each client is in 4 of the 6 rounds, on all of its records.
    assert plan.epsilon == epsilon_of([plan.multipliers["local"]] * 8, 1e-3)


releases = st.lists(
    st.tuples(
        st.sampled_from([2.0, 3.0, 7.0, math.inf]),
        st.one_of(st.none(), st.sets(st.integers(0, 4), min_size=1).map(lambda chosen: tuple(sorted(chosen)))),
    ),
    max_size=14,
)


@settings(max_examples=200, deadline=None)
@given(releases=releases)
def test_the_total_is_that_of_the_member_that_is_exposed_most(releases):
    spends = [Spend(multiplier, members=members) for multiplier, members in releases]
    by_hand = [
        epsilon_of([z for z, members in releases if members is None or member in members], DELTA)
        for member in range(5)
    ]  # fmt: skip
    assert total_epsilon(spends, DELTA) == pytest.approx(max(by_hand), rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(
    items=st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from([0.1, 0.2, 0.5]),
            st.one_of(st.none(), st.sets(st.integers(0, 3), min_size=1).map(tuple)),
        ),
        max_size=12,
    ),
    prices=st.lists(st.floats(0.01, 1), min_size=6, max_size=6),
)
def test_whoever_is_left_out_of_the_profiles_cannot_cost_more(items, prices):
    """For any price of a release that grows with the rate."""
    price = {
        (key, rate): sum(prices[3 * i : 3 * i + j + 1])
        for i, key in enumerate("ab")
        for j, rate in enumerate([0.1, 0.2, 0.5])
    }
    everyone = [
        sum(price[key, rate] for key, rate, members in items if members is None or member in members)
        for member in range(4)
    ]  # fmt: skip
    found = by_exposure(items)
    totals = [sum(count * price[item] for item, count in profile.items()) for profile in found]
    assert max(totals) == pytest.approx(max(everyone))


COUNTS = (6, 9, 5)


def telling_cohort(population, seed=0, key=None):
    """A cohort whose answers show who was in the batch: the gradient of record i points along coordinate i."""
    total = sum(COUNTS)
    model = nn.Linear(total, 1, bias=False).double()
    nn.init.zeros_(model.weight)  # with the target -1/2 the gradient of a record is its input
    inputs = torch.eye(total, dtype=torch.float64)
    targets = torch.full((total, 1), -0.5, dtype=torch.float64)
    clients = [Client(*pair) for pair in zip(inputs.split(COUNTS), targets.split(COUNTS), strict=True)]
    engine = GhostEngine(model, squared, Records.of(*clients[0]))
    source = NoiseSource.from_seed(seed) if key is None else NoiseSource(key, private=True)
    return LocalCohort(engine, clients, population, source=source)


def drawn(cohort, round, batch, step=0):
    """Return the rows in the batch, and check that each is in it once, with its weight."""
    params = torch.zeros(sum(COUNTS), dtype=torch.float64)
    answer = cohort.clipped_gradient(params, 1.0, round=round, batch=batch, step=step).value.numpy()
    clients = range(len(COUNTS)) if batch.clients is None else batch.clients
    weights = dict(zip(clients, cohort.population.weights(tuple(clients), batch), strict=True))
    rows = np.flatnonzero(answer)
    owner = np.repeat(np.arange(len(COUNTS)), COUNTS)
    np.testing.assert_allclose(answer[rows], [weights[owner[row]] for row in rows], rtol=1e-12)
    return tuple(int(row) for row in rows)


@pytest.mark.parametrize("weighting", ["clients", "records"])
@pytest.mark.parametrize("step", [0, 3])
def test_batches_have_their_size_and_hold_a_record_once(weighting, step):
    cohort = telling_cohort(Population(COUNTS, weighting))
    for r in range(1, 30):
        rows = drawn(cohort, r, Batch(size=7), step)
        counts = [sum(start <= row < end for row in rows) for start, end in ((0, 6), (6, 15), (15, 20))]
        assert counts == cohort.population.batch_sizes(7, (0, 1, 2)) == [2, 3, 2]
        rows = drawn(cohort, r, Batch(clients=(1,), size=4), step)
        assert len(rows) == 4
        assert set(rows) <= set(range(6, 15))
        part = drawn(cohort, r, Batch(part=(r % 5, 5)), step)
        assert part == tuple(np.flatnonzero([row in PARTS[r % 5] for row in range(20)]))
    assert drawn(cohort, 1, ALL) == tuple(range(20))
    assert drawn(cohort, 1, Batch(size=20)) == tuple(range(20))


PARTS = {
    j: {0 + row for row in part_range(6, j, 5)}
    | {6 + row for row in part_range(9, j, 5)}
    | {15 + row for row in part_range(5, j, 5)}
    for j in range(5)
}


def test_the_same_round_and_step_draw_the_same_batch_and_no_others_do():
    population = Population(COUNTS)
    one, again, other = telling_cohort(population), telling_cohort(population), telling_cohort(population, seed=1)
    asked = [(r, step) for r in range(1, 8) for step in range(3)]
    batch = Batch(size=9)
    batches = {at: drawn(one, at[0], batch, at[1]) for at in asked}
    assert batches == {at: drawn(again, at[0], batch, at[1]) for at in reversed(asked)}
    assert len(set(batches.values())) == len(asked)
    assert all(drawn(other, at[0], batch, at[1]) != batches[at] for at in asked)


def test_gradient_and_difference_of_one_round_and_step_are_of_the_same_records():
    cohort = telling_cohort(Population(COUNTS))
    zero = torch.zeros(sum(COUNTS), dtype=torch.float64)
    for r in range(1, 10):
        rows = drawn(cohort, r, Batch(size=7), 2)
        moved = cohort.clipped_difference(zero + 1, zero, 1.0, round=r, batch=Batch(size=7), step=2).value
        assert tuple(np.flatnonzero(moved.numpy())) == rows


DRAWS = 1000


def subsets(kind):
    """Return what was drawn in many rounds, as index of a subset, twice a round."""
    if kind == "records":
        cohort = telling_cohort(Population(COUNTS))
        choices = list(combinations(range(6), 2))
        pairs = [
            [drawn(cohort, r, Batch(clients=(0,), size=2), step) for step in (1, 2)]
            for r in range(1, DRAWS + 1)
        ]  # fmt: skip
    else:
        # Of four clients two, for client-level privacy; here a client is told by the record it has.
        population = Population((1,) * 5, unit="client", clients_per_round=2, client_order="random")
        cohort = telling_cohort_of_single_records(population)
        choices = list(combinations(range(5), 2))
        pairs = [
            [tuple(np.flatnonzero(ask(cohort, r, step))) for step in (0, 1)]
            for r in range(1, DRAWS + 1)
        ]  # fmt: skip
    index = {choice: i for i, choice in enumerate(choices)}
    return np.array([[index[one] for one in pair] for pair in pairs]), len(choices)


def telling_cohort_of_single_records(population):
    model = nn.Linear(5, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    clients = [Client(row.unsqueeze(0), torch.tensor([[-0.5]]).double()) for row in torch.eye(5, dtype=torch.float64)]
    engine = GhostEngine(model, squared, Records.of(*clients[0]))
    return LocalCohort(engine, clients, population, source=NoiseSource.from_seed(2))


def ask(cohort, round, step):
    return cohort.clipped_gradient(torch.zeros(5, dtype=torch.float64), 1.0, round=round, step=step).value.numpy()


@pytest.mark.parametrize("kind", ["records", "clients"])
def test_all_batches_are_equally_likely_and_independent(kind):
    found, count = subsets(kind)
    tally = np.bincount(found[:, 0], minlength=count)
    assert scipy.stats.chisquare(tally).pvalue > 0.001
    skewed = np.full(count, DRAWS / count) * np.where(np.arange(count) % 2, 1.2, 0.8)
    assert scipy.stats.chisquare(tally, skewed * DRAWS / skewed.sum()).pvalue < 0.001  # the test has power
    for first, second in ((found[:, 0], found[:, 1]), (found[:-1, 0], found[1:, 0]), (found[:-1, 1], found[1:, 0])):
        table = np.zeros((count, count))
        np.add.at(table, (first, second), 1)
        assert scipy.stats.chi2_contingency(table).pvalue > 0.001


def test_batches_of_two_clients_are_independent():
    cohort = telling_cohort(Population(COUNTS))
    table = np.zeros((6, 9))
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
    total = int(inside.sum())
    assert scipy.stats.binomtest(total, inside.size, rate).pvalue > 0.001
    assert scipy.stats.binomtest(total, inside.size, 1.15 * rate).pvalue < 0.001
    assert scipy.stats.chisquare(inside.sum(0)).pvalue > 0.001  # all records alike
    sizes = inside.sum(1)
    assert sizes.var() == pytest.approx(20 * rate * (1 - rate), rel=0.15)  # not of a fixed size
    correlation = np.corrcoef(inside.T) - np.eye(20)
    assert np.abs(correlation).max() < 5 / math.sqrt(DRAWS)


def test_an_empty_poisson_batch_is_an_answer_like_any_other():
    cohort = telling_cohort(Population(COUNTS, adjacency="add-or-remove-one"))
    batches = [drawn(cohort, r, Batch(rate=0.01)) for r in range(1, 40)]
    assert () in batches


def test_a_cohort_without_a_secret_draws_nothing():
    cohort = telling_cohort(Population(COUNTS))
    cohort._source = None
    with pytest.raises(ValueError, match="source of random bits"):
        drawn(cohort, 1, Batch(size=3))
    population = Population((1,) * 5, unit="client", clients_per_round=2, client_order="random")
    cohort = telling_cohort_of_single_records(population)
    cohort._source = None
    with pytest.raises(ValueError, match="source of random bits"):
        ask(cohort, 1, 0)


def test_releases_of_one_round_on_clients_drawn_in_secret_each_draw_their_own():
    """Two releases on one draw would be priced as if they were on two: the fused gradient must not share it."""
    plan = quiet_plan(
        diff2.FusedDiff2(7, 3, 2.0, 3.0, STEP),
        Budget(2.0, 1e-3),
        (1,) * 5,
        unit="client",
        clients_per_round=2,
        client_order="random",
    )
    _, ledger, asked = stub_run(plan)
    assert len(asked) == len(set(asked)) == len(ledger)
    assert len({(round, step) for _, round, _, step in asked}) == len(ledger)
    assert all((entry.sampling, entry.rate) == ("fixed", 0.4) for entry in ledger.entries)
