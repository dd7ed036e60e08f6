"""The cohort: the one seam between an algorithm and the records.

An algorithm asks for the mean of clipped gradients or of clipped differences, and gets it with its sensitivity.
Whether the records are in this process or at several sites is the cohort's business. So is drawing batches: who asks
never learns which records answered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .._types import Vector
from ..gradients import ColumnsEngine, Engine, Evaluation, FeatureCache, Masks, Records, rounding_allowance
from ..privacy import BoundedMean, NoiseSource
from ..questions.population import ALL, Batch, Population, part_range
from .clients import Client

CLIENT_ROUNDING = 1e-12  # of a client's vector, clipped in double precision; for more than 90 clients see below


class Cohort(Protocol):
    """What an algorithm may ask of the records' owners. Vectors in, bounded means out; no record ever passes."""

    @property
    def population(self) -> Population:
        """The units that are protected, and their public numbers."""
        ...

    def clipped_gradient(
        self, params: Vector, radius: float, *, round: int, batch: Batch = ALL, step: int = 0, remember: bool = False
    ) -> BoundedMean:
        """Return the mean of the units' gradients at ``params``, each clipped to ``radius``.

        Args:
            batch: whose records.
            step: tells the draws of one round apart: each step draws its own batch, or clients. What is released by
                itself needs a draw of its own; what is combined into one release, the same.
            remember: a difference to ``params`` may be asked for next.
        """
        ...

    def clipped_difference(
        self,
        params: Vector,
        previous: Vector,
        radius: float,
        *,
        round: int,
        batch: Batch = ALL,
        step: int = 0,
        inner: float = math.inf,
    ) -> BoundedMean:
        """Return the mean of gradient(params) - gradient(previous), each unit's difference clipped to ``radius``.

        With a finite ``inner``, each of the two gradients is clipped to it before the difference is taken.
        """
        ...


class _Question(NamedTuple):
    """The records of a question and what is kept of them."""

    records: Records  # weights relative to the heaviest
    cache: FeatureCache | None = None


