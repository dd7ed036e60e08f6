r"""Each client by itself: what one client computes, and how the answers of several become one mean.

A site of a federation has its own records only. It draws its part of a batch, clips, and hands over one sum
:math:`s_p`; whoever asked computes :math:`\sum_p w_p s_p` in the order of the clients. ``ClientwiseCohort`` does both
in one process, with the same code as a federation, hence with the same bytes under one seed. ``LocalCohort`` puts all
records through the engine in one pass: faster where clients are small, and the same up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .._types import Vector
from ..gradients import Engine, FeatureCache, Masks, Records, rounding_allowance
from ..privacy import BoundedMean, NoiseSource
from ..privacy.composition import POISSON
from ..questions.population import ALL, Batch, Population
from .clients import Client
from .pooled import CLIENT_ROUNDING, by_owner, clipped, drawn_clients, drawn_rows

UNIT_OF_ROUNDING = 2.0**-53


class ClientSums:
    """One client: its records, and the sums it answers with. Nothing else of the records ever leaves it.

    Formal guarantee: replacing one record (or owner) moves a sum by at most twice the radius, up to the rounding that
    ``combine`` states; with whole clients as units a sum is at most the radius long.
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
        owners: Tensor | None = None,
    ):
        """Hold the records of client ``index``; ``source`` draws batches and masks and stays secret."""
        weights = torch.ones(client.size, dtype=engine.flat.dtype, device=engine.flat.device)
        self.records = Records(client.inputs, client.targets, weights)
        self._engine = engine
        self._index = index
        self._population = population
        self._source = source
        self._stochastic = stochastic
        parts = [self.records] if owners is None else by_owner(self.records, [owners], np.zeros(2, dtype=np.int64))
        self._whole = [(part, FeatureCache()) for part in parts]

    def gradient(
        self, params: Vector, radius: float, *, round: int, batch: Batch = ALL, step: int = 0, remember: bool = False
    ) -> Vector:
        """Return the sum of the clipped gradients of the units in the batch, in double precision."""
        masks = self._masks(round, step)
        inner = math.inf if self._population.unit == "client" else radius
        value = self._zero()
        for records, cache in self._asked(batch, round, step):
            value += self._engine.clipped_gradient_sum(
                params, records, inner, cache=cache, masks=masks, remember=remember
            )
        return self._of_unit(value, radius)

    def difference(
        self,
        params: Vector,
        previous: Vector,
        radius: float,
        *,
        round: int,
        batch: Batch = ALL,
        step: int = 0,
        inner: float = math.inf,
    ) -> Vector:
        """Return the sum of the clipped differences; with a finite ``inner``, of gradients clipped to it before."""
        masks = self._masks(round, step)
        if self._population.unit == "client" and math.isfinite(inner):
            now, before = (
                clipped(self._sum_of_all(point, masks) / self.records.size, inner) for point in (params, previous)
            )
            return clipped(now - before, radius)
        of_records = math.inf if self._population.unit == "client" else radius
        value = self._zero()
        for records, cache in self._asked(batch, round, step):
            value += self._engine.clipped_difference_sum(
                params, previous, records, of_records, cache=cache, masks=masks, inner=inner
            )
        return self._of_unit(value, radius)

    def exact(self, params: Vector) -> Vector:
        """Return the sum of all gradients without clipping. **Leaks**: for experiments on public data only."""
        return self._sum_of_all(params, Masks(b"exact") if self._stochastic else None)

    def _asked(self, batch: Batch, round: int, step: int) -> list[tuple[Records, FeatureCache | None]]:
        if batch.size is None and batch.rate is None and batch.part is None:
            return list(self._whole)
        rows = drawn_rows(self._population, self._index, batch, round, step, self._source)
        if len(rows) == 0:
            return []
        index = torch.from_numpy(rows).to(self.records.inputs.device)
        return [(Records(*(part[index] for part in self.records)), None)]

    def _sum_of_all(self, params: Vector, masks: Masks | None) -> Vector:
        value = self._zero()
        for records, _ in self._whole:
            value += self._engine.clipped_gradient_sum(params, records, math.inf, masks=masks)
        return value

    def _of_unit(self, value: Vector, radius: float) -> Vector:
        return clipped(value / self.records.size, radius) if self._population.unit == "client" else value

    def _masks(self, round: int, step: int) -> Masks | None:
        if not self._stochastic:
            return None
        if self._source is None:
            raise ValueError("a client without a source of random bits cannot drop units at random")
        return Masks(self._source.bytes(32, "masks", round, step, self._index))

    def _zero(self) -> Vector:
        return torch.zeros(len(self._engine.flat), dtype=torch.float64, device=self._engine.flat.device)


