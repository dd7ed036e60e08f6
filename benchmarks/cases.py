"""The models and sizes that are timed: the paper's network at the sizes of its tables, a convolutional network, and a
transformer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

import diff2
from diff2.models.losses import resolve_loss


class Case(NamedTuple):
    """A model with records of the size of a real table; the numbers are drawn at random."""

    name: str
    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: str

    def mean_loss(self, model: nn.Module) -> torch.Tensor:
        return resolve_loss(self.loss)[1](model(self.inputs), self.targets).mean()


def network(records: int, inputs: int, classes: int = 0) -> Case:
    """The paper's network: one hidden layer of 10 units, softplus."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, inputs, generator=generator)
    name = f"network {records:,} x {inputs}"
    if classes:
        y = torch.randint(0, classes, (records,), generator=generator)
        return Case(name, diff2.mlp(inputs, classes, seed=0), x, y, "cross_entropy")
    return Case(name, diff2.mlp(inputs, 1, seed=0), x, torch.rand(records, 1, generator=generator), "squared")


def convolutional(records: int = 4096) -> Case:
    """A small convolutional network on pictures of 28 x 28, 26,010 parameters."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )
    x = torch.randn(records, 1, 28, 28, generator=generator)
    y = torch.randint(0, 10, (records,), generator=generator)
    return Case(f"convolutional {records:,} x 28 x 28", model, x, y, "cross_entropy")


class Transformer(nn.Module):
    """A classifier of sequences made of PyTorch's own layers."""

    def __init__(self, words: int = 256, length: int = 64, width: int = 128, blocks: int = 4, classes: int = 10):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
        x: torch.Tensor = self.blocks(self.words(tokens) + self.places(places))
        logits: torch.Tensor = self.head(x.mean(1))
        return logits


def transformer(records: int = 64) -> Case:
    """Four blocks of width 128 on sequences of 64 words."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x = torch.randint(0, 256, (records, 64), generator=generator)
    y = torch.randint(0, 10, (records,), generator=generator)
    return Case(f"transformer {records:,} x 64", Transformer(), x, y, "cross_entropy")


CASES = {
    "california": lambda: network(16_512, 8),
    "blog": lambda: network(48_017, 280),
    "covertype": lambda: network(464_809, 54, classes=7),
    "conv": convolutional,
    "transformer": transformer,
}
