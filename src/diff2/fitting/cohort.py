r"""Who answers a statistic: clients with encoded records.

A unit is a record, a group of records or a client. Its vector is the mean of its records' vectors, which is bounded as
they are, and its weight is one over the number of units; with ``weighting="clients"``, one over the number of clients
and of units of its own client. So replacing a unit of weight w moves a sum by at most w times the diameter that the
statistic states, whatever the unit is. A null record, whose target cannot be used, has the vector zero; that is within
the longest length of all others, and the diameter is never below that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..privacy import BoundedMean, Release
from ..tables.encode import Encoded
from ..tables.rows import CHUNK
from .asking import Scores, Statistic

UNIT_OF_ROUNDING = 2.0**-53


class ClientTable:
    """One client: its encoded records and their weights. Nothing but sums of bounded vectors leaves it."""

    def __init__(self, records: Encoded, unit: str):
        self._rows = records.rows
        self.numbers = _unit_numbers(records, unit)  # of each record's unit
        self.units = int(self.numbers.max()) + 1
        self.records = records.rows.size
        self._shares = records.usable / np.bincount(self.numbers)[self.numbers]  # of its unit
        self._caches: dict[int, dict[Any, Any]] = {}

    def total(self, statistic: Statistic | Scores, weight: float) -> np.ndarray:
        """Return the sum over this client's units, each of this weight."""
        total: Any = 0.0
        for place, part in self._rows.chunks():
            cache = self._caches.setdefault(place.start, {})
            total = total + statistic.total(part, weight * self._shares[place], cache)
        return np.asarray(total)


class Census(NamedTuple):
    """How many units and records each client has, and what counts alike: public numbers."""

    sizes: tuple[int, ...]  # units
    records: tuple[int, ...]
    weighting: str

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of a unit of each client."""
        total, count = sum(self.sizes), len(self.sizes)
        return tuple(1 / total if self.weighting == "records" else 1 / (count * size) for size in self.sizes)

    @property
    def heaviest(self) -> float:
        return max(self.weights)

    @property
    def in_heaviest(self) -> tuple[float, ...]:
        """The weights in units of the heaviest, as scores have them."""
        return tuple(weight / self.heaviest for weight in self.weights)

    def bounded(self, statistic: Statistic, number: int, value: np.ndarray | None, dimension: int) -> BoundedMean:
        """Return a weighted sum of the units' vectors with how far replacing one unit can move it."""
        release = Release(
            number, statistic.purpose, sensitivity=diameter_of(statistic) * self.heaviest, clip=statistic.longest,
            dimension=dimension,
        )  # fmt: skip
        # Within a chunk, over the chunks and over the clients sums are chains in double precision, of weights that add
        # up to one.
        chain = CHUNK + len(self.sizes) + max(self.records) // CHUNK + 1
        rounding = 4 * chain * UNIT_OF_ROUNDING * statistic.longest / release.sensitivity
        return BoundedMean(value, release, rounding)


def added(totals: Iterable[np.ndarray]) -> np.ndarray:
    """Return the sum over clients, in their order: where records are makes no difference to the last bit."""
    total: Any = 0.0
    for one in totals:
        total = total + one
    return np.asarray(total)


class TableCohort:
    """Clients whose records are here."""

    def __init__(self, clients: Sequence[Encoded], *, unit: str = "record", weighting: str = "records"):
        """Hold the records of all clients; with ``unit="group"`` each says which group its records belong to."""
        self._clients = [ClientTable(client, unit) for client in clients]
        sizes, records = tuple(one.units for one in self._clients), tuple(one.records for one in self._clients)
        self.census = Census(sizes, records, weighting)

    def answer(self, statistic: Statistic, number: int, multiplier: float = 0.0) -> BoundedMean:
        """Return the sum over all clients with its sensitivity; ``multiplier`` is for clients elsewhere."""
        value = self._total(statistic, self.census.weights)
        return self.census.bounded(statistic, number, value, len(value))

    def scores(self, scores: Scores, number: int, multiplier: float = 0.0) -> np.ndarray:
        """Return whole-number scores, with weights in units of the heaviest."""
        return scores.scores(self._total(scores, self.census.in_heaviest))

    def _total(self, statistic: Statistic | Scores, weights: Sequence[float]) -> np.ndarray:
        return added(client.total(statistic, weight) for client, weight in zip(self._clients, weights, strict=True))


def diameter_of(statistic: Statistic) -> float:
    """Return how far apart two units can be, one of which may have no record that counts."""
    return max(statistic.diameter, statistic.longest)


def label_numbers(labels: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the different labels in order, and the place of each record's; no long one makes others take more room."""
    texts = [str(label) for label in labels.tolist()]
    names = sorted(set(texts))
    places = {name: place for place, name in enumerate(names)}
    return names, np.array([places[text] for text in texts], dtype=np.int64)


def _unit_numbers(client: Encoded, unit: str) -> np.ndarray:
    """Return the number of each record's unit."""
    if unit == "client":
        return np.zeros(client.rows.size, dtype=np.int64)
    if unit == "record" or client.groups is None:
        return np.arange(client.rows.size)
    return label_numbers(client.groups)[1]
