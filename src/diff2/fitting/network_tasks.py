"""What a network learns of a target: numbers, classes or counts, in units that releases give."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..models.losses import squared
from ..tables.rows import Rows
from .asking import Ask
from .counts import REACH, mean_and_bound
from .linear import half_octaves
from .regression import released_mean, share_of_mean
from .second_moment import ROOT
from .statistics import TARGET, ClassShares

SPREAD_SHARE, CLASSES_SHARE, COUNTS_SHARE = 0.01, 0.01, 0.05
SPREAD_BINS = 30


class Task(NamedTuple):
    """What is learnt: offset + scale * network, for targets of the records as the loss wants them."""

    outputs: int
    scale: float
    offset: np.ndarray | float
    loss: Callable[[Tensor, Tensor], Tensor]
    targets: Callable[[np.ndarray], Tensor]
    drawn: Callable[[Tensor, torch.Generator], Tensor]  # targets of probes from the network's own outputs


@dataclass(frozen=True)
class Spread:
    """How many targets are how far from the released mean: bins between public edges."""

    mean: float
    edges: np.ndarray
    bounds: tuple[float, float]
    purpose: str = TARGET
    longest: float = 1.0
    diameter: float = ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        sizes = np.abs(np.clip(rows.target, *self.bounds) - self.mean)
        return np.bincount(np.searchsorted(self.edges, sizes), weights=weights, minlength=len(self.edges) + 1)


def regression_task(ask: Ask, mu: float, weight: float, bounds: tuple[float, float]) -> tuple[Task, float]:
    """Return the task with a released mean and scale, and its share of the budget."""
    share = share_of_mean(mu, weight)
    mean = released_mean(ask, mu * math.sqrt(share), bounds)
    edges = half_octaves(bounds[1] - bounds[0], SPREAD_BINS)
    answer = ask(Spread(mean, edges, bounds), mu * math.sqrt(SPREAD_SHARE))
    mass = np.where(answer.value[:-1] < 2 * answer.noise_std, 0.0, answer.value[:-1])
    square = float(mass @ edges**2) / ROOT / mass.sum() if mass.sum() > 0 else ((bounds[1] - bounds[0]) / 8) ** 2
    scale = max(math.sqrt(square), 1e-9 * (bounds[1] - bounds[0]))

    def targets(values: np.ndarray) -> Tensor:
        return torch.from_numpy((np.clip(values, *bounds) - mean) / scale).unsqueeze(1)

    def drawn(outputs: Tensor, generator: torch.Generator) -> Tensor:
        return outputs + torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype) * math.sqrt(0.5)

    return Task(1, scale, mean, squared, targets, drawn), share + SPREAD_SHARE


def class_task(ask: Ask, mu: float, weight: float, classes: int) -> tuple[Task, float]:
    """Return the task with released shares of the classes, and its share of the budget."""
    answer = ask(ClassShares(classes), mu * math.sqrt(CLASSES_SHARE))
    prior = np.maximum(answer.value, max(answer.noise_std, weight))
    offset = np.log(prior / prior.sum())
    level = torch.from_numpy(offset)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs + level.to(outputs), targets, reduction="none")

    def targets(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.int64))

    def drawn(outputs: Tensor, generator: torch.Generator) -> Tensor:
        return torch.multinomial((outputs + level.to(outputs)).softmax(1), 1, generator=generator).squeeze(1)

    return Task(classes, 1.0, offset, loss, targets, drawn), CLASSES_SHARE


def count_task(ask: Ask, mu: float, high: float) -> tuple[Task, float, float]:
    """Return the task with a released mean, its share of the budget, and the bound that counts need."""
    mean, high = mean_and_bound(ask, mu, high)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        residual = outputs.clamp(-REACH, REACH).exp() - targets
        return (residual.detach() * outputs).sum(1)  # has the gradient of exp(z) - y z, its residual limited

    def targets(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.clip(values, 0.0, high) / mean).unsqueeze(1)

    def drawn(outputs: Tensor, generator: torch.Generator) -> Tensor:
        level = outputs.clamp(-REACH, REACH)
        noise = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype)
        return level.exp() + (level / 2).exp() * noise

    return Task(1, 1.0, math.log(mean), loss, targets, drawn), COUNTS_SHARE, high
