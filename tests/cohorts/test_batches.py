"""Sensitivity on batches, parts, some clients, whole clients and owners: nobody moves an answer further than is stated.

Both worlds draw with the same key, hence the same batch: what is compared is the answer given the draw.
"""

import math

import pytest
import torch

from diff2.cohorts.clients import Client
from diff2.cohorts.pooled import CLIENT_ROUNDING, LocalCohort, clipped
from diff2.gradients import GhostEngine, LoopEngine, Records, build_engine
from diff2.models.losses import squared
from diff2.privacy import NoiseSource
from diff2.questions.population import ALL, Batch, Population
from helpers import paper_network, start_of, step_from
from probes import SIZES, adversaries, make_clients, movement, replaced

SOURCE = NoiseSource.from_seed(3)
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
CASES = [("difference", weighting, kind) for weighting in ("clients", "records") for kind in KINDS] + [
    (question, "clients", kind)
    for question in ("gradient", "telescoped")
    for kind in ("all records", "2 of 3 clients", "a batch of all", "a part", "poisson")
]
questions = pytest.mark.parametrize("question", ["gradient", "difference", "telescoped"])
weightings = pytest.mark.parametrize("weighting", ["clients", "records"])


class Asked:
    """One question, asked of any clients in any round."""

    def __init__(self, question, batch, population, *, dtype=torch.float64, radius=None, engine=None, owners=None):
        model = paper_network(dtype=dtype)
        # Short enough to be reached by the difference of two clipped gradients, which have about the same direction.
        radius = {"telescoped": 1e-4}.get(question, 0.02) if radius is None else radius
        self.question, self.batch, self.population, self.radius = question, batch, population, radius
        self.engine = engine or GhostEngine(model, squared, Records.of(*make_clients(dtype)[0]), chunk_rows=5)
        self.previous = start_of(model)
        self.params = step_from(self.previous, 0.01)
        self.owners = owners

    def __call__(self, clients, round=1):
        cohort = LocalCohort(self.engine, clients, self.population, source=SOURCE, owners=self.owners)
        options = {"round": round, "batch": self.batch, "step": 2}
        if self.question == "gradient":
            return cohort.clipped_gradient(self.params, self.radius, **options)
        inner = 0.5 if self.question == "telescoped" else math.inf
        return cohort.clipped_difference(self.params, self.previous, self.radius, **options, inner=inner)


@pytest.mark.parametrize(("question", "weighting", "kind"), CASES)
def test_no_record_moves_an_answer_further_than_the_sensitivity(question, weighting, kind):
    batch, options = KINDS[kind]
    ask = Asked(question, batch, Population(SIZES, weighting, **options))
    clients, bad = make_clients(torch.float64), adversaries(torch.float64)
    nothing = bad["not a number"]  # counts as zero: adding a record is exchanging nothing for it
    for place in PLACES:
        chosen = ("huge target", "huge opposite target", "infinite norm")
        worlds = {name: replaced(clients, place, *bad[name]) for name in chosen}
        worlds |= {"own": clients, "nothing": replaced(clients, place, *nothing)}
        for r in (1, 2):
            answers = {name: ask(world, r) for name, world in worlds.items()}
            for name, answer in answers.items():
                others = ["nothing"] if kind == "poisson" else answers
                for other in others:
                    assert movement(answer, answers[other]) <= 1 + 1e-9, (place, name, other)


@pytest.mark.parametrize(("question", "weighting", "kind"), CASES)
def test_the_sensitivity_of_every_kind_of_batch_is_attained(question, weighting, kind):
    """By some record in some round: the bound is not larger than it need be, and the probes above had power."""
    batch, options = KINDS[kind]
    ask = Asked(question, batch, Population(SIZES, weighting, **options))
    clients, far = make_clients(torch.float64), torch.ones(8, dtype=torch.float64)
    nothing = adversaries(torch.float64)["not a number"]
    pairs = [
        [replaced(clients, place, *record) for record in ((far, 1e5), nothing if kind == "poisson" else (far, -1e5))]
        for place in PLACES
    ]
    assert any(movement(ask(plus, r), ask(minus, r)) >= 0.99 for r in range(1, 60) for plus, minus in pairs)


