"""A network over records of a table: what is asked of it, which modules it can be, and what it learns of a target."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InvalidArgument
from ..gradients import Engine, FeatureCache, Records, Shapes, Transform, build_engine, rounding_allowance
from ..gradients.checks import refuse_mixing
from ..gradients.sums import BLOCK
from ..models.losses import cross_entropy, squared
from ..questions import Question
from ..tables.rows import CHUNK, Rows
from .asking import Ask
from .counts import REACH, mean_and_bound
from .linear import half_octaves
from .preparation import Preparation
from .regression import released_mean, share_of_mean
from .second_moment import ROOT
from .statistics import DESCENT, NORMS, TARGET, ClassShares

MANY = 10_000  # chunks that the records of one unit may be spread over
SPREAD_SHARE, CLASSES_SHARE, COUNTS_SHARE = 0.01, 0.01, 0.05
SPREAD_BINS = 30


@dataclass(frozen=True, eq=False)
class Learner:
    """A network over records: engines, and how records become its inputs and targets."""

    preparation: Preparation
    task: Task
    engine: Engine
    heaviest: float  # weight of a unit

    def records(self, rows: Rows, cache: dict[Any, Any]) -> tuple[Records, FeatureCache]:
        """Return the records as tensors, with what the engine keeps of them."""
        if cache.get("learner") is not self:
            inputs = torch.from_numpy(self.preparation.inputs(rows)).to(self.engine.flat.dtype)
            cache["learner"], cache["cache"] = self, FeatureCache()
            cache["records"] = Records.of(inputs, self.task.targets(rows.target))
        return cache["records"], cache["cache"]


@dataclass(frozen=True, eq=False)
class NetworkNorms:
    """How many transformed gradients have which length: bins between public edges."""

    learner: Learner
    params: Tensor
    transform: Transform | None
    edges: np.ndarray
    purpose: str = NORMS
    longest: float = 1.0
    diameter: float = ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        records, _ = self.learner.records(rows, cache)
        sizes = self.learner.engine.norms(self.params, records, self.transform).numpy()
        return np.bincount(np.searchsorted(self.edges, sizes), weights=weights, minlength=len(self.edges) + 1)


@dataclass(frozen=True, eq=False)
class NetworkGradients:
    """The sum of the records' transformed gradients, each no longer than the radius."""

    learner: Learner
    params: Tensor
    transform: Transform | None
    radius: float
    purpose: str = DESCENT

    @property
    def longest(self) -> float:
        """The radius, and what rounding may add to a record, or to the records of a unit in many chunks."""
        flat = self.learner.engine.flat
        blocks = CHUNK // BLOCK * rounding_allowance(flat.dtype)
        return self.radius * (1 + MANY * (blocks + rounding_allowance(flat.dtype, dimension=len(flat), count=CHUNK)))

    @property
    def diameter(self) -> float:
        return 2 * self.longest

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        records, kept = self.learner.records(rows, cache)
        question = replace(Question.gradient(self.radius).at(1, self.params), transform=self.transform)
        shares = torch.from_numpy(weights / self.learner.heaviest).to(self.learner.engine.flat.dtype)
        found = self.learner.engine.clipped_sum(question, records._replace(weights=shares), cache=kept)
        return found.double().numpy() * self.learner.heaviest


def own_module(module: nn.Module, width: int, outputs: int) -> nn.Module:
    """Return a copy of the caller's module in double precision; refuse what cannot be fitted, before any release."""
    if not isinstance(module, nn.Module):
        raise InvalidArgument(f"expected model to be a torch.nn.Module, got {type(module).__name__}")
    own = copy.deepcopy(module).double().train()
    try:
        with torch.no_grad():
            shape = tuple(own(torch.zeros(3, width, dtype=torch.float64)).shape)
    except Exception as error:
        raise InvalidArgument(
            f"the model cannot be applied to the {width} inputs that this schema gives for a record: "
            f"{str(error).strip().splitlines()[0]}"
        ) from None
    if shape != (3, outputs):
        raise InvalidArgument(f"expected the model to give {outputs} number(s) for a record, got {shape} for three")
    loss = squared if outputs == 1 else cross_entropy
    if build_engine(own, loss, shapes_of(width, outputs))[1]:
        raise InvalidArgument("the model draws random numbers, say in dropout layers; fit takes none that does")
    refuse_mixing(copy.deepcopy(own).eval(), width)  # as it predicts, and is scored
    return own


def shapes_of(width: int, outputs: int) -> Shapes:
    """Return what an engine is told of records: numbers, and a class number where there are several outputs."""
    if outputs > 1:
        return Shapes((width,), (), torch.float64, torch.int64)
    return Shapes((width,), (1,), torch.float64, torch.float64)


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
