"""The models and sizes that are timed: the paper's network at the sizes of its tables, and a convolutional network."""

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


CASES = {
    "california": lambda: network(16_512, 8),
    "blog": lambda: network(48_017, 280),
    "covertype": lambda: network(464_809, 54, classes=7),
    "conv": convolutional,
}