@pytest.mark.parametrize("kind", ["a batch of all", "a part", "2 of 3 clients"])
def test_single_precision_keeps_the_sensitivity_with_what_is_added_for_rounding(kind):
    batch, options = KINDS[kind]
    ask = Asked("difference", batch, Population(SIZES, **options), dtype=torch.float32)
    clients = make_clients(torch.float32)
    for place in PLACES:
        for r in (1, 2):
            for record in adversaries(torch.float32).values():
                answer = ask(replaced(clients, place, *record), r)
                assert movement(ask(clients, r), answer) <= 1 + answer.rounding


@pytest.mark.parametrize("kind", ["a batch of all", "a part", "poisson"])
def test_a_record_that_is_not_asked_moves_nothing(kind):
    """And each is asked at some time, but for those of another part."""
    batch, options = KINDS[kind]
    ask = Asked("gradient", batch, Population(SIZES, **options))
    clients = make_clients(torch.float64)
    moved = {place: [] for place in PLACES}
    for place in PLACES:
        other = replaced(clients, place, torch.ones(8, dtype=torch.float64), 1e5)
        moved[place] = [not torch.equal(ask(clients, r).value, ask(other, r).value) for r in range(1, 16)]
    if kind == "a part":
        assert all(len(set(seen)) == 1 for seen in moved.values())
        assert {place for place, seen in moved.items() if seen[0]} == {(1, 1)}
    else:
        assert all(set(seen) == {True, False} for seen in moved.values())


@pytest.mark.parametrize("kind", ["2 of 3 clients", "one client", "a batch of one client"])
def test_only_members_are_exposed(kind):
    batch, options = KINDS[kind]
    ask = Asked("gradient", batch, Population(SIZES, **options))
    clients = make_clients(torch.float64)
    for r in range(1, 7):
        answer = ask(clients, r)
        for client in range(3):
            world = replaced(clients, (client, slice(None)), torch.ones(8, dtype=torch.float64), 1e5)
            moves = not torch.equal(answer.value, ask(world, r).value)
            assert moves == (client in answer.members)


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
    ask = Asked(question, ALL, Population(SIZES, unit="client", **CLIENT_KINDS[kind]))
    clients, bad = make_clients(torch.float64), adversaries(torch.float64)
    nan = torch.full((8,), math.nan, dtype=torch.float64)
    reached = 0.0
    for client in range(3):
        worlds = {name: replaced(clients, (client, slice(None)), *record) for name, record in bad.items()}
        worlds |= {"own": clients, "NaN": replaced(clients, (client, slice(None)), nan, 0.0)}
        for r in (1, 2, 3):
            answers = {name: ask(world, r) for name, world in worlds.items()}
            for name, answer in answers.items():
                assert answer.rounding == CLIENT_ROUNDING
                moved = [movement(answer, other) for other in answers.values()]
                assert max(moved) <= 1 + CLIENT_ROUNDING, (client, name)
                reached = max(reached, *moved)
    assert reached > 0.99


@pytest.mark.parametrize("question", ["gradient", "difference", "telescoped"])
def test_the_mean_of_clients_is_the_definition(question):
    """Each client's mean (difference) clipped, then averaged: against plain sums, one client after the other."""
    ask = Asked(question, ALL, Population(SIZES, unit="client"))
    clients = make_clients(torch.float64)
    engine = LoopEngine(paper_network(), squared)

    def clip(vector, radius):
        return vector * min(1.0, radius / float(vector.norm()))

    parts = []
    for client in clients:
        now, before = (
            engine.clipped_gradient_sum(point, Records.of(*client), math.inf) / client.size
            for point in (ask.params, ask.previous)
        )
        if question == "gradient":
            parts.append(now)
        elif question == "difference":
            parts.append(now - before)
        else:
            parts.append(clip(now, 0.5) - clip(before, 0.5))
    lengths = sorted(float(part.norm()) for part in parts)
    for radius in (0.9 * lengths[0], 0.9 * lengths[1], 0.7 * lengths[2], 1.1 * lengths[2]):  # just below some length
        ask.radius = radius
        expected = sum(clip(part, radius) for part in parts) / 3
        torch.testing.assert_close(ask(clients).value, expected, rtol=1e-7, atol=1e-12)


