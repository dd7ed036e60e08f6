"""The file of a trained model: whatever a module holds comes back, and its hash is that of the module."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from diff2.errors import LedgerError
from diff2.training.model_file import MODEL, TYPES, file_digest, model_digest, stated_guarantee, write_model


class Tied(nn.Module):
    """Two names for one weight, a view, and buffers of several types."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("view", torch.arange(12.0).reshape(3, 4).T)
        self.register_buffer("short", torch.ones(2, dtype=torch.bfloat16))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("count", torch.tensor(3))


@pytest.mark.parametrize("make", [Tied, lambda: nn.BatchNorm1d(2), lambda: nn.Linear(2, 1).double()])
def test_a_file_has_the_hash_of_its_module_and_the_same_bytes_each_time(tmp_path, make):
    model, path = make(), tmp_path / MODEL
    write_model(path, model, "a sentence")
    first = path.read_bytes()
    write_model(path, model, "a sentence")
    assert (path.read_bytes(), stated_guarantee(path)) == (first, "a sentence")
    assert file_digest(path) == model_digest(model)
    other = make()
    other.load_state_dict(load_file(path))
    assert model_digest(other) == model_digest(model)
    name = next(iter(model.state_dict()))
    model.state_dict()[name].add_(1)
    assert model_digest(model) != file_digest(path)


def test_types_are_those_of_pytorch():
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in TYPES.values())


@pytest.mark.parametrize("data", [b"", b"nothing", b"\xff" * 64])
def test_what_is_no_model_is_refused(tmp_path, data):
    (tmp_path / MODEL).write_bytes(data)
    with pytest.raises(LedgerError, match="not a saved model"):
        file_digest(tmp_path / MODEL)
