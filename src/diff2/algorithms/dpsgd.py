r"""DP-SGD: the clipped mean gradient of a random batch with noise, every round (Abadi et al. 2016).

Two ways to draw the batch, which are priced differently; the formula of one must never be used for the other:

* ``sampling="fixed"``: b records without replacement, from each client in proportion to its size. Sensitivity
  :math:`2 C / b` under *replacing one record*, as in the rest of the library.
* ``sampling="poisson"``: every record with probability q = b/N, independently; the sum is divided by the *expected*
  size b. Sensitivity :math:`C / b` under *adding or removing one record*: another guarantee, and its sentence says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from .._types import Vector
from .._validate import at_least, one_of, positive
from ..errors import InvalidArgument
from ..privacy.mechanism import ADD_OR_REMOVE_ONE, REPLACE_ONE
from ..questions.population import Batch, Population
from ..questions.round import GRADIENT, Estimate, Planned, Round
from ..routines import Routine
from .base import Estimator, require_finite

SAMPLINGS = ("fixed", "poisson")


@dataclass(frozen=True)
class DPSGD(Estimator):
    """DP-SGD with any routine.

    Args:
        batch_size: b, of all clients together; with Poisson sampling its expectation.
        clip_gradient: the radius for a record's gradient.
        sampling: ``"fixed"`` (replace-one) or ``"poisson"`` (add-or-remove-one).
    """

    rounds: int
    batch_size: int
    clip_gradient: float
    routine: Routine
    sampling: str = "fixed"
    name: ClassVar[str] = "dpsgd"

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        at_least("batch_size", self.batch_size, 1)
        positive("clip_gradient", self.clip_gradient, infinite=True)
        one_of("sampling", self.sampling, SAMPLINGS)

    @property
    def adjacency(self) -> str:  # type: ignore[override]
        return REPLACE_ONE if self.sampling == "fixed" else ADD_OR_REMOVE_ONE

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        yield Planned(GRADIENT, population.exposure(round, self._batch(population)))

    def shares(self) -> Mapping[str, float]:
        return {GRADIENT: 1.0}

    def check(self, population: Population, private: bool) -> None:
        if self.batch_size > sum(population.sizes):
            raise InvalidArgument(
                f"batch_size={self.batch_size} is more than the {sum(population.sizes)} records there are; lower it"
            )
        population.check(self._batch(population))
        if private:
            require_finite("clip_gradient", self.clip_gradient)

    def init(self, params: Vector, population: Population) -> dict[str, Any]:
        return {}

    def estimate(self, state: dict[str, Any], round: Round) -> tuple[Estimate, dict[str, Any]]:
        batch = self._batch(round.cohort.population)
        mean = round.cohort.clipped_gradient(round.params, self.clip_gradient, round=round.number, batch=batch)
        release = round.release(mean, GRADIENT)
        return Estimate(release.value, release.variance), state

    def _batch(self, population: Population) -> Batch:
        if self.sampling == "fixed":
            return Batch(size=self.batch_size)
        return Batch(rate=self.batch_size / sum(population.sizes))