class LocalCohort:
    """All clients in this process. They go through the engine in one pass, with one weight a record."""

    def __init__(
        self,
        engine: Engine,
        clients: Sequence[Client],
        population: Population | None = None,
        *,
        source: NoiseSource | None = None,
        stochastic: bool = False,
        owners: Sequence[Tensor] | None = None,
    ):
        """Put the clients' records together.

        Args:
            population: how they weigh and what is protected; by default records, with clients that weigh alike.
            source: of batches and masks, which must stay secret.
            stochastic: the model drops units at random.
            owners: for each client a number for each record; the records of one number are protected together.
        """
        sizes = tuple(client.size for client in clients)
        self._population = Population(sizes) if population is None else population
        self._engine = engine
        self._rounding = rounding_allowance(engine.flat.dtype)
        self._source = source
        self._stochastic = stochastic
        self._offsets = np.cumsum([0, *sizes])
        everyone = tuple(range(len(sizes)))
        weights = self._population.weights(everyone)
        self._heaviest = max(weights)
        self.records = Records(
            _joined([client.inputs for client in clients]),
            _joined([client.targets for client in clients]),
            self._weights(sizes, [weight / self._heaviest for weight in weights]),
        )
        whole = [self.records] if owners is None else by_owner(self.records, owners, self._offsets)
        self._whole = [_Question(records, FeatureCache()) for records in whole]
        self._by_client = [_Question(self._of_client(p), FeatureCache()) for p in everyone]

    @property
    def population(self) -> Population:
        return self._population

    def clipped_gradient(
        self, params: Vector, radius: float, *, round: int, batch: Batch = ALL, step: int = 0, remember: bool = False
    ) -> BoundedMean:
        masks = self._masks(round, step)

        def total(question: _Question, radius: float) -> Vector:
            return self._engine.clipped_gradient_sum(
                params, question.records, radius, cache=question.cache, masks=masks, remember=remember
            )

        if self._population.unit == "client":
            return self._mean_of_clients(round, step, radius, lambda question: total(question, math.inf))
        questions, heaviest = self._questions(round, batch, step)
        value = self._added([total(question, radius) for question in questions])
        return self._bounded(value.mul_(heaviest), radius, round, batch)

    def clipped_difference(
        self,
        params: Vector,
        previous: Vector,
        radius: float,
        *,
        round: int,
        batch: Batch = ALL,
        step: int = 0,
        inner: float = math.inf,
    ) -> BoundedMean:
        if radius == 0:  # equal iterates: the difference is zero for every data set
            return self._bounded(self._zero(), 0.0, round, batch)
        masks = self._masks(round, step)

        def total(question: _Question, radius: float, inner: float) -> Vector:
            return self._engine.clipped_difference_sum(
                params,
                previous,
                question.records,
                radius,
                cache=question.cache,
                masks=masks,
                inner=inner,
            )

        if self._population.unit == "client":
            return self._mean_of_clients(
                round,
                step,
                radius,
                lambda question: (
                    total(question, math.inf, math.inf)
                    if math.isinf(inner)
                    else self._difference_of_clipped(params, previous, question, inner, masks)
                ),
            )
        questions, heaviest = self._questions(round, batch, step)
        value = self._added([total(question, radius, inner) for question in questions])
        return self._bounded(value.mul_(heaviest), radius, round, batch)

    def exact_gradient(self, params: Vector) -> Vector:
        """Return the mean gradient without clipping and noise. **Leaks**: for experiments on public data only."""
        masks = Masks(b"exact") if self._stochastic else None
        value = self._zero()
        for question in self._whole:
            value += self._engine.clipped_gradient_sum(params, question.records, math.inf, masks=masks)
        return value * self._heaviest

    def evaluate(self, params: Vector) -> Evaluation | None:
        """Return exact losses, hits and mean gradient, where the engine has them from one pass. **Leaks**."""
        if not isinstance(self._engine, ColumnsEngine):
            return None
        found = self._engine.evaluate(params, self.records, cache=self._whole[0].cache)
        return found._replace(gradient=found.gradient * self._heaviest)

    def _questions(self, round: int, batch: Batch, step: int) -> tuple[list[_Question], float]:
        """Return the records a question is about, and the weight of the heaviest of them."""
        population = self._population
        if batch == ALL and population.everyone:
            return self._whole, self._heaviest
        population.check(batch)
        clients = population.participants(round) if batch.clients is None else batch.clients
        weights = population.weights(clients, batch)
        chosen = [
            self._offsets[p] + drawn_rows(population, p, batch, round, step, self._source) for p in clients
        ]  # fmt: skip
        heaviest = max(weights)
        rows = torch.from_numpy(np.concatenate(chosen)).to(self.records.inputs.device)
        counts = [len(part) for part in chosen]
        records = Records(
            self.records.inputs[rows],
            self.records.targets[rows],
            self._weights(counts, [weight / heaviest for weight in weights]),
        )
        return ([_Question(records)] if len(rows) else []), heaviest

    def _mean_of_clients(self, round: int, step: int, radius: float, total: _Total) -> BoundedMean:
        """Return the mean over clients of the clients' mean vectors, each clipped to ``radius``."""
        clients = drawn_clients(self._population, round, step, self._source)
        value = self._zero()
        for p in clients:
            vector = total(self._by_client[p]) / self._population.sizes[p]
            value += clipped(vector, radius)
        return self._bounded(value / len(clients), radius, round, ALL)

    def _difference_of_clipped(
        self, params: Vector, previous: Vector, question: _Question, inner: float, masks: Masks | None
    ) -> Vector:
        """Return the difference of a client's two mean gradients, each clipped, times its number of records."""
        size, records = question.records.size, question.records
        now, before = (
            clipped(self._engine.clipped_gradient_sum(point, records, math.inf, masks=masks) / size, inner)
            for point in (params, previous)
        )
        return (now - before) * size

    def _bounded(self, value: Vector, radius: float, round: int, batch: Batch) -> BoundedMean:
        exposure = self._population.exposure(round, batch)
        return BoundedMean(
            value,
            sensitivity=exposure.sensitivity * radius,
            clip=radius,
            rounding=self._rounding_of_clients if self._population.unit == "client" else self._rounding,
            adjacency=self._population.adjacency,
            sampling=exposure.sampling,
            rate=exposure.rate,
            members=exposure.members,
        )

    @property
    def _rounding_of_clients(self) -> float:
        # Of m vectors added one after the other, each sum may be off by 2^-53 of its length, at most m radii.
        return max(CLIENT_ROUNDING, len(self._population.sizes) ** 2 * 2.0**-53)

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

    def _masks(self, round: int, step: int) -> Masks | None:
        if not self._stochastic:
            return None
        if self._source is None:
            raise ValueError("a cohort without a source of random bits cannot drop units at random")
        return Masks(self._source.bytes(32, "masks", round, step))

    def _added(self, sums: list[Vector]) -> Vector:
        value = sums[0] if sums else self._zero()
        for other in sums[1:]:
            value += other
        return value

    def _zero(self) -> Vector:
        return torch.zeros(len(self._engine.flat), dtype=torch.float64, device=self._engine.flat.device)


