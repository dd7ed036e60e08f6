"""Exact losses and gradient norms: for experiments on public data. Each of them leaks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._types import Loss, Vector
from .clients import Client
from .cohort import LocalCohort
from .gradients import Engine, FlatModule

CHUNK_ROWS = 1 << 16


class ExactMetrics:
    """Computes the objective, the squared norm of its gradient, and the loss on held-out records."""

    def __init__(
        self,
        engine: Engine,
        loss: Loss,
        clients: Sequence[Client],
        weighting: str,
        every: int,
        holdout: Client | None,
    ):
        self._flat: FlatModule = engine.flat
        self._loss = loss
        self._every = every
        self._clients = clients
        self._by_client = weighting == "clients"
        self._cohort = LocalCohort(engine, clients, weighting=weighting)
        self._holdout = holdout

    def __call__(self, round: int, params: Vector) -> dict[str, float]:
        """Return the metrics at ``params``, or nothing where it is not this round's turn."""
        if round % self._every:
            return {}
        gradient = self._cohort.clipped_gradient(params, float("inf"), round=round, remember=False).value
        self._flat.load(params)
        losses = [self._total(client) for client in self._clients]
        sizes = [client.size for client in self._clients]
        if self._by_client:
            train_loss = sum(loss / size for loss, size in zip(losses, sizes, strict=True)) / len(sizes)
        else:
            train_loss = sum(losses) / sum(sizes)
        metrics = {"train_loss": train_loss, "squared_gradient_norm": float(gradient.square().sum())}
        if self._holdout is not None:
            metrics["test_loss"] = self._total(self._holdout) / self._holdout.size
        return metrics

    def _total(self, client: Client) -> float:
        """Return the sum of the losses; a sum, so that a short last chunk weighs what it should."""
        total = 0.0
        with torch.no_grad():
            for start in range(0, client.size, CHUNK_ROWS):
                part = slice(start, start + CHUNK_ROWS)
                losses = self._loss(self._flat.module(client.inputs[part]), client.targets[part])
                total += float(losses.double().sum())
        return total
