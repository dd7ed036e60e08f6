"""Exact losses and gradient norms: for experiments on public data. Each of them leaks."""

from __future__ import annotations

import torch
from torch import Tensor

from ._types import Loss, Vector
from .clients import Client
from .clientwise import ClientwiseCohort
from .cohort import LocalCohort
from .gradients import FlatModule

CHUNK_ROWS = 1 << 16


class ExactMetrics:
    """Computes the objective, the squared norm of its gradient, and the loss on held-out records.

    Losses are those of the model in evaluation mode, without dropout.
    """

    def __init__(
        self,
        flat: FlatModule,
        loss: Loss,
        cohort: LocalCohort | ClientwiseCohort,
        weighting: str,
        every: int,
        holdout: Client | None,
    ):
        self._flat = flat
        self._loss = loss
        self._cohort = cohort
        self._by_client = weighting == "clients"
        self._every = every
        self._holdout = holdout

    def __call__(self, round: int, params: Vector) -> dict[str, float]:
        """Return the metrics at ``params``, or nothing where it is not this round's turn."""
        if round % self._every:
            return {}
        gradient = self._cohort.exact_gradient(params)
        metrics = {"train_loss": 0.0, "squared_gradient_norm": float(gradient.square().sum())}
        self._flat.load(params)
        modes = {module: module.training for module in self._flat.module.modules()}
        self._flat.module.eval()
        metrics["train_loss"] = self._objective()
        if self._holdout is not None:
            metrics["test_loss"] = self._total(*self._holdout) / self._holdout.size
        for module, training in modes.items():
            module.training = training
        return metrics

    def _objective(self) -> float:
        sizes, records = list(self._cohort.population.sizes), self._cohort.records
        parts = zip(records.inputs.split(sizes), records.targets.split(sizes), strict=True)
        losses = [self._total(inputs, targets) for inputs, targets in parts]
        if self._by_client:
            return sum(loss / size for loss, size in zip(losses, sizes, strict=True)) / len(sizes)
        return sum(losses) / sum(sizes)

    def _total(self, inputs: Tensor, targets: Tensor) -> float:
        """Return the sum of the losses; a sum, so that a short last chunk weighs what it should."""
        total = 0.0
        with torch.no_grad():
            for x, y in zip(inputs.split(CHUNK_ROWS), targets.split(CHUNK_ROWS), strict=True):
                total += float(self._loss(self._flat.module(x), y).double().sum())
        return total
