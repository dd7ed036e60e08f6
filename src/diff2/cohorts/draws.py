"""Which records and clients are in a draw, and how vectors of whole clients are clipped."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .._vectors import Vector
from ..gradients import Masks, Records
from ..privacy import NoiseSource
from ..questions import Population, Question
from ..questions.population import part_range


def drawn_rows(population: Population, client: int, question: Question, source: NoiseSource | None) -> np.ndarray:
    """Return the rows of a client that are in the batch of a question, in order."""
    size, batch = population.sizes[client], question.batch
    if batch.part is not None:
        return np.asarray(part_range(size, *batch.part))
    if batch.is_whole:
        return np.arange(size)
    words = random_words(source, size, "batch", question.round, question.step, client)
    if batch.size is not None:
        clients = population.participants(question.round) if batch.clients is None else batch.clients
        count = population.batch_sizes(batch.size, clients)[clients.index(client)]
        return np.sort(np.argsort(words, kind="stable")[:count])
    return np.flatnonzero(words.astype(np.float64) < (batch.rate or 0.0) * 2.0**64)


def asked_clients(population: Population, question: Question, source: NoiseSource | None) -> tuple[int, ...]:
    """Return whose records are asked: of those it names, of all, of those whose turn it is, or drawn in secret."""
    if question.batch.clients is not None:
        return question.batch.clients
    if population.client_order == "round_robin" or population.everyone:
        return population.participants(question.round)
    words = random_words(source, len(population.sizes), "clients", question.round, question.step)
    return tuple(sorted(int(p) for p in np.argsort(words, kind="stable")[: population.clients_per_round]))


def drawn_masks(source: NoiseSource | None, question: Question, *label: int) -> Masks:
    """Return the masks of a question about a model that drops units at random: the same at both iterates."""
    return Masks(_source(source).bytes(32, "masks", question.round, question.step, *label))


def clipped(vector: Vector, radius: float) -> Vector:
    """Return the vector, no longer than ``radius``; one that is not finite counts as zero."""
    length = float(torch.linalg.vector_norm(vector))
    if not math.isfinite(length):
        return torch.zeros_like(vector)
    return vector if length <= radius else vector * (radius / length)


def by_group(records: Records, groups: Sequence[Tensor], offsets: np.ndarray) -> list[Records]:
    """Return the records of each group as one, (groups, rows, ...): one part for every number of rows."""
    rows_of: dict[int, list[np.ndarray]] = {}
    for p, numbers in enumerate(groups):
        order = np.argsort(numbers.numpy(), kind="stable")
        _, starts = np.unique(numbers.numpy()[order], return_index=True)
        for rows in np.split(order, starts[1:]):
            rows_of.setdefault(len(rows), []).append(offsets[p] + rows)
    parts = []
    for _, found in sorted(rows_of.items()):
        index = torch.from_numpy(np.stack(found)).to(records.inputs.device)
        parts.append(Records(records.inputs[index], records.targets[index], records.weights[index[:, 0]]))
    return parts


def random_words(source: NoiseSource | None, count: int, *label: object) -> np.ndarray:
    """Return secret random whole numbers of 64 bits, the same for the same label."""
    return np.frombuffer(_source(source).bytes(8 * count, *label), dtype="<u8")


def _source(source: NoiseSource | None) -> NoiseSource:
    if source is None:
        raise ValueError("a cohort without a source of random bits cannot draw records, clients or masks")
    return source
