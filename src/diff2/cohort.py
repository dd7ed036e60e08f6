r"""The cohort: the one seam between an algorithm and the records.

An algorithm asks for the mean of clipped gradients or of clipped differences, and gets it with its sensitivity.
Whether the records are in this process or at several sites is the cohort's business.

Sensitivity, for replacing one record of client p, with :math:`C` the clipping radius:

* ``weighting="clients"``: the mean over clients of the clients' means; record weight :math:`1/(P n_p)`, sensitivity
  :math:`2C/(P n_{min})`;
* ``weighting="records"``: the mean over all records; record weight :math:`1/N`, sensitivity :math:`2C/N`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ._types import Vector
from ._validate import one_of
from .clients import Client
from .gradients import Engine, FeatureCache, Masks, Records, rounding_allowance
from .privacy import BoundedMean, NoiseSource

WEIGHTINGS = ("clients", "records")


class Cohort(Protocol):
    """What an algorithm may ask of the records' owners. Vectors in, bounded means out; no record ever passes."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of records of each client, which is public."""
        ...

    def clipped_gradient(self, params: Vector, radius: float, *, round: int, remember: bool = True) -> BoundedMean:
        """Return the mean of the per-record gradients at ``params``, each clipped to ``radius``.

        ``remember`` says that a difference to ``params`` may be asked for next.
        """
        ...

    def clipped_difference(self, params: Vector, previous: Vector, radius: float, *, round: int) -> BoundedMean:
        """Return the mean of gradient(params) - gradient(previous), each record's difference clipped to ``radius``."""
        ...


def effective_records(client_sizes: Sequence[int], weighting: str) -> int:
    """Return M such that a record has weight at most 1/M in the mean: n_min P, or N.

    >>> effective_records([100, 300], "clients"), effective_records([100, 300], "records")
    (200, 400)
    """
    one_of("weighting", weighting, WEIGHTINGS)
    return min(client_sizes) * len(client_sizes) if weighting == "clients" else sum(client_sizes)


class LocalCohort:
    """All clients in this process. They go through the engine in one pass, with one weight a record."""

    def __init__(
        self,
        engine: Engine,
        clients: Sequence[Client],
        *,
        weighting: str = "clients",
        mask_source: NoiseSource | None = None,
    ):
        """``mask_source`` gives the masks of a model that drops units at random."""
        self._engine = engine
        self._sizes = tuple(client.size for client in clients)
        self._records_in_mean = effective_records(self._sizes, weighting)
        self._rounding = rounding_allowance(engine.flat.dtype)
        self._mask_source = mask_source
        self._cache = FeatureCache()
        flat = engine.flat
        # Weights relative to the largest, so that they are exactly 1 for clients of equal size; divided out at the end.
        smallest = min(self._sizes)
        relative = [smallest / size if weighting == "clients" else 1.0 for size in self._sizes]
        weights = [
            torch.full((size,), share, dtype=flat.dtype, device=flat.device)
            for size, share in zip(self._sizes, relative, strict=True)
        ]
        self.records = Records(
            _joined([client.inputs for client in clients]),
            _joined([client.targets for client in clients]),
            torch.cat(weights),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        return self._sizes

    def clipped_gradient(self, params: Vector, radius: float, *, round: int, remember: bool = True) -> BoundedMean:
        total = self._engine.clipped_gradient_sum(
            params, self.records, radius, cache=self._cache, masks=self._masks(round), remember=remember
        )
        return self._mean(total, radius)

    def clipped_difference(self, params: Vector, previous: Vector, radius: float, *, round: int) -> BoundedMean:
        if radius == 0:  # equal iterates: the difference is zero for every data set
            return self._mean(torch.zeros(len(self._engine.flat), dtype=torch.float64, device=params.device), 0.0)
        total = self._engine.clipped_difference_sum(
            params, previous, self.records, radius, cache=self._cache, masks=self._masks(round)
        )
        return self._mean(total, radius)

    def exact_gradient(self, params: Vector) -> Vector:
        """Return the mean gradient without clipping and noise. **Leaks**: for experiments on public data only."""
        masks = None if self._mask_source is None else Masks(b"exact")
        return (
            self._engine.clipped_gradient_sum(params, self.records, float("inf"), masks=masks) / self._records_in_mean
        )

    def _mean(self, total: Vector, radius: float) -> BoundedMean:
        count = self._records_in_mean
        return BoundedMean(total / count, sensitivity=2 * radius / count, clip=radius, rounding=self._rounding)

    def _masks(self, round: int) -> Masks | None:
        source = self._mask_source
        return None if source is None else Masks(source.bytes(32, "masks", round))


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