def test_the_rounding_of_sums_over_many_clients_is_covered():
    """All clients push the same way; one turns round, and the sums of the others are rounded differently."""
    count, inputs = 300, torch.full((1, 8), 0.1, dtype=torch.float64)
    clients = [Client(inputs * (1 + p / 7), torch.full((1, 1), 1e6, dtype=torch.float64)) for p in range(count)]
    ask = Asked("gradient", ALL, Population((1,) * count, unit="client"), radius=0.1)
    before = ask(clients)
    assert before.rounding == count**2 * 2.0**-53
    for place in (0, 150, 299):
        after = ask(replaced(clients, (place, 0), inputs * 3, -1e6))
        assert movement(before, after) <= 1 + before.rounding


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_a_client_whose_vector_has_no_length_counts_as_zero(bad):
    assert not clipped(torch.tensor([1.0, bad], dtype=torch.float64), 2.0).any()


# Owners of one, two, three and four rows, not in order; the smallest client has one owner of all but one of its rows.
OWNERS = [
    torch.tensor([0, 1, 0, 2, 2, 0, 1, 3, 2]),
    torch.tensor([5, 5, 0, 5]),
    torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0]),
]
PEOPLE = [(0, 0), (0, 3), (1, 5), (1, 0), (2, 0), (2, 3)]


def owners_of(question, weighting):
    clients = make_clients(torch.float64)
    example = (part[:6].unsqueeze(1) for part in clients[0])
    engine, _ = build_engine(paper_network(), squared, *example, grouped=True)
    population = Population(SIZES, weighting, unit="owner")
    return Asked(question, ALL, population, engine=engine, owners=OWNERS)


def rows_of(client, owner):
    return torch.nonzero(OWNERS[client] == owner).squeeze(1)


@questions
@weightings
def test_no_owner_moves_an_answer_further_than_the_sensitivity(question, weighting):
    """All rows of an owner exchanged together, all alike or against each other."""
    ask, clients = owners_of(question, weighting), make_clients(torch.float64)
    bad, reached = adversaries(torch.float64), 0.0
    for client, owner in PEOPLE:
        rows = rows_of(client, owner)
        worlds = {name: replaced(clients, (client, rows), *record) for name, record in bad.items()}
        signs = torch.tensor([1e7, -1e7] * 2, dtype=torch.float64)[: len(rows), None]
        worlds |= {"own": clients, "against each other": replaced(clients, (client, rows), 1.0, signs)}
        worlds["one row"] = replaced(clients, (client, rows[:1]), torch.ones(8, dtype=torch.float64), 1e7)
        worlds["one row not a number"] = replaced(clients, (client, rows[-1:]), *bad["not a number"])
        answers = {name: ask(world) for name, world in worlds.items()}
        for name, answer in answers.items():
            moved = [movement(answer, other) for other in answers.values()]
            assert max(moved) <= 1 + 1e-9, (client, owner, name)
            reached = max(reached, *moved)
    assert reached > 0.99


@weightings
def test_what_is_clipped_of_an_owner_is_the_sum_over_the_rows(weighting):
    ask, clients = owners_of("gradient", weighting), make_clients(torch.float64)
    engine = LoopEngine(paper_network(), squared)
    sums, weights = [], []
    for client, numbers in zip(clients, OWNERS, strict=True):
        for owner in set(numbers.tolist()):
            records = Records.of(client.inputs[numbers == owner], client.targets[numbers == owner])
            sums.append(engine.clipped_gradient_sum(ask.params, records, math.inf))
            weights.append(1 / (3 * client.size) if weighting == "clients" else 1 / sum(SIZES))
    lengths = torch.stack(sums).norm(dim=1)
    ask.radius = float(lengths.median())  # half of them are clipped
    factors = torch.tensor(weights, dtype=torch.float64) * (ask.radius / lengths).clamp(max=1.0)
    torch.testing.assert_close(ask(clients).value, factors @ torch.stack(sums), rtol=1e-6, atol=1e-9)