def asked_clients(
    population: Population, batch: Batch, round: int, step: int, source: NoiseSource | None
) -> tuple[int, ...]:
    """Return whose sums a question needs."""
    if batch.clients is not None:
        return batch.clients
    return drawn_clients(population, round, step, source)


def combine(
    population: Population,
    sums: Mapping[int, Vector],
    radius: float,
    *,
    round: int,
    batch: Batch = ALL,
    dtype: torch.dtype,
) -> BoundedMean:
    r"""Return the mean of the clients' sums, with its sensitivity.

    Each of the m additions in double precision is off by at most :math:`2^{-53} C`, for the weights of all records add
    up to one: by :math:`2^{-53} (m + 1) / w` of the sensitivity :math:`2 C w`. (In a Poisson batch of rate q they
    add up to at most 1/q.)
    """
    clients = sorted(sums)
    value = torch.zeros_like(sums[clients[0]])
    if population.unit == "client":
        for p in clients:
            value += sums[p]
        value /= len(clients)
    else:
        for p, weight in zip(clients, population.weights(clients, batch), strict=True):
            value += weight * sums[p]
    return bounded(population, value, radius, round=round, batch=batch, dtype=dtype)


def bounded(
    population: Population, value: Vector, radius: float, *, round: int, batch: Batch, dtype: torch.dtype
) -> BoundedMean:
    """Return a value with the sensitivity that the population states for the radius."""
    exposure = population.exposure(round, batch)
    count = len(population.sizes)
    if population.unit == "client":
        rounding = max(CLIENT_ROUNDING, count**2 * UNIT_OF_ROUNDING)
    else:
        longest = 1 / exposure.rate if exposure.sampling == POISSON else 1.0
        rounding = rounding_allowance(dtype) + 2 * (count + 1) * UNIT_OF_ROUNDING * longest / exposure.sensitivity
    return BoundedMean(
        value,
        sensitivity=exposure.sensitivity * radius,
        clip=radius,
        rounding=rounding,
        adjacency=population.adjacency,
        sampling=exposure.sampling,
        rate=exposure.rate,
        members=exposure.members,
    )


class ClientwiseCohort:
    """All clients in this process, each asked by itself: bit for bit what a federation of sites answers."""

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
        """As :class:`diff2.LocalCohort`."""
        self._population = Population(tuple(client.size for client in clients)) if population is None else population
        self._engine = engine
        self._source = source
        self._parts = [
            ClientSums(
                engine, client, p, self._population, source=source, stochastic=stochastic,
                owners=None if owners is None else owners[p],
            )
            for p, client in enumerate(clients)
        ]  # fmt: skip

    @property
    def population(self) -> Population:
        return self._population

    @cached_property
    def records(self) -> Records:
        """All records, put together for whoever computes exact metrics of them."""
        return Records(*(torch.cat(parts) for parts in zip(*(part.records for part in self._parts), strict=True)))

    def clipped_gradient(
        self, params: Vector, radius: float, *, round: int, batch: Batch = ALL, step: int = 0, remember: bool = False
    ) -> BoundedMean:
        sums = {
            p: self._parts[p].gradient(params, radius, round=round, batch=batch, step=step, remember=remember)
            for p in self._asked(batch, round, step)
        }
        return combine(self._population, sums, radius, round=round, batch=batch, dtype=self._engine.flat.dtype)

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
        dtype = self._engine.flat.dtype
        if radius == 0:  # equal iterates: the difference is zero for every data set
            zero = torch.zeros_like(params, dtype=torch.float64)
            return bounded(self._population, zero, 0.0, round=round, batch=batch, dtype=dtype)
        sums = {
            p: self._parts[p].difference(
                params, previous, radius, round=round, batch=batch, step=step, inner=inner
            )
            for p in self._asked(batch, round, step)
        }  # fmt: skip
        return combine(self._population, sums, radius, round=round, batch=batch, dtype=dtype)

    def exact_gradient(self, params: Vector) -> Vector:
        """Return the mean gradient without clipping and noise. **Leaks**: for experiments on public data only."""
        sums = {p: part.exact(params) for p, part in enumerate(self._parts)}
        weights = self._population.weights(range(len(sums)))
        return torch.stack([weight * sums[p] for p, weight in enumerate(weights)]).sum(0)

    def _asked(self, batch: Batch, round: int, step: int) -> tuple[int, ...]:
        self._population.check(batch)
        return asked_clients(self._population, batch, round, step, self._source)
