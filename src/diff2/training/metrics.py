"""Exact losses, accuracies and gradient norms: for experiments on public data. Each of them leaks."""

from typing import NamedTuple

import torch
from torch import Tensor

from .._vectors import Loss, Vector
from ..cohorts import Client, LocalCohort, PerClientCohort
from ..gradients import Engine, FeatureCache, Records, row_by_row
from ..models.losses import cross_entropy

CHUNK_ROWS = 1 << 16


class _Found(NamedTuple):
    """What the model makes of some records."""

    losses: Tensor  # one per record
    hits: int  # records whose class has the largest output


class ExactMetrics:
    """Computes the objective, the squared norm of its gradient, and the loss on held-out records.

    With cross entropy as the loss, also the share of records whose class has the largest output. Losses are those of
    the model in evaluation mode, without dropout.
    """

    def __init__(
        self,
        engine: Engine,
        loss: Loss,
        cohort: LocalCohort | PerClientCohort,
        weighting: str,
        every: int,
        holdout: Client | None,
    ):
        self._engine = engine
        self._loss = loss
        self._cohort = cohort
        records, slots = cohort.records, list(cohort.population.sizes)
        present = records.weights > 0  # a slot may be empty (``cohorts/draws.py``)
        self._sizes = [int(part.sum()) for part in present.split(slots)]
        self._records = records if self._sizes == slots else Records(*(part[present] for part in records))
        self._by_client = weighting == "clients"
        self._every = every
        self._holdout = None if holdout is None else Records.of(*holdout)
        self._cache = FeatureCache()  # the held-out records as the engine likes them

    def __call__(self, round: int, params: Vector) -> dict[str, float]:
        """Return the metrics at ``params``, or nothing in rounds without metrics."""
        if round % self._every:
            return {}
        evaluation = None
        if isinstance(self._cohort, LocalCohort) and self._records is self._cohort.records:
            evaluation = self._cohort.evaluate(params)
        if evaluation is not None:  # losses and gradient from one pass
            gradient, found = evaluation.gradient, _Found(evaluation.losses, int(evaluation.hits.sum()))
        else:
            gradient, found = self._cohort.exact_gradient(params), self._found(params, self._records)
        metrics = {"train_loss": self._objective(found), "squared_gradient_norm": float(gradient.square().sum())}
        held = None if self._holdout is None else self._found(params, self._holdout)
        if held is not None:
            metrics["test_loss"] = float(held.losses.double().mean())
        if self._loss is cross_entropy:
            metrics["train_accuracy"] = found.hits / len(found.losses)
            if held is not None:
                metrics["test_accuracy"] = held.hits / len(held.losses)
        return metrics

    def _objective(self, found: _Found) -> float:
        sizes = self._sizes
        losses = [float(part.double().sum()) for part in found.losses.split(sizes)]
        if self._by_client:
            return sum(loss / size for loss, size in zip(losses, sizes, strict=True)) / len(sizes)
        return sum(losses) / sum(sizes)

    def _found(self, params: Vector, records: Records) -> _Found:
        cache = self._cache if records is self._holdout else None
        evaluation = self._engine.evaluate(params, records, cache=cache, gradient=False)
        if evaluation is not None:
            return _Found(evaluation.losses, int(evaluation.hits.sum()))
        flat = self._engine.flat
        flat.load(params)
        modes = {module: module.training for module in flat.module.modules()}
        flat.module.eval()
        losses, hits = [], 0
        with torch.no_grad():
            for chunk in records.chunks(CHUNK_ROWS):
                outputs = flat.module(chunk.inputs)
                found = self._loss(outputs, chunk.targets)
                # A loss that averages its batch is asked once per record, as it is in training.
                alone = found.shape != (chunk.size,)
                losses.append(row_by_row(self._loss)(outputs, chunk.targets) if alone else found)
                if self._loss is cross_entropy:
                    hits += int((outputs.argmax(1) == chunk.targets).sum())
        for module, training in modes.items():
            module.training = training
        return _Found(torch.cat(losses), hits)
