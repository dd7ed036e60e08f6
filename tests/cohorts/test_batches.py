"""Sensitivity on batches, parts, some clients, whole clients and groups: nobody moves an answer further than is stated.

Both worlds draw with the same key, hence the same batch: what is compared is the answer given the draw.
"""

import math

import numpy as np
import pytest
import torch

from diff2.cohorts import Client, LocalCohort, PerClientCohort
from diff2.cohorts.bounds import CLIENT_ROUNDING
from diff2.cohorts.clients import as_groups
from diff2.cohorts.draws import clipped
from diff2.errors import InvalidArgument
from diff2.gradients import Shapes, build_engine
from diff2.models.losses import squared
from diff2.questions import ALL, Batch, Population
from helpers import paper_network
from probes import SIZES, Asked, adversaries, engine_of, make_clients, movement, plain_sum, replaced

KINDS = {
    "all records": (ALL, {}),
    "2 of 3 clients": (ALL, {"clients_per_round": 2}),
    "1 of 3 clients": (ALL, {"clients_per_round": 1}),
    "one client": (Batch(clients=(1,)), {}),
    "a batch of one client": (Batch(clients=(2,), size=3), {}),
    "a batch of the smallest client": (Batch(clients=(1,), size=3), {"clients_per_round": 2}),
    "a batch of all": (Batch(size=11), {}),
    "one record of each": (Batch(size=1), {}),
    "a part": (Batch(part=(1, 3)), {}),
    "poisson": (Batch(rate=0.4), {"adjacency": "add-or-remove-one"}),
}
PLACES = [(0, 0), (1, 1), (1, 3), (2, 12)]  # the first record, two of the smallest client, the last
CASES = [("difference", weighting, kind, LocalCohort) for weighting in ("clients", "records") for kind in KINDS] + [
    (question, "clients", kind, cohort)
    for question, cohort in (("gradient", LocalCohort), ("difference", PerClientCohort))
    for kind in ("all records", "2 of 3 clients", "a batch of all", "a part", "poisson")
]
CLIENTS = make_clients(torch.float64)
BAD = adversaries(torch.float64)
FAR = torch.ones(8, dtype=torch.float64)
questions = pytest.mark.parametrize("question", ["gradient", "difference"])
weightings = pytest.mark.parametrize("weighting", ["clients", "records"])
both_cohorts = pytest.mark.parametrize("cohort", [LocalCohort, PerClientCohort])


def asked(question, kind, weighting="clients", **options):
    batch, settings = KINDS[kind]
    return Asked(question, Population(SIZES, weighting, **settings), batch, **{"engine": "columns", **options})


@pytest.mark.parametrize(("question", "weighting", "kind", "cohort"), CASES)
def test_no_record_moves_an_answer_further_than_the_sensitivity_and_one_moves_it_so_far(
    question, weighting, kind, cohort
):
    ask = asked(question, kind, weighting, cohort=cohort)
    nothing = BAD["not a number"]  # counts as zero: adding a record is exchanging nothing for it
    reached = 0.0
    for place in PLACES:
        chosen = ("huge target", "huge opposite target", "infinite norm")
        worlds = {name: replaced(CLIENTS, place, *BAD[name]) for name in chosen}
        worlds |= {"own": CLIENTS, "nothing": replaced(CLIENTS, place, *nothing)}
        for r in (1, 2):
            answers = {name: ask(world, r) for name, world in worlds.items()}
            for name, answer in answers.items():
                for other in ["nothing"] if kind == "poisson" else answers:
                    moved = movement(answer, answers[other])
                    assert moved <= 1 + 1e-9, (place, name, other)
                    reached = max(reached, moved)
    # In some round a record of some client is drawn: the bound is no larger than it need be, and the probes have power.
    plus = [replaced(CLIENTS, place, FAR, 1e5) for place in PLACES]
    minus = [replaced(CLIENTS, place, *(nothing if kind == "poisson" else (FAR, -1e5))) for place in PLACES]
    later = (movement(ask(one, r), ask(two, r)) for r in range(3, 60) for one, two in zip(plus, minus, strict=True))
    assert reached >= 0.99 or any(moved >= 0.99 for moved in later)


