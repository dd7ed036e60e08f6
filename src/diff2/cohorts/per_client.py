r"""Each client by itself: what one client computes, and how the answers of several become one mean.

A site of a federation has its own records only. It draws its part of a batch, clips, and hands over one sum
:math:`s_p`; whoever asked computes :math:`\sum_p w_p s_p` in the order of the clients. ``PerClientCohort`` does both in
one process, with the same code as a federation, hence with the same bytes under one seed. ``LocalCohort`` puts all
records through the engine in one pass: faster where clients are small, and the same up to rounding.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .._vectors import Vector
from ..gradients import Engine, FeatureCache, Masks, Records
from ..privacy import BoundedMean, NoiseSource
from ..questions import Population, Question
from .bounds import combine, zero_mean
from .clients import Client
from .draws import asked_clients, by_group, clipped, drawn_masks, drawn_rows, exact_weights, in_slots


class ClientSums:
    """One client: its records, and the sums it answers with. Nothing else of the records ever leaves it.

    Formal guarantee: replacing one record (or group) moves a sum by at most twice the radius, up to the rounding that
    ``bounds.py`` states; with whole clients as units a sum is at most the radius long.
    """

    def __init__(
        self,
        engine: Engine,
        client: Client,
        index: int,
        population: Population,
        *,
        source: NoiseSource | None = None,
        stochastic: bool = False,
        groups: Tensor | None = None,
    ):
        """Hold the records of client ``index``; ``source`` draws batches and masks and stays secret."""
        self.records = in_slots(client, index, population, source, engine.flat.dtype)
        self._engine = engine
        self._index = index
        self._population = population
        self._source = source
        self._stochastic = stochastic
        parts = [self.records] if groups is None else by_group(self.records, [groups], np.zeros(2, dtype=np.int64))
        self._whole = [(part, FeatureCache()) for part in parts]

    def answer(self, question: Question) -> Vector:
        """Return the sum of the clipped vectors of the units in the batch, in double precision."""
        masks = drawn_masks(self._source, question, self._index) if self._stochastic else None
        whole_client = self._population.unit == "client"
        asked = replace(question, radius=math.inf) if whole_client else question
        value = self._sum(asked, self._parts(question), masks)
        return clipped(value / self.records.size, float(question.radius)) if whole_client else value  # type: ignore[arg-type]

    def exact(self, params: Vector) -> Vector:
        """Return the sum of all gradients without clipping. **Leaks**: for experiments on public data only."""
        masks = Masks(b"exact") if self._stochastic else None
        question = Question.gradient(math.inf).at(0, params)
        return self._sum(question, [(records, None) for records, _ in self._whole], masks)

    def _parts(self, question: Question) -> Sequence[tuple[Records, FeatureCache | None]]:
        if question.batch.is_whole:
            return self._whole
        rows = drawn_rows(self._population, self._index, question, self._source)
        if len(rows) == 0:
            return []
        index = torch.from_numpy(rows).to(self.records.inputs.device)
        return [(Records(*(part[index] for part in self.records)), None)]

    def _sum(
        self, question: Question, parts: Sequence[tuple[Records, FeatureCache | None]], masks: Masks | None
    ) -> Vector:
        value = torch.zeros(len(self._engine.flat), dtype=torch.float64, device=self._engine.flat.device)
        count = sum(records.size for records, _ in parts)
        for records, cache in parts:
            value += self._engine.clipped_sum(question, records, cache=cache, masks=masks, count=count)
        return value


class PerClientCohort:
    """All clients in this process, each asked by itself: bit for bit what a federation of sites answers."""

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
        """As :class:`diff2.LocalCohort`."""
        self._population = Population(tuple(client.size for client in clients)) if population is None else population
        self._source = source
        of = [None] * len(clients) if groups is None else groups
        self._clients = [
            ClientSums(
                engine, client, p, self._population, source=source, stochastic=stochastic, groups=of[p]
            )
            for p, client in enumerate(clients)
        ]  # fmt: skip

    @property
    def population(self) -> Population:
        return self._population

    @cached_property
    def records(self) -> Records:
        """All records, put together for whoever computes exact metrics of them."""
        return Records(*(torch.cat(parts) for parts in zip(*(one.records for one in self._clients), strict=True)))

    def answer(self, question: Question) -> BoundedMean:
        self._population.check(question.batch)
        if question.radius == 0:
            return zero_mean(self._population, question)
        asked = asked_clients(self._population, question, self._source)
        return combine(self._population, question, {p: self._clients[p].answer(question) for p in asked})

    def exact_gradient(self, params: Vector) -> Vector:
        """Return the mean gradient without clipping and noise. **Leaks**: for experiments on public data only."""
        weights = exact_weights(self._population, [one.records for one in self._clients])
        return torch.stack(
            [weight * one.exact(params) for weight, one in zip(weights, self._clients, strict=True)]
        ).sum(0)
