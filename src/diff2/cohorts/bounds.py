r"""How far one unit can move an answer: the sensitivity, and what rounding may add to it.

Each of the m additions of clients' sums in double precision is off by at most :math:`2^{-53} C`, for the weights of all
records add up to one: by :math:`2^{-53} (m + 1) / w` of the sensitivity :math:`2 C w`. (In a Poisson batch of rate q
they add up to at most 1/q.) Of m clients' vectors added one after the other, each sum may be off by :math:`2^{-53}` of
its length, at most m radii.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch

from .._vectors import Vector
from ..gradients import rounding_allowance
from ..privacy import BoundedMean
from ..privacy.release import ADD_OR_REMOVE_ONE, POISSON
from ..questions import Population, Question

UNIT_OF_ROUNDING = 2.0**-53
CLIENT_ROUNDING = 1e-12  # of a client's vector, clipped in double precision


def bounded(population: Population, question: Question, value: Vector | None, rounding: float) -> BoundedMean:
    """Return an answer with the sensitivity that the population states for its radius; None: it is elsewhere."""
    if question.params is None or not isinstance(question.radius, float | int):
        raise ValueError(f"{question} was declared but not asked: it has no iterate and no radius yet")
    shown = population.release(question, question.round)
    release = shown._replace(
        sensitivity=shown.sensitivity * question.radius,
        clip=float(question.radius),
        dimension=question.params.numel(),
    )
    if value is None:
        return BoundedMean(None, release, rounding, population.adjacency)
    asked = hashlib.sha256()
    for point in (question.params, question.previous):
        asked.update(b"" if point is None else point.detach().cpu().contiguous().numpy().data)
    return BoundedMean(value.detach().cpu().numpy(), release, rounding, population.adjacency, asked=asked.digest())


def zero_mean(population: Population, question: Question) -> BoundedMean:
    """Return the answer to a difference of equal iterates: zero for every data set, and nobody need be asked."""
    mean = bounded(population, question, None, 0.0)
    return BoundedMean(np.zeros(mean.release.dimension), mean.release, 0.0, mean.adjacency)


def combine(population: Population, question: Question, sums: Mapping[int, Vector]) -> BoundedMean:
    """Return the mean of the clients' sums, with its sensitivity."""
    clients = sorted(sums)
    value = torch.zeros_like(sums[clients[0]])
    if population.unit == "client":
        for p in clients:
            value += sums[p]
        value /= len(clients)
    else:
        for p, weight in zip(clients, population.weights(clients, question.batch), strict=True):
            value += weight * sums[p]
    return bounded(population, question, value, combined_rounding(population, question))


def combined_rounding(population: Population, question: Question) -> float:
    """Return the share by which rounding may raise the sensitivity of a mean of clients' sums."""
    if population.unit == "client" or question.params is None:
        return client_rounding(population)
    shown, count = population.release(question, question.round), len(population.sizes)
    total_weight = 1 / shown.rate if shown.sampling == POISSON else 1.0
    additions = 2 * (count + 1) * UNIT_OF_ROUNDING * total_weight / shown.sensitivity
    return sum_rounding(population, question) + additions


def sum_rounding(population: Population, question: Question) -> float:
    """Return the same for one exact sum of tiles of all records (``gradients/sums.py``), times a weight."""
    if question.params is None:
        return 0.0
    change = 1.0 if population.adjacency == ADD_OR_REMOVE_ONE else 2.0
    size, count = question.params.numel(), sum(population.sizes)
    return rounding_allowance(question.params.dtype, dimension=size, count=count, change=change)


def client_rounding(population: Population) -> float:
    """Return the same for a mean of clipped vectors of whole clients."""
    return max(CLIENT_ROUNDING, len(population.sizes) ** 2 * UNIT_OF_ROUNDING)
