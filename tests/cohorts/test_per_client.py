"""Every client by itself: the answers are those of one pass over all records, and so is how far a record moves them."""

import math

import pytest
import torch

import diff2
from catalogue import CATALOGUE, PRIVATE, run
from diff2.cohorts.per_client import ClientwiseCohort, bounded
from diff2.cohorts.pooled import LocalCohort
from diff2.gradients import GhostEngine, Records, build_engine, rounding_allowance
from diff2.models.losses import squared
from diff2.privacy import NoiseSource
from diff2.questions.population import ALL, Batch, Population
from helpers import paper_network, start_of, step_from
from probes import SIZES, adversaries, make_clients, movement, replaced

SOURCE = NoiseSource.from_seed(3)
KINDS = {
    "all records": (ALL, {}),
    "2 of 3 clients": (ALL, {"clients_per_round": 2}),
    "one client": (Batch(clients=(1,)), {}),
    "a batch of one client": (Batch(clients=(2,), size=3), {}),
    "a batch of all": (Batch(size=11), {}),
    "a part": (Batch(part=(1, 3)), {}),
    "poisson": (Batch(rate=0.4), {"adjacency": "add-or-remove-one"}),
    "clients": (ALL, {"unit": "client"}),
    "2 of 3 drawn": (ALL, {"unit": "client", "clients_per_round": 2, "client_order": "random"}),
}
PLACES = [(0, 0), (1, 1), (1, 3), (2, 12)]
questions = pytest.mark.parametrize("question", ["gradient", "difference", "telescoped"])
kinds = pytest.mark.parametrize("kind", KINDS)
MODEL = paper_network()
START = start_of(MODEL)


def ask(cohort, question, batch, round=1, radius=0.02):
    params = step_from(START, 0.01)
    options = {"round": round, "batch": batch, "step": 2}
    if question == "gradient":
        return cohort.clipped_gradient(params, radius, **options)
    inner = 0.5 if question == "telescoped" else math.inf
    return cohort.clipped_difference(params, START, radius, **options, inner=inner)


def cohorts(clients, population, **options):
    engine = GhostEngine(MODEL, squared, Records.of(*clients[0]), chunk_rows=5)
    return [kind(engine, clients, population, source=SOURCE, **options) for kind in (LocalCohort, ClientwiseCohort)]


@questions
@kinds
@pytest.mark.parametrize("weighting", ["clients", "records"])
def test_the_answer_is_that_of_one_pass_over_all_records(question, kind, weighting):
    batch, options = KINDS[kind]
    if options.get("unit") == "client":
        weighting = "clients"
    whole, parts = cohorts(make_clients(torch.float64), Population(SIZES, weighting, **options))
    for r in (1, 2, 3):
        one, other = ask(whole, question, batch, r), ask(parts, question, batch, r)
        assert torch.allclose(one.value, other.value, rtol=0, atol=1e-15)
        assert one.value.any()
        same = ("sensitivity", "clip", "adjacency", "sampling", "rate", "members")
        assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]
        assert one.rounding <= other.rounding < 1e-11


@pytest.mark.parametrize("kind", ["all records", "a batch of all", "a part", "poisson"])
def test_no_record_moves_an_answer_further_than_the_sensitivity_and_one_moves_it_so_far(kind):
    batch, options = KINDS[kind]
    population, clients = Population(SIZES, **options), make_clients(torch.float64)
    nothing, far = adversaries(torch.float64)["not a number"], torch.ones(8, dtype=torch.float64)
    moved = []
    for place in PLACES:
        other = nothing if kind == "poisson" else (far, -1e5)
        worlds = [cohorts(replaced(clients, place, *record), population)[1] for record in ((far, 1e5), other)]
        moved += [movement(*(ask(world, "difference", batch, r) for world in worlds)) for r in range(1, 12)]
    assert 0.99 <= max(moved) <= 1 + 1e-9


def test_owners_are_clipped_together():
    clients = make_clients(torch.float64)
    owners = [torch.arange(size) // 2 for size in SIZES]
    example = [part[:6].unsqueeze(1) for part in clients[0]]
    engine, _ = build_engine(MODEL, squared, *example, dtype=torch.float64, device=torch.device("cpu"), grouped=True)
    population = Population(SIZES, unit="owner")
    one, other = (
        ask(kind(engine, clients, population, owners=owners), "difference", ALL)
        for kind in (LocalCohort, ClientwiseCohort)
    )
    assert torch.allclose(one.value, other.value, rtol=0, atol=1e-15)


def test_the_rounding_of_the_sum_over_clients_is_covered():
    """Each addition is off by 2^-53 of a length of at most one radius; the sensitivity is 2 radii / 1e9 here."""
    population = Population((10**9,) * 8)
    mean = bounded(population, torch.zeros(3), 1.0, round=1, batch=ALL, dtype=torch.float64)
    extra = mean.rounding - rounding_allowance(torch.float64)
    assert extra * mean.sensitivity == pytest.approx(2 * 9 * 2.0**-53, rel=1e-6)


def test_masks_differ_between_clients():
    """Two clients with the same records: the same masks would give the same sums."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 20), torch.nn.Dropout(0.5), torch.nn.Linear(20, 1)).double()
    clients = [make_clients(torch.float64)[0]] * 2
    engine, stochastic = build_engine(model, squared, *clients[0], dtype=torch.float64, device=torch.device("cpu"))
    cohort = ClientwiseCohort(engine, clients, source=SOURCE, stochastic=stochastic)
    start = start_of(model)
    one, two = (cohort.clipped_gradient(start, 1.0, round=1, batch=Batch(clients=(p,))).value for p in (0, 1))
    again = cohort.clipped_gradient(start, 1.0, round=1, batch=Batch(clients=(0,))).value
    assert stochastic
    assert not torch.equal(one, two)
    assert torch.equal(one, again)


@pytest.mark.parametrize("name", ["diff2", "bvr, 2 of 3 clients", "dpsgd, poisson", "srnsgd", "diff2, owners"])
def test_a_run_asks_clients_one_by_one_if_told_to(name):
    whole, parts = (run(name, budget=PRIVATE, by_client=by_client) for by_client in (False, True))
    assert torch.allclose(whole.params, parts.params, rtol=0, atol=1e-9)
    assert len(whole.ledger) == len(parts.ledger)


def test_exact_metrics_are_the_same():
    whole, parts = (
        run(CATALOGUE["diff2"], budget=PRIVATE, by_client=by_client, metrics_every=1).history
        for by_client in (False, True)
    )
    for name in ("train_loss", "squared_gradient_norm"):
        assert whole[name].tolist() == pytest.approx(parts[name].tolist(), rel=1e-9)


def test_a_run_goes_on_as_it_began(tmp_path):
    run("diff2", budget=PRIVATE, by_client=True, directory=tmp_path)
    with pytest.raises(diff2.CheckpointError, match="by_client was True and is now False"):
        run("diff2", budget=PRIVATE, directory=tmp_path, resume=True)
