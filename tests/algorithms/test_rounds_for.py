"""Epochs as rounds: as many batches as a loader makes, from public numbers."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from diff2 import DPSGD, Budget, GradientDescent, InvalidArgument, plan, rounds_for


@pytest.mark.parametrize(("records", "batch_size"), [(100, 10), (101, 10), (7, 7), (7, 1), (9, 4)])
def test_as_many_rounds_as_a_loader_makes_batches(records, batch_size):
    loader = DataLoader(TensorDataset(torch.zeros(records)), batch_size=batch_size)
    assert rounds_for(epochs=3, batch_size=batch_size, records=records) == 3 * len(loader)
    assert rounds_for(epochs=0.5, batch_size=batch_size, records=records) == -(-len(loader) // 2)


def test_clients_count_together_and_the_sampling_rate_is_the_one_that_is_priced():
    rounds = rounds_for(epochs=2, batch_size=30, records=[100, 50])
    assert rounds == rounds_for(epochs=2, batch_size=30, records=150) == 10
    priced = plan(DPSGD(rounds, 30, 1.0, GradientDescent(0.1), sampling="poisson"), Budget(1.0, 1e-5), [150])
    assert {release.rate for release in priced.releases} == {30 / 150}


BAD = [
    (dict(epochs=0), "epochs > 0"),
    (dict(epochs=float("inf")), "epochs to be finite"),
    (dict(epochs="3"), "epochs"),
    (dict(batch_size=0), "batch_size >= 1"),
    (dict(batch_size=0.5), "batch_size to be a whole number"),
    (dict(batch_size=101), "batch_size=101 is more than the 100 records"),
    (dict(records=0), "records >= 1"),
    (dict(records=[]), "records >= 1"),
    (dict(records=[10, 2.5]), "records to be a whole number"),
    (dict(records="100"), "records to be a whole number"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=str)
def test_bad_numbers_are_refused(changes, message):
    with pytest.raises(InvalidArgument, match=message):
        rounds_for(**{**dict(epochs=1, batch_size=10, records=100), **changes})