@pytest.mark.parametrize("kind", ["a batch of all", "a part", "2 of 3 clients"])
def test_single_precision_keeps_the_sensitivity_with_what_is_added_for_rounding(kind):
    ask, clients = asked("difference", kind, dtype=torch.float32), make_clients(torch.float32)
    for place in PLACES:
        for r in (1, 2):
            before = ask(clients, r)
            for record in adversaries(torch.float32).values():
                assert movement(before, ask(replaced(clients, place, *record), r)) <= 1 + before.rounding


@pytest.mark.parametrize("kind", ["a batch of all", "a part", "poisson"])
def test_a_record_that_is_not_asked_moves_nothing(kind):
    """And each is asked at some time, but for those of another part."""
    ask, moved = asked("gradient", kind), {}
    for place in PLACES:
        other = replaced(CLIENTS, place, FAR, 1e5)
        moved[place] = [not np.array_equal(ask(CLIENTS, r).value, ask(other, r).value) for r in range(1, 16)]
    if kind == "a part":
        assert all(len(set(seen)) == 1 for seen in moved.values())
        assert {place for place, seen in moved.items() if seen[0]} == {(1, 1)}
    else:
        assert all(set(seen) == {True, False} for seen in moved.values())


@pytest.mark.parametrize("kind", ["2 of 3 clients", "one client", "a batch of one client"])
def test_only_members_are_exposed(kind):
    ask = asked("gradient", kind)
    for r in range(1, 7):
        answer = ask(CLIENTS, r)
        for client in range(3):
            other = ask(replaced(CLIENTS, (client, slice(None)), FAR, 1e5), r)
            assert np.array_equal(answer.value, other.value) == (client not in answer.release.members)


CLIENT_KINDS = {
    "everyone": {},
    "2 of 3 in turn": {"clients_per_round": 2},
    "2 of 3 drawn": {"clients_per_round": 2, "client_order": "random"},
    "1 of 3 drawn": {"clients_per_round": 1, "client_order": "random"},
}


@questions
@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_no_client_moves_an_answer_further_than_the_sensitivity(question, kind):
    """All records of a client exchanged, for whatever; some exchange reaches the bound."""
    ask = Asked(question, Population(SIZES, unit="client", **CLIENT_KINDS[kind]), engine="columns")
    nan = torch.full((8,), math.nan, dtype=torch.float64)
    reached = 0.0
    for client in range(3):
        worlds = [replaced(CLIENTS, (client, slice(None)), *record) for record in (*BAD.values(), (nan, 0.0))]
        for r in (1, 2, 3):
            answers = [ask(world, r) for world in (CLIENTS, *worlds)]
            assert {answer.rounding for answer in answers} == {CLIENT_ROUNDING}
            moved = max(movement(one, other) for one in answers for other in answers)
            assert moved <= 1 + CLIENT_ROUNDING, client
            reached = max(reached, moved)
    assert reached > 0.99


@questions
@both_cohorts
def test_the_mean_of_clients_is_the_definition(question, cohort):
    """Each client's mean (difference) clipped, then averaged: against plain sums, one client after the other."""
    ask = Asked(question, Population(SIZES, unit="client"), cohort=cohort)
    engine, parts = engine_of("loop", paper_network(), None), []
    for client in CLIENTS:
        now, before = (plain_sum(engine, point, client) / client.size for point in (ask.params, ask.previous))
        parts.append(now if question == "gradient" else now - before)
    lengths = sorted(float(part.norm()) for part in parts)
    for radius in (0.9 * lengths[0], 0.9 * lengths[1], 0.7 * lengths[2], 1.1 * lengths[2]):  # just below some length
        ask.radius = radius
        expected = sum(part * min(1.0, radius / float(part.norm())) for part in parts) / 3
        np.testing.assert_allclose(ask(CLIENTS).value, expected, rtol=1e-7, atol=1e-12)


