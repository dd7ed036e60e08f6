"""Datasets and loaders of PyTorch as clients: the run of their tensors, said once; the rest refused without quoting."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import diff2
from diff2 import DPGD, DPSGD, Budget, GradientDescent, InvalidArgument

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
PLAIN = TensorDataset(X, Y)
FIRST = list(range(20))


class Rows(Dataset):
    """Records by number; ``change`` makes a record of the pair."""

    def __init__(self, change=lambda x, y: (x, y), count=30):
        self.change, self.count = change, count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return self.change(X[number], Y[number])


class Endless(IterableDataset):
    def __iter__(self):
        return iter([(X[0], Y[0])])


class Unmeasured(Dataset):
    def __getitem__(self, number):
        return X[number], Y[number]


def trained(clients, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return diff2.train(
        model, "squared", clients, DPGD(3, 1.0, GradientDescent(0.1)), Budget(1.0, 1e-5), seed=0, **options
    )


def fixed(samples):
    """A collate function of one's own: numpy arrays."""
    return torch.stack([x for x, _ in samples]).numpy(), torch.stack([y for _, y in samples])


ONE = {
    "tensors": PLAIN,
    "rows": Rows(),
    "rows of arrays": Rows(lambda x, y: (x.numpy(), y.numpy())),
    "loader": DataLoader(PLAIN, batch_size=7, shuffle=True, drop_last=True),
    "loader of batches": DataLoader(PLAIN, batch_size=None),
    "loader of one's own batches": DataLoader(PLAIN, batch_sampler=BatchSampler(RandomSampler(PLAIN), 4, False)),
    "loader that collates itself": DataLoader(PLAIN, batch_size=7, collate_fn=fixed),
    "joined": ConcatDataset([Subset(PLAIN, FIRST), Subset(PLAIN, range(20, 30))]),
    "list of one": [PLAIN],
}


@pytest.mark.parametrize("name", ONE)
def test_a_dataset_is_the_run_of_its_tensors_and_the_generator_is_left_alone(name):
    expected = trained((X, Y)).params
    torch.manual_seed(5)
    before = torch.get_rng_state()
    diff2.cohorts.torch_datasets.with_tensors(ONE[name], sizes_are_public=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(trained(ONE[name]).params, expected)


@pytest.mark.parametrize(
    "part",
    [Subset(PLAIN, FIRST), Subset(Rows(), FIRST), DataLoader(PLAIN, batch_size=4, sampler=SubsetRandomSampler(FIRST))],
)
def test_a_list_of_parts_is_a_list_of_clients_and_a_sampled_subset_is_the_subset(part):
    mixed = [part, (X[20:], Y[20:])]
    expected = trained([(X[:20], Y[:20]), (X[20:], Y[20:])])
    assert torch.equal(trained(mixed).params, expected.params)
    assert expected.plan.client_sizes == trained(mixed).plan.client_sizes == (20, 10)


def test_records_beyond_one_chunk_are_all_there(monkeypatch):
    monkeypatch.setattr("diff2.cohorts.torch_datasets.CHUNK_ROWS", 7)
    assert torch.equal(trained(Rows()).params, trained((X, Y)).params)


def test_held_out_records_too():
    with pytest.warns(diff2.PrivacyLeakWarning):
        losses = [
            trained((X, Y), metrics_every=1, holdout=held).history["test_loss"] for held in ((X, Y), DataLoader(Rows()))
        ]
    assert (losses[0] == losses[1]).all()


def test_it_is_said_once_and_a_secret_number_of_records_is_not(caplog):
    with caplog.at_level(logging.INFO, "diff2"):
        trained([PLAIN, Rows()])
        trained([DataLoader(PLAIN, batch_size=7), (X, Y)])
        algorithm = DPSGD(2, 5, 1.0, GradientDescent(0.1), sampling="poisson")
        diff2.train(nn.Linear(3, 1), "squared", PLAIN, algorithm, Budget(1.0, 1e-5), public_sizes=40)
        trained((X, Y))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]
    both, loader, secret = (record.getMessage() for record in caplog.records)
    assert "the 60 records of 2 datasets" in both
    assert "the 30 records of 1 dataset " in loader
    assert "Batch size, shuffling and drop_last of a DataLoader are not used" in loader
    assert "30" not in secret


SECRET = "1234.5"


def sly(x, y):
    raise ValueError(f"cannot read {SECRET}")


BAD = {
    "iterable": (Endless(), r"clients\[0\] is a dataset without numbered records and a length \(Endless\)"),
    "loader of an iterable": (DataLoader(Endless()), "without numbered records"),
    "no length": (Unmeasured(), "and a length"),
    "repeated": (Subset(PLAIN, [0, 1, 1]), r"clients\[0\] holds a record more than once"),
    "repeated by a sampler": (DataLoader(PLAIN, sampler=SubsetRandomSampler([2, 2])), "more than once"),
    "empty": (Rows(count=0), r"clients\[0\] holds no record"),
    "inputs only": (Rows(lambda x, y: x), r"pairs \(input, target\), got Tensor"),
    "dicts": (Rows(lambda x, y: {"x": x, "y": y}), r"pairs \(input, target\), got dict"),
    "three parts": ([PLAIN, TensorDataset(X, Y, Y)], r"records of clients\[1\] to be pairs .* got tuple of 3"),
    "ragged": (Rows(lambda x, y: (x[: 1 + int(y > 0)], y)), "do not have one shape"),
    "ragged between chunks": (DataLoader(Rows(), collate_fn=lambda rows: rows[0][0]), "pairs"),
    "objects": (Rows(lambda x, y: (object(), y)), "not numbers"),
    "texts": (Rows(lambda x, y: (SECRET, y)), "array of numbers|not numbers"),
    "fails": (Rows(sly), "its dataset raises ValueError for some record"),
    "weighted": (
        DataLoader(PLAIN, sampler=WeightedRandomSampler([1.0] * 30, 30)),
        r"WeightedRandomSampler, which may leave records out or repeat them.*Subset\(dataset, indices\)",
    ),
    "with replacement": (DataLoader(PLAIN, sampler=RandomSampler(PLAIN, replacement=True)), "RandomSampler"),
    "some at random": (DataLoader(PLAIN, sampler=RandomSampler(PLAIN, num_samples=9)), "RandomSampler"),
}


@pytest.mark.parametrize(("clients", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_refused_without_quoting_a_record(clients, message):
    with pytest.raises(InvalidArgument, match=message) as error:
        trained(clients)
    assert SECRET not in str(error.value)
    assert error.value.__context__ is None
