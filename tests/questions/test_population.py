"""Who takes part: sensitivities by their definition, parts that divide, turns that are fair, and what is refused."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2 import Batch, InvalidArgument, Population, Protection, Question
from diff2.questions import ALL
from diff2.questions.population import part_range

sizes_of_clients = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(tuple)


def shown(population, batch=ALL, round=1, **options):
    """Return how a unit shows in the answer to a gradient of radius one."""
    return population.release(Question.gradient(1.0, batch=batch, **options), round)


def weight_by_definition(population, p, clients, batch):
    """The factor of a record of client p in the answer, if it is in it."""
    sizes = population.sizes
    share = 1 / len(clients) if population.weighting == "clients" else sizes[p] / sum(sizes[q] for q in clients)
    if batch.rate is not None:
        return share / (batch.rate * sizes[p])
    if batch.size is not None:
        return share / dict(zip(clients, population.batch_sizes(batch.size, clients), strict=True))[p]
    if batch.part is not None:
        return share / min(len(part_range(sizes[p], j, batch.part[1])) for j in range(batch.part[1]))
    return share / sizes[p]


@settings(max_examples=150, deadline=None)
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
    release = shown(population, batch)
    assert release.sensitivity == pytest.approx((1 if kind == "poisson" else 2) * heaviest, rel=1e-12)
    drawn = population.batch_sizes(batch.size, clients) if batch.size is not None else []
    rates = [count / sizes[p] for count, p in zip(drawn, clients, strict=False)] or [batch.rate or 1.0]
    assert release.rate == pytest.approx(max(rates))
    assert all(1 <= count <= sizes[p] for count, p in zip(drawn, clients, strict=False))
    assert release.sampling == ("poisson" if kind == "poisson" else "fixed" if max(rates) < 1 else "full")
    assert release.members == ((0,) if kind == "part" else None if clients == everyone else clients)


def test_a_question_gives_its_release_the_label():
    release = shown(Population((9, 4)), Batch(part=(1, 2)), round=7, purpose="difference", step=1, leaves=2)
    assert (release.label, release.leaves, release.members) == ((7, "difference", 1), 2, (1,))


def test_sensitivity_counts_records_as_the_paper_does():
    for weighting, count in (("clients", 3 * 4), ("records", 26)):
        assert shown(Population((9, 4, 13), weighting)).sensitivity == pytest.approx(2 / count, rel=1e-15)
    assert shown(Population((9, 4, 13), unit="client")).sensitivity == pytest.approx(2 / 3, rel=1e-15)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 60), data=st.data())
def test_parts_divide_the_records(size, data):
    parts = data.draw(st.integers(1, size))
    ranges = [part_range(size, j, parts) for j in range(parts)]
    assert [row for part in ranges for row in part] == list(range(size))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@settings(max_examples=60, deadline=None)
@given(clients=st.integers(1, 12), data=st.data())
def test_every_client_has_its_turn_equally_often(clients, data):
    m = data.draw(st.integers(1, clients))
    population = Population((5,) * clients, clients_per_round=m)
    met = Counter()
    for r in range(1, 3 * clients + 2):
        chosen = population.participants(r)
        assert len(set(chosen)) == len(chosen) == m
        assert [population.takes_part(p, r, ALL) for p in range(clients)] == [p in chosen for p in range(clients)]
        met.update(chosen)
        counts = [met[p] for p in range(clients)]
        assert set(counts) <= {math.floor(r * m / clients), math.ceil(r * m / clients)}


def test_the_order_of_clients_is_shuffled_and_public():
    population = Population((5,) * 8, clients_per_round=3)
    orders = [tuple(population.participants(r) for r in range(first, first + 8)) for first in (1, 9, 17)]
    assert len(set(orders)) == 3
    assert orders[0] == tuple(Population((9,) * 8, clients_per_round=3).participants(r) for r in range(1, 9))


@pytest.mark.parametrize(
    ("sizes", "message"), [((), "number of clients"), ((3, 0), r"client_sizes\[1\] >= 1"), ((3, 2.5), "whole number")]
)
def test_a_population_without_records_is_refused(sizes, message):
    with pytest.raises(InvalidArgument, match=message):
        Population(sizes)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(InvalidArgument, match="sampling rate above 0 and at most 1"):
        shown(Population((5,), adjacency="add-or-remove-one"), Batch(rate=rate))


def test_a_question_for_the_other_adjacency_is_refused():
    for adjacency, batch in (("replace-one", Batch(rate=0.5)), ("add-or-remove-one", ALL)):
        with pytest.raises(InvalidArgument, match="one adjacency"):
            shown(Population((5,), adjacency=adjacency), batch)


@pytest.mark.parametrize(
    "wrong",
    [{"unit": "person"}, {"weighting": "client"}, {"client_order": "rnd"}, {"accounting": "rdp"}]
    + [{"clients_per_round": m} for m in (0, 1.5, True)],
    ids=str,
)
def test_a_protection_that_does_not_exist_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(InvalidArgument, match=f"expected {name}.*got {name}="):
        Protection(**wrong)
