"""All clients in this process, their records in one pass: the fast cohort."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._vectors import Vector
from ..gradients import Engine, Evaluation, FeatureCache, Masks, Records
from ..privacy import BoundedMean, NoiseSource
from ..questions import ALL, Population, Question
from .bounds import bounded, client_rounding, sum_rounding, zero_mean
from .clients import Client
from .draws import asked_clients, by_group, clipped, drawn_masks, drawn_rows, exact_weights, in_slots


class _Part(NamedTuple):
    """Records that go through the engine together, and what is kept of them."""

    records: Records  # weights relative to the heaviest
    cache: FeatureCache | None = None


class LocalCohort:
    """All clients in this process. They go through the engine in one pass, with one weight per record."""

    def __init__(
        self,
        engine: Engine,
        clients: Sequence[Client],
        population: Population | None = None,
        *,
        source: NoiseSource | None = None,
        stochastic: bool = False,
        groups: Sequence[Tensor] | None = None,
    ):
        """Put the clients' records together.

        Args:
            population: how they weigh and what is protected; by default records, with clients that weigh alike.
            source: of batches and masks, which must stay secret.
            stochastic: the model drops units at random.
            groups: for each client a number for each record; the records of one number are protected together.
        """
        self._population = Population(tuple(client.size for client in clients)) if population is None else population
        self._engine = engine
        self._source = source
        self._stochastic = stochastic
        own = [in_slots(client, p, self._population, source, engine.flat.dtype) for p, client in enumerate(clients)]
        sizes, everyone = [records.size for records in own], tuple(range(len(own)))
        self._offsets = np.cumsum([0, *sizes])
        weights = self._population.weights(everyone)
        self._heaviest = max(weights)
        inputs, targets, self._present = (_joined(list(parts)) for parts in zip(*own, strict=True))
        relative = self._weights(sizes, [weight / self._heaviest for weight in weights])
        self.records = Records(inputs, targets, relative * self._present)
        self._exact_weights = self._weights(sizes, exact_weights(self._population, own))
        whole = [self.records] if groups is None else by_group(self.records, groups, self._offsets)
        self._whole = [_Part(records, FeatureCache()) for records in whole]
        self._by_client = [_Part(self._of_client(p), FeatureCache()) for p in everyone]
        self._merged: tuple[Records, Tensor] | None = None  # and for each record the number of its copy among these

    @property
    def population(self) -> Population:
        return self._population

    def answer(self, question: Question) -> BoundedMean:
        if question.radius == 0:  # equal iterates: the difference is zero for every data set
            return zero_mean(self._population, question)
        masks = drawn_masks(self._source, question) if self._stochastic else None
        if self._population.unit == "client":
            value, rounding = self._mean_of_clients(question, masks), client_rounding(self._population)
        else:
            parts, heaviest = self._parts(question)
            count = sum(part.records.size for part in parts)
            sums = [
                self._engine.clipped_sum(question, part.records, cache=part.cache, masks=masks, count=count)
                for part in parts
            ]
            value, rounding = self._added(sums).mul_(heaviest), sum_rounding(self._population, question)
        return bounded(self._population, question, value, rounding)

    def exact_gradient(self, params: Vector) -> Vector:
        """Return the mean gradient without clipping and noise. **Leaks**: for experiments on public data only."""
        question = Question.gradient(np.inf).at(0, params)
        masks = Masks(b"exact") if self._stochastic else None
        parts = [part.records for part in self._whole]
        if not self._present.all():  # of the records that there are, not of the slots
            parts = [self.records._replace(weights=self._exact_weights * self._present / self._heaviest)]
        return self._added([self._engine.clipped_sum(question, part, masks=masks) for part in parts]).mul_(
            self._heaviest
        )

    def evaluate(self, params: Vector) -> Evaluation | None:
        """Return exact losses, hits and mean gradient, where the engine has them from one pass. **Leaks**."""
        records, copies = (self.records, slice(None)) if self._merged is None else self._merged
        found = self._engine.evaluate(params, records, cache=self._whole[0].cache)
        if found is None:
            return None
        hits = found.hits[copies] if len(found.hits) else found.hits
        return Evaluation(found.losses[copies], hits, found.gradient * self._heaviest)

    def merge_copies(self) -> None:
        """Where most records are copies of others, compute each once from now on, and count it as often as it occurs.

        **Leaks** by the time it takes: for experiments on public data only, without groups.
        """
        rows = np.concatenate([part.reshape(len(part), -1).double().numpy() for part in self.records], axis=1)
        first, copies, counts = _distinct(rows)
        if 2 * len(first) > len(rows):
            return
        inputs, targets, weights = (part[torch.from_numpy(first)] for part in self.records)
        merged = Records(inputs, targets, weights * torch.from_numpy(counts))
        self._whole, self._merged = [_Part(merged, FeatureCache())], (merged, torch.from_numpy(copies))

    def _parts(self, question: Question) -> tuple[list[_Part], float]:
        """Return the records a question is about, and the weight of the heaviest of them."""
        population, batch = self._population, question.batch
        if batch == ALL and population.everyone:
            return self._whole, self._heaviest
        population.check(batch)
        clients = population.participants(question.round) if batch.clients is None else batch.clients
        weights = population.weights(clients, batch)
        chosen = [self._offsets[p] + drawn_rows(population, p, question, self._source) for p in clients]
        heaviest = max(weights)
        rows = torch.from_numpy(np.concatenate(chosen)).to(self.records.inputs.device)
        records = Records(
            self.records.inputs[rows],
            self.records.targets[rows],
            self._weights([len(part) for part in chosen], [weight / heaviest for weight in weights])
            * self._present[rows],
        )
        return ([_Part(records)] if len(rows) else []), heaviest

    def _mean_of_clients(self, question: Question, masks: Masks | None) -> Vector:
        """Return the mean over clients of the clients' mean vectors, each clipped to the radius."""
        clients = asked_clients(self._population, question, self._source)
        unclipped, value = replace(question, radius=np.inf), self._added([])
        for p in clients:
            part = self._by_client[p]
            total = self._engine.clipped_sum(unclipped, part.records, cache=part.cache, masks=masks)
            value += clipped(total / self._population.sizes[p], float(question.radius))  # type: ignore[arg-type]
        return value / len(clients)

    def _of_client(self, p: int) -> Records:
        start, end = self._offsets[p], self._offsets[p + 1]
        inputs, targets, weights = (part[start:end] for part in self.records)
        return Records(inputs, targets, torch.ones_like(weights))

    def _weights(self, counts: Sequence[int], weights: Sequence[float]) -> Tensor:
        flat = self._engine.flat
        parts = [
            torch.full((count,), weight, dtype=flat.dtype, device=flat.device)
            for count, weight in zip(counts, weights, strict=True)
        ]
        return torch.cat(parts)

    def _added(self, sums: list[Vector]) -> Vector:
        flat = self._engine.flat
        value = sums[0] if sums else torch.zeros(len(flat), dtype=torch.float64, device=flat.device)
        for other in sums[1:]:
            value += other
        return value


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first place of every distinct row, for each row the number of its own, and how many have each."""
    factors = np.random.default_rng(0).integers(1 << 63, size=rows.shape[1], dtype=np.uint64)
    bits = rows.view(np.uint64)
    hashes = ((bits ^ bits >> np.uint64(29)) * factors).sum(1)  # numbers are sorted a hundred times as fast as rows
    _, first, copies, counts = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
    if not np.array_equal(rows[first][copies], rows):
        _, first, copies, counts = np.unique(rows, axis=0, return_index=True, return_inverse=True, return_counts=True)
    return first, copies, counts.astype(np.float32)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
