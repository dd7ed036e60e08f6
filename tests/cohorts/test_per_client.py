"""Every client by itself: the answers are those of one pass over all records, with the same release.

That no record moves them further than is stated is tested with the rest, in ``test_batches.py``.
"""

import numpy as np
import pytest
import torch

import diff2
from catalogue import PRIVATE, result_of, run
from diff2.cohorts import LocalCohort, PerClientCohort
from diff2.gradients import Shapes, build_engine
from diff2.models.losses import squared
from diff2.questions import ALL, Batch, Population, Question
from helpers import start_of
from probes import SIZES, SOURCE, Asked, make_clients

KINDS = {
    "all records": (ALL, {}),
    "2 of 3 clients": (ALL, {"clients_per_round": 2}),
    "one client": (Batch(clients=(1,)), {}),
    "a batch of one client": (Batch(clients=(2,), size=3), {}),
    "a batch of all": (Batch(size=11), {}),
    "a part": (Batch(part=(1, 3)), {}),
    "poisson": (Batch(rate=0.4), {"adjacency": "add-or-remove-one"}),
    "by records": (Batch(size=11), {"weighting": "records"}),
    "clients": (ALL, {"unit": "client"}),
    "2 of 3 drawn": (ALL, {"unit": "client", "clients_per_round": 2, "client_order": "random"}),
}


@pytest.mark.parametrize("question", ["gradient", "difference"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_that_of_one_pass_over_all_records(question, kind):
    batch, options = KINDS[kind]
    whole, parts = (
        Asked(question, Population(SIZES, **options), batch, cohort=cohort) for cohort in (LocalCohort, PerClientCohort)
    )
    for r in (1, 2, 3):
        one, other = (ask(make_clients(torch.float64), r) for ask in (whole, parts))
        np.testing.assert_allclose(one.value, other.value, rtol=0, atol=1e-15)
        assert one.value.any()
        assert (one.release, one.adjacency) == (other.release, other.adjacency)
        assert one.rounding <= other.rounding < 1e-10


def test_masks_differ_between_clients():
    """Two clients with the same records: the same masks would give the same sums."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 20), torch.nn.Dropout(0.5), torch.nn.Linear(20, 1)).double()
    clients = [make_clients(torch.float64)[0]] * 2
    engine, stochastic = build_engine(model, squared, Shapes.of(*clients[0]), dtype=torch.float64)
    cohort = PerClientCohort(engine, clients, source=SOURCE, stochastic=stochastic)
    one, two, again = (
        cohort.answer(Question.gradient(1.0, batch=Batch(clients=(p,))).at(1, start_of(model))).value for p in (0, 1, 0)
    )
    assert stochastic
    assert not np.array_equal(one, two)
    assert np.array_equal(one, again)


@pytest.mark.parametrize("name", ["diff2", "bvr, 2 of 3 clients", "dpsgd, poisson", "srnsgd", "diff2, groups"])
def test_a_run_asks_clients_one_by_one_if_told_to(name):
    whole, parts = result_of(name), run(name, budget=PRIVATE, by_client=True)
    assert torch.allclose(whole.params, parts.params, rtol=0, atol=1e-9)
    assert len(whole.ledger) == len(parts.ledger)


def test_exact_metrics_are_the_same():
    whole, parts = (run("diff2", budget=PRIVATE, by_client=by, metrics_every=1).history for by in (False, True))
    for name in ("train_loss", "squared_gradient_norm"):
        assert whole[name].tolist() == pytest.approx(parts[name].tolist(), rel=1e-9)


def test_a_run_goes_on_as_it_began(tmp_path):
    run("diff2", budget=PRIVATE, by_client=True, directory=tmp_path)
    with pytest.raises(diff2.CheckpointError, match="by_client was True and is now False"):
        run("diff2", budget=PRIVATE, directory=tmp_path, resume=True)