class _Total(Protocol):
    """Computes the sum over one client's records."""

    def __call__(self, question: _Question) -> Vector: ...


def drawn_rows(
    population: Population, client: int, batch: Batch, round: int, step: int, source: NoiseSource | None
) -> np.ndarray:
    """Return the rows of a client that are in the batch, in order."""
    size = population.sizes[client]
    if batch.part is not None:
        return np.asarray(part_range(size, *batch.part))
    if batch.size is None and batch.rate is None:
        return np.arange(size)
    if source is None:
        raise ValueError("a cohort without a source of random bits cannot draw batches")
    words = np.frombuffer(source.bytes(8 * size, "batch", round, step, client), dtype="<u8")
    if batch.size is not None:
        clients = population.participants(round) if batch.clients is None else batch.clients
        count = population.batch_sizes(batch.size, clients)[clients.index(client)]
        return np.sort(np.argsort(words, kind="stable")[:count])
    return np.flatnonzero(words.astype(np.float64) < (batch.rate or 0.0) * 2.0**64)


def drawn_clients(population: Population, round: int, step: int, source: NoiseSource | None) -> tuple[int, ...]:
    """Return the clients of a round: all, those whose turn it is, or some that are drawn in secret."""
    if population.client_order == "round_robin" or population.everyone:
        return population.participants(round)
    if source is None:
        raise ValueError("a cohort without a source of random bits cannot draw clients")
    words = np.frombuffer(source.bytes(8 * len(population.sizes), "clients", round, step), dtype="<u8")
    return tuple(sorted(int(p) for p in np.argsort(words, kind="stable")[: population.clients_per_round]))


def clipped(vector: Vector, radius: float) -> Vector:
    """Return the vector, no longer than ``radius``; one that is not finite counts as zero."""
    length = float(torch.linalg.vector_norm(vector))
    if not math.isfinite(length):
        return torch.zeros_like(vector)
    return vector if length <= radius else vector * (radius / length)


def by_owner(records: Records, owners: Sequence[Tensor], offsets: np.ndarray) -> list[Records]:
    """Return the records of each owner as one, (owners, rows, ...): one part for every number of rows."""
    rows_of: dict[int, list[np.ndarray]] = {}
    for p, numbers in enumerate(owners):
        order = np.argsort(numbers.numpy(), kind="stable")
        _, starts = np.unique(numbers.numpy()[order], return_index=True)
        for rows in np.split(order, starts[1:]):
            rows_of.setdefault(len(rows), []).append(offsets[p] + rows)
    parts = []
    for _, found in sorted(rows_of.items()):
        index = torch.from_numpy(np.stack(found)).to(records.inputs.device)
        parts.append(Records(records.inputs[index], records.targets[index], records.weights[index[:, 0]]))
    return parts


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
