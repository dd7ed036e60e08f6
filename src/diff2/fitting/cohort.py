r"""Who answers a statistic: clients with encoded records, in this process.

A unit is a record, a group of records or a client. Its vector is the mean of its records' vectors, which is bounded as
they are, and its weight is one over the number of units; with ``weighting="clients"``, one over the number of clients
and of units of its own client. So replacing a unit of weight w moves a sum by at most w times the diameter that the
statistic states, whatever the unit is. A null record, whose target cannot be used, has the vector zero; that is within
the longest length of all others, and the diameter is never below that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..privacy import BoundedMean, Release
from ..tables.encode import Encoded
from ..tables.rows import CHUNK
from .asking import Scores, Statistic

UNIT_OF_ROUNDING = 2.0**-53


class TableCohort:
    """Clients whose records are here."""

    def __init__(self, clients: Sequence[Encoded], *, unit: str = "record", weighting: str = "records"):
        """Hold the records of all clients; with ``unit="group"`` each says which group its records belong to."""
        units = [_unit_numbers(client, unit) for client in clients]
        self.sizes = tuple(int(numbers.max()) + 1 for numbers in units)  # units of each client
        self.records = tuple(client.rows.size for client in clients)
        total, count = sum(self.sizes), len(clients)
        of_unit = [1 / total if weighting == "records" else 1 / (count * size) for size in self.sizes]
        self.heaviest = max(of_unit)
        self._clients = [client.rows for client in clients]
        self._weights = [
            weight / np.bincount(numbers)[numbers] * client.usable
            for weight, numbers, client in zip(of_unit, units, clients, strict=True)
        ]
        self._caches: dict[tuple[int, int], dict[Any, Any]] = {}

    def answer(self, statistic: Statistic, number: int) -> BoundedMean:
        """Return the weighted sum of the records' vectors, with how far replacing one unit can move it."""
        value = self._total(statistic, 1.0)
        release = Release(
            number, statistic.purpose, sensitivity=_diameter(statistic) * self.heaviest, clip=statistic.longest,
            dimension=len(value),
        )  # fmt: skip
        # Within a chunk and over the chunks sums are chains in double precision, of weights that add up to one.
        chain = CHUNK + sum(records // CHUNK + 1 for records in self.records)
        rounding = 4 * chain * UNIT_OF_ROUNDING * statistic.longest / release.sensitivity
        return BoundedMean(value, release, rounding)

    def scores(self, scores: Scores) -> np.ndarray:
        """Return whole-number scores, with weights in units of the heaviest."""
        return scores.scores(self._total(scores, 1 / self.heaviest))

    def _total(self, statistic: Statistic | Scores, scale: float) -> np.ndarray:
        parts = []
        for p, (rows, weights) in enumerate(zip(self._clients, self._weights, strict=True)):
            for place, part in rows.chunks():
                cache = self._caches.setdefault((p, place.start), {})
                parts.append(statistic.total(part, scale * weights[place], cache))
        return np.sum(parts, axis=0)


def _diameter(statistic: Statistic) -> float:
    return max(statistic.diameter, statistic.longest)


def _unit_numbers(client: Encoded, unit: str) -> np.ndarray:
    """Return the number of each record's unit."""
    if unit == "client":
        return np.zeros(client.rows.size, dtype=np.int64)
    if unit == "record" or client.groups is None:
        return np.arange(client.rows.size)
    return np.unique(client.groups.astype(str), return_inverse=True)[1]
