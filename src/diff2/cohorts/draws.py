r"""Which records and clients are in a draw, from which slots, and how vectors of whole clients are clipped.

With Poisson batches the guarantee compares data sets of which one has a record more. Its number of records must then
not be used: neither as what sums are divided by, nor as the length of what is drawn from, nor as the shape of what is
computed, which decides in which tile a record is added and how a matrix product rounds. So a client has a public
number M of slots. Each of its records is in one; all other slots hold nothing, a record of zeros with the weight zero,
which adds exactly zero. Weights, draws, shapes, places and grids follow from M alone.

Which slot a record has is drawn at random. So two tables of which one lacks a row, wherever it stood, are data sets of
which one lacks the record in a slot: draw the slots of the larger table, and give the smaller one the same; they are
uniformly random for both. The batches are drawn by slots. Whatever is released then has the distributions of two
worlds that differ in the content of one slot, and the sum differs by that record's clipped vector and by the rounding
of one tile (``gradients/sums.py``): *add or remove one, among data sets of at most M records*.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .._validate import at_least
from .._vectors import Vector
from ..errors import InvalidArgument
from ..gradients import Masks, Records
from ..privacy import NoiseSource
from ..privacy.release import ADD_OR_REMOVE_ONE
from ..questions import Population, Question
from ..questions.population import part_range
from .clients import Client

EXACT_SIZES = "the exact number of records of each client (public_sizes=... keeps it secret)"


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


def slots_of(public_sizes: int | Sequence[int] | None, clients: Sequence[Client], adjacency: str | None) -> list[int]:
    """Return the public size of each client; by default the number of its records.

    Args:
        public_sizes: one number for all clients, or one for each, chosen without looking at the records.
    """
    if public_sizes is None:
        return [client.size for client in clients]
    if adjacency != ADD_OR_REMOVE_ONE:
        raise InvalidArgument(
            "public_sizes is for Poisson batches, which protect whether a record is there at all; replacing a record "
            "leaves the number of records as it is, and that number is public. Leave public_sizes out"
        )
    sizes = [public_sizes] * len(clients) if isinstance(public_sizes, int) else list(public_sizes)
    if len(sizes) != len(clients):
        raise InvalidArgument(f"public_sizes has {len(sizes)} numbers for {len(clients)} clients; give one for each")
    for p, (size, client) in enumerate(zip(sizes, clients, strict=True)):
        at_least(f"public_sizes[{p}]", size, 1)
        if size < client.size:
            raise InvalidArgument(
                f"clients[{p}] has more records than public_sizes[{p}]={size}; choose a larger public number, "
                "not one read off the records"
            )
    return sizes


def exact_weights(population: Population, records: Sequence[Records]) -> list[float]:
    """Return what records of each client weigh in exact metrics: by how many there are, whatever the slots."""
    counts = tuple(int((part.weights > 0).sum()) for part in records)
    return replace(population, sizes=counts).weights(range(len(counts)))


def in_slots(
    client: Client, index: int, population: Population, source: NoiseSource | None, dtype: torch.dtype
) -> Records:
    """Return the records of client ``index`` in their slots: with the weight one, or zero where there is no record."""
    slots = population.sizes[index]
    device = client.inputs.device
    if population.adjacency != ADD_OR_REMOVE_ONE or source is None:  # without a source no batch can be drawn
        return Records(client.inputs, client.targets, torch.ones(client.size, dtype=dtype, device=device))
    order = np.argsort(random_words(source, slots, "slots", index), kind="stable")[: client.size]
    places = torch.from_numpy(order).to(device)

    def placed(values: Tensor) -> Tensor:
        return values.new_zeros(slots, *values.shape[1:]).index_copy_(0, places, values)

    return Records(*map(placed, (client.inputs, client.targets, torch.ones(client.size, dtype=dtype, device=device))))
