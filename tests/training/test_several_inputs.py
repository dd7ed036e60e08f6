"""Records of several inputs: the run of a model that takes them all in one tensor, by every engine that serves it."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import diff2
from diff2 import DPGD, DPSGD, Budget, Diff2, GradientDescent, InvalidArgument
from diff2.gradients.several_inputs import Layout, Part

GENERATOR = torch.Generator().manual_seed(0)
N = 40
X = torch.randn(N, 3, generator=GENERATOR, dtype=torch.float64)
KEY = torch.arange(N) % 5
Y = X.sum(1, keepdim=True) + KEY.unsqueeze(1)
ROUNDS = Diff2(4, 2, 1.0, 4.0, GradientDescent(0.1))


class Two(nn.Module):
    """Numbers, and a key that is looked up."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(5, 2), nn.Linear(5, 1)

    def forward(self, x, key):
        return self.head(torch.cat([x, self.table(key)], 1))


class One(Two):
    """The same with the key as the last of the numbers."""

    def forward(self, packed):
        return super().forward(packed[:, :3], packed[:, 3].long())


class Scaled(Two):
    """A parameter that no engine but the general ones can serve, for it is used in a function of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.PReLU()

    def forward(self, x, key):
        return self.scale(super().forward(x, key))


class Rows(Dataset):
    def __init__(self, made):
        self.made = made

    def __len__(self):
        return N

    def __getitem__(self, number):
        return self.made(X[number], KEY[number]), Y[number]


def run(clients, model=None, algorithm=ROUNDS, **options):
    model = (Two() if model is None else model).double()
    return diff2.train(model, "squared", clients, algorithm, Budget(2.0, 1e-5), seed=0, progress=False, **options)


PACKED = (torch.cat([X, KEY.unsqueeze(1).double()], 1), Y)
EXAMPLE = (torch.eye(4)[:3].double(), Y[:3])  # made up: no two alike, keys that the table has
GIVEN = {
    "tuple": ((X, KEY), Y),
    "arrays": ((X.numpy(), KEY.numpy().astype(np.int32)), Y),
    "dict, in any order": ({"key": KEY, "x": X}, Y),
    "list of one client": [((X, KEY), Y)],
    "dataset of tuples": Rows(lambda x, key: (x, key)),
    "dataset of dicts": Rows(lambda x, key: {"x": x, "key": key}),
}


@pytest.mark.parametrize("name", GIVEN)
def test_several_inputs_are_the_run_of_one(name):
    result, expected = run(GIVEN[name]), run(PACKED, One(), example=EXAMPLE)
    assert result.engine == expected.engine == "ghost"
    assert torch.allclose(result.params, expected.params, rtol=1e-12, atol=0)
    assert result.model(x=X, key=KEY).shape == (N, 1)  # the model takes what it took before


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "vmap"},
        {"engine": "loop"},
        {"by_client": True},
        {"groups": [np.arange(20) // 2, np.arange(20) // 3]},
        {"chunk_rows": 7},
        {"unit": "client"},
        {"algorithm": DPSGD(3, 8, 1.0, GradientDescent(0.1), sampling="poisson"), "public_sizes": 30},
    ],
    ids=str,
)
def test_whatever_a_run_does_with_records(options):
    several = [((X[:20], KEY[:20]), Y[:20]), ((X[20:], KEY[20:]), Y[20:])]
    one = [(PACKED[0][:20], Y[:20]), (PACKED[0][20:], Y[20:])]
    expected = run(one, One(), example=EXAMPLE, **options)
    assert torch.allclose(run(several, **options).params, expected.params, rtol=1e-12, atol=0)


def test_exact_metrics_and_held_out_records():
    with pytest.warns(diff2.PrivacyLeakWarning):
        history = run(GIVEN["tuple"], metrics_every=1, holdout=GIVEN["tuple"]).history
    assert np.allclose(history["train_loss"], history["test_loss"])


def test_a_model_without_rules_gets_a_slower_engine_that_says_so():
    with pytest.warns(diff2.GradientFallbackWarning, match="PReLU"):
        assert run(GIVEN["tuple"], Scaled()).engine in ("vmap", "loop")


def test_made_up_masks_are_masks():
    class Masked(Two):
        def forward(self, keys, mask):
            kept = self.table(keys) * mask.unsqueeze(2)
            return self.head(torch.cat([kept.sum(1) / mask.sum(1, keepdim=True), kept.sum(1), mask[:, :1]], 1))

    mask = torch.rand(N, 20, generator=GENERATOR) < 0.5
    inputs = {"keys": KEY.unsqueeze(1).expand(-1, 20), "mask": mask}
    assert run((inputs, Y), Masked()).engine == "ghost"


def test_an_example_has_several_inputs_too():
    class Picky(Two):
        def forward(self, x, key):
            if (x < 0).any():
                raise ValueError("negative")
            return super().forward(x, key)

    clients = ((X.abs(), KEY), Y)
    with pytest.raises(InvalidArgument, match=r"\(3,\) of type torch.float64, \(\) of type torch.int64, 3 records"):
        run(clients, Picky())
    run(clients, Picky(), example=((X[:2].abs(), KEY[:2]), Y[:2]))


def test_a_run_is_resumed_with_the_same_inputs_only(tmp_path):
    run(GIVEN["tuple"], directory=tmp_path / "run")
    assert run(GIVEN["tuple"], directory=tmp_path / "run", resume=True).ledger.releases
    with pytest.raises(diff2.CheckpointError):
        run(GIVEN["dict, in any order"], directory=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "tensors",
    [
        (torch.randn(4, 2, 3), torch.tensor([2**62 + 1, -1, 0, 7]), torch.tensor([True, False, True, True])),
        (torch.randn(4, 2), torch.randn(4)),
        (torch.randn(4, 1, dtype=torch.float64), torch.zeros(4, 0), torch.tensor([[3], [1], [2], [0]]).byte()),
        (torch.arange(4).int(), torch.arange(8).reshape(4, 2)),
    ],
)
def test_packing_loses_nothing(tensors):
    layout = Layout(tuple(Part(None, tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors))
    again, _ = layout(nn.Identity(), (layout.pack(tensors),), {})
    assert all(torch.equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(again, tensors, strict=True))
    assert layout.pack([torch.zeros_like(tensor) for tensor in tensors]).count_nonzero() == 0  # an empty slot is zeros


BAD = {
    "lengths": (((X, KEY[:-1]), Y), r"the inputs of clients\[0\] hold \[39, 40\] records"),
    "no records": (((X[:0], KEY[:0]), Y[:0]), r"the inputs of clients\[0\] hold \[0\] records"),
    "targets": (((X, KEY), Y[:-1]), "40 inputs and 39 targets"),
    "no names": (({1: X}, Y), "inputs of clients.0. by name"),
    "none at all": (({}, Y), "by name"),
    "text": (({"x": X, "key": np.array(["a"] * N)}, Y), "cannot be turned into tensors"),
    "NaN": (((X / 0 * 0, KEY), Y), "clients hold values that cannot be used"),
    "an index too large": (((X, KEY + 1), Y), "clients hold values that cannot be used"),
    "other inputs": ([((X, KEY), Y), ((X, KEY.double()), Y)], r"clients\[1\] has the inputs .*float64, \(\) of type"),
    "one tensor": ([((X, KEY), Y), (X, Y)], r"clients\[1\] has the inputs one tensor, one of clients\[0\] \(3,\)"),
    "another name": (({"x": X, "keys": KEY}, Y), r"keys \(\) of type torch.int64, 3 records: .*unexpected keyword"),
    "one too many": (((X, KEY, KEY), Y), "cannot be applied to inputs of shape"),
}


@pytest.mark.parametrize(("clients", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused(clients, message):
    with pytest.raises(InvalidArgument, match=message):
        run(clients)


def test_two_clients_are_still_two():
    model = nn.Linear(3, 1).double()
    assert run(((X, Y), (X[:9], Y[:9])), model, DPGD(1, 1.0, GradientDescent(0.1))).plan.client_sizes == (N, 9)
