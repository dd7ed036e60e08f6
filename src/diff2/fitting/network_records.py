"""A network over records of a table: what is asked of it, and which modules it can be."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

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
from .network_tasks import Task
from .preparation import Preparation
from .second_moment import ROOT
from .statistics import DESCENT, NORMS

MANY = 10_000  # chunks that the records of one unit may be spread over


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