def test_the_rounding_of_sums_over_many_clients_is_covered():
    """All clients push the same way; one turns round, and the sums of the others are rounded differently."""
    count, inputs = 300, torch.full((1, 8), 0.1, dtype=torch.float64)
    clients = [Client(inputs * (1 + p / 7), torch.full((1, 1), 1e6, dtype=torch.float64)) for p in range(count)]
    ask = Asked("gradient", Population((1,) * count, unit="client"), radius=0.1, engine="columns")
    before = ask(clients)
    assert before.rounding == count**2 * 2.0**-53
    for place in (0, 150, 299):
        assert movement(before, ask(replaced(clients, (place, 0), inputs * 3, -1e6))) <= 1 + before.rounding


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_a_client_whose_vector_has_no_length_counts_as_zero(bad):
    assert not clipped(torch.tensor([1.0, bad], dtype=torch.float64), 2.0).any()


# Groups of one, two, three and four rows, not in order; all but one row of the smallest client are of one group.
GROUPS = [
    torch.tensor([0, 1, 0, 2, 2, 0, 1, 3, 2]),
    torch.tensor([5, 5, 0, 5]),
    torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0]),
]


def ask_groups(question, weighting, cohort=LocalCohort):
    engine, _ = build_engine(paper_network(), squared, Shapes.of(*CLIENTS[0]), grouped=True)
    return Asked(question, Population(SIZES, weighting, unit="group"), engine=engine, groups=GROUPS, cohort=cohort)


@questions
@weightings
def test_no_group_moves_an_answer_further_than_the_sensitivity(question, weighting):
    """All rows of a group exchanged together, all alike or against each other."""
    ask, reached = ask_groups(question, weighting), 0.0
    for client, group in [(0, 0), (0, 3), (1, 5), (1, 0), (2, 0), (2, 3)]:
        rows = torch.nonzero(GROUPS[client] == group).squeeze(1)
        worlds = [replaced(CLIENTS, (client, rows), *record) for record in BAD.values()]
        signs = torch.tensor([1e7, -1e7] * 2, dtype=torch.float64)[: len(rows), None]
        worlds += [CLIENTS, replaced(CLIENTS, (client, rows), 1.0, signs)]  # against each other
        worlds.append(replaced(CLIENTS, (client, rows[:1]), FAR, 1e7))
        worlds.append(replaced(CLIENTS, (client, rows[-1:]), *BAD["not a number"]))
        answers = [ask(world) for world in worlds]
        moved = max(movement(one, other) for one in answers for other in answers)
        assert moved <= 1 + 1e-9, (client, group)
        reached = max(reached, moved)
    assert reached > 0.99


@weightings
@both_cohorts
def test_what_is_clipped_of_a_group_is_the_sum_over_the_rows(weighting, cohort):
    ask = ask_groups("gradient", weighting, cohort)
    engine, sums, weights = engine_of("loop", paper_network(), None), [], []
    for client, numbers in zip(CLIENTS, GROUPS, strict=True):
        for group in set(numbers.tolist()):
            rows = numbers == group
            sums.append(plain_sum(engine, ask.params, Client(client.inputs[rows], client.targets[rows])))
            weights.append(1 / (3 * client.size) if weighting == "clients" else 1 / sum(SIZES))
    lengths = torch.stack(sums).norm(dim=1)
    ask.radius = float(lengths.median())  # half of them are clipped
    factors = torch.tensor(weights, dtype=torch.float64) * (ask.radius / lengths).clamp(max=1.0)
    np.testing.assert_allclose(ask(CLIENTS).value, factors @ torch.stack(sums), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("label", ["x", 0.5, True, 10**30, b"y"])
def test_the_label_of_one_group_neither_joins_nor_splits_others(label):
    """In an array, one label decides the type of all: 2^53 and 2^53 + 1 became one group, 1 and 1.0 became two."""
    labels = [2**53, 2**53 + 1, 7, 7.0, np.int64(7), torch.tensor(7), "a", label]
    client = Client(torch.zeros(8, 1), torch.zeros(8, 1))
    assert as_groups([labels], [client])[0].tolist() == [0, 1, 2, 2, 2, 2, 3, 4]
    for missing in (None, math.nan, [1]):
        with pytest.raises(InvalidArgument, match="without a group"):
            as_groups([[*labels[:7], missing]], [client])
